#include "dispatch/dispatcher.h"

#include "core/prefetch.h"

namespace monolayer::dispatch {
namespace {

// Counters past those of the rows.
constexpr std::size_t kDeployment = 0, kChosen = 1, kExtra = 2;

}  // namespace

Dispatcher::Dispatcher(Status deployment, PathChoice choice)
    : any_fused_(deployment.ok() && choice != PathChoice::kNative),
      deployment_(std::move(deployment)),
      choice_(choice),
      refused_(step_rows().size() + kExtra) {}

Dispatcher::Dispatcher(Dispatcher&& other) noexcept
    : any_fused_(other.any_fused_),
      mono_(other.mono_.load()),
      deployment_(std::move(other.deployment_)),
      choice_(other.choice_),
      refused_(std::move(other.refused_)) {}

Result<Dispatcher> Dispatcher::create(const DeploymentFacts& facts, PathChoice choice) {
  Status deployment = deployment_status(facts);
  if (choice == PathChoice::kMono && !deployment.ok()) return deployment;
  return Dispatcher(std::move(deployment), choice);
}

ML_STEP_CODE Decision Dispatcher::judge(const StepFacts& facts) const {
  if (!any_fused_) return {};
  const int refused = first_refusal(facts);
  return {refused < 0 ? Path::kMono : Path::kNative, refused};
}

ML_STEP_CODE Decision Dispatcher::decide(const StepFacts& facts) {
  const Decision decision = judge(facts);
  if (decision.path != Path::kMono) [[unlikely]]
    return counted(decision);
  // Nobody else writes it, and an atomic addition would wait for every store before it.
  mono_.store(mono_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  return decision;
}

ML_REFUSAL_CODE Decision Dispatcher::counted(const Decision& decision) {
  const std::size_t whole = step_rows().size() + (deployment_.ok() ? kChosen : kDeployment);
  const std::size_t reason =
      decision.refused >= 0 ? static_cast<std::size_t>(decision.refused) : whole;
  refused_[reason].fetch_add(1, std::memory_order_relaxed);
  return decision;
}

void Dispatcher::count_postponed() {
  mono_.store(mono_.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
  const auto rows = step_rows();
  refused_[rows.size() - 1].fetch_add(1, std::memory_order_relaxed);  // "runner" is the last row
}

std::string Dispatcher::explain(const Decision& decision, const StepFacts& facts) const {
  if (decision.path == Path::kMono) return "fused";
  if (decision.refused >= 0) {
    return refusal_text(step_rows()[static_cast<std::size_t>(decision.refused)], facts);
  }
  return deployment_.ok() ? "native was chosen" : deployment_.to_string();
}

StepCounters Dispatcher::counters() const {
  StepCounters counters;
  counters.mono = mono_.load(std::memory_order_relaxed);
  const auto rows = step_rows();
  for (std::size_t i = 0; i < refused_.size(); ++i) {
    const std::string_view name = i < rows.size()                  ? rows[i].name
                                  : i == rows.size() + kDeployment ? kReasonDeployment
                                                                   : kReasonChosen;
    const std::int64_t count = refused_[i].load(std::memory_order_relaxed);
    counters.reasons.emplace_back(name, count);
    counters.native += count;
  }
  return counters;
}

}  // namespace monolayer::dispatch
