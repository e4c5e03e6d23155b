// A model ready to run: weights, threads, kernels and caches.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/cpu/cache.h"
#include "backend/cpu/draft.h"
#include "backend/cpu/native.h"
#include "backend/cpu/thread_team.h"
#include "backend/cpu/tiles.h"
#include "core/status.h"
#include "dispatch/chain_policy.h"
#include "engine/model_loader.h"
#include "engine/rank_processes.h"
#include "m3/trace.h"
#include "m3/weights.h"

namespace monolayer::engine {

// Element types of keys and values, and of index keys: "bf16", or E4M3 with scale 1 for "fp8" and
// "fp8_e4m3". "auto": BF16; but E4M3 for index keys beside E4M3 on "cuda", whose kernels for
// MiniMax-M3 take no other pair. (The CPU gains nothing by rounding what selects blocks.)
struct CacheTypes {
  std::string kv = "auto", index = "auto";
};
// kUnsupported naming the flag and the values allowed.
Result<cpu::CacheOptions> cache_options(const CacheTypes& types, const std::string& backend);
// "bf16" or "fp8_e4m3".
std::string cache_type_name(DType type);

// kUnsupported where this build does not have it.
Status check_backend(const std::string& backend);

struct NativeRunOptions {
  std::string backend = "cpu";  // or "cuda", if this build has it
  int threads = 0;              // 0: one per physical core
  CacheTypes cache_types;
  std::int64_t context_tokens = 0;       // what the caches must hold
  std::int64_t longest_tokens = 0;       // of one sequence; 0: as many
  std::string context_flag = "context";  // named when it does not fit
  std::string tiles;                     // kernel variant; empty: the best
  // "native": op by op. "auto": fused where deployment and step allow it and, with "cuda", where
  // that was measured to be faster. "mono": fused where they allow it, however fast; a deployment
  // that never allows it is refused.
  std::string path = "auto";
  // Tensor-parallel, as threads of this process; with cuda a device each, or all on the one device.
  int ranks = 1;
  // What a draft needs beside the model on the host: its files, and bytes of every block.
  std::int64_t draft_bytes = 0, draft_block_bytes = 0;
  RankProcesses* processes = nullptr;  // borrowed: the ranks are processes, instead of `ranks`
  ReadProgressCallback progress;
};

class NativeRun {
 public:
  // Checks the memory before anything is loaded. Borrows `model`.
  static Result<std::unique_ptr<NativeRun>> load(const OpenModel& model,
                                                 const NativeRunOptions& options);

  const m3::ModelWeights& weights() const { return weights_; }
  // The draft and its caches lie where the model's do. Borrows all but the run, which must outlive
  // it.
  Result<std::unique_ptr<cpu::Draft>> make_draft(const m3::DraftConfig& config,
                                                 const m3::DraftWeights& weights,
                                                 const m3::ModelConfig& target);
  bool on_device() const { return on_device_; }
  cpu::Native& native() { return *native_; }
  cpu::CachePool& pool() { return *pool_; }
  cpu::ThreadTeam& team() { return *team_; }
  const cpu::Tiles& tiles() const { return *tiles_; }
  // Which family of kernels computes the layers with experts and why, of backends that have
  // several; otherwise empty.
  const std::string& kernel_family() const { return kernel_family_; }
  // Decides the path of every step. Counters are thread-safe.
  const dispatch::ChainPolicy* policy() const { return policy_.get(); }

  // Appends tokens to one sequence that owns the whole pool (for traces and benches); returns the
  // logits of the last `logit_rows`.
  Result<std::vector<float>> append(std::span<const std::int32_t> tokens, std::int64_t logit_rows,
                                    m3::TraceSink* sink);
  // Gives up everything but the threads, which the caller gets; nothing else may be called then.
  std::unique_ptr<cpu::ThreadTeam> release_team();
  // Starts that sequence again with `length` tokens taken as cached.
  void rewind(std::int64_t length) { length_ = length; }

 private:
  NativeRun() = default;
  m3::ModelWeights weights_;
  std::unique_ptr<cpu::ThreadTeam> team_;
  const cpu::Tiles* tiles_ = nullptr;
  std::unique_ptr<dispatch::ChainPolicy> policy_;  // outlives the chain that asks it
  std::unique_ptr<cpu::Native> native_;
  std::unique_ptr<cpu::CachePool> pool_;
  std::string kernel_family_;
  std::vector<std::int32_t> table_;
  std::int64_t length_ = 0;
  bool on_device_ = false;
};

}  // namespace monolayer::engine
