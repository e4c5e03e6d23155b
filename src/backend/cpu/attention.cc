#include "backend/cpu/attention.h"

#include <algorithm>
#include <cmath>

#include "backend/cpu/index_select.h"
#include "core/dtype.h"

namespace monolayer::cpu {
namespace {

constexpr std::int64_t kTileQueries = 64;  // query heads that share one reading of a dense page

// The keys of one chunk: `count` of them from `first` on, in one page.
struct Chunk {
  std::int64_t page = 0, in_page = 0, first = 0, count = 0;
};

Chunk chunk_of(const StepContext& step, const AttentionPlan& plan, const AttentionTile& tile,
               std::int64_t chunk) {
  if (!plan.sparse) {
    const std::int64_t skipped = chunk == 0 ? plan.first_key : 0;
    return {chunk, skipped, chunk * m3::kPageTokens + skipped, m3::kPageTokens - skipped};
  }
  const m3::ModelConfig& c = step.config;
  const std::int64_t pair = tile.rows.first_row * c.index_heads + tile.kv_head;
  const std::int64_t block = step.act.block_ids.data()[pair * c.topk_blocks + chunk];
  const std::int64_t first = block * c.block_size;
  return {first / m3::kPageTokens, first % m3::kPageTokens, first, c.block_size};
}

// Keys of the chunk that a row may see.
std::int64_t visible(const StepContext& step, const Chunk& chunk, std::int64_t row) {
  return std::clamp<std::int64_t>(step.plan.row(row).position + 1 - chunk.first, 0, chunk.count);
}

// Layout of a partial and of a running state: values, then maximum, then sum.
struct Partial {
  float* values;
  float& maximum;
  float& sum;
};
Partial partial_at(float* base, std::int64_t index, std::int64_t dim) {
  float* p = base + index * (dim + 2);
  return {p, p[dim], p[dim + 1]};
}

// state = state and next, in this order; the larger maximum becomes the common one.
void merge(const Tiles& tiles, const Partial& next, std::int64_t dim, const Partial& state) {
  const float maximum = std::max(state.maximum, next.maximum);
  const float keep = tiles.exponential(state.maximum - maximum);
  const float add = tiles.exponential(next.maximum - maximum);
  state.sum = state.sum * keep + next.sum * add;
  for (std::int64_t d = 0; d < dim; ++d) {
    state.values[d] = state.values[d] * keep + next.values[d] * add;
  }
  state.maximum = maximum;
}

void attend_unit(const StepContext& step, const AttentionPlan& plan, std::int64_t layer,
                 const AttentionTile& tile, std::int64_t chunk_index, float* partials,
                 float* scratch, Traffic& traffic) {
  const m3::ModelConfig& c = step.config;
  const CacheOptions& cache = step.cache.options(layer);
  const std::int64_t group = c.group_size();
  const std::int64_t queries = tile.rows.rows * group;
  const Chunk chunk = chunk_of(step, plan, tile, chunk_index);
  const std::int64_t n = visible(step, chunk, tile.rows.first_row + tile.rows.rows - 1);
  const std::int32_t page = step.plan.page(tile.rows.first_row, chunk.page);
  const Matrix k = step.cache.k_page(layer, page, tile.kv_head);
  Matrix v = step.cache.v_page(layer, page, tile.kv_head);
  v.data = static_cast<const std::byte*>(v.data) + chunk.in_page * v.row_bytes;
  traffic.kv_read += 2 * n * stored_row_bytes(k);

  float* scores = scratch;
  float* probabilities = scratch + queries * m3::kPageTokens;
  const std::int64_t stride = padded_columns(k.format, c.head_dim);
  const float* q =
      step.act.q.data() + (tile.kv_head * step.plan.rows() + tile.rows.first_row) * group * stride;
  step.tiles.matmul(k, chunk.in_page, chunk.in_page + n, 0, c.head_dim, q, stride, queries, scores,
                    m3::kPageTokens);
  const float scale = c.attention_scale() * cache.k_scale;
  for (std::int64_t i = 0; i < queries; ++i) {
    v.rows = visible(step, chunk, tile.rows.first_row + i / group);
    if (v.rows == 0) continue;
    float* s = scores + i * m3::kPageTokens;
    for (std::int64_t j = 0; j < v.rows; ++j) s[j] *= scale;
    const Partial out = partial_at(partials, i, c.head_dim);
    step.tiles.softmax_chunk(s, v.rows, probabilities, &out.maximum, &out.sum);
    step.tiles.weighted_sum(v, probabilities, out.values);
  }
}

// The tile that holds unit `unit`.
std::int64_t tile_of(const AttentionPlan& plan, std::int64_t unit) {
  const auto after =
      std::upper_bound(plan.tiles.begin(), plan.tiles.end(), unit,
                       [](std::int64_t u, const AttentionTile& t) { return u < t.first_unit; });
  return after - plan.tiles.begin() - 1;
}

}  // namespace

std::int64_t attention_tile_rows(const m3::ModelConfig& config, bool sparse) {
  return sparse ? 1 : std::max<std::int64_t>(1, kTileQueries / config.group_size());
}

AttentionPlan plan_attention(const StepContext& step, bool sparse) {
  const m3::ModelConfig& c = step.config;
  AttentionPlan plan;
  plan.sparse = sparse;
  plan.tile_rows = attention_tile_rows(c, sparse);
  for (const RowTile& rows : step.plan.tiles(0, step.plan.rows(), plan.tile_rows)) {
    const std::int64_t last = step.plan.row(rows.first_row + rows.rows - 1).position;
    const std::int64_t chunks = sparse ? selected_blocks(c, last) : last / m3::kPageTokens + 1;
    for (std::int64_t g = 0; g < c.num_kv_heads; ++g) {
      plan.tiles.push_back({rows, g, chunks, plan.units});
      plan.units += chunks;
    }
  }
  plan.partial_floats = plan.tile_rows * c.group_size() * (c.head_dim + 2);
  plan.wave = std::clamp<std::int64_t>(kWaveFloats / plan.partial_floats, 1, plan.units);
  return plan;
}

std::int64_t attention_scratch(const StepContext& step, const AttentionPlan& plan) {
  return (plan.tile_rows * step.config.group_size() + 1) * m3::kPageTokens;
}

void attend_units(const StepContext& step, const AttentionPlan& plan, std::int64_t layer,
                  std::int64_t wave_begin, Range units, float* scratch, Traffic& traffic) {
  if (units.empty()) return;
  std::int64_t t = tile_of(plan, units.begin);
  for (std::int64_t u = units.begin; u < units.end; ++u) {
    while (u >= plan.tiles[static_cast<std::size_t>(t)].first_unit +
                    plan.tiles[static_cast<std::size_t>(t)].chunks) {
      ++t;
    }
    const AttentionTile& tile = plan.tiles[static_cast<std::size_t>(t)];
    attend_unit(step, plan, layer, tile, u - tile.first_unit,
                step.act.attention_partials.data() + (u - wave_begin) * plan.partial_floats,
                scratch, traffic);
  }
}

std::int64_t merge_pairs(const StepContext& step, const AttentionPlan& plan, Range wave) {
  const std::int64_t first = tile_of(plan, wave.begin);
  const std::int64_t last = tile_of(plan, wave.end - 1);
  return (last - first + 1) * plan.tile_rows * step.config.group_size();
}

void merge_units(const StepContext& step, const AttentionPlan& plan, std::int64_t layer,
                 const SplitLayout& layout, Range wave, Range pairs, float* scratch) {
  const m3::ModelConfig& c = step.config;
  const std::int64_t group = c.group_size();
  const std::int64_t dim = c.head_dim;
  const std::int64_t per_tile = plan.tile_rows * group;
  const std::int64_t first_tile = tile_of(plan, wave.begin);
  const float v_scale = step.cache.options(layer).v_scale;
  for (std::int64_t at = pairs.begin; at < pairs.end; ++at) {
    const AttentionTile& tile = plan.tiles[static_cast<std::size_t>(first_tile + at / per_tile)];
    const std::int64_t query = at % per_tile;  // row in the tile x head in the group
    if (query >= tile.rows.rows * group) continue;
    const std::int64_t row = tile.rows.first_row + query / group;
    const std::int64_t head = tile.kv_head * group + query % group;
    const Partial state =
        partial_at(step.act.attention_state.data(), row * c.num_heads + head, dim);
    const Range units{std::max(wave.begin, tile.first_unit),
                      std::min(wave.end, tile.first_unit + tile.chunks)};
    for (std::int64_t u = units.begin; u < units.end; ++u) {
      if (visible(step, chunk_of(step, plan, tile, u - tile.first_unit), row) == 0) break;
      const Partial next = partial_at(
          step.act.attention_partials.data() + (u - wave.begin) * plan.partial_floats, query, dim);
      if (u == tile.first_unit) {
        std::copy_n(next.values, dim + 2, state.values);
      } else {
        merge(step.tiles, next, dim, state);
      }
    }
    if (units.end != tile.first_unit + tile.chunks) continue;
    for (std::int64_t d = 0; d < dim; ++d) {
      scratch[d] = round_bf16(state.values[d] / state.sum * v_scale);
    }
    scatter(layout, scratch, head * dim, (head + 1) * dim,
            step.act.attended.data() + row * layout.size());
  }
}

}  // namespace monolayer::cpu
