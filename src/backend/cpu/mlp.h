// Dense and mixture-of-experts MLPs: rows grouped by the expert that processes them.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/cpu/activations.h"
#include "backend/cpu/model_view.h"
#include "backend/cpu/partition.h"
#include "backend/cpu/split_sum.h"
#include "m3/trace.h"

namespace monolayer::cpu {

// An expert (or the shared expert, or a dense MLP) with its slots: one slot per row it processes.
struct MlpGroup {
  const MlpView* mlp = nullptr;
  std::int64_t first_slot = 0, slots = 0;
  bool routed = false;
  SplitLayout layout;  // of a slot's activation row
};

struct MlpPlan {
  std::vector<MlpGroup> groups;  // routed by ascending expert id, then shared
  std::vector<std::int32_t> slot_row;
  std::vector<float> slot_weight;
  std::int64_t slot_stride = 0;  // floats between activation rows, the largest layout
  unsigned gather_kinds = 0;     // activation kinds that need gathered rows

  bool gathers(const MlpGroup& group) const { return group.routed && group.slots > 1; }
  std::int64_t slots() const { return static_cast<std::int64_t>(slot_row.size()); }
};

// A choice of the router: `experts` ascending, with final weights.
struct RoutedExpert {
  std::int32_t expert = 0;
  float weight = 0;
};

// Activation kinds that the layer's MLP stages read from `rows`.
unsigned mlp_kinds(const LayerView& layer);

// The router's logits of outputs `experts` for all rows.
void router_logits(const StepContext& step, const LayerView& layer, Range experts,
                   Traffic& traffic);
// Sigmoid scores, biased choice (lower id wins ties), renormalised weights of one row.
// `scratch`: num_experts floats; `chosen`: experts_per_token entries.
void route_row(const StepContext& step, const LayerView& layer, std::int64_t row, float* scratch,
               RoutedExpert* chosen);

// Lets `choices` overrule every row's experts; their weights follow.
void follow_experts(const StepContext& step, const LayerView& layer, std::int64_t layer_index,
                    RoutedExpert* chosen, m3::ChoiceSource& choices);

// Reports every row's experts and what they were chosen by.
void trace_experts(const StepContext& step, const LayerView& layer, std::int64_t layer_index,
                   const RoutedExpert* chosen, m3::TraceSink& sink);

// All rows to the dense MLP.
void plan_dense(const StepContext& step, const LayerView& layer, MlpPlan& plan);
// `chosen`: [rows, experts_per_token].
void plan_experts(const StepContext& step, const LayerView& layer, const RoutedExpert* chosen,
                  MlpPlan& plan);

// Copies the permuted rows of slots [begin, end) together, for groups of several rows.
void gather_slots(const StepContext& step, const MlpPlan& plan, Range slots);

// Items are groups, units their gate and up rows.
WorkList gate_up_work(const MlpPlan& plan);
// act[slot, columns `out`] = BF16(swiglu(gate, up)). `scratch`: gate_up_scratch() floats.
void gate_up(const StepContext& step, const MlpPlan& plan, const MlpGroup& group, Range out,
             float* scratch, Traffic& traffic);
std::int64_t gate_up_scratch(const StepContext& step);

// The down projections' terms; valid while the plan lives.
std::vector<SplitTerm> down_terms(const StepContext& step, const MlpPlan& plan);

}  // namespace monolayer::cpu
