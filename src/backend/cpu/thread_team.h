// A resident team of pinned threads that runs one function on all members.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <type_traits>

#include "core/status.h"

namespace monolayer::cpu {

struct TeamOptions {
  int threads = 0;  // 0: one per physical core allowed by affinity and cgroup quota; at most 1024
  bool pin = true;  // bind each thread to its own physical core where allowed
};

class ThreadTeam {
 public:
  static Result<std::unique_ptr<ThreadTeam>> create(const TeamOptions& options);
  virtual ~ThreadTeam() = default;

  virtual int size() const = 0;
  // Runs body(worker) for worker in [0, size()), worker 0 on the caller, and returns when all are
  // done. Everything written before is visible inside, and after. Waiting threads spin briefly and
  // then sleep, so that oversubscription slows the team down but never stalls it. `body` must not
  // throw and must not call run; one thread at a time calls run.
  virtual void run(void (*body)(void* context, int worker), void* context) = 0;

  // Convenience for lambdas: team.each([&](int worker) {...}).
  template <typename F>
  void each(F&& body) {
    run([](void* context,
           int worker) { (*static_cast<std::remove_reference_t<F>*>(context))(worker); },
        &body);
  }
  // What was decided and why, one line for the start-up log.
  virtual std::string_view describe() const = 0;
};

}  // namespace monolayer::cpu
