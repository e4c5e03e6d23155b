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
    ML_ASSIGN_OR_RETURN(executor_, MonoExecutor::create(config_, team, options_, std::move(team_)));
    return {};
  }
  std::unique_ptr<mono::Executor> finish() override { return std::move(executor_); }

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
