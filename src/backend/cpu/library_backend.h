// The CPU's fused executor behind the library's backend interface.
#pragma once

#include <memory>

#include "backend/cpu/mono_executor.h"
#include "backend/cpu/thread_team.h"
#include "mono/library.h"

namespace monolayer::cpu {

// Executors either get a team of their own each, or run on one that is borrowed.
class LibraryBackend final : public mono::LibraryBackend {
 public:
  // `team` null: of their own, with BuildOptions::workers threads, 0 being a share of the machine.
  explicit LibraryBackend(ThreadTeam* team = nullptr, const MonoOptions& options = {});

  // Of executors made from now on; their timeout is BuildOptions::timeout.
  void set_options(const MonoOptions& options) { options_ = options; }

  const mono::DeviceTraits& traits() const override { return traits_; }
  Status supports(const mono::ExecutorConfig& config) const override;
  std::unique_ptr<mono::Construction> construct(mono::ExecutorConfig config,
                                                const mono::BuildOptions& options) override;

 private:
  mono::DeviceTraits traits_;
  ThreadTeam* const team_;
  MonoOptions options_;
};

// The executor of a library that a LibraryBackend with a borrowed team has built.
inline MonoExecutor& executor_of(mono::Library& library) {
  return static_cast<MonoExecutor&>(library.executor());
}

}  // namespace monolayer::cpu
