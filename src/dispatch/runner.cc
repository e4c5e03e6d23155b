#include "dispatch/runner.h"

namespace monolayer::dispatch {

Status StepRunner::step(StepFacts facts, const Generation& bound, const Flag& capturing,
                        mono::StepPaths& paths, std::span<const void* const> storage) {
  return take(std::move(facts), bound, capturing, paths, storage, counts_);
}

Status StepRunner::prepare(const StepFacts& facts, const Generation& bound,
                           mono::StepPaths& paths) {
  return take(facts, bound, scheduled(false), paths, {}, false);
}

Status StepRunner::take(StepFacts facts, const Generation& bound, const Flag& capturing,
                        mono::StepPaths& paths, std::span<const void* const> storage, bool counts) {
  const bool live = lifecycle_.state() == mono::LifecycleState::kLive;
  const bool stale = live && built_ != bound.get();
  RunnerState state = RunnerState::kReady;
  if (lifecycle_.state() == mono::LifecycleState::kDisabled) {
    state = RunnerState::kDisabled;
  } else if (capturing.get() && !live) {
    state = RunnerState::kNotBuilt;
  } else if (capturing.get() && stale) {
    state = RunnerState::kStale;
  }
  // Every input of `state` is agreed on (the lifecycle's) or replicated (the arguments).
  facts.runner = Runner::from_scheduler(state);
  last_ = counts ? dispatcher_.decide(facts) : dispatcher_.judge(facts);
  if (last_.path == Path::kNative) {
    reason_ = dispatcher_.explain(last_, facts);
    return paths.run_native();
  }
  if (stale) ML_RETURN_IF_ERROR(lifecycle_.rebuild(caches_()));
  ML_ASSIGN_OR_RETURN(
      mono::Library* const library,
      lifecycle_.acquire({.has_metadata = facts.has_metadata.get(), .capturing = capturing.get()},
                         storage));
  if (library == nullptr) {
    if (counts) dispatcher_.count_postponed();
    last_ = {Path::kNative, static_cast<int>(step_rows().size()) - 1};
    reason_ = lifecycle_.reason();
    return paths.run_native();
  }
  built_ = bound.get();
  reason_.clear();
  return paths.run_mono(*library);
}

}  // namespace monolayer::dispatch
