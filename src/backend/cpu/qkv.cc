#include "backend/cpu/qkv.h"

#include <algorithm>

#include "backend/cpu/cache_insert.h"
#include "backend/cpu/matmul_rows.h"
#include "backend/cpu/row_stages.h"
#include "core/dtype.h"
#include "m3/rope.h"

namespace monolayer::cpu {
namespace {

constexpr int kQkvMatrices = 5;

std::array<const Matrix*, kQkvMatrices> matrices(const LayerView& layer) {
  return {&layer.q, &layer.k, &layer.v, &layer.index_q, &layer.index_k};
}

// Norm (if there is a weight) and rotation in float32, then the one rounding.
void finish_head(const StepContext& step, const float* x, std::int64_t n, NormWeight norm,
                 const float* rope, float* out) {
  if (norm == nullptr) {
    for (std::int64_t i = 0; i < n; ++i) out[i] = round_bf16(x[i]);
    return;
  }
  const float factor = norm_factor(step.tiles, x, n, step.config.rms_eps);
  for (std::int64_t i = 0; i < n; ++i) out[i] = (x[i] * factor) * (1.0F + bf16_to_f32(norm[i]));
  const std::int64_t half = step.config.rotary_dim / 2;
  m3::rotate(out, rope, rope + half, half);
  for (std::int64_t i = 0; i < n; ++i) out[i] = round_bf16(out[i]);
}

}  // namespace

QkvColumns::QkvColumns(const m3::ModelConfig& config, bool sparse) {
  k = q + config.q_width();
  v = k + config.kv_width();
  size = index_q = index_k = v + config.kv_width();
  if (!sparse) return;
  index_k = index_q + config.index_width();
  size = index_k + config.index_dim;
}

WorkList qkv_work(const LayerView& layer) {
  WorkList work(8);
  for (const Matrix* w : matrices(layer)) work.add(w->rows, stored_row_bytes(*w));
  return work;
}

unsigned qkv_kinds(const LayerView& layer) {
  unsigned kinds = 0;
  for (const Matrix* w : matrices(layer)) {
    if (w->rows > 0) kinds |= 1U << activation_kind(w->format);
  }
  return kinds;
}

void project_qkv(const StepContext& step, const LayerView& layer, std::int64_t item, Range out,
                 Traffic& traffic) {
  const QkvColumns columns(step.config, layer.sparse);
  const std::int64_t offsets[kQkvMatrices] = {columns.q, columns.k, columns.v, columns.index_q,
                                              columns.index_k};
  const Matrix& w = *matrices(layer)[static_cast<std::size_t>(item)];
  const int kind = activation_kind(w.format);
  matmul_rows(step.tiles, w, out, step.act.rows[static_cast<std::size_t>(kind)].data(),
              permuted_size(kind, w.cols), step.plan.rows(), step.row_tile,
              step.act.projected.data() + offsets[item] + out.begin, columns.size, traffic);
}

void fill_rope(const StepContext& step, const m3::Rope& rope, Range rows) {
  const std::int64_t half = step.config.rotary_dim / 2;
  for (std::int64_t r = rows.begin; r < rows.end; ++r) {
    float* cosine = step.act.rope.data() + r * 2 * half;
    rope.angles(step.plan.row(r).position, cosine, cosine + half);
  }
}

std::int64_t heads_of_row(const m3::ModelConfig& config, bool sparse) {
  return config.num_heads + 2 * config.num_kv_heads + (sparse ? config.index_heads + 1 : 0);
}

void finish_heads(const StepContext& step, const LayerView& layer, std::int64_t layer_index,
                  Range heads, float* scratch, Traffic& traffic) {
  const m3::ModelConfig& c = step.config;
  const QkvColumns columns(c, layer.sparse);
  const CacheOptions& cache = step.cache.options(layer_index);
  const std::int64_t per_row = heads_of_row(c, layer.sparse);
  const std::int64_t group = c.group_size();
  const std::int64_t q_size = padded_columns(cache_format(cache.kv), c.head_dim);
  const std::int64_t index_size = padded_columns(cache_format(cache.index), c.index_dim);
  for (std::int64_t at = heads.begin; at < heads.end; ++at) {
    const std::int64_t r = at / per_row;
    std::int64_t head = at % per_row;
    const float* x = step.act.projected.data() + r * columns.size;
    const float* rope = step.act.rope.data() + r * c.rotary_dim;
    const CacheSlot main = step.plan.main_slot(r);
    const CacheSlot index = step.plan.index_slot(r);
    const auto store = [&](const Matrix& rows, const CacheSlot& slot, DType dtype, float scale) {
      auto* base = static_cast<std::byte*>(const_cast<void*>(rows.data));
      store_entry(dtype, scale, scratch, rows.cols, base + slot.token * rows.row_bytes);
      traffic.cache_written += rows.cols * static_cast<std::int64_t>(dtype_size(dtype));
    };
    if (head < c.num_heads) {
      finish_head(step, x + columns.q + head * c.head_dim, c.head_dim, layer.q_norm, rope, scratch);
      const std::int64_t place = (head / group * step.plan.rows() + r) * group + head % group;
      step.tiles.permute(cache_format(cache.kv), scratch, c.head_dim,
                         step.act.q.data() + place * q_size);
      continue;
    }
    head -= c.num_heads;
    if (head < c.num_kv_heads) {
      finish_head(step, x + columns.k + head * c.head_dim, c.head_dim, layer.k_norm, rope, scratch);
      store(step.cache.k_page(layer_index, main.page, head), main, cache.kv, cache.k_scale);
      continue;
    }
    head -= c.num_kv_heads;
    if (head < c.num_kv_heads) {
      finish_head(step, x + columns.v + head * c.head_dim, c.head_dim, nullptr, rope, scratch);
      store(step.cache.v_page(layer_index, main.page, head), main, cache.kv, cache.v_scale);
      continue;
    }
    head -= c.num_kv_heads;
    if (head < c.index_heads) {
      finish_head(step, x + columns.index_q + head * c.index_dim, c.index_dim, layer.index_q_norm,
                  rope, scratch);
      step.tiles.permute(cache_format(cache.index), scratch, c.index_dim,
                         step.act.index_q.data() + (r * c.index_heads + head) * index_size);
      continue;
    }
    finish_head(step, x + columns.index_k, c.index_dim, layer.index_k_norm, rope, scratch);
    store(step.cache.index_page(layer_index, index.page), index, cache.index, cache.index_scale);
  }
}

}  // namespace monolayer::cpu
