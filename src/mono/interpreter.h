// The slow, obvious executor: one thread, the plan in order.
#pragma once

#include <cstdint>

#include "mono/plan.h"

namespace monolayer::mono {

// Runs one task of a plan. Backends implement it with their tile functions; the interpreter and the
// backend's own executor call the same one.
class TaskRunner {
 public:
  virtual ~TaskRunner() = default;
  // `step`: number of the step in the layer's plan. False: given up, the reason is with the runner.
  virtual bool run_task(std::int64_t layer, const LayerPlan& plan, int step, const Task& task) = 0;
  // Called before each layer and after each of its steps, for runners that check what they may.
  virtual void begin_layer(std::int64_t /*layer*/, const LayerPlan& /*plan*/) {}
  virtual void end_step(std::int64_t /*layer*/, const LayerPlan& /*plan*/, int /*step*/) {}
};

// All steps of the layer, the tasks of each in the order of the plan.
inline bool interpret(std::int64_t layer, const LayerPlan& plan, TaskRunner& runner) {
  runner.begin_layer(layer, plan);
  for (int step = 0; step < static_cast<int>(plan.steps.size()); ++step) {
    for (const Task& task : plan.steps[static_cast<std::size_t>(step)].tasks) {
      if (!runner.run_task(layer, plan, step, task)) return false;
    }
    runner.end_step(layer, plan, step);
  }
  return true;
}

}  // namespace monolayer::mono
