// Projections of the only row of a step of MiniMax-M3, from words and handed over as words: the
// sums and roundings of rows.cuh and projections.cuh.
#pragma once

#include "backend/cuda/device/projections.cuh"
#include "backend/cuda/device/row_heads.cuh"

namespace monolayer::cuda::MONOLAYER_KERNELS {

// The step's only row, from words of the stage that makes it: the sums and roundings of
// norm_in_registers.
__device__ __noinline__ void stage_norm_of_words(const Matrix& m, const uint4* words,
                                                 const std::uint16_t* weight, std::uint32_t tag,
                                                 int layer, int made_by, int stage) {
  Shared& s = shared();
  const int thread = static_cast<int>(threadIdx.x);
  const int hidden = hidden_of(s.params.shape);
  const bool half = m.format == Format::kE4M3Half;
  const float x_scale = m.x_scale;
  const auto* scale = reinterpret_cast<const uint2*>(weight) + thread;
  uint2 w[kNormParts];
#pragma unroll
  for (int k = 0; k < kNormParts; ++k) w[k] = __ldg(scale + k * kThreads);
  uint4 v[kNormParts];
  const uint4* from = words + thread;
  take(v, tag, layer, made_by, [&](int k) { return from + k * kThreads; });
  if (thread == 0) stamp(stage == kQkv ? layer + 1 : layer, stage, 0);
  float4 x[kNormParts];
  float sum = 0;
#pragma unroll
  for (int k = 0; k < kNormParts; ++k) {
    x[k] = unpack_four({v[k].x, v[k].y});
    sum = squares(x[k], sum);
  }
  sum = warp_sum(sum);
  if (thread % 32 == 0) s.sums[0][thread / 32] = sum;
  sync();
  float part[kWarps];
#pragma unroll
  for (int i = 0; i < kWarps / 4; ++i) {
    const float4 of = reinterpret_cast<const float4*>(s.sums[0])[i];
    part[4 * i] = of.x, part[4 * i + 1] = of.y, part[4 * i + 2] = of.z, part[4 * i + 3] = of.w;
  }
#pragma unroll
  for (int d = 1; d < kWarps; d <<= 1) {
#pragma unroll
    for (int i = 0; i < kWarps; i += 2 * d) part[i] += part[i + d];
  }
  const float factor =
      staged_factor(half, norm_factor(part[0], hidden, s.params.shape.eps), x_scale);
  store_normed([&](int k) { return x[k]; }, [&](int k) { return gains_of(w[k]); }, half, factor,
               reinterpret_cast<uint2*>(memory() + s.x_at + thread * 8));
  sync();
}

// The same of the only column, for the kernels that know it to be one, by all lanes: y(row of the
// matrix, log2 of the parts, whether there is such a row, sum), the same for the lanes of a row.
template <typename K, typename F>
__device__ __forceinline__ void row_product(Context& c, const Matrix& m, F&& y) {
  const int parts = m.parts;
  const Run run = share_of(m, false, c.block, c.blocks);
  const int width = red_columns_of(c.p);
  const int log_parts = 31 - __clz(parts);
  const Column x = column(c, m.row_bytes, 0, c.lane < 4);
#pragma unroll 1
  for (int first = 0; first < run.units; first += run.batch) {
    const int count = min(run.batch, run.units - first);
    float* red = red_half(c);
    item_products<K>(
        c, run, first, count, [&](int) { return x; },
        [&](int unit, int part, float4 v) { keep_sums(c, red, (unit - first) * parts + part, v); });
    sync(c);
    c.half ^= 1;
    const int total = count * 16 * parts;
#pragma unroll 1
    for (int i = c.thread; (i & ~31) < total; i += kThreads) {
      const int part = i & (parts - 1);
      const int at = i >> log_parts;
      const bool there = i < total;
      const float sum = add_parts(
          parts, there ? red[(((at >> 4) * parts + part) * 16 + (at & 15)) * width] : 0.0F);
      y((run.begin + first) * 16 + at, log_parts, there, sum);
    }
  }
}

// Sums of this block's items of a matrix, dealt out whatever row group they belong to, as words of
// a region [part][row group][8]: one column's rows i and i + 8.
template <typename K>
__device__ __forceinline__ void hand_over_items(Context& c, const Matrix& m, int region,
                                                bool stalled) {
  const Run run = items_of(m, false, c.block, c.blocks);
  const int mask = (1 << m.log_items) - 1;
  const auto first_part = [&](int unit) { return ((run.begin + unit) & mask) * K::span(m); };
  const Column x = column(c, m.row_bytes, 0, c.lane < 4);
  item_products<K>(
      c, run, 0, run.units, [&](int unit) { return x.at(first_part(unit) * m.part_cols * 2); },
      [&](int unit, int part, float4 v) {
        if (stalled || (c.lane & 3) != 0) return;
        const int group = run.begin + unit >> m.log_items;
        store_words(words_at(region) + ((first_part(unit) + part) * m.row_groups + group) * 8 +
                        (c.lane >> 2),
                    {__float_as_uint(v.x), __float_as_uint(v.z), 0, tag_of(c)});
      });
}

__device__ __forceinline__ void row_qkv_stage(Context& c) {
  const Matrix& m = c.layer().qkv;
  if (c.layers_done == 0) {
    if (c.thread == 0) stamp(layer_of(c), kQkv, 0);
    stage_norm(m, c.p.hidden, c.layer().input_norm, 1, Rows{0, nullptr}, nullptr);
  } else {
    stage_norm_of_words(m, words_at(kHiddenWords), c.layer().input_norm, tag_of(c) - 1,
                        layer_of(c) - 1, kDown, kQkv);
  }
  hand_over_items<ProjectionKind>(c, m, kProjectedWords, is_stalled(kQkv));
}

// The total of all ranks at one place.
__device__ __forceinline__ float collect_one(const std::uint64_t* words, int layer, int stage,
                                             int at) {
  const int ranks = shared().params.mail.ranks;
  if (ranks == 2) {
    const int places[1] = {at};
    float sum[1];
    collect_two<1>(words, places, layer, stage, sum);
    return sum[0];
  }
  const std::uint64_t* from = words + at;
  float sum = collect_four(from, 0, layer, stage, at);
  if (ranks > 4) sum += collect_four(from, 4, layer, stage, at);
  return sum;
}

// collect_share() for one row, whose totals are words too.
__device__ __noinline__ void collect_row_share(Site site, int layer, int stage, int row_groups,
                                               const float* scales, std::uint32_t tag) {
  const Shared& s = shared();
  const Params& p = s.params;
  const std::uint16_t* from = site == kAttentionSite ? p.hidden : p.middle;
  std::uint16_t* to = site == kAttentionSite ? p.middle : p.hidden;
  const std::uint64_t* words = s.pull + (site == kMlpSite ? s.site_words : 0);
  const Share mine(row_groups, s.block, s.blocks);
  const int first = mine.begin * 16;
  const int width = min(mine.end * 16, hidden_of(p.shape)) - first;
  const bool stalled = is_stalled(stage);
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); (i & ~31) < width; i += kThreads) {
    std::uint16_t value = 0;
    if (i < width) {
      const std::uint32_t before = __ldcg(from + first + i);
      const float factor = scales != nullptr ? __ldg(scales + first + i) : 1.0F;
      const float sum = collect_one(words, layer, stage, first + i);
      value = to_bf16(__uint_as_float(before << 16) + round_bf16(sum * factor));
      to[first + i] = value;
    }
    hand_over_columns(site == kAttentionSite ? kMiddleWords : kHiddenWords, first + i, 0,
                      i < width && !stalled, value, tag);
  }
}

