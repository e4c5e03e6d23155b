#include "engine/draft_model.h"

#include <utility>

namespace monolayer::engine {

std::int64_t OpenDraft::block_bytes(const m3::ModelConfig& target) const {
  return cpu::CachePool::page_bytes(cpu::Draft::cache_shape(config, target), {}) +
         Speculator::boundary_bytes(config);
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
                      cpu::Draft::create(draft.config, loaded->weights_, target.config,
                                         run.weights(), run.team(), &run.tiles()));
  ML_ASSIGN_OR_RETURN(loaded->pool_,
                      cpu::CachePool::create(cpu::Draft::cache_shape(draft.config, target.config),
                                             {}, run.pool().pages()));
  ML_RETURN_IF_ERROR(run.native().capture(draft.config.aux_layers));
  loaded->speculator_ = std::make_unique<Speculator>(draft.config, *loaded->draft_, *loaded->pool_,
                                                     std::move(options));
  return loaded;
}

}  // namespace monolayer::engine
