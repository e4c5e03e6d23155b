#include "backend/cuda/draft_kernels.h"

#include <algorithm>

#include <cuda_bf16.h>

namespace monolayer::cuda {
namespace {

constexpr int kPage = 128;   // tokens
constexpr int kOutputs = 2;  // of a warp: what is loaded of x serves both
constexpr int kHeadTile = 8;

__device__ float widen(std::uint16_t bits) {
  return __uint_as_float(static_cast<unsigned>(bits) << 16);
}
__device__ std::uint16_t round_bits(float x) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}
__device__ float low(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ float high(unsigned pair) { return __uint_as_float(pair & 0xFFFF0000U); }

// The sum over a warp, in every lane.
__device__ float warp_sum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xFFFFFFFFU, x, step);
  return x;
}
__device__ float warp_max(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFU, x, step));
  return x;
}

// A block a row and part: (x * s) * w, s = 1 / sqrt(mean of squares + eps).
__global__ void __launch_bounds__(256) norm_kernel(const DraftNorm p) {
  __shared__ float sums[8];
  const int row = static_cast<int>(blockIdx.x);
  const std::uint16_t* in = p.in + row * p.in_stride + static_cast<std::int64_t>(blockIdx.y) * p.n;
  const std::uint16_t* weight = p.weight + static_cast<std::int64_t>(blockIdx.y) * p.n;
  std::uint16_t* out = p.out + (static_cast<std::int64_t>(row) * gridDim.y + blockIdx.y) * p.n;
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < p.n; i += 256) {
    const float x = widen(in[i]);
    sum = fmaf(x, x, sum);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  const float total =
      ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  const float scale = 1.0F / sqrtf(total / static_cast<float>(p.n) + p.eps);
  for (int i = static_cast<int>(threadIdx.x); i < p.n; i += 256)
    out[i] = round_bits((widen(in[i]) * scale) * widen(weight[i]));
}

__global__ void gather_kernel(const DraftRows* rows, const std::uint16_t* in,
                              std::int64_t in_stride, std::uint16_t* out, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n)
    out[static_cast<std::int64_t>(blockIdx.y) * n + i] =
        in[rows->proposing[blockIdx.y] * in_stride + i];
}

__device__ void unpack(const uint4& v, float (&out)[8]) {
  out[0] = low(v.x);
  out[1] = high(v.x);
  out[2] = low(v.y);
  out[3] = high(v.y);
  out[4] = low(v.z);
  out[5] = high(v.z);
  out[6] = low(v.w);
  out[7] = high(v.w);
}

// A warp makes kOutputs outputs of all rows. A lane takes every 32nd vector of eight columns, in
// ascending order; the lanes meet in a fixed tree.
template <int kRows, DraftOut kKind>
__global__ void __launch_bounds__(256, kRows <= 4 ? 4 : 2) product_kernel(const DraftProduct p) {
  const int first =
      (static_cast<int>(blockIdx.x) * 8 + static_cast<int>(threadIdx.x) / 32) * kOutputs;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (first >= p.outputs) return;
  const int vectors = p.cols / 8;
  const uint4* w[kOutputs];
#pragma unroll
  for (int o = 0; o < kOutputs; ++o)  // the last warp may make one twice
    w[o] = reinterpret_cast<const uint4*>(
        p.w + static_cast<std::int64_t>(min(first + o, p.outputs - 1)) * p.cols);
  const uint4* x = reinterpret_cast<const uint4*>(p.x);
  float sum[kOutputs][kRows] = {};
#pragma unroll(kRows <= 2 ? 4 : kRows <= 4 ? 2 : 1)
  for (int i = lane; i < vectors; i += 32) {
    float weight[kOutputs][8];
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) unpack(__ldcs(w[o] + i), weight[o]);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float value[8];
      unpack(x[static_cast<std::int64_t>(r) * vectors + i], value);
#pragma unroll
      for (int o = 0; o < kOutputs; ++o) {
#pragma unroll
        for (int e = 0; e < 8; ++e) sum[o][r] = fmaf(weight[o][e], value[e], sum[o][r]);
      }
    }
  }
#pragma unroll
  for (int o = 0; o < kOutputs; ++o) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float total = warp_sum(sum[o][r]);
      if (lane != 0 || first + o >= p.outputs) continue;
      const std::int64_t at = r * p.out_stride + first + o;
      if constexpr (kKind == DraftOut::kFloat) {
        static_cast<float*>(p.out)[at] = total;
      } else if constexpr (kKind == DraftOut::kRounded) {
        static_cast<std::uint16_t*>(p.out)[at] = round_bits(total);
      } else {
        std::uint16_t& out = static_cast<std::uint16_t*>(p.out)[at];
        out = round_bits(widen(out) + widen(round_bits(total)));
      }
    }
  }
}