// The next layer's description on its way into shared memory, and once it is there what that layer
// will read on its way into the second-level cache; both by the warp that gets items last.
__device__ __forceinline__ bool fetches_next(const Context& c) {
  return layer_of(c) + 1 < c.p.last_layer && c.warp == ((c.turn - 1) & (c.p.round - 1));
}
__device__ __forceinline__ void start_next_layer(const Context& c) {
  const auto* from = reinterpret_cast<const uint4*>(c.p.layers + layer_of(c) + 1);
  auto* to = reinterpret_cast<uint4*>(&c.s.layers[c.layers_done + 1 & 1]);
#pragma unroll 1
  for (int i = c.lane; i < static_cast<int>(sizeof(Layer) / 16); i += 32)
    copy_async(to + i, from + i);
}
__device__ __forceinline__ void finish_next_layer(const Context& c) {
  wait_copies();
  __syncwarp();
  const Layer& layer = c.s.layers[c.layers_done + 1 & 1];
  prefetch_layer(c, layer);
  prefetch_row_keys(c, layer);
}

// hidden + BF16(sum), rounded: the stream after attention. With peers, the sum of all ranks.
__device__ __forceinline__ void row_output_stage(Context& c) {
  const Matrix& m = c.layer().o;
  const int layer = layer_of(c);
  if (has_peers() && !may_exchange(kAttentionSite, layer, kOutput)) return;
  if (fetches_next(c)) start_next_layer(c);
  sync(c);  // whoever still reads x
  for (int i = c.thread; i < m.cols / 4; i += kThreads) {
    const uint4* from = words_at(kAttendedWords) + i;
    uint4 w[1];
    take(w, tag_of(c), layer, kMerge, [&](int) { return from; });
    *reinterpret_cast<uint2*>(c.x + i * 8) = {w[0].x, w[0].y};
  }
  sync(c);
  if (c.thread == 0) stamp(layer, kOutput, 0);
  if (fetches_next(c)) finish_next_layer(c);
  const bool stalled = is_stalled(kOutput);
  // What the first sums are added to and scaled by, asked for early.
  const Share mine(m.row_groups, c.block, c.blocks);
  const int first = mine.begin * 16 + (c.thread >> (31 - __clz(m.parts)));
  const bool early = first < mine.end * 16;
  const std::uint16_t residual = early ? __ldcg(c.p.hidden + first) : 0;
  const float factor = early ? row_factor(m.row_scale, first) : 0;
  row_product<OutputKind>(c, m, [&](int out, int log_parts, bool there, float sum) {
    const bool stores = there && (c.lane & ((1 << log_parts) - 1)) == 0;
    if (has_peers()) {
      if (stores) publish(kAttentionSite, layer, 0, out, sum);
      return;
    }
    std::uint16_t value = 0;
    if (there) {
      value = out == first ? to_bf16(value_of(residual) + round_bf16(sum * factor))
                           : to_bf16(load_bf16(c.p.hidden + out) +
                                     round_bf16(sum * row_factor(m.row_scale, out)));
    }
    if (stores) c.p.middle[out] = value;
    hand_over_columns(kMiddleWords, out, log_parts, there && !stalled, value, tag_of(c));
  });
  if (has_peers())
    collect_row_share(kAttentionSite, layer, kOutput, m.row_groups, m.row_scale, tag_of(c));
}

__device__ __forceinline__ void row_router_stage(Context& c) {
  const Matrix& m = c.layer().router;
  share_table(c);
  stage_norm_of_words(m, words_at(kMiddleWords), c.layer().post_norm, tag_of(c), layer_of(c),
                      kOutput, kRouter);
  hand_over_items<RouterKind>(c, m, kRouterWords, is_stalled(kRouter));
}

}  // namespace monolayer::cuda::MONOLAYER_KERNELS
