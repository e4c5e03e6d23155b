#include "backend/cpu/index_select.h"

#include <algorithm>
#include <numeric>

#include "backend/cpu/model_view.h"
#include "m3/select.h"

namespace monolayer::cpu {
namespace {

constexpr std::int64_t kScoreBudget = 16 << 20;  // floats of one slab
constexpr std::int64_t kTileQueries = 64;        // index queries that share one reading of a page

std::int64_t tile_rows(const m3::ModelConfig& config) {
  return std::max<std::int64_t>(1, kTileQueries / config.index_heads);
}

// f(position, head, scores in the keys' own units, ids) of every row and index head of the slab.
template <typename F>
void each_choice(const StepContext& step, const ScoreSlab& slab, std::int64_t layer, F&& f) {
  const m3::ModelConfig& c = step.config;
  std::vector<float> scores;
  for (std::int64_t row = slab.rows.begin; row < slab.rows.end; ++row) {
    const std::int64_t position = step.plan.row(row).position;
    for (std::int64_t head = 0; head < c.index_heads; ++head) {
      const float* raw = slab.at(step, row, head);
      scores.assign(raw, raw + existing_blocks(c, position));
      for (float& score : scores) score *= step.cache.options(layer).index_scale;
      std::int32_t* ids = step.act.block_ids.data() + (row * c.index_heads + head) * c.topk_blocks;
      f(position, head, scores, {ids, static_cast<std::size_t>(selected_blocks(c, position))});
    }
  }
}

}  // namespace

std::int64_t existing_blocks(const m3::ModelConfig& config, std::int64_t position) {
  return position / config.block_size + 1;
}

std::int64_t selected_blocks(const m3::ModelConfig& config, std::int64_t position) {
  return std::min(config.topk_blocks, existing_blocks(config, position));
}

ScoreSlab next_score_slab(const StepContext& step, std::int64_t begin) {
  ScoreSlab slab{{begin, begin}, 0};
  while (slab.rows.end < step.plan.rows()) {
    const std::int64_t blocks =
        std::max(slab.blocks, existing_blocks(step.config, step.plan.row(slab.rows.end).position));
    const std::int64_t floats = (slab.rows.size() + 1) * step.config.index_heads * blocks;
    if (!slab.rows.empty() && floats > kScoreBudget) break;
    slab.blocks = blocks;
    ++slab.rows.end;
  }
  return slab;
}

std::int64_t score_floats(const m3::ModelConfig& config, std::int64_t rows, std::int64_t blocks) {
  const std::int64_t row = config.index_heads * blocks;
  return std::max(row, std::min(rows * row, kScoreBudget));
}

std::vector<ScoreTile> score_tiles(const StepContext& step, const ScoreSlab& slab, bool all) {
  std::vector<ScoreTile> result;
  for (const RowTile& tile :
       step.plan.tiles(slab.rows.begin, slab.rows.end, tile_rows(step.config))) {
    const std::int64_t last = step.plan.row(tile.first_row + tile.rows - 1).position;
    if (!all && existing_blocks(step.config, last) <= step.config.topk_blocks) continue;
    result.push_back({tile, last / m3::kPageTokens + 1});
  }
  return result;
}

WorkList score_work(const StepContext& step, const std::vector<ScoreTile>& tiles) {
  WorkList work;
  for (const ScoreTile& tile : tiles) {
    work.add(tile.pages, tile.tile.rows * step.config.index_heads);
  }
  return work;
}

std::int64_t score_scratch(const m3::ModelConfig& config) {
  return tile_rows(config) * config.index_heads * m3::kPageTokens;
}

void score_pages(const StepContext& step, std::int64_t layer, const ScoreSlab& slab,
                 const RowTile& tile, Range pages, float* scratch, Traffic& traffic) {
  const m3::ModelConfig& c = step.config;
  const std::int64_t stride =
      padded_columns(cache_format(step.cache.options(layer).index), c.index_dim);
  const std::int64_t queries = tile.rows * c.index_heads;
  const float* q = step.act.index_q.data() + tile.first_row * c.index_heads * stride;
  const std::int64_t last = step.plan.row(tile.first_row + tile.rows - 1).position;
  for (std::int64_t p = pages.begin; p < pages.end; ++p) {
    const Matrix keys = step.cache.index_page(layer, step.plan.index_page(tile.first_row, p));
    const std::int64_t first_key = p * m3::kPageTokens;
    const std::int64_t n = std::min(m3::kPageTokens, last + 1 - first_key);
    traffic.index_read += n * stored_row_bytes(keys);
    step.tiles.matmul(keys, 0, n, 0, keys.cols, q, stride, queries, scratch, m3::kPageTokens);
    for (std::int64_t i = 0; i < queries; ++i) {
      const std::int64_t row = tile.first_row + i / c.index_heads;
      const std::int64_t valid = std::min(n, step.plan.row(row).position + 1 - first_key);
      float* scores = slab.at(step, row, i % c.index_heads) + first_key / c.block_size;
      for (std::int64_t k = 0; k < valid; k += c.block_size) {
        scores[k / c.block_size] = step.tiles.maximum(scratch + i * m3::kPageTokens + k,
                                                      std::min(c.block_size, valid - k));
      }
    }
  }
}

void select_blocks(const StepContext& step, const ScoreSlab& slab, Range pairs,
                   std::vector<std::int32_t>& scratch) {
  const m3::ModelConfig& c = step.config;
  for (std::int64_t i = pairs.begin; i < pairs.end; ++i) {
    const std::int64_t row = slab.rows.begin + i / c.index_heads;
    const std::int64_t head = i % c.index_heads;
    const std::int64_t place = row * c.index_heads + head;
    const std::int64_t blocks = existing_blocks(c, step.plan.row(row).position);
    std::int32_t* ids = step.act.block_ids.data() + place * c.topk_blocks;
    if (blocks <= c.topk_blocks) {  // all of them; their scores need not exist
      std::iota(ids, ids + blocks, 0);
      continue;
    }
    m3::select_blocks({c.topk_blocks, c.init_blocks, c.local_blocks},
                      {slab.at(step, row, head), static_cast<std::size_t>(blocks)}, scratch);
    std::copy(scratch.begin(), scratch.end(), ids);
  }
}

void follow_blocks(const StepContext& step, const ScoreSlab& slab, std::int64_t layer,
                   m3::ChoiceSource& choices) {
  each_choice(
      step, slab, layer,
      [&](std::int64_t position, std::int64_t head, std::span<const float> scores,
          std::span<std::int32_t> ids) { choices.blocks(layer, position, head, scores, ids); });
}

void trace_blocks(const StepContext& step, const ScoreSlab& slab, std::int64_t layer,
                  m3::TraceSink& sink) {
  each_choice(
      step, slab, layer,
      [&](std::int64_t position, std::int64_t head, std::span<const float> scores,
          std::span<std::int32_t> ids) { sink.blocks(layer, position, head, ids, scores); });
}

}  // namespace monolayer::cpu