// A block a row and head of queries, keys and values; a thread a pair of dimensions.
__global__ void heads_kernel(const DraftHeads p) {
  const int row = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  const int half = p.head_dim / 2, i = static_cast<int>(threadIdx.x);
  if (i >= half) return;
  const float* x = p.projected + (static_cast<std::int64_t>(row) * gridDim.y + head) * p.head_dim;
  float a = x[i], b = x[i + half];
  if (head < p.heads + p.kv_heads) {
    const float* rope = p.rope + static_cast<std::int64_t>(row) * p.head_dim;
    const float cosine = rope[i], sine = rope[half + i];
    const float turned = a * cosine - b * sine;
    b = b * cosine + a * sine;
    a = turned;
  }
  std::uint16_t* out = p.q + (static_cast<std::int64_t>(row) * p.heads + head) * p.head_dim;
  if (head >= p.heads) {
    const bool key = head < p.heads + p.kv_heads;
    const int kv = head - p.heads - (key ? 0 : p.kv_heads);
    const std::int64_t entry =
        (static_cast<std::int64_t>(p.rows->page[row]) * p.kv_heads + kv) * kPage +
        p.rows->slot[row];
    out = (key ? p.k : p.v) + entry * p.head_dim;
  }
  out[i] = round_bits(a);
  out[i + half] = round_bits(b);
}

__device__ int pages_of_chunk(int place) {
  return (place / kPage + 1 + kDraftChunks - 1) / kDraftChunks;
}

// A block a chunk of a row's context, and up to eight query heads of one KV head: (max, sum,
// values) over its pages, in ascending order. How a context is cut depends on its length alone.
__global__ void __launch_bounds__(128) attend_kernel(const DraftHeads p) {
  __shared__ float q[kHeadTile][kMaxDraftHead];
  __shared__ float weights[kHeadTile][kPage];
  __shared__ float meet[2][4][kHeadTile];
  const int row = p.rows->proposing[blockIdx.z], chunk = static_cast<int>(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x), dim = p.head_dim;
  const int group = p.heads / p.kv_heads;
  const int tiles = (group + kHeadTile - 1) / kHeadTile;
  const int kv = static_cast<int>(blockIdx.y) / tiles;
  const int first_head = static_cast<int>(blockIdx.y) % tiles * kHeadTile;  // within the group
  const int count = min(kHeadTile, group - first_head);
  const int place = p.rows->place[row];
  const int pages = place / kPage + 1;
  const int first_page = chunk * pages_of_chunk(place);
  const int last_page = min(pages, first_page + pages_of_chunk(place));
  if (first_page >= last_page) return;
  const int in_row = kv * group + first_head;  // of the first head
  const std::int64_t head = static_cast<std::int64_t>(row) * p.heads + in_row;
  for (int i = thread; i < kHeadTile * dim; i += 128) {
    const int g = i / dim;
    q[g][i % dim] = g < count ? widen(p.q[(head + g) * dim + i % dim]) : 0;
  }
  const float scale = 1.0F / sqrtf(static_cast<float>(dim));
  const std::int32_t* table = p.tables + p.rows->table[row] * p.table_stride;
  float largest[kHeadTile], total[kHeadTile], values[2][kHeadTile] = {};
#pragma unroll
  for (int g = 0; g < kHeadTile; ++g) {
    largest[g] = -INFINITY;
    total[g] = 0;
  }
  for (int page = first_page; page < last_page; ++page) {
    // Place 0 has no entry.
    const int begin = page == 0 ? 1 : 0;
    const int end = min(kPage, place - page * kPage + 1);
    const std::int64_t base =
        (static_cast<std::int64_t>(table[page]) * p.kv_heads + kv) * kPage * dim;
    const bool there = thread >= begin && thread < end;
    float score[kHeadTile] = {};
    __syncthreads();  // q is there; the last page's weights are read
    if (there) {
      const uint4* key = reinterpret_cast<const uint4*>(p.k + base + thread * dim);
      for (int i = 0; i < dim / 8; ++i) {
        float k[8];
        unpack(key[i], k);
#pragma unroll
        for (int g = 0; g < kHeadTile; ++g) {
#pragma unroll
          for (int e = 0; e < 8; ++e) score[g] = fmaf(q[g][i * 8 + e], k[e], score[g]);
        }
      }
    }
#pragma unroll
    for (int g = 0; g < kHeadTile; ++g) {
      score[g] = there ? score[g] * scale : -INFINITY;
      const float most = warp_max(score[g]);
      if (thread % 32 == 0) meet[0][thread / 32][g] = most;
    }
    __syncthreads();
#pragma unroll
    for (int g = 0; g < kHeadTile; ++g) {
      const float most = fmaxf(largest[g], fmaxf(fmaxf(meet[0][0][g], meet[0][1][g]),
                                                 fmaxf(meet[0][2][g], meet[0][3][g])));
      const float weight = there ? expf(score[g] - most) : 0;
      weights[g][thread] = widen(round_bits(weight));
      const float sum = warp_sum(weight);
      if (thread % 32 == 0) meet[1][thread / 32][g] = sum;
      const float shrink = expf(largest[g] - most);
      total[g] *= shrink;
      values[0][g] *= shrink;
      values[1][g] *= shrink;
      largest[g] = most;
    }
    __syncthreads();
#pragma unroll
    for (int g = 0; g < kHeadTile; ++g)
      total[g] += (meet[1][0][g] + meet[1][1][g]) + (meet[1][2][g] + meet[1][3][g]);
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const int d = part * 128 + thread;
      if (d >= dim) continue;
      const std::uint16_t* value = p.v + base + d;
#pragma unroll 4
      for (int j = begin; j < end; ++j) {
        const float v = widen(value[static_cast<std::int64_t>(j) * dim]);
#pragma unroll
        for (int g = 0; g < kHeadTile; ++g)
          values[part][g] = fmaf(weights[g][j], v, values[part][g]);
      }
    }
  }
