#include "backend/cpu/split_sum.h"

#include <algorithm>

#include "backend/cpu/accumulate.h"
#include "backend/cpu/matmul_rows.h"
#include "backend/cpu/model_view.h"
#include "core/dtype.h"

namespace monolayer::cpu {
namespace {

// acc: [rows, kParts, kOutBlock].
void add_term(const StepContext& step, const SplitTerm& term, Range out, float* acc,
              float* products) {
  for (std::int64_t first = 0; first < term.count; first += step.row_tile) {
    const std::int64_t batch = std::min(step.row_tile, term.count - first);
    for (std::size_t part = 0; part < kParts; ++part) {
      const std::int64_t begin = term.layout->columns.begin[part];
      const std::int64_t end = term.layout->columns.begin[part + 1];
      if (begin == end) continue;
      step.tiles.matmul(*term.w, out.begin, out.end, begin, end,
                        term.x + first * term.layout->size() + term.layout->offset[part],
                        term.layout->size(), batch, products, kOutBlock);
      for (std::int64_t i = 0; i < batch; ++i) {
        const std::int64_t slot = first + i;
        const std::int64_t row = term.rows != nullptr ? term.rows[slot] : slot;
        float* sum = acc + (row * kParts + static_cast<std::int64_t>(part)) * kOutBlock;
        const float* product = products + i * kOutBlock;
        if (term.weights != nullptr) {
          accumulate(term.weights[slot], product, out.size(), sum);
        } else {
          for (std::int64_t o = 0; o < out.size(); ++o) sum[o] += product[o];
        }
      }
    }
  }
}

}  // namespace

std::int64_t split_scratch(const StepContext& step) {
  return (step.plan.rows() * kParts + std::min(step.plan.rows(), step.row_tile)) * kOutBlock;
}

void add_split_products(const StepContext& step, std::span<const SplitTerm> terms, Range out,
                        float* scratch, Traffic& traffic) {
  const std::int64_t rows = step.plan.rows();
  const std::int64_t hidden = step.config.hidden_size;
  float* products = scratch + rows * kParts * kOutBlock;
  for (const SplitTerm& term : terms) traffic.weights += out.size() * stored_row_bytes(*term.w);
  for (std::int64_t o = out.begin; o < out.end; o += kOutBlock) {
    const Range block{o, std::min(out.end, o + kOutBlock)};
    std::fill_n(scratch, rows * kParts * kOutBlock, 0.0F);
    for (const SplitTerm& term : terms) add_term(step, term, block, scratch, products);
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* acc = scratch + r * kParts * kOutBlock;
      float* stream = step.act.hidden.data() + r * hidden + o;
      for (std::int64_t i = 0; i < block.size(); ++i) {
        float parts[kParts];
        for (std::int64_t j = 0; j < kParts; ++j) parts[j] = acc[j * kOutBlock + i];
        stream[i] = round_bf16(stream[i] + round_bf16(add_parts(parts)));
      }
    }
  }
}

}  // namespace monolayer::cpu
