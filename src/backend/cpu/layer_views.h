// The library's borrowed layers and caches as the tile functions see them, and back.
#pragma once

#include "backend/cpu/cache.h"
#include "backend/cpu/model_view.h"
#include "core/status.h"
#include "m3/config.h"
#include "mono/executor.h"

namespace monolayer::cpu {

LayerView view_layer(const mono::LayerView& layer);
Caches view_caches(const m3::ModelConfig& config, const std::vector<mono::CacheView>& caches);

// What an executor is configured with to run the layers of `view` (one rank's share, described by
// `config`) on a pool. Borrows both.
mono::ExecutorConfig executor_config(const m3::ModelConfig& config, const ModelView& view,
                                     const Caches& caches);

// kUnsupported or kInvalidArgument, naming layer and field, where the stages cannot take what is
// configured.
Status check_executor_config(const mono::ExecutorConfig& config);

}  // namespace monolayer::cpu
