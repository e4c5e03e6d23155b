#include "engine/native_run.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "backend/cpu/ranked.h"
#ifdef MONOLAYER_CUDA
#include "backend/cuda/draft.h"
#include "backend/cuda/measured.h"
#include "backend/cuda/ranks.h"
#endif
#include "engine/memory_check.h"

namespace monolayer::engine {

namespace {

Result<DType> cache_type(const char* flag, const std::string& word, DType automatic) {
  if (word == "auto") return automatic;
  if (word == "bf16") return DType::kBF16;
  if (word == "fp8" || word == "fp8_e4m3") return DType::kE4M3;
  return Status(Code::kUnsupported, flag, "'" + word + "' is not one of auto, bf16, fp8, fp8_e4m3");
}

[[maybe_unused]] Status no_cuda() {
  return {Code::kUnsupported, "--backend",
          "cuda is not part of this build (cmake --preset cuda has it); it runs on cpu"};
}

}  // namespace

Result<cpu::CacheOptions> cache_options(const CacheTypes& types, const std::string& backend) {
  cpu::CacheOptions options;
  ML_ASSIGN_OR_RETURN(options.kv, cache_type("--kv-cache-dtype", types.kv, DType::kBF16));
  const DType automatic = backend == "cuda" ? options.kv : DType::kBF16;
  ML_ASSIGN_OR_RETURN(options.index, cache_type("--index-cache-dtype", types.index, automatic));
  return options;
}

std::string cache_type_name(DType type) { return type == DType::kE4M3 ? "fp8_e4m3" : "bf16"; }

Status check_backend(const std::string& backend) {
  if (backend == "cpu") return {};
#ifdef MONOLAYER_CUDA
  if (backend == "cuda") return {};
#endif
  return no_cuda();
}

namespace {

#ifdef MONOLAYER_CUDA
Result<std::unique_ptr<cpu::Native>> cuda_native(const m3::ModelConfig& config,
                                                 const m3::ModelWeights& weights,
                                                 const NativeRunOptions& options,
                                                 cpu::ThreadTeam& team, cpu::StepJudge& policy) {
  cuda::NativeOptions native;
  native.policy = &policy;
  native.team = &team;
  return cuda::create_ranks(config, weights, options.ranks, native);
}
std::span<const cpu::FusedSpan> measured(const m3::ModelConfig& config,
                                         const m3::ModelWeights& weights,
                                         const NativeRunOptions& options) {
  if (options.backend != "cuda") return {};
  const auto caches = cache_options(options.cache_types, options.backend);
  return caches.ok() ? cuda::fused_spans(config, weights, *caches, options.ranks)
                     : std::span<const cpu::FusedSpan>{};
}
#else
Result<std::unique_ptr<cpu::Native>> cuda_native(const m3::ModelConfig& /*config*/,
                                                 const m3::ModelWeights& /*weights*/,
                                                 const NativeRunOptions& /*options*/,
                                                 cpu::ThreadTeam& /*team*/,
                                                 cpu::StepJudge& /*policy*/) {
  return no_cuda();
}
std::span<const cpu::FusedSpan> measured(const m3::ModelConfig& /*config*/,
                                         const m3::ModelWeights& /*weights*/,
                                         const NativeRunOptions& /*options*/) {
  return {};
}
#endif

}  // namespace

Result<std::unique_ptr<NativeRun>> NativeRun::load(const OpenModel& model,
                                                   const NativeRunOptions& options) {
  ML_ASSIGN_OR_RETURN(const cpu::CacheOptions cache,
                      cache_options(options.cache_types, options.backend));
  ML_RETURN_IF_ERROR(check_backend(options.backend));
  ML_RETURN_IF_ERROR(m3::rank_shape(model.config, 0, options.ranks).status());
  if (options.context_tokens < 1 || options.context_tokens > model.config.max_positions)
    return Status(Code::kInvalidArgument, options.context_flag,
                  "is " + std::to_string(options.context_tokens) +
                      " tokens, the model takes 1 to " +
                      std::to_string(model.config.max_positions));
  MemoryNeed need;
  need.weight_bytes =
      static_cast<std::int64_t>(model.checkpoint.file_bytes()) + options.draft_bytes;
  // With cuda the caches are the device's.
  need.page_bytes = options.draft_block_bytes;
  if (options.backend == "cpu") need.page_bytes += cpu::CachePool::page_bytes(model.config, cache);
  need.page_tokens = m3::kPageTokens;
  need.context_tokens = options.context_tokens;
  ML_ASSIGN_OR_RETURN(const MemoryAvailable available, available_memory());
  ML_RETURN_IF_ERROR(check_memory(need, available, options.context_flag));

  auto run = std::unique_ptr<NativeRun>(new NativeRun());
  run->on_device_ = options.backend == "cuda";
  run->tiles_ = cpu::find_tiles(options.tiles);
  if (options.tiles.empty()) run->tiles_ = cpu::available_tiles().front();
  if (run->tiles_ == nullptr)
    return Status(Code::kInvalidArgument, "kernel",
                  "'" + options.tiles + "' is not available on this machine");
  ML_ASSIGN_OR_RETURN(run->team_, cpu::ThreadTeam::create({.threads = options.threads}));
  ML_ASSIGN_OR_RETURN(run->weights_, load_weights(model, options.progress));
  const std::int64_t pages = (options.context_tokens + m3::kPageTokens - 1) / m3::kPageTokens;
  // Caches on a device need no memory here.
  auto pool = options.backend == "cpu" ? cpu::CachePool::create(model.config, cache, pages)
                                       : cpu::CachePool::reserve(model.config, cache, pages);
  ML_ASSIGN_OR_RETURN(run->pool_, std::move(pool));
  const std::int64_t longest =
      options.longest_tokens > 0 ? options.longest_tokens : options.context_tokens;
  const int ranks = options.processes != nullptr ? options.processes->size() : options.ranks;
  cpu::NativeOptions chain{.tiles = run->tiles_};
  ML_ASSIGN_OR_RETURN(
      run->policy_,
      dispatch::ChainPolicy::create(model.config, run->weights_,
                                    {.backend = options.backend,
                                     .tensor_parallel = ranks,
                                     .max_model_length = longest,
                                     .kv_cache = cache.kv,
                                     .index_cache = cache.index},
                                    options.path, measured(model.config, run->weights_, options)));
  chain.fused = true;  // whether a step is, the policy says; it also counts those that are not
  chain.policy = run->policy_.get();
  if (options.backend == "cuda") {
    ML_ASSIGN_OR_RETURN(run->native_, cuda_native(model.config, run->weights_, options, *run->team_,
                                                  *run->policy_));
  } else if (options.processes != nullptr) {
    ML_ASSIGN_OR_RETURN(run->native_, options.processes->join(run->weights_, *run->policy_));
  } else if (options.ranks > 1) {
    // The ranks have pools of their own; this one stays untouched, so it is never resident.
    ML_ASSIGN_OR_RETURN(
        run->native_,
        cpu::make_ranked(
            model.config, run->weights_,
            {.ranks = options.ranks, .threads = options.threads, .cache = cache, .pages = pages},
            chain));
  } else {
    ML_ASSIGN_OR_RETURN(run->native_,
                        cpu::Native::create(model.config, run->weights_, *run->team_, chain));
  }
  ML_RETURN_IF_ERROR(run->native_->prepare(*run->pool_));
  run->kernel_family_ = run->native_->kernel_family();
  run->table_.resize(static_cast<std::size_t>(pages));
  std::iota(run->table_.begin(), run->table_.end(), 0);
  return run;
}

Result<std::unique_ptr<cpu::Draft>> NativeRun::make_draft(const m3::DraftConfig& config,
                                                          const m3::DraftWeights& weights,
                                                          const m3::ModelConfig& target) {
#ifdef MONOLAYER_CUDA
  if (on_device_) return cuda::create_draft(config, weights, target, weights_, {});
#endif
  return cpu::Draft::create(config, weights, target, weights_, *team_, tiles_);
}

std::unique_ptr<cpu::ThreadTeam> NativeRun::release_team() {
  native_.reset();
  pool_.reset();
  weights_ = {};
  return std::move(team_);
}

Result<std::vector<float>> NativeRun::append(std::span<const std::int32_t> tokens,
                                             std::int64_t logit_rows, m3::TraceSink* sink) {
  cpu::StepSequence sequence;
  sequence.tokens = tokens;
  sequence.start = length_;
  sequence.pages = table_;
  sequence.logit_rows = logit_rows;
  std::vector<float> logits;
  ML_RETURN_IF_ERROR(native_->step({&sequence, 1}, *pool_, logits, sink));
  length_ += static_cast<std::int64_t>(tokens.size());
  return logits;
}

}  // namespace monolayer::engine
