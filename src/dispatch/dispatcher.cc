#include "dispatch/dispatcher.h"

namespace monolayer::dispatch {
namespace {

// Counters past those of the rows.
constexpr std::size_t kDeployment = 0, kChosen = 1, kExtra = 2;

}  // namespace

Dispatcher::Dispatcher(Status deployment, PathChoice choice)
    : deployment_(std::move(deployment)), choice_(choice), refused_(step_rows().size() + kExtra) {}

Dispatcher::Dispatcher(Dispatcher&& other) noexcept
    : deployment_(std::move(other.deployment_)),
      choice_(other.choice_),
      mono_(other.mono_.load()),
      refused_(std::move(other.refused_)) {}

Result<Dispatcher> Dispatcher::create(const DeploymentFacts& facts, PathChoice choice) {
  Status deployment = deployment_status(facts);
  if (choice == PathChoice::kMono && !deployment.ok()) return deployment;
  return Dispatcher(std::move(deployment), choice);
}

Decision Dispatcher::judge(const StepFacts& facts) const {
  if (!deployment_.ok() || choice_ == PathChoice::kNative) return {};
  const auto rows = step_rows();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!rows[i].holds(facts)) return {Path::kNative, static_cast<int>(i)};
  }
  return {Path::kMono, -1};
}

Decision Dispatcher::decide(const StepFacts& facts) {
  const Decision decision = judge(facts);
  if (decision.path == Path::kMono) {
    mono_.fetch_add(1, std::memory_order_relaxed);
    return decision;
  }
  const std::size_t whole = step_rows().size() + (deployment_.ok() ? kChosen : kDeployment);
  const std::size_t reason =
      decision.refused >= 0 ? static_cast<std::size_t>(decision.refused) : whole;
  refused_[reason].fetch_add(1, std::memory_order_relaxed);
  return decision;
}

void Dispatcher::count_postponed() {
  mono_.fetch_sub(1, std::memory_order_relaxed);
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