#pragma unroll
  for (int g = 0; g < kHeadTile; ++g) {
    if (g >= count) continue;
    const std::int64_t place_of_head = static_cast<std::int64_t>(blockIdx.z) * p.heads + in_row + g;
    float* out = p.partials + (place_of_head * kDraftChunks + chunk) * (dim + 2);
    if (thread == 0) {
      out[0] = largest[g];
      out[1] = total[g];
    }
    for (int part = 0; part < 2; ++part) {
      const int d = part * 128 + thread;
      if (d < dim) out[2 + d] = values[part][g];
    }
  }
}

// A block a row and head.
__global__ void merge_kernel(const DraftHeads p) {
  const int dim = p.head_dim;
  const std::int64_t head = static_cast<std::int64_t>(blockIdx.x) * p.heads + blockIdx.y;
  const int place = p.rows->place[p.rows->proposing[blockIdx.x]];
  const int each = pages_of_chunk(place);
  const int chunks = (place / kPage + 1 + each - 1) / each;
  const float* from = p.partials + head * kDraftChunks * (dim + 2);
  float largest = -INFINITY;
  for (int c = 0; c < chunks; ++c) largest = fmaxf(largest, from[c * (dim + 2)]);
  float total = 0;
  for (int c = 0; c < chunks; ++c)
    total = fmaf(from[c * (dim + 2) + 1], expf(from[c * (dim + 2)] - largest), total);
  for (int d = static_cast<int>(threadIdx.x); d < dim; d += static_cast<int>(blockDim.x)) {
    float value = 0;
    for (int c = 0; c < chunks; ++c)
      value = fmaf(from[c * (dim + 2) + 2 + d], expf(from[c * (dim + 2)] - largest), value);
    p.attended[head * dim + d] = round_bits(value / total);
  }
}

__global__ void activation_kernel(const float* gate_up, std::uint16_t* mid, int width) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= width) return;
  const float* row = gate_up + static_cast<std::int64_t>(blockIdx.y) * 2 * width;
  const float gate = row[i];
  mid[static_cast<std::int64_t>(blockIdx.y) * width + i] =
      round_bits(gate / (1.0F + expf(-gate)) * row[width + i]);
}

// A number by which a smaller one loses, the lower id wins among equals and what is bad is kept.
__device__ void take(DraftBest& best, const DraftBest& other) {
  if (other.id >= 0 && (best.id < 0 || other.value > best.value ||
                        (other.value == best.value && other.id < best.id))) {
    best.value = other.value;
    best.id = other.id;
  }
  if (other.bad >= 0 && (best.bad < 0 || other.bad < best.bad)) best.bad = other.bad;
}

