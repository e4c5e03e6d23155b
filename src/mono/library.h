// The library proper: specs in, executor out, steps through it. The public C interface and the
// serving adapter are thin layers over this class.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/prefetch.h"
#include "core/status.h"
#include "mono/executor.h"
#include "mono/library_spec.h"
#include "mono/library_step.h"
#include "tp/group.h"

namespace monolayer::mono {

// An executor under construction on one rank. Its stages run one after the other on every rank, and
// after each the ranks agree before any goes on. Destroying it frees what this rank holds, and
// nothing in that is collective.
class Construction {
 public:
  virtual ~Construction() = default;
  virtual std::span<const std::string_view> stages() const = 0;  // the same on every rank
  virtual Status run(std::size_t stage) = 0;
  // After the last stage.
  virtual std::unique_ptr<Executor> finish() = 0;
};

// How to build and run.
struct BuildOptions {
  int workers = 0;                            // threads of this rank, 0 = the backend's choice
  std::chrono::milliseconds timeout{10'000};  // of every wait inside a step
};

// What a backend brings.
class LibraryBackend {
 public:
  virtual ~LibraryBackend() = default;
  virtual const DeviceTraits& traits() const = 0;
  // Whether this rank can run these layers: kUnsupported makes all ranks fall back, anything else
  // is an error. Allocates nothing.
  virtual Status supports(const ExecutorConfig& config) const = 0;
  // Allocates nothing yet.
  virtual std::unique_ptr<Construction> construct(ExecutorConfig config,
                                                  const BuildOptions& options) = 0;
};

struct LibraryOptions {
  std::chrono::milliseconds timeout{10'000};  // of every wait between ranks
  // Lines worth an operator's attention; null: stderr.
  std::function<void(const std::string&)> log;
};

// Views of a layer's outputs: BF16 [rows, hidden], contiguous.
struct LibraryOutput {
  bf16_t *hidden = nullptr, *residual = nullptr;
};

class Library {
 public:
  // Collective; `group` null with one rank. Order: this rank's checks, agreement, backend support,
  // agreement (kUnsupported on some ranks and no other failure anywhere: kUnsupported on all), then
  // each construction stage and an agreement. A rank that failed returns its own error, the others
  // kPeerRefused with the joined reasons; nothing stays allocated on any.
  static Result<std::unique_ptr<Library>> create(LibraryInput input, LibraryBackend& backend,
                                                 tp::Group* group,
                                                 const LibraryOptions& options = {});
  // Never collective. Of a group and not closed: leaks what peers may still read, and says so.
  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  // Once per step; a step left unfinished is abandoned. Changes nothing when it refuses.
  Status prepare_step(const ml_step& step);
  // `count` layers from layer id `first`, the next in order. Inputs as ml_mono_forward_layer says.
  // A failure of the executor is final: the caches may be half written.
  Status forward_layers(std::int64_t first, std::int64_t count, const ml_tensor& hidden,
                        const ml_tensor& residual, const ml_tensor& positions, LibraryOutput& out);
  // kFailedPrecondition naming the first weight or cache whose data pointer is not the one bound at
  // create; kInvalidArgument for a list of another length. Host cost only.
  Status check_storage(std::span<const void* const> pointers) const;
  // Whether it would find nothing wrong.
  bool has_storage(std::span<const void* const> pointers) const;
  // Collective, idempotent: the executor's close, then agreement. On failure memory is kept.
  Status close();

  // Asks for what prepare_step() touches for so many rows, once a step: for whoever has something
  // to do until then.
  void ask_for_step(std::int64_t rows);

  bool closed() const { return closed_; }
  std::int64_t rows() const { return step().count; }
  std::int64_t hidden_size() const { return config_.hidden_size; }
  const LibraryInput& input() const { return input_; }
  Executor& executor() { return *executor_; }
  std::span<const void* const> storage() const { return storage_; }

 private:
  Library() = default;
  const ExpandedStep& step() const { return steps_[current_]; }
  Status refused_call(const char* call) const;
  Status refused_order(std::int64_t first, std::int64_t count) const;
  Status refused_kind(const ml_step& step) const;
  void fail(const Status& why);
  Status prepare_whole(const ml_step& step);
  Status prepare_older(const ml_step& step);
  Status prepare_examined(const ml_step& step, ExpandedStep& next);
  Status prepare_executor(const ExpandedStep& next);
  struct LayerMemory;
  Status run_next(LayerMemory memory, std::int64_t count, const ml_tensor& hidden,
                  const ml_tensor& residual, LibraryOutput& out);
  Status run_unusual(std::int64_t count, const ml_tensor& hidden, const ml_tensor& residual,
                     const ml_tensor& positions, LibraryOutput& out);
  Status check_rows(const char* name, const ml_tensor& tensor) const;
  Status check_positions(const ml_tensor& positions) const;
  void take_traits(const DeviceTraits& traits);
  LayerMemory layer_memory(const ml_tensor& positions) const;
  std::uint64_t unusual_rows(const ml_tensor& tensor, std::int64_t rows) const;  // 0: usual
  bool usual_positions(const ml_tensor& tensor, const ExpandedStep& now) const;
  void log(const std::string& line) const;

  std::int64_t layers_left() const {
    return prepared_ ? static_cast<std::int64_t>(layer_ids_.size() - next_layer_) : 0;
  }

  // What a layer's call touches, in as few lines as it takes; then what a step touches beside it.
  alignas(kCacheLine) std::unique_ptr<Executor> executor_;
  const void* executor_virtuals_ = nullptr;
  std::size_t next_layer_ = 0;           // index into the specs
  std::vector<std::int32_t> layer_ids_;  // of the specs
  unsigned current_ = 0, next_buffer_ = 0;
  bool usable_ = false;  // built, not closed, nothing failed
  bool prepared_ = false, host_addressable_ = true;
  bool asked_ = false;         // for the next step's memory
  std::int32_t next_id_ = -1;  // of the layer that comes next, -1: none
  // The second line.
  LibraryOutput outputs_[2];
  std::array<std::uint64_t, 3> usual_head_{};  // of an activation
  std::int32_t hidden_size_ = 0;
  std::uint32_t activation_mask_ = 0;  // its alignment - 1
  // Of a step.
  std::int32_t first_id_ = -1;  // of the layers
  StepMemory executor_memory_;
  StepLimits limits_;
  std::array<ExpandedStep, 2> steps_;  // the prepared one, and room for the next

  LibraryInput input_;
  m3::ModelConfig config_;
  DeviceTraits traits_;
  LibraryOptions options_;
  tp::Group* group_ = nullptr;
  std::vector<const void*> storage_;
  bool closed_ = false;
  Status failure_;               // of the executor; final
  std::vector<bf16_t> buffers_;  // [2][hidden, residual][kMaxRows, hidden_size], 64-byte aligned
};

// Memory that peers or graphs may still reach: kept, on purpose and findable, to the process's end.
void keep_until_exit(void* owned);

// Joins one rank's status with the others' at a point named `stage`. ok only if all are;
// kUnsupported only if every failing rank says so; the failing rank gets its own error back and the
// others kPeerRefused. Without a group: `mine`.
Status agree_at(tp::Group* group, const std::string& stage, const Status& mine,
                std::chrono::milliseconds timeout);

}  // namespace monolayer::mono
