#include <algorithm>

#include "backend/cpu/matmul_rows.h"
#include "backend/cpu/mlp.h"
#include "backend/cpu/row_stages.h"

namespace monolayer::cpu {
namespace {

float sigmoid(const Tiles& tiles, float x) { return 1.0F / (1.0F + tiles.exponential(-x)); }

// What experts are chosen by.
void biased_scores(const StepContext& step, const LayerView& layer, const float* logits,
                   float* scores) {
  for (std::int64_t e = 0; e < layer.router.rows; ++e) {
    scores[e] = sigmoid(step.tiles, logits[e]) +
                (layer.router_bias == nullptr ? 0.0F : layer.router_bias[e]);
  }
}

// Renormalised weights of a row's experts.
void weigh(const StepContext& step, const float* logits, RoutedExpert* chosen) {
  const std::int64_t k = step.config.experts_per_token;
  float sum = 0;
  for (std::int64_t i = 0; i < k; ++i) {
    chosen[i].weight = sigmoid(step.tiles, logits[chosen[i].expert]);
    sum += chosen[i].weight;
  }
  for (std::int64_t i = 0; i < k; ++i) {
    chosen[i].weight = step.config.routed_scale * (chosen[i].weight / sum);
  }
}

// f(row, scores, ids) of every row of the step.
template <typename F>
void each_choice(const StepContext& step, const LayerView& layer, const RoutedExpert* chosen,
                 F&& f) {
  const std::int64_t k = step.config.experts_per_token;
  std::vector<float> scores(static_cast<std::size_t>(layer.router.rows));
  std::vector<std::int32_t> ids(static_cast<std::size_t>(k));
  for (std::int64_t row = 0; row < step.plan.rows(); ++row) {
    biased_scores(step, layer, step.act.router_logits.data() + row * layer.router.rows,
                  scores.data());
    std::transform(chosen + row * k, chosen + (row + 1) * k, ids.begin(),
                   [](const RoutedExpert& c) { return c.expert; });
    f(row, scores, ids);
  }
}

}  // namespace

void router_logits(const StepContext& step, const LayerView& layer, Range experts,
                   Traffic& traffic) {
  const int kind = activation_kind(layer.router.format);
  matmul_rows(step.tiles, layer.router, experts,
              step.act.rows[static_cast<std::size_t>(kind)].data(),
              permuted_size(kind, layer.router.cols), step.plan.rows(), step.row_tile,
              step.act.router_logits.data() + experts.begin, layer.router.rows, traffic);
}

void route_row(const StepContext& step, const LayerView& layer, std::int64_t row, float* scratch,
               RoutedExpert* chosen) {
  const std::int64_t experts = layer.router.rows;
  const std::int64_t k = step.config.experts_per_token;
  const float* logits = step.act.router_logits.data() + row * experts;
  biased_scores(step, layer, logits, scratch);
  // k passes of "largest not yet taken": a NaN is never larger, so it is only taken last, and the
  // choice stays valid whatever the logits are.
  std::int64_t taken = 0;
  const auto is_taken = [&](std::int64_t e) {
    return std::any_of(chosen, chosen + taken,
                       [&](const RoutedExpert& c) { return c.expert == e; });
  };
  for (; taken < k; ++taken) {
    std::int64_t best = -1;
    for (std::int64_t e = 0; e < experts; ++e) {
      if (is_taken(e)) continue;
      if (best < 0 || scratch[e] > scratch[best] ||
          (scratch[best] != scratch[best] && scratch[e] == scratch[e])) {
        best = e;
      }
    }
    chosen[taken].expert = static_cast<std::int32_t>(best);
  }
  std::sort(chosen, chosen + k,
            [](const RoutedExpert& a, const RoutedExpert& b) { return a.expert < b.expert; });
  weigh(step, logits, chosen);
}

void follow_experts(const StepContext& step, const LayerView& layer, std::int64_t layer_index,
                    RoutedExpert* chosen, m3::ChoiceSource& choices) {
  each_choice(step, layer, chosen,
              [&](std::int64_t row, std::span<const float> scores, std::span<std::int32_t> ids) {
                RoutedExpert* mine = chosen + row * step.config.experts_per_token;
                choices.experts(layer_index, step.plan.row(row).position, scores, ids);
                for (std::size_t i = 0; i < ids.size(); ++i) mine[i].expert = ids[i];
                weigh(step, step.act.router_logits.data() + row * layer.router.rows, mine);
              });
}

void trace_experts(const StepContext& step, const LayerView& layer, std::int64_t layer_index,
                   const RoutedExpert* chosen, m3::TraceSink& sink) {
  each_choice(step, layer, chosen,
              [&](std::int64_t row, std::span<const float> scores, std::span<std::int32_t> ids) {
                sink.experts(layer_index, step.plan.row(row).position, ids, scores);
              });
}

}  // namespace monolayer::cpu
