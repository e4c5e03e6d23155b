#include "backend/cpu/library_backend.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "backend/cpu/layer_views.h"

namespace monolayer::cpu {
namespace {

constexpr std::int32_t kRows[] = {ML_LAYOUT_ROWS};
constexpr std::int32_t kPages[] = {ML_LAYOUT_PAGES};
constexpr std::string_view kStages[] = {"worker team", "executor"};

// An executor together with the team it runs on.
class OwnedExecutor : public mono::Executor {
 public:
  OwnedExecutor(std::unique_ptr<ThreadTeam> team, std::unique_ptr<mono::Executor> executor)
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
  std::unique_ptr<ThreadTeam> team_;  // outlives the executor
  std::unique_ptr<mono::Executor> executor_;
};

class Building : public mono::Construction {
 public:
  Building(mono::ExecutorConfig config, int workers, bool pin, ThreadTeam* team,
           const MonoOptions& options)
      : config_(std::move(config)),
        workers_(workers),
        pin_(pin),
        borrowed_(team),
        options_(options) {}

  std::span<const std::string_view> stages() const override { return kStages; }
  Status run(std::size_t stage) override {
    if (stage == 0) {
      if (borrowed_ != nullptr) return {};
      ML_ASSIGN_OR_RETURN(team_, ThreadTeam::create({.threads = workers_, .pin = pin_}));
      return {};
    }
    ThreadTeam* const team = borrowed_ != nullptr ? borrowed_ : team_.get();
    ML_ASSIGN_OR_RETURN(executor_, MonoExecutor::create(config_, team, options_));
    return {};
  }
  std::unique_ptr<mono::Executor> finish() override {
    if (borrowed_ != nullptr) return std::move(executor_);
    return std::make_unique<OwnedExecutor>(std::move(team_), std::move(executor_));
  }

 private:
  const mono::ExecutorConfig config_;
  const int workers_;
  const bool pin_;
  ThreadTeam* const borrowed_;
  const MonoOptions options_;
  std::unique_ptr<ThreadTeam> team_;
  std::unique_ptr<mono::Executor> executor_;
};

}  // namespace

LibraryBackend::LibraryBackend(ThreadTeam* team, const MonoOptions& options)
    : team_(team), options_(options) {
  traits_.weight_layouts = kRows;
  traits_.cache_layouts = kPages;
  traits_.activation_layouts = kRows;
}

Status LibraryBackend::supports(const mono::ExecutorConfig& config) const {
  return check_executor_config(config);
}

std::unique_ptr<mono::Construction> LibraryBackend::construct(mono::ExecutorConfig config,
                                                              const mono::BuildOptions& options) {
  // Ranks that are threads of one process would all be bound to the same cores.
  const int ranks = config.group != nullptr ? config.group->size() : 1;
  int workers = options.workers;
  if (workers == 0) {
    workers = std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / ranks);
  }
  MonoOptions mine = options_;
  mine.timeout = options.timeout;
  return std::make_unique<Building>(std::move(config), workers, ranks == 1, team_, mine);
}

}  // namespace monolayer::cpu
