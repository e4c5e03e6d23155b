#include "backend/cpu/mlp.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/matmul_rows.h"
#include "backend/cpu/row_stages.h"

namespace monolayer::cpu {
namespace {

// Gate and up rows of one inner pass.
std::int64_t width_block(const StepContext& step) {
  return step.plan.rows() == 1 ? kOutBlockOfRow : kOutBlock;
}

unsigned input_kinds(const MlpView& mlp) {
  if (mlp.empty()) return 0;
  return 1U << activation_kind(mlp.gate.format) | 1U << activation_kind(mlp.up.format);
}

void add_group(const StepContext& step, const MlpView& mlp, std::int64_t slots, bool routed,
               MlpPlan& plan) {
  MlpGroup group;
  group.mlp = &mlp;
  group.first_slot = plan.slots() - slots;
  group.slots = slots;
  group.routed = routed;
  group.layout = SplitLayout(mlp.down.format, mlp.down.cols, step.parts);
  plan.slot_stride = std::max(plan.slot_stride, group.layout.size());
  if (plan.gathers(group)) plan.gather_kinds |= input_kinds(mlp);
  plan.groups.push_back(group);
}

void clear(MlpPlan& plan) {
  plan.groups.clear();
  plan.slot_row.clear();
  plan.slot_weight.clear();
  plan.slot_stride = 0;
  plan.gather_kinds = 0;
}

void add_all_rows(const StepContext& step, float weight, MlpPlan& plan) {
  for (std::int64_t r = 0; r < step.plan.rows(); ++r) {
    plan.slot_row.push_back(static_cast<std::int32_t>(r));
    plan.slot_weight.push_back(weight);
  }
}

// Permuted input rows of a group: gathered, one row of the step, or all of them.
const float* group_input(const StepContext& step, const MlpPlan& plan, const MlpGroup& group,
                         int kind) {
  const std::int64_t size = permuted_size(kind, step.config.hidden_size);
  const auto k = static_cast<std::size_t>(kind);
  if (plan.gathers(group)) return step.act.gathered[k].data() + group.first_slot * size;
  if (!group.routed) return step.act.rows[k].data();
  return step.act.rows[k].data() + plan.slot_row[static_cast<std::size_t>(group.first_slot)] * size;
}

}  // namespace

unsigned mlp_kinds(const LayerView& layer) {
  if (!layer.moe) return input_kinds(layer.dense);
  unsigned kinds = 1U << activation_kind(layer.router.format) | input_kinds(layer.shared);
  for (const MlpView& expert : layer.experts) kinds |= input_kinds(expert);
  return kinds;
}

void plan_dense(const StepContext& step, const LayerView& layer, MlpPlan& plan) {
  clear(plan);
  add_all_rows(step, 1, plan);
  add_group(step, layer.dense, step.plan.rows(), false, plan);
}

void plan_experts(const StepContext& step, const LayerView& layer, const RoutedExpert* chosen,
                  MlpPlan& plan) {
  clear(plan);
  const std::int64_t rows = step.plan.rows();
  const std::int64_t k = step.config.experts_per_token;
  std::vector<std::int64_t> next(layer.experts.size() + 1);
  for (std::int64_t i = 0; i < rows * k; ++i)
    ++next[static_cast<std::size_t>(chosen[i].expert) + 1];
  for (std::size_t e = 1; e < next.size(); ++e) next[e] += next[e - 1];
  const std::vector<std::int64_t> first = next;
  std::vector<std::int32_t> slot_row(static_cast<std::size_t>(rows * k));
  std::vector<float> slot_weight(static_cast<std::size_t>(rows * k));
  for (std::int64_t i = 0; i < rows * k; ++i) {
    const auto slot = static_cast<std::size_t>(next[static_cast<std::size_t>(chosen[i].expert)]++);
    slot_row[slot] = static_cast<std::int32_t>(i / k);
    slot_weight[slot] = chosen[i].weight;
  }
  for (std::size_t e = 0; e < layer.experts.size(); ++e) {
    const std::int64_t count = first[e + 1] - first[e];
    if (count == 0) continue;
    const auto begin = static_cast<std::ptrdiff_t>(first[e]);
    plan.slot_row.insert(plan.slot_row.end(), slot_row.begin() + begin,
                         slot_row.begin() + begin + count);
    plan.slot_weight.insert(plan.slot_weight.end(), slot_weight.begin() + begin,
                            slot_weight.begin() + begin + count);
    add_group(step, layer.experts[e], count, true, plan);
  }
  if (layer.shared.empty()) return;
  add_all_rows(step, step.config.shared_weight, plan);
  add_group(step, layer.shared, rows, false, plan);
}

void gather_slots(const StepContext& step, const MlpPlan& plan, Range slots) {
  for (const MlpGroup& group : plan.groups) {
    if (!plan.gathers(group)) continue;
    const std::int64_t begin = std::max(slots.begin, group.first_slot);
    const std::int64_t end = std::min(slots.end, group.first_slot + group.slots);
    const unsigned kinds = input_kinds(*group.mlp);
    for (std::int64_t s = begin; s < end; ++s) {
      for (int kind = 0; kind < kActivationKinds; ++kind) {
        if ((kinds >> kind & 1U) == 0) continue;
        const auto k = static_cast<std::size_t>(kind);
        const std::int64_t size = permuted_size(kind, step.config.hidden_size);
        std::copy_n(step.act.rows[k].data() + plan.slot_row[static_cast<std::size_t>(s)] * size,
                    size, step.act.gathered[k].data() + s * size);
      }
    }
  }
}

WorkList gate_up_work(const MlpPlan& plan) {
  WorkList work(8);
  for (const MlpGroup& group : plan.groups) {
    const MlpView& mlp = *group.mlp;
    // Reading a row costs its bytes, using it about a byte's time per sixteen products.
    work.add(mlp.gate.rows, stored_row_bytes(mlp.gate) + stored_row_bytes(mlp.up) +
                                group.slots * mlp.gate.cols / 8);
  }
  return work;
}

std::int64_t gate_up_scratch(const StepContext& step) {
  const std::int64_t rows = std::min(step.plan.rows(), step.row_tile);
  return std::max((2 * rows + 1) * kOutBlock, 3 * kOutBlockOfRow);
}

void gate_up(const StepContext& step, const MlpPlan& plan, const MlpGroup& group, Range out,
             float* scratch, Traffic& traffic) {
  const MlpView& mlp = *group.mlp;
  const m3::ModelConfig& c = step.config;
  const int gate_kind = activation_kind(mlp.gate.format);
  const int up_kind = activation_kind(mlp.up.format);
  const std::int64_t gate_size = permuted_size(gate_kind, c.hidden_size);
  const std::int64_t up_size = permuted_size(up_kind, c.hidden_size);
  const float* gate_x = group_input(step, plan, group, gate_kind);
  const float* up_x = group_input(step, plan, group, up_kind);
  traffic.weights += out.size() * (stored_row_bytes(mlp.gate) + stored_row_bytes(mlp.up));
  const std::int64_t tile = std::min(step.plan.rows(), step.row_tile);
  const std::int64_t block = width_block(step);
  float* gate = scratch;
  float* up = gate + tile * block;
  float* act = up + tile * block;
  for (std::int64_t o = out.begin; o < out.end; o += block) {
    const std::int64_t o_end = std::min(out.end, o + block);
    for (std::int64_t s = 0; s < group.slots; s += tile) {
      const std::int64_t batch = std::min(tile, group.slots - s);
      step.tiles.matmul(mlp.gate, o, o_end, 0, mlp.gate.cols, gate_x + s * gate_size, gate_size,
                        batch, gate, block);
      step.tiles.matmul(mlp.up, o, o_end, 0, mlp.up.cols, up_x + s * up_size, up_size, batch, up,
                        block);
      for (std::int64_t i = 0; i < batch; ++i) {
        step.tiles.swiglu(gate + i * block, up + i * block, o_end - o, c.swiglu_alpha,
                          c.swiglu_limit, c.swiglu_beta, act);
        scatter(group.layout, act, o, o_end,
                step.act.mlp.data() + group.first_slot * plan.slot_stride +
                    (s + i) * group.layout.size());
      }
    }
  }
}

std::vector<SplitTerm> down_terms(const StepContext& step, const MlpPlan& plan) {
  std::vector<SplitTerm> terms;
  for (const MlpGroup& group : plan.groups) {
    SplitTerm term;
    term.w = &group.mlp->down;
    term.layout = &group.layout;
    term.x = step.act.mlp.data() + group.first_slot * plan.slot_stride;
    term.count = group.slots;
    if (group.routed) term.rows = plan.slot_row.data() + group.first_slot;
    // A weight of 1 is left out: fma(1, dot, acc) has the bits of acc + dot.
    const float* weights = plan.slot_weight.data() + group.first_slot;
    if (group.routed || *weights != 1) term.weights = weights;
    terms.push_back(term);
  }
  return terms;
}

}  // namespace monolayer::cpu
