// Projections of one layer: query, key, value; output; router; and the head.
#pragma once

#include <type_traits>

#include "backend/cuda/device/exchange.cuh"
#include "backend/cuda/device/few_rows.cuh"
#include "backend/cuda/device/halves.cuh"
#include "backend/cuda/device/hand_off.cuh"
#include "backend/cuda/device/part_norms.cuh"
#include "backend/cuda/device/route.cuh"
#include "backend/cuda/device/rows.cuh"

namespace monolayer::cuda::MONOLAYER_KERNELS {

__device__ __forceinline__ float value_of(std::uint16_t bits) {
  return __uint_as_float(static_cast<std::uint32_t>(bits) << 16);
}
__device__ __forceinline__ float load_bf16(const std::uint16_t* p) { return value_of(__ldcg(p)); }
__device__ __forceinline__ std::uint16_t to_bf16(float x) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

__device__ __forceinline__ void embed_stage(Context& c) {
  const int vectors = hidden_of(c.p.shape) / 8;
  for (int i = c.block * kThreads + c.thread; i < c.rows() * vectors; i += c.blocks * kThreads) {
    const int row = i / vectors;
    reinterpret_cast<uint4*>(c.p.hidden)[i] =
        __ldg(reinterpret_cast<const uint4*>(c.p.embed) +
              static_cast<std::int64_t>(c.step().token[row]) * vectors + i % vectors);
  }
}

// Sums of this block's items, items dealt out whatever row group they belong to: every warp stores
// its own, and whoever reads them adds the parts. `x`: this lane's column at part `first_part`.
// put(part, column, row of the matrix, its sum, that of the row 8 on); done(): by a warp that has
// stored those of one part.
template <typename K, typename X, typename P, typename D>
__device__ __forceinline__ void scattered_product(Context& c, const Run& run, X x, int first_part,
                                                  int columns, P&& put, D&& done) {
  const Matrix& m = run.m;
  const int own = c.lane >> 2;
  const int mask = (1 << m.log_items) - 1;
  const bool by_part = run.pass >= 0;
  const auto part_of = [&](int unit) {
    return (by_part ? run.place(unit).pass : (run.begin + unit) & mask) * K::span(m);
  };
  item_products<K>(
      c, run, 0, run.units,
      [&](int unit) { return x.at((part_of(unit) - first_part) * m.part_cols * 2); },
      [&](int unit, int part, const auto& v) {
        const int group = by_part ? run.place(unit).group : run.begin + unit >> m.log_items;
        const int row = group * 16 + own;
        const auto store = [&](int which, float low, float high) {
          if (which < columns) put(part_of(unit) + part, which, row, low, high);
        };
        const auto store_all = [&](int first, const float4& of) {
          store(first, of.x, of.z);
          if (!kOneRow) store(first + 1, of.y, of.w);
        };
        if constexpr (std::is_same_v<X, WideColumn>) {
          store_all(2 * (c.lane & 3), v.low);
          store_all(2 * (c.lane & 3) + kColumns, v.high);
        } else {
          store_all(2 * (c.lane & 3), v);
        }
        done();
      });
}

// The same for all rows at once: a block stages what its items meet, one or two parts of K of every
// row. `WIDE`: in one pass, not in two. stage(parts): into x, which nobody reads any more.
template <typename K, bool WIDE, typename T, typename P, typename D>
__device__ __forceinline__ void product_by_part(Context& c, const Matrix& m, T&& stage, P&& put,
                                                D&& done) {
  const Run run = items_of(m, true, c.block, c.blocks);
  const int first_part = run.units > 0 ? run.place(0).pass * K::span(m) : 0;
  const int end_part =
      run.units > 0 ? (run.place(run.units - 1).pass + 1) * K::span(m) : first_part;
  static_assert(kStagedPartsBytes <= kColumns * kMaxHidden * 2);
  const int part_bytes = m.part_cols * 2;
  const int row_bytes = (end_part - first_part) * part_bytes + kBankShift;
  const int rows = c.rows();
  stage(StagedParts{first_part * m.part_cols, (end_part - first_part) * m.part_cols, row_bytes});
  sync(c);
  const int own = c.lane >> 2;
  const auto columns_from = [&](int first) {
    const Column low = column(c, row_bytes, first + own, first + own < rows);
    if constexpr (WIDE) {
      const int high = first + own + kColumns;
      return WideColumn{low, column(c, row_bytes, high, high < rows)};
    } else {
      return low;
    }
  };
  constexpr int kTogether = WIDE ? kMaxRows : kColumns;
#pragma unroll 1
  for (int first = 0; first < pass_rows(c); first += kTogether) {
    scattered_product<K>(
        c, run, columns_from(first), first_part, min(kTogether, rows - first),
        [&](int part, int column_of, int row, float low, float high) {
          put(part, first + column_of, row, low, high);
        },
        done);
  }
}

// Query, key and value of a layer. `WORDS`: from words, unless this is a run's first layer, and as
// words. `BY_PART`: as kQkvByPart says; nobody reads x any more.
template <bool WORDS, bool BY_PART>
__device__ __forceinline__ void qkv_stage(Context& c) {
  const Matrix& m = c.layer().qkv;
  const bool stalled = WORDS && is_stalled(kQkv);
  const auto put = [&](int part, int row_of_step, int row, float low, float high) {
    if constexpr (WORDS) {
      if (stalled) return;
      // `row` is among the first 8 of its group; the word also holds the sum of the one 8 on.
      store_words(words_at(kProjectedWords, row_of_step) +
                      ((part * m.row_groups + (row >> 4)) * 8 + (row & 7)),
                  {__float_as_uint(low), __float_as_uint(high), 0, tag_of(c)});
    } else {
      float* at = c.p.projected +
                  static_cast<std::int64_t>(part * kMaxRows + row_of_step) * c.p.projected_stride +
                  row;
      at[0] = low;
      at[8] = high;
    }
  };
  if constexpr (BY_PART) {
    product_by_part<ProjectionKind, kMayBeWide>(
        c, m,
        [&](const StagedParts& parts) {
          stage_stream(c, kInputNorm, c.p.hidden, c.layer().input_norm, parts);
          norm_staged_parts<true>(kInputNorm, m.x_scale, parts, nullptr, kMaxHidden);
        },
        put, [] {});
  } else {
#pragma unroll 1
    for (int first = 0; first < pass_rows(c); first += kColumns) {
      const int n = min(kColumns, c.rows() - first);
      const int own = c.lane >> 2;
      if (WORDS && c.layers_done > 0) {
        stage_norms_of_words(m, kHiddenWords, c.layer().input_norm, tag_of(c) - 1, layer_of(c) - 1,
                             kDown, kQkv);
      } else {
        if (WORDS && c.thread == 0) stamp(layer_of(c), kQkv, 0);
        stage_normed(c, m, c.p.hidden, c.layer().input_norm, n, Rows{first, nullptr});
      }
      scattered_product<ProjectionKind>(
          c, items_of(m, false, c.block, c.blocks), column(c, m.row_bytes, own, own < n), 0, n,
          [&](int part, int column_of, int row, float low, float high) {
            put(part, first + column_of, row, low, high);
          },
          [] {});
    }
  }
}

// What a product adds to the stream, BF16(sum), rounded: attention's output to what entered the
// layer, STAGE being kOutput, or a dense layer's MLP to that, kDown. With peers, the sum of all
// ranks. `WORDS`: from words and as words.
template <typename K, Stage STAGE, bool WORDS>
__device__ __forceinline__ void added_product(Context& c, const Matrix& m) {
  constexpr Site kSite = STAGE == kOutput ? kAttentionSite : kMlpSite;
  const std::uint16_t* const input = STAGE == kOutput ? c.p.attended : c.p.mid;
  const int stride = STAGE == kOutput ? m.cols : c.p.shape.mid_width;
  const std::uint16_t* const before = STAGE == kOutput ? c.p.hidden : c.p.middle;
  std::uint16_t* const after = STAGE == kOutput ? c.p.middle : c.p.hidden;
  const Layout layout(m);
  const int hidden = hidden_of(c.p.shape);
  const int layer = layer_of(c);
  if (has_peers() && !may_exchange(kSite, layer, STAGE)) return;
  const bool stalled = WORDS && is_stalled(STAGE);
  const auto stage = [&](int first, int n) {
    if constexpr (WORDS) {
      // A power of two for MiniMax-M3's heads.
      const int log_words = 31 - __clz(m.cols / 4);
      const int mask = (1 << log_words) - 1;
      const auto from = [&](int i) {
        return words_at(kAttendedWords, i >> log_words) + (i & mask);
      };
      if (c.warp == 0) await_first(n << log_words, tag_of(c), layer, kMerge, from);
      sync(c);
      stage_words(
          n << log_words, tag_of(c), layer, kMerge,
          [&](int i) { return c.x + (i >> log_words) * m.row_bytes + (i & mask) * 8; }, from);
      if (c.thread == 0) stamp(layer, STAGE, 0);
    } else {
      sync(c);
      clear_rows(c.x, layout, n);
      stage_rows(c, layout, layout.row_bytes, 0, n,
                 [&](int r) { return input + static_cast<std::int64_t>(first + r) * stride; });
      wait_copies();
    }
    sync(c);
  };
  const auto finish = [&](int row, int group, int i, float sum) {
    const int out = group * 16 + i;
    if (out >= hidden) return;
    if (has_peers()) {
      publish(kSite, layer, row, out, sum);
      return;
    }
    const std::int64_t at = static_cast<std::int64_t>(row) * hidden + out;
    const std::uint16_t value =
        to_bf16(load_bf16(before + at) + round_bf16(sum * row_factor(m.row_scale, out)));
    after[at] = value;
    if (WORDS && !stalled) hand_over_four(words_at(kMiddleWords, row) + out / 4, value, tag_of(c));
  };
  if (kMayBeWide && output_is_wide(m, c.rows())) {
    stage(0, c.rows());
    share_product<K, kMayBeWide>(
        c, m, c.rows(), [&](int group, int i, int row, float sum) { finish(row, group, i, sum); });
  } else {
#pragma unroll 1
    for (int first = 0; first < pass_rows(c); first += kColumns) {
      const int n = min(kColumns, c.rows() - first);
      stage(first, n);
      share_product<K, false>(c, m, n, [&](int group, int i, int column_of, float sum) {
        finish(first + column_of, group, i, sum);
      });
    }
  }
  if (has_peers()) collect_share<WORDS>(kSite, layer, STAGE, m.row_groups, m.row_scale, tag_of(c));
}

template <bool WORDS>
__device__ __forceinline__ void output_stage(Context& c) {
  added_product<OutputKind, kOutput, WORDS>(c, c.layer().o);
}

// Partial logits. In the fused kernels for M3 a warp hands over its own, and up to four rows the
// others go on with the shared expert, whose part of the table is made here; the routed part beside
// it.
// `WORDS`: from words.
template <bool HANDS_OVER, bool WORDS>
__device__ __forceinline__ void router_products(Context& c) {
  const Matrix& m = c.layer().router;
  share_table(c);
  const auto put = [&](int part, int row_of_step, int row, float low, float high) {
    float* at = c.p.router + (part * kMaxRows + row_of_step) * 16 * m.row_groups + row;
    at[0] = low;
    at[8] = high;
  };
  c.staged = -1;
  if constexpr (HANDS_OVER && kNormsByPart) {
    // Experts read normed rows from where whoever has a part's first row group leaves it.
    const Run run = items_of(m, true, c.block, c.blocks);
    const int kept = (run.place(0).pass + (run.place(0).group > 0 ? 1 : 0)) * m.part_cols;
    product_by_part<RouterKind, false>(
        c, m,
        [&](const StagedParts& parts) {
          stage_stream(c, kPostNorm, c.p.middle, c.layer().post_norm, parts);
          norm_staged_parts<false>(kPostNorm, m.x_scale, parts, c.p.normed, kept);
          if (parts.first + parts.columns > kept) arrive(layer_of(c), kPostNorm);
        },
        put, [&] { arrive_item(layer_of(c), kRouter); });
  } else {
#pragma unroll 1
    for (int first = 0; first < pass_rows(c); first += kColumns) {
      const int n = min(kColumns, c.rows() - first);
      const int own = c.lane >> 2;
      if constexpr (WORDS) {
        stage_norms_of_words(m, kMiddleWords, c.layer().post_norm, tag_of(c), layer_of(c), kOutput,
                             kRouter);
      } else {
        stage_normed(c, m, c.p.middle, c.layer().post_norm, n, Rows{first, nullptr});
      }
      scattered_product<RouterKind>(
          c, items_of(m, false, c.block, c.blocks), column(c, m.row_bytes, own, own < n), 0, n,
          [&](int part, int column_of, int row, float low, float high) {
            put(part, first + column_of, row, low, high);
          },
          [&] {
            if (kOnePass && HANDS_OVER) arrive_item(layer_of(c), kRouter);
          });
    }
    if (kOnePass || c.rows() <= kColumns) c.staged = Layout(m).id();
  }
}
__device__ __forceinline__ void router_stage(Context& c) { router_products<false, false>(c); }
__device__ __forceinline__ void router_in_step(Context& c) { router_products<true, kFewRows>(c); }

__device__ __forceinline__ void head_stage(Context& c) {
  const Matrix& m = c.p.lm_head;
  const int n_all = c.step().logit_rows;
  std::uint16_t* const normed = c.block == 0 ? c.p.normed : nullptr;
  const auto logit = [&](int row, int out) -> float& {
    return c.p.logits[static_cast<std::int64_t>(row) * c.p.shape.vocab + out];
  };
#if MONOLAYER_KERNELS_DENSE && MONOLAYER_KERNELS_ROWS > 8
  if (is_by_halves(n_all)) {
    product_by_halves<HeadKind, 0>(
        c, m, c.p.hidden, c.p.final_norm, n_all, Rows{0, c.step().logit_row}, normed,
        [&](int group, int i, int row, float sum, bool complete) {
          const int out = group * 16 + i;
          if (out >= c.p.shape.vocab || row >= n_all) return;
          float& at = logit(row, out);
          at = complete ? (at + sum) * row_factor(m.row_scale, out) : sum;
        });
    return;
  }
#endif
#pragma unroll 1
  for (int first = 0; first < n_all; first += kColumns) {
    const int n = min(kColumns, n_all - first);
    stage_norm(m, c.p.hidden, c.p.final_norm, n, Rows{first, c.step().logit_row}, normed);
    share_product<AnyKind, false>(c, m, n, [&](int group, int i, int column_of, float sum) {
      const int out = group * 16 + i;
      if (out >= c.p.shape.vocab) return;
      logit(first + column_of, out) = sum * row_factor(m.row_scale, out);
    });
  }
}

// Asks the second-level cache for what the next layer reads apart from weights: norms, factors of
// rows. A line a lane; by one warp, long before its use.
__device__ __forceinline__ void prefetch_layer(const Context& c, const Layer& layer) {
  constexpr int kLine = 128;
  const Shape& s = c.p.shape;
  const void* const from[] = {layer.input_norm, layer.post_norm, layer.qkv.row_scale,
                              layer.o.row_scale};
  const int bytes[] = {hidden_of(s) * 2, hidden_of(s) * 2, layer.qkv.row_groups * 64,
                       layer.o.row_groups * 64};
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const Share mine((bytes[k] + kLine - 1) / kLine, c.block, c.blocks);
    const int i = mine.begin + c.lane;
    if (from[k] != nullptr && i < mine.end) {
      prefetch_l2(static_cast<const unsigned char*>(from[k]) + i * kLine);
    }
  }
  if (c.lane == 0) {
    prefetch_l2(layer.q_norm);
    prefetch_l2(layer.k_norm);
    if (is_sparse(layer)) {
      prefetch_l2(layer.index_q_norm);
      prefetch_l2(layer.index_k_norm);
    }
    if (layer.router_bias != nullptr) prefetch_l2(layer.router_bias);
  }
}

}  // namespace monolayer::cuda::MONOLAYER_KERNELS
