#include "dispatch/checked_backend.h"

#include <algorithm>

#include "backend/cpu/native_layers.h"

namespace monolayer::dispatch {
namespace {

// The fused executor's stages, and the control at the end.
class CheckedConstruction : public mono::Construction {
 public:
  CheckedConstruction(std::unique_ptr<mono::Construction> fused, mono::ExecutorConfig config,
                      int workers, std::vector<std::int64_t> layer_ids)
      : fused_(std::move(fused)),
        config_(std::move(config)),
        workers_(std::max(workers, 1)),
        layer_ids_(std::move(layer_ids)),
        stages_(fused_->stages().begin(), fused_->stages().end()) {
    stages_.push_back("control executor");
  }
  std::span<const std::string_view> stages() const override { return stages_; }
  Status run(std::size_t stage) override {
    if (stage + 1 < stages_.size()) return fused_->run(stage);
    ML_ASSIGN_OR_RETURN(control_, cpu::NativeLayers::create(config_, workers_));
    return {};
  }
  std::unique_ptr<mono::Executor> finish() override {
    std::unique_ptr<mono::Executor> fused = fused_->finish();
    if (fused == nullptr || control_ == nullptr) return nullptr;
    return std::make_unique<CheckedExecutor>(std::move(control_), std::move(fused), config_,
                                             layer_ids_);
  }

 private:
  std::unique_ptr<mono::Construction> fused_;
  mono::ExecutorConfig config_;
  const int workers_;
  std::vector<std::int64_t> layer_ids_;
  std::vector<std::string_view> stages_;
  std::unique_ptr<mono::Executor> control_;
};

}  // namespace

std::unique_ptr<mono::Construction> CheckedBackend::construct(mono::ExecutorConfig config,
                                                              const mono::BuildOptions& options) {
  std::unique_ptr<mono::Construction> fused = fused_.construct(config, options);
  return std::make_unique<CheckedConstruction>(std::move(fused), std::move(config), options.workers,
                                               layer_ids_);
}

}  // namespace monolayer::dispatch
