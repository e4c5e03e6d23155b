#include "dispatch/chain_policy.h"

#include <utility>

#include "dispatch/runner.h"

namespace monolayer::dispatch {
namespace {

// A chain runs whatever rows it is given through its caches, whether a request is at its prompt or
// past it: `prefill_rows` stays 0, and the rows and their number per request decide.
StepFacts facts_of(const cpu::StepShape& shape) {
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
  return facts;
}

class Driver final : public cpu::StepDriver {
 public:
  Driver(Dispatcher& dispatcher, mono::Lifecycle& lifecycle, cpu::CacheSource caches, int rank)
      : runner_(dispatcher, lifecycle, std::move(caches), rank == 0) {}

  Status step(const cpu::StepShape& shape, std::int64_t generation,
              mono::StepPaths& paths) override {
    return runner_.step(facts_of(shape), Generation::from_scheduler(generation), scheduled(false),
                        paths);
  }
  const std::string& reason() const override { return runner_.reason(); }

 private:
  StepRunner runner_;
};

}  // namespace

Result<std::unique_ptr<ChainPolicy>> ChainPolicy::create(const m3::ModelConfig& config,
                                                         const m3::ModelWeights& weights,
                                                         const DeploymentOptions& options,
                                                         const std::string& path) {
  if (path != "auto" && path != "native" && path != "mono")
    return Status(Code::kUnsupported, "--path", "'" + path + "' is not one of auto, native, mono");
  const PathChoice choice = path == "native" ? PathChoice::kNative
                            : path == "mono" ? PathChoice::kMono
                                             : PathChoice::kAuto;
  ML_ASSIGN_OR_RETURN(Dispatcher dispatcher,
                      Dispatcher::create(deployment_facts(config, weights, options), choice));
  return std::unique_ptr<ChainPolicy>(new ChainPolicy(std::move(dispatcher), choice));
}

bool ChainPolicy::any_fused() const {
  return choice_ != PathChoice::kNative && dispatcher_.deployment().ok();
}

std::string ChainPolicy::deployment_reason() const {
  if (choice_ == PathChoice::kNative) return "native was chosen";
  return dispatcher_.deployment().ok() ? std::string() : dispatcher_.deployment().to_string();
}

std::unique_ptr<cpu::StepDriver> ChainPolicy::driver(mono::Lifecycle& lifecycle,
                                                     cpu::CacheSource caches, int rank) {
  return std::make_unique<Driver>(dispatcher_, lifecycle, std::move(caches), rank);
}

}  // namespace monolayer::dispatch
