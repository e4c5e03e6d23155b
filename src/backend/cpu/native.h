// The native chain on the CPU: the model op by op, any mix of prefill and decode rows.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/cpu/cache.h"
#include "backend/cpu/thread_team.h"
#include "backend/cpu/tiles.h"
#include "core/status.h"
#include "m3/config.h"
#include "m3/rope.h"
#include "m3/trace.h"
#include "m3/weights.h"

struct ml_cache_spec;

namespace monolayer::tp {
class Group;
}
namespace monolayer::mono {
class Lifecycle;
class StepPaths;
}  // namespace monolayer::mono

namespace monolayer::cpu {

// The new rows of one sequence in a step.
struct StepSequence {
  std::span<const std::int32_t> tokens;  // at positions start, start + 1, ...
  std::int64_t start = 0;                // tokens already in the cache
  std::span<const std::int32_t> pages;   // block table: page of position p is pages[p / 128]
  std::int64_t logit_rows = 1;           // results of the last n rows (0: none)
  bool greedy = false;  // those are their likeliest tokens (Native::greedy_ids()), not their logits
};

// Bytes that had to move, counted where they are read or written; the currency of the benches.
struct Traffic {
  std::int64_t weights = 0;  // stored weight bytes incl. scales, each expert once per step
  std::int64_t kv_read = 0, index_read = 0, cache_written = 0;
  std::int64_t total() const { return weights + kv_read + index_read + cache_written; }
  Traffic& operator+=(const Traffic& more) {
    weights += more.weights;
    kv_read += more.kv_read;
    index_read += more.index_read;
    cache_written += more.cache_written;
    return *this;
  }
  // What has moved since `before`, of the same counts.
  Traffic since(const Traffic& before) const {
    return {weights - before.weights, kv_read - before.kv_read, index_read - before.index_read,
            cache_written - before.cache_written};
  }
};

// Which way the steps of a chain went.
struct PathCounts {
  std::int64_t native = 0, mono = 0;
  std::string why_native;  // of the last native step that the fused path might have taken
};

// What a decision about one step may know of it: the same on every rank.
struct StepShape {
  std::int64_t rows = 0, requests = 0;
  std::int64_t shortest_query = 0, longest_query = 0;  // rows of one request
  std::int64_t longest_context = 0;                    // tokens, the step's own rows counted
  std::int64_t max_context = 0;                        // of the caches
  std::int64_t table_width = 0;                        // blocks of the longest table
  std::int64_t highest_slot = 0;                       // block x 128 + offset
  std::int64_t key_groups = 0;  // groups of 16 tokens that its rows see, over all rows
};

// Where the fused path was measured to be the faster one: steps of at most `rows` rows that see at
// most `groups` groups of 16 tokens over all rows.
struct FusedSpan {
  std::int64_t rows = 0, groups = 0;
};

// Takes the steps of one chain, each the way that is decided for it. Every rank has its own, and
// all must decide alike: by the shape and what the ranks have agreed on.
class StepDriver {
 public:
  virtual ~StepDriver() = default;
  // `generation`: another number whenever other caches are bound, which a library of the old ones
  // must not outlive.
  virtual Status step(const StepShape& shape, std::int64_t generation, mono::StepPaths& paths) = 0;
  // The same for a step that is only made ready for: counted nowhere.
  virtual Status prepare(const StepShape& shape, std::int64_t generation,
                         mono::StepPaths& paths) = 0;
  // Memory that step() touches, as long as the driver lives.
  virtual std::array<std::span<const std::byte>, 2> step_memory() const { return {}; }
  // Why the last step went native, or an empty text.
  virtual const std::string& reason() const = 0;
};

// What is bound now, for a library that is built anew.
using CacheSource = std::function<std::vector<ml_cache_spec>()>;

// Whoever decides which steps run fused, for the chains of all ranks of this process.
class PathPolicy {
 public:
  virtual ~PathPolicy() = default;
  // For one chain, whose library lives in `lifecycle`; borrows it. `rank` only says whose steps are
  // counted. Safe from the threads of several ranks.
  virtual std::unique_ptr<StepDriver> driver(mono::Lifecycle& lifecycle, CacheSource caches,
                                             int rank) = 0;
};

// The same decision for chains whose fused path is their own and no library: whether a step may go
// through it. Every rank asks, each on its own thread, and all get the same answer: it depends on
// the shape alone.
class StepJudge {
 public:
  virtual ~StepJudge() = default;
  // `rank` only says who asks, so that a step is counted once.
  virtual bool fused(const StepShape& shape, int rank) = 0;
  // Why a step of this shape goes native.
  virtual std::string reason(const StepShape& shape) const = 0;
};

struct NativeOptions {
  const Tiles* tiles = nullptr;    // null: the best available
  std::int64_t prefill_tile = 64;  // rows of a matmul tile; changes speed, never bits
  // Null: rows decide for themselves. Borrowed; asked on the calling thread, for one sequence.
  m3::ChoiceSource* choices = nullptr;
  // Replaces the angles of rope_theta; covers the positions of every step. Borrowed.
  m3::RotaryTable rotary{};
  // One rank of a group, or null for the whole model. `config` and `weights` are the whole model's;
  // the caches hold m3::rank_config()'s heads. Every call is then collective, and every rank gets
  // the same logits.
  tp::Group* group = nullptr;
  // Sparse layers with experts run through the library in steps of at most 16 rows, 8 of a
  // sequence, with the same bits; other layers and steps op by op.
  bool fused = false;
  // With `fused`: decides every step, and may let none through; null: whatever the limits above
  // allow. Borrowed.
  PathPolicy* policy = nullptr;
};

class Native {
 public:
  // Borrows everything. Refuses shapes the kernels do not take, by name.
  static Result<std::unique_ptr<Native>> create(const m3::ModelConfig& config,
                                                const m3::ModelWeights& weights, ThreadTeam& team,
                                                const NativeOptions& options);
  virtual ~Native() = default;

