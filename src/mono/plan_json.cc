#include <nlohmann/json.hpp>

#include "mono/plan.h"

namespace monolayer::mono {
namespace {

nlohmann::json accesses(const std::vector<Access>& list) {
  nlohmann::json out = nlohmann::json::array();
  for (const Access& access : list) {
    out.push_back({{"region", region_name(access.region)},
                   {"units", {access.units.begin, access.units.end}}});
  }
  return out;
}

nlohmann::json step_json(const PlanStep& step) {
  nlohmann::json tasks = nlohmann::json::array();
  for (std::size_t t = 0; t < step.tasks.size(); ++t) {
    const Task& task = step.tasks[t];
    tasks.push_back({{"worker", task.worker},
                     {"units", {task.units.begin, task.units.end}},
                     {"bytes", task.bytes},
                     {"reads", accesses(step.reads[t])},
                     {"writes", accesses(step.writes[t])}});
  }
  nlohmann::json waits = nlohmann::json::array();
  for (std::size_t w = 0; w < step.waits.size(); ++w) {
    for (const Wait& wait : step.waits[w]) {
      waits.push_back({{"worker", w}, {"for_worker", wait.worker}, {"step", wait.step}});
    }
  }
  return {{"stage", stage_name(step.stage)},
          {"units", step.units},
          {"repeated", step.repeated},
          {"tasks", tasks},
          {"waits", waits}};
}

}  // namespace

std::string plan_json(const LayerPlan& plan) {
  nlohmann::json steps = nlohmann::json::array();
  for (const PlanStep& step : plan.steps) steps.push_back(step_json(step));
  nlohmann::json regions = nlohmann::json::array();
  for (int r = 0; r < kRegions; ++r) {
    const RegionPlace& place = plan.regions[static_cast<std::size_t>(r)];
    regions.push_back({{"region", region_name(static_cast<Region>(r))},
                       {"units", place.units},
                       {"per_worker", place.per_worker},
                       {"offset", place.offset},
                       {"bytes", place.bytes},
                       {"needed", place.needed}});
  }
  const nlohmann::json root = {{"sparse", plan.sparse}, {"moe", plan.moe},
                               {"rows", plan.rows},     {"workers", plan.workers},
                               {"bytes", plan.bytes()}, {"memory", plan.memory},
                               {"regions", regions},    {"steps", steps}};
  return root.dump(1);
}

}  // namespace monolayer::mono
