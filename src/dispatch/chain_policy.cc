#include "dispatch/chain_policy.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <utility>

#include "core/prefetch.h"
#include "dispatch/runner.h"

namespace monolayer::dispatch {
namespace {

// A chain runs whatever rows it is given through its caches, whether a request is at its prompt or
// past it: `prefill_rows` stays 0, and the rows and their number per request decide.
ML_STEP_CODE StepFacts facts_of(const cpu::StepShape& shape) {
  StepFacts facts;
  facts.rows = scheduled(shape.rows);
  facts.query_rows = scheduled(shape.rows);
  facts.requests = scheduled(shape.requests);
  facts.index_requests = scheduled(shape.requests);
  facts.shortest_query = scheduled(shape.shortest_query);
  facts.longest_query = scheduled(shape.longest_query);
  facts.longest_context = scheduled(shape.longest_context);
  facts.max_context = scheduled(shape.max_context);
  facts.table_width = scheduled(shape.table_width);
  facts.highest_slot = scheduled(shape.highest_slot);
  facts.key_groups = scheduled(shape.key_groups);
  return facts;
}

class Driver final : public cpu::StepDriver {
 public:
  Driver(Dispatcher& dispatcher, mono::Lifecycle& lifecycle, cpu::CacheSource caches, int rank)
      : dispatcher_(dispatcher), runner_(dispatcher, lifecycle, std::move(caches), rank == 0) {}

  ML_STEP_CODE Status step(const cpu::StepShape& shape, std::int64_t generation,
                           mono::StepPaths& paths) override {
    return runner_.step(facts_of(shape), Generation::from_scheduler(generation), scheduled(false),
                        paths);
  }
  Status prepare(const cpu::StepShape& shape, std::int64_t generation,
                 mono::StepPaths& paths) override {
    return runner_.prepare(facts_of(shape), Generation::from_scheduler(generation), paths);
  }
  std::array<std::span<const std::byte>, 2> step_memory() const override {
    return {std::as_bytes(std::span(this, 1)), dispatcher_.step_memory()};
  }
  const std::string& reason() const override { return runner_.reason(); }

 private:
  const Dispatcher& dispatcher_;
  StepRunner runner_;
};

}  // namespace

Result<std::unique_ptr<ChainPolicy>> ChainPolicy::create(const m3::ModelConfig& config,
                                                         const m3::ModelWeights& weights,
                                                         const DeploymentOptions& options,
                                                         const std::string& path,
                                                         std::span<const cpu::FusedSpan> measured) {
  if (path != "auto" && path != "native" && path != "mono")
    return Status(Code::kUnsupported, "--path", "'" + path + "' is not one of auto, native, mono");
  const PathChoice choice = path == "native" ? PathChoice::kNative
                            : path == "mono" ? PathChoice::kMono
                                             : PathChoice::kAuto;
  ML_ASSIGN_OR_RETURN(Dispatcher dispatcher,
                      Dispatcher::create(deployment_facts(config, weights, options), choice));
  return std::unique_ptr<ChainPolicy>(new ChainPolicy(std::move(dispatcher), choice,
                                                      std::vector(measured.begin(), measured.end()),
                                                      options.backend == "cuda"));
}

bool ChainPolicy::any_fused() const {
  return choice_ != PathChoice::kNative && dispatcher_.deployment().ok();
}

std::string ChainPolicy::deployment_reason() const {
  if (choice_ == PathChoice::kNative) return "native was chosen";
  return dispatcher_.deployment().ok() ? std::string() : dispatcher_.deployment().to_string();
}

std::string ChainPolicy::steps_reason() const {
  if (!any_fused()) return deployment_reason();
  if (measured_.empty() || choice_ == PathChoice::kMono)
    return by_passes_ ? "steps run fused, larger ones in passes of 16 rows"
                      : "steps of at most 16 rows run fused, larger and mixed ones native";
  std::string spans;
  std::int64_t slower = 0;  // rows of the span before, where fused is never faster
  for (const cpu::FusedSpan& span : measured_) {
    if (span.groups > 0) {
      spans += " ";
      spans += slower > 0 ? std::to_string(slower + 1) + " to " : "up to ";
      spans += std::to_string(span.rows) + " rows that see " + std::to_string(span.groups * 16) +
               " tokens in all;";
    }
    slower = span.groups > 0 ? 0 : span.rows;
  }
  if (spans.empty()) return "native was measured to be faster for every step";
  return "fused where it was measured to be faster:" + spans + " other steps native" +
         (by_passes_ ? ", larger ones by their passes of 16 rows" : "");
}

std::unique_ptr<cpu::StepDriver> ChainPolicy::driver(mono::Lifecycle& lifecycle,
                                                     cpu::CacheSource caches, int rank) {
  return std::make_unique<Driver>(dispatcher_, lifecycle, std::move(caches), rank);
}

StepFacts ChainPolicy::judged(const cpu::StepShape& shape) const {
  StepFacts facts = facts_of(shape);
  if (measured_.empty() || choice_ == PathChoice::kMono) return facts;
  const auto span = std::find_if(measured_.begin(), measured_.end(),
                                 [&](const auto& s) { return s.rows >= shape.rows; });
  facts.fastest_groups = configured(span == measured_.end() ? std::int64_t{0} : span->groups);
  return facts;
}

bool ChainPolicy::fused(const cpu::StepShape& shape, int rank) {
  const StepFacts facts = judged(shape);
  const Decision decision = rank == 0 ? dispatcher_.decide(facts) : dispatcher_.judge(facts);
  return decision.path == Path::kMono;
}

std::string ChainPolicy::reason(const cpu::StepShape& shape) const {
  const StepFacts facts = judged(shape);
  return dispatcher_.explain(dispatcher_.judge(facts), facts);
}

}  // namespace monolayer::dispatch