  // Runs one step: writes the rows' cache entries, then returns logits [sum of logit_rows, vocab]
  // in `logits`, greedy sequences left out. Everything is validated before the first cache byte is
  // written: token ids, positions, table length, page ids within the pool. A row's bits depend
  // neither on the other rows, nor on the chunking, nor on the number of threads. Non-finite logits
  // are kInternal errors. `sink` may be null; sinks see rows of all sequences (use one sequence
  // when tracing).
  virtual Status step(std::span<const StepSequence> sequences, CachePool& cache,
                      std::vector<float>& logits, m3::TraceSink* sink) = 0;

  // Of the last step: the likeliest token of each result row of its greedy sequences, in order; the
  // lowest id among equal logits.
  virtual std::span<const std::int32_t> greedy_ids() const = 0;

  // Makes the memory of steps like this one: as many rows, as long a context, logits of as many
  // rows. Smaller steps then take no memory that is not returned at their end. Checked like a step;
  // nothing is computed or written. Collective over the group.
  virtual Status prepare_for(std::span<const StepSequence> /*largest*/, CachePool& /*cache*/) {
    return {};
  }

  // Traffic of the last step and since creation.
  virtual const Traffic& last_traffic() const = 0;
  virtual const Traffic& total_traffic() const = 0;
  virtual const PathCounts& paths() const {
    static const PathCounts none;
    return none;
  }
  // Which family of kernels computes the layers with experts, and why, after prepare(); empty where
  // there is only one.
  virtual std::string kernel_family() const { return {}; }
  // From now on every step keeps the residual stream ENTERING these layers (ascending), of all its
  // rows. kUnsupported where a chain cannot.
  virtual Status capture(std::span<const std::int64_t> layers);
  // What the last step kept: [rows, layers, hidden_size], BF16 values.
  virtual std::span<const float> captured() const { return {}; }
  // Takes now what steps on this pool need beyond it (a device's caches), instead of in the first
  // step. kResourceExhausted with the number that was missing.
  virtual Status prepare(CachePool& /*cache*/) { return {}; }
  // Collective over the group, before it is closed; idempotent.
  virtual Status close() { return {}; }
};

}  // namespace monolayer::cpu