__global__ void __launch_bounds__(256) best_kernel(const float* logits, int vocab, DraftBest* out) {
  __shared__ DraftBest all[256];
  const int each = (vocab + kDraftSlices - 1) / kDraftSlices;
  const int begin = static_cast<int>(blockIdx.x) * each, end = min(vocab, begin + each);
  const float* row = logits + static_cast<std::int64_t>(blockIdx.y) * vocab;
  const int thread = static_cast<int>(threadIdx.x);
  DraftBest best{0, -1, -1};
  for (int i = begin + thread; i < end; i += 256) {
    const float value = row[i];
    take(best, isfinite(value) ? DraftBest{value, i, -1} : DraftBest{0, -1, i});
  }
  all[thread] = best;
  for (int step = 128; step > 0; step /= 2) {
    __syncthreads();
    if (thread < step) take(all[thread], all[thread + step]);
  }
  if (thread == 0) out[blockIdx.y * kDraftSlices + blockIdx.x] = all[0];
}

template <DraftOut kKind>
cudaError_t product(const DraftProduct& p, int rows, cudaStream_t stream) {
  const unsigned blocks = static_cast<unsigned>((p.outputs + 8 * kOutputs - 1) / (8 * kOutputs));
  if (rows == 1) {
    product_kernel<1, kKind><<<blocks, 256, 0, stream>>>(p);
  } else if (rows == 2) {
    product_kernel<2, kKind><<<blocks, 256, 0, stream>>>(p);
  } else if (rows <= 4) {
    product_kernel<4, kKind><<<blocks, 256, 0, stream>>>(p);
  } else {
    product_kernel<8, kKind><<<blocks, 256, 0, stream>>>(p);
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t draft_norm(const DraftNorm& norm, int rows, int parts, cudaStream_t stream) {
  norm_kernel<<<dim3(static_cast<unsigned>(rows), static_cast<unsigned>(parts)), 256, 0, stream>>>(
      norm);
  return cudaGetLastError();
}

cudaError_t draft_gather(const DraftRows* rows, const std::uint16_t* in, std::int64_t in_stride,
                         std::uint16_t* out, int n, int proposing, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((n + 255) / 256), static_cast<unsigned>(proposing));
  gather_kernel<<<grid, 256, 0, stream>>>(rows, in, in_stride, out, n);
  return cudaGetLastError();
}

cudaError_t draft_product(const DraftProduct& given, DraftOut kind, int rows, cudaStream_t stream) {
  DraftProduct p = given;
  while (rows > 0) {
    const int now = std::min(rows, 8);
    const cudaError_t error = kind == DraftOut::kFloat ? product<DraftOut::kFloat>(p, now, stream)
                              : kind == DraftOut::kRounded
                                  ? product<DraftOut::kRounded>(p, now, stream)
                                  : product<DraftOut::kAdded>(p, now, stream);
    if (error != cudaSuccess) return error;
    p.x += static_cast<std::int64_t>(now) * p.cols;
    const std::int64_t size = kind == DraftOut::kFloat ? sizeof(float) : sizeof(std::uint16_t);
    p.out = static_cast<char*>(p.out) + now * p.out_stride * size;
    rows -= now;
  }
  return cudaSuccess;
}

cudaError_t draft_heads(const DraftHeads& p, int rows, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>(p.heads + 2 * p.kv_heads));
  heads_kernel<<<grid, (p.head_dim / 2 + 31) / 32 * 32, 0, stream>>>(p);
  return cudaGetLastError();
}

cudaError_t draft_attention(const DraftHeads& p, int proposing, int pages, cudaStream_t stream) {
  const int group = p.heads / p.kv_heads;
  const int tiles = (group + kHeadTile - 1) / kHeadTile;
  const dim3 grid(static_cast<unsigned>(std::min(pages, kDraftChunks)),
                  static_cast<unsigned>(p.kv_heads * tiles), static_cast<unsigned>(proposing));
  attend_kernel<<<grid, 128, 0, stream>>>(p);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  merge_kernel<<<dim3(static_cast<unsigned>(proposing), static_cast<unsigned>(p.heads)), 128, 0,
                 stream>>>(p);
  return cudaGetLastError();
}

cudaError_t draft_activation(const float* gate_up, std::uint16_t* mid, int width, int rows,
                             cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((width + 255) / 256), static_cast<unsigned>(rows));
  activation_kernel<<<grid, 256, 0, stream>>>(gate_up, mid, width);
  return cudaGetLastError();
}

cudaError_t draft_best(const float* logits, int vocab, DraftBest* out, int rows,
                       cudaStream_t stream) {
  best_kernel<<<dim3(kDraftSlices, static_cast<unsigned>(rows)), 256, 0, stream>>>(logits, vocab,
                                                                                   out);
  return cudaGetLastError();
}

}  // namespace monolayer::cuda
