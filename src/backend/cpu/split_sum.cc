#include "backend/cpu/split_sum.h"

#include <algorithm>

#include "backend/cpu/accumulate.h"
#include "backend/cpu/matmul_rows.h"
#include "backend/cpu/model_view.h"
#include "core/dtype.h"
#include "tp/group.h"

namespace monolayer::cpu {
namespace {

// acc: [rows, kParts, kOutBlock].
void add_term(const StepContext& step, const SplitTerm& term, Range out, float* acc,
              float* products) {
  for (std::int64_t first = 0; first < term.count; first += step.row_tile) {
    const std::int64_t batch = std::min(step.row_tile, term.count - first);
    for (std::size_t part = 0; part < static_cast<std::size_t>(step.parts); ++part) {
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

// A step of one row may read each stored row from end to end, all its eighths together, unless an
// eighth is empty: adding its zero is not the same as leaving it out.
bool whole_rows(const StepContext& step, std::span<const SplitTerm> terms) {
  if (step.plan.rows() != 1) return false;
  for (const SplitTerm& term : terms) {
    if (term.count > 1) return false;
    for (std::size_t part = 0; part < static_cast<std::size_t>(step.parts); ++part) {
      const auto& begin = term.layout->columns.begin;
      if (begin[part] == begin[part + 1]) return false;
    }
  }
  return true;
}

// The same for such a step; acc: [kOutBlockOfRow, step.parts].
template <typename Done>
void block_roots_of_row(const StepContext& step, std::span<const SplitTerm> terms, Range block,
                        float* acc, const Done& done) {
  const std::int64_t sums = block.size() * step.parts;
  std::fill_n(acc, sums, 0.0F);
  float* products = acc + kParts * kOutBlockOfRow;
  for (const SplitTerm& term : terms) {
    if (term.count == 0) continue;
    step.tiles.matmul_split(*term.w, block.begin, block.end, term.layout->columns.begin.data(),
                            term.layout->offset.data(), step.parts, term.x, products);
    if (term.weights != nullptr) {
      accumulate(term.weights[0], products, sums, acc);
    } else {
      for (std::int64_t i = 0; i < sums; ++i) acc[i] += products[i];
    }
  }
  float roots[kOutBlockOfRow];
  for (std::int64_t i = 0; i < block.size(); ++i) {
    roots[i] = tp::add_roots(acc + i * step.parts, static_cast<int>(step.parts));
  }
  done(0, roots);
}

// acc as above, at least kOutBlock outputs wide; calls done(row, roots of the block).
template <typename Done>
void block_roots(const StepContext& step, std::span<const SplitTerm> terms, Range block, float* acc,
                 const Done& done) {
  const std::int64_t rows = step.plan.rows();
  std::fill_n(acc, rows * kParts * kOutBlock, 0.0F);
  float* products = acc + rows * kParts * kOutBlock;
  for (const SplitTerm& term : terms) add_term(step, term, block, acc, products);
  float roots[kOutBlock];
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* sums = acc + r * kParts * kOutBlock;
    for (std::int64_t i = 0; i < block.size(); ++i) {
      float parts[kParts];
      for (std::int64_t j = 0; j < step.parts; ++j) parts[j] = sums[j * kOutBlock + i];
      roots[i] = tp::add_roots(parts, static_cast<int>(step.parts));
    }
    done(r, roots);
  }
}

void add_row(const StepContext& step, std::int64_t row, const float* totals, Range out) {
  float* stream = step.act.hidden.data() + row * step.config.hidden_size + out.begin;
  for (std::int64_t i = 0; i < out.size(); ++i) {
    stream[i] = round_bf16(stream[i] + round_bf16(totals[i]));
  }
}

template <typename Done>
void each_block(const StepContext& step, std::span<const SplitTerm> terms, Range out,
                float* scratch, Traffic& traffic, const Done& done) {
  for (const SplitTerm& term : terms) traffic.weights += out.size() * stored_row_bytes(*term.w);
  const bool whole = whole_rows(step, terms);
  const std::int64_t size = whole ? kOutBlockOfRow : kOutBlock;
  for (std::int64_t o = out.begin; o < out.end; o += size) {
    const Range block{o, std::min(out.end, o + size)};
    const auto each = [&](std::int64_t row, const float* roots) { done(row, block, roots); };
    if (whole) {
      block_roots_of_row(step, terms, block, scratch, each);
    } else {
      block_roots(step, terms, block, scratch, each);
    }
  }
}

}  // namespace

std::int64_t split_scratch(const StepContext& step) {
  const std::int64_t products = std::min(step.plan.rows(), step.row_tile);
  return std::max(
      (step.plan.rows() * kParts + std::max<std::int64_t>(products, kParts)) * kOutBlock,
      2 * kParts * kOutBlockOfRow);
}

void split_roots(const StepContext& step, std::span<const SplitTerm> terms, Range out, float* roots,
                 std::int64_t stride, float* scratch, Traffic& traffic) {
  each_block(step, terms, out, scratch, traffic,
             [&](std::int64_t row, Range block, const float* values) {
               std::copy_n(values, block.size(), roots + row * stride + block.begin - out.begin);
             });
}

void add_to_stream(const StepContext& step, const float* totals, std::int64_t stride, Range out) {
  for (std::int64_t r = 0; r < step.plan.rows(); ++r) add_row(step, r, totals + r * stride, out);
}

void add_split_products(const StepContext& step, std::span<const SplitTerm> terms, Range out,
                        float* scratch, Traffic& traffic) {
  each_block(
      step, terms, out, scratch, traffic,
      [&](std::int64_t row, Range block, const float* roots) { add_row(step, row, roots, block); });
}

}  // namespace monolayer::cpu
