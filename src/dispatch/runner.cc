#include "dispatch/runner.h"

#include "core/prefetch.h"

namespace monolayer::dispatch {
namespace {

// Every input is agreed on (the lifecycle's) or replicated.
RunnerState runner_state(mono::LifecycleState state, bool stale, bool capturing) {
  if (state == mono::LifecycleState::kDisabled) return RunnerState::kDisabled;
  if (!capturing) return RunnerState::kReady;
  if (state != mono::LifecycleState::kLive) return RunnerState::kNotBuilt;
  return stale ? RunnerState::kStale : RunnerState::kReady;
}

}  // namespace

ML_STEP_CODE Status StepRunner::step(const StepFacts& facts, const Generation& bound,
                                     const Flag& capturing, mono::StepPaths& paths,
                                     std::span<const void* const> storage) {
  return take(facts, bound, capturing, paths, storage, counts_);
}

Status StepRunner::prepare(const StepFacts& facts, const Generation& bound,
                           mono::StepPaths& paths) {
  return take(facts, bound, scheduled(false), paths, {}, false);
}

ML_STEP_CODE Status StepRunner::take(const StepFacts& given, const Generation& bound,
                                     const Flag& capturing, mono::StepPaths& paths,
                                     std::span<const void* const> storage, bool counts) {
  ask_for(&dispatcher_, kCacheLine);
  ask_for(virtuals_of(&paths), kCacheLine);
  if (lifecycle_.library() != nullptr) lifecycle_.library()->ask_for_step(given.rows.get());
  StepFacts facts = given;
  const bool stale = lifecycle_.state() == mono::LifecycleState::kLive && built_ != bound.get();
  facts.runner = Runner::from_scheduler(runner_state(lifecycle_.state(), stale, capturing.get()));
  last_ = counts ? dispatcher_.decide(facts) : dispatcher_.judge(facts);
  if (last_.path == Path::kNative) [[unlikely]]
    return go_native(facts, paths);
  const mono::StepConditions conditions{.has_metadata = facts.has_metadata.get(),
                                        .capturing = capturing.get()};
  mono::Library* const library = stale ? nullptr : lifecycle_.ready(conditions, storage);
  if (library == nullptr) [[unlikely]] {
    return acquire(conditions, stale, bound, paths, storage, counts);
  }
  reason_.clear();
  return paths.run_mono(*library);
}

// A library that has to be built, or may not be used.
ML_REFUSAL_CODE Status StepRunner::acquire(const mono::StepConditions& conditions, bool stale,
                                           const Generation& bound, mono::StepPaths& paths,
                                           std::span<const void* const> storage, bool counts) {
  if (stale) ML_RETURN_IF_ERROR(lifecycle_.rebuild(caches_()));
  ML_ASSIGN_OR_RETURN(mono::Library* const library, lifecycle_.acquire(conditions, storage));
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

ML_REFUSAL_CODE Status StepRunner::go_native(const StepFacts& facts, mono::StepPaths& paths) {
  reason_ = dispatcher_.explain(last_, facts);
  return paths.run_native();
}

}  // namespace monolayer::dispatch
