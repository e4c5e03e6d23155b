// The CPU's fused executor and its worker team behind the library's backend interface.
#include <algorithm>
#include <memory>
#include <thread>
#include <utility>

#include "api/backends.h"
#include "backend/cpu/layer_views.h"
#include "backend/cpu/mono_executor.h"
#include "backend/cpu/thread_team.h"

namespace monolayer::api {
namespace {

constexpr std::int32_t kRows[] = {ML_LAYOUT_ROWS};
constexpr std::int32_t kPages[] = {ML_LAYOUT_PAGES};
constexpr std::string_view kStages[] = {"worker team", "executor"};

// An executor together with the team it runs on.
class OwnedExecutor : public mono::Executor {
 public:
  OwnedExecutor(std::unique_ptr<cpu::ThreadTeam> team, std::unique_ptr<mono::Executor> executor)
      : team_(std::move(team)), executor_(std::move(executor)) {}

  Status prepare(std::span<const mono::StepRow> rows) override { return executor_->prepare(rows); }
  Status run_layers(std::int64_t first, std::int64_t count, const bf16_t* hidden,
                    const bf16_t* residual, bf16_t* hidden_out, bf16_t* residual_out) override {
    return executor_->run_layers(first, count, hidden, residual, hidden_out, residual_out);
  }
  std::span<const std::int32_t> selections() const override { return executor_->selections(); }
  const mono::ExecutorStatistics& statistics() const override { return executor_->statistics(); }
  Status close() override { return executor_->close(); }

 private:
  std::unique_ptr<cpu::ThreadTeam> team_;  // outlives the executor
  std::unique_ptr<mono::Executor> executor_;
};

class CpuConstruction : public mono::Construction {
 public:
  CpuConstruction(mono::ExecutorConfig config, const mono::BuildOptions& options, bool pin)
      : config_(std::move(config)), options_(options), pin_(pin) {}

  std::span<const std::string_view> stages() const override { return kStages; }
  Status run(std::size_t stage) override {
    if (stage == 0) {
      ML_ASSIGN_OR_RETURN(team_,
                          cpu::ThreadTeam::create({.threads = options_.workers, .pin = pin_}));
      return {};
    }
    ML_ASSIGN_OR_RETURN(
        executor_, cpu::MonoExecutor::create(config_, team_.get(), {.timeout = options_.timeout}));
    return {};
  }
  std::unique_ptr<mono::Executor> finish() override {
    return std::make_unique<OwnedExecutor>(std::move(team_), std::move(executor_));
  }

 private:
  mono::ExecutorConfig config_;
  const mono::BuildOptions options_;
  const bool pin_;
  std::unique_ptr<cpu::ThreadTeam> team_;
  std::unique_ptr<mono::Executor> executor_;
};

class CpuBackend : public mono::LibraryBackend {
 public:
  CpuBackend() {
    traits_.weight_layouts = kRows;
    traits_.cache_layouts = kPages;
    traits_.activation_layouts = kRows;
  }
  const mono::DeviceTraits& traits() const override { return traits_; }
  Status supports(const mono::ExecutorConfig& config) const override {
    return cpu::check_executor_config(config);
  }
  std::unique_ptr<mono::Construction> construct(mono::ExecutorConfig config,
                                                const mono::BuildOptions& options) override {
    mono::BuildOptions mine = options;
    // Ranks that are threads of one process would all be bound to the same cores.
    const int ranks = config.group != nullptr ? config.group->size() : 1;
    if (mine.workers == 0) {
      mine.workers = std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / ranks);
    }
    return std::make_unique<CpuConstruction>(std::move(config), mine, ranks == 1);
  }

 private:
  mono::DeviceTraits traits_;
};

}  // namespace

mono::LibraryBackend& cpu_backend() {
  static CpuBackend backend;
  return backend;
}

}  // namespace monolayer::api
