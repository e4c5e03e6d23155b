#include <algorithm>

#include "backend/cpu/matmul_rows.h"
#include "backend/cpu/mlp.h"
#include "backend/cpu/row_stages.h"

namespace monolayer::cpu {

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
  const auto score = [&](std::int64_t e) {
    return 1.0F / (1.0F + step.tiles.exponential(-logits[e]));
  };
  for (std::int64_t e = 0; e < experts; ++e) {
    scratch[e] = score(e) + (layer.router_bias.empty() ? 0.0F : layer.router_bias[e]);
  }
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
    chosen[taken] = {static_cast<std::int32_t>(best), score(best)};
  }
  std::sort(chosen, chosen + k,
            [](const RoutedExpert& a, const RoutedExpert& b) { return a.expert < b.expert; });
  float sum = 0;
  for (std::int64_t i = 0; i < k; ++i) sum += chosen[i].weight;
  for (std::int64_t i = 0; i < k; ++i) {
    chosen[i].weight = step.config.routed_scale * chosen[i].weight / sum;
  }
}

}  // namespace monolayer::cpu
