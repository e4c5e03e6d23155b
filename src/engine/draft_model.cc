#include "engine/draft_model.h"

#include <utility>

namespace monolayer::engine {

std::int64_t OpenDraft::block_bytes(const m3::ModelConfig& target) const {
  return cpu::CachePool::page_bytes(cpu::Draft::cache_shape(config, target), {}) +
         Speculator::boundary_bytes(config);
}

std::int64_t OpenDraft::host_block_bytes(const m3::ModelConfig& target,
                                         const std::string& backend) const {
  return backend == "cuda" ? Speculator::boundary_bytes(config) : block_bytes(target);
}

Result<std::unique_ptr<OpenDraft>> open_draft(const std::string& draft,
                                              const m3::ModelConfig& target) {
  ML_ASSIGN_OR_RETURN(OpenCheckpoint opened, open_checkpoint(draft));
  auto& [folder, checkpoint] = opened;
  ML_ASSIGN_OR_RETURN(
      m3::DraftConfig config,
      m3::parse_draft_config(checkpoint.config(), checkpoint.config_name(), target));
  return std::unique_ptr<OpenDraft>(
      new OpenDraft{std::move(folder), std::move(checkpoint), std::move(config)});
}

Result<std::unique_ptr<DraftRun>> DraftRun::load(const OpenDraft& draft, const OpenModel& target,
                                                 NativeRun& run, SpeculationOptions options) {
  ML_RETURN_IF_ERROR(check_speculation(options));
  auto loaded = std::unique_ptr<DraftRun>(new DraftRun());
  ML_RETURN_IF_ERROR(draft.checkpoint.touch_all());
  ML_ASSIGN_OR_RETURN(loaded->weights_, m3::bind_draft_weights(draft.config, draft.checkpoint));
  ML_RETURN_IF_ERROR(draft.checkpoint.verify_unchanged());
  ML_ASSIGN_OR_RETURN(loaded->draft_,
                      run.make_draft(draft.config, loaded->weights_, target.config));
  const auto shape = cpu::Draft::cache_shape(draft.config, target.config);
  const std::int64_t pages = run.pool().pages();
  ML_ASSIGN_OR_RETURN(loaded->pool_, run.on_device() ? cpu::CachePool::reserve(shape, {}, pages)
                                                     : cpu::CachePool::create(shape, {}, pages));
  // A device's caches are taken now, not in the first step.
  if (run.on_device()) ML_RETURN_IF_ERROR(loaded->draft_->prepare_for(1, 1, *loaded->pool_));
  ML_RETURN_IF_ERROR(run.native().capture(draft.config.aux_layers));
  loaded->speculator_ = std::make_unique<Speculator>(draft.config, *loaded->draft_, *loaded->pool_,
                                                     std::move(options));
  return loaded;
}

}  // namespace monolayer::engine
