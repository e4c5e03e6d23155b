// Projections of one layer: query, key, value; output; router; and the head.
#pragma once

#include "backend/cuda/device/exchange.cuh"
#include "backend/cuda/device/rows.cuh"

namespace monolayer::cuda::MONOLAYER_KERNELS {

__device__ __forceinline__ float value_of(std::uint16_t bits) {
  return __uint_as_float(static_cast<std::uint32_t>(bits) << 16);
}
__device__ __forceinline__ float load_bf16(const std::uint16_t* p) { return value_of(__ldcg(p)); }
__device__ __forceinline__ std::uint16_t to_bf16(float x) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}
__device__ __forceinline__ float row_factor(const float* scales, int row) {
  return scales != nullptr ? __ldg(scales + row) : 1.0F;
}

__device__ __forceinline__ void embed_stage(Context& c) {
  const int vectors = hidden_of(c.p.shape) / 8;
  for (int i = c.block * kThreads + c.thread; i < c.step().rows * vectors;
       i += c.blocks * kThreads) {
    const int row = i / vectors;
    reinterpret_cast<uint4*>(c.p.hidden)[i] =
        __ldg(reinterpret_cast<const uint4*>(c.p.embed) +
              static_cast<std::int64_t>(c.step().token[row]) * vectors + i % vectors);
  }
}

__device__ __forceinline__ void qkv_stage(Context& c) {
  const Matrix& m = c.layer().qkv;
#pragma unroll 1
  for (int first = 0; first < c.step().rows; first += kColumns) {
    const int n = min(kColumns, c.step().rows - first);
    stage_norm(m, c.p.hidden, c.layer().input_norm, n, Rows{first, nullptr}, nullptr);
    share_product<ProjectionKind>(c, m, n, [&](int group, int i, int column_of, float sum) {
      const int out = group * 16 + i;
      if (out >= c.p.shape.projected) return;
      c.p.projected[static_cast<std::int64_t>(first + column_of) * c.p.shape.projected + out] =
          sum * row_factor(m.row_scale, out);
    });
  }
}

// hidden + BF16(sum), rounded: the stream after attention. With peers, the sum of all ranks.
__device__ __forceinline__ void output_stage(Context& c) {
  const Matrix& m = c.layer().o;
  const Layout layout(m);
  const int hidden = hidden_of(c.p.shape);
  const int layer = c.p.first_layer + c.layers_done;
  if (has_peers() && !may_exchange(kAttentionSite, layer, kOutput)) return;
#pragma unroll 1
  for (int first = 0; first < c.step().rows; first += kColumns) {
    const int n = min(kColumns, c.step().rows - first);
    sync(c);
    clear_rows(c.x, layout, n);
    stage_rows(c, layout, layout.row_bytes, 0, n,
               [&](int r) { return c.p.attended + static_cast<std::int64_t>(first + r) * m.cols; });
    wait_copies();
    sync(c);
    share_product<OutputKind>(c, m, n, [&](int group, int i, int column_of, float sum) {
      const int out = group * 16 + i;
      if (out >= hidden) return;
      if (has_peers()) {
        publish(kAttentionSite, layer, first + column_of, out, sum);
        return;
      }
      const std::int64_t at = static_cast<std::int64_t>(first + column_of) * hidden + out;
      c.p.middle[at] =
          to_bf16(load_bf16(c.p.hidden + at) + round_bf16(sum * row_factor(m.row_scale, out)));
    });
  }
  if (has_peers()) collect_share(kAttentionSite, layer, kOutput, m.row_groups, m.row_scale);
}

// Partial logits of this block's items; every warp stores its own.
__device__ __forceinline__ void router_stage(Context& c) {
  const Matrix& m = c.layer().router;
  const Run run = items_of(m, c.block, c.blocks);
  const int own = c.lane >> 2;
  const int mask = (1 << m.log_items) - 1;
  const auto first_part = [&](int unit) { return ((run.begin + unit) & mask) * m.span; };
#pragma unroll 1
  for (int first = 0; first < c.step().rows; first += kColumns) {
    const int n = min(kColumns, c.step().rows - first);
    stage_norm(m, c.p.middle, c.layer().post_norm, n, Rows{first, nullptr}, nullptr);
    const Column x = column(c, m.row_bytes, own, own < n);
    item_products<RouterKind>(
        c, run, 0, run.units,
        [&](int unit) {
          const int offset = x.stride != 0 ? first_part(unit) * m.part_cols * 2 : 0;
          return Column{x.offset + offset, x.stride};
        },
        [&](int unit, int part, float4 v) {
          const int stride = 16 * m.row_groups;
          const int column_of = 2 * (c.lane & 3);
          float* to = c.p.router +
                      ((first_part(unit) + part) * kMaxRows + first + column_of) * stride +
                      (run.begin + unit >> m.log_items) * 16 + own;
          if (column_of < n) to[0] = v.x, to[8] = v.z;
          to += stride;
          if (column_of + 1 < n) to[0] = v.y, to[8] = v.w;
        });
  }
  c.staged = c.step().rows <= kColumns ? Layout(m).id() : -1;
}

__device__ __forceinline__ void head_stage(Context& c) {
  const Matrix& m = c.p.lm_head;
  const int n_all = c.step().logit_rows;
#pragma unroll 1
  for (int first = 0; first < n_all; first += kColumns) {
    const int n = min(kColumns, n_all - first);
    stage_norm(m, c.p.hidden, c.p.final_norm, n, Rows{first, c.step().logit_row},
               c.block == 0 ? c.p.normed : nullptr);
    share_product<AnyKind>(c, m, n, [&](int group, int i, int column_of, float sum) {
      const int out = group * 16 + i;
      if (out >= c.p.shape.vocab) return;
      c.p.logits[static_cast<std::int64_t>(first + column_of) * c.p.shape.vocab + out] =
          sum * row_factor(m.row_scale, out);
    });
  }
}

}  // namespace monolayer::cuda::MONOLAYER_KERNELS
