// Ranks of MiniMax-M3 layers with random weights, whole or as shares of a whole, and what runs them
// on one device or on several.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/bench_kernels.h"
#include "backend/cuda/device/ptx.cuh"
#include "backend/cuda/exchange.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/pack.h"
#include "backend/cuda/peers.h"

#include "peer_support.cuh"

using cuda::Format;
using cuda::Layer;
using cuda::Matrix;
using cuda::Params;
using cuda::Step;

namespace bench {

// What one rank of `size` holds: all of it on one device.
struct Rank {
  int rank = 0, size = 1, device = 0, blocks = 0;
  int heads = 64, kv_heads = 4, width = 3072;
  bool dense = false;  // layers without experts that attend to everything
  cuda::Kernels kernels = cuda::Kernels::kSparseM3;
  const std::int32_t* tables = nullptr;
  int longest = 0;  // context
  Params p{};
  std::vector<Layer> layers;
  std::vector<void*> owned;
  std::uint64_t seed = 1;

  template <typename T>
  T* own(std::uint64_t count) {
    T* data = allocate<T>(count);
    owned.push_back(data);
    return data;
  }
  void release() {
    CHECK(cudaSetDevice(device));
    for (void* data : owned) CHECK(cudaFree(data));
    owned.clear();
  }
  unsigned char* random(std::uint64_t bytes, cuda::Fill kind) {
    auto* data = own<unsigned char>(bytes);
    CHECK(cuda::fill_random(data, bytes, kind, seed, nullptr));
    seed += bytes;
    return data;
  }
  int q_groups() const { return heads * kHead / 16; }
  int kv_groups() const { return kv_heads * kHead / 16; }
  int projected() const { return (heads + (dense ? 2 : 3) * kv_heads + (dense ? 0 : 1)) * kHead; }

  void set_sizes(int of, int among, int on, int its_blocks) {
    rank = of;
    size = among;
    device = on;
    blocks = its_blocks;
    heads = 64 / size;
    kv_heads = std::max(1, 4 / size);
    width = (dense ? 12288 : 3072) / size;
  }
  int first_kv() const { return rank * heads / 16; }

  // Random bytes, or of every copy of the whole the row groups from `first` on, and of these the
  // parts from `part` on.
  void fill_matrix(Matrix& m, const Matrix* whole, int first, int part, int copies) {
    const auto bytes = static_cast<std::uint64_t>(cuda::packed_bytes(m)) * copies;
    if (whole == nullptr) {
      m.data = random(bytes, cuda::is_e4m3(m.format)      ? cuda::Fill::kE4M3
                             : m.format == Format::kMXFP4 ? cuda::Fill::kMXFP4
                                                          : cuda::Fill::kBF16);
      return;
    }
    auto* data = own<unsigned char>(bytes);
    take_groups(data, m, *whole, first, part, m.row_groups, copies);
    m.data = data;
  }
  void take_groups(unsigned char* to, const Matrix& m, const Matrix& whole, int first, int part,
                   int groups, int copies) {
    const std::uint64_t part_bytes = static_cast<std::uint64_t>(m.tiles) * m.tile_bytes;
    for (int c = 0; c < copies; ++c) {
      const unsigned char* from =
          whole.data + static_cast<std::uint64_t>(c) * cuda::packed_bytes(whole) +
          static_cast<std::uint64_t>(first) * whole.group_bytes + part * part_bytes;
      copy<<<1024, 256>>>(reinterpret_cast<uint4*>(to + std::uint64_t(c) * groups * m.group_bytes),
                          reinterpret_cast<const uint4*>(from), whole.group_bytes / 16,
                          m.group_bytes / 16, static_cast<std::uint64_t>(groups));
      CHECK(cudaGetLastError());
    }
  }
  static float scale_of(int row) { return 1e-4F * (1.0F + static_cast<float>(row % 7) / 8); }
  float* scales(const std::vector<float>& values) {
    auto* at = own<float>(values.size());
    CHECK(cudaMemcpy(at, values.data(), values.size() * 4, cudaMemcpyHostToDevice));
    return at;
  }

  // q, k, v, index q, index k: (first row group of the whole, count).
  std::vector<std::pair<int, int>> projection_groups() const {
    const int kv = first_kv() * kHead / 16;
    if (dense)
      return {
          {rank * q_groups(), q_groups()}, {512 + kv, kv_groups()}, {512 + 32 + kv, kv_groups()}};
    return {{rank * q_groups(), q_groups()},
            {512 + kv, kv_groups()},
            {512 + 32 + kv, kv_groups()},
            {512 + 64 + kv, kv_groups()},
            {512 + 96, kHead / 16}};
  }
  unsigned char* cache(const unsigned char* whole, int page_count, int of_heads, int first,
                       int whole_heads) {
    const std::uint64_t entry = 128 * kHead;
    const std::uint64_t bytes = entry * of_heads * page_count;
    if (whole == nullptr) return random(bytes, cuda::Fill::kE4M3);
    auto* data = own<unsigned char>(bytes);
    copy<<<1024, 256>>>(
        reinterpret_cast<uint4*>(data), reinterpret_cast<const uint4*>(whole + first * entry),
        whole_heads * entry / 16, of_heads * entry / 16, static_cast<std::uint64_t>(page_count));
    CHECK(cudaGetLastError());
    return data;
  }

  // Tables of the sequences of this many tokens.
  void set_context(int context) {
    const bool is_short = context <= kShort;
    p.pages = tables + (is_short ? 0 : 16 * short_pages(longest));
    p.table_stride = is_short ? short_pages(longest) : pages_of(longest);
  }

  void build(const Options& o, const Rank* whole);
  void build_layer(Layer& l, const Layer* whole, const Options& o);
  void build_experts(Layer& l, const Layer* whole);
  void build_mlp(Layer& l);
};

void Rank::build_layer(Layer& l, const Layer* whole, const Options& o) {
  const int parts = 8 / size;
  l.sparse = l.moe = dense ? 0 : 1;
  l.shared = 1;
  l.qkv = cuda::describe(Format::kE4M3Half, projected(), kHidden, 8);
  l.qkv.x_scale = cuda::half_scale(std::sqrt(static_cast<float>(kHidden)));
  std::vector<float> factors;
  for (const auto& [first, count] : projection_groups()) {
    for (int i = 0; i < count * 16; ++i) factors.push_back(scale_of(first * 16 + i));
  }
  if (whole == nullptr) {
    l.qkv.data = random(static_cast<std::uint64_t>(cuda::packed_bytes(l.qkv)), cuda::Fill::kE4M3);
  } else {
    auto* data = own<unsigned char>(static_cast<std::uint64_t>(cuda::packed_bytes(l.qkv)));
    l.qkv.data = data;
    for (const auto& [first, count] : projection_groups()) {
      take_groups(data, l.qkv, whole->qkv, first, 0, count, 1);
      data += static_cast<std::uint64_t>(count) * l.qkv.group_bytes;
    }
  }
  l.qkv.row_scale = scales(factors);
  l.o = cuda::describe(Format::kE4M3Half, kHidden, heads * kHead, parts);
  l.o.x_scale = cuda::half_scale(448.0F * p.shape.v_scale);
  fill_matrix(l.o, whole != nullptr ? &whole->o : nullptr, 0, rank * parts, 1);
  std::vector<float> o_factors;
  for (int i = 0; i < kHidden; ++i) o_factors.push_back(scale_of(i + 3));
  l.o.row_scale = scales(o_factors);
  if (dense) {
    build_mlp(l);
  } else {
    build_experts(l, whole);
  }
  const int n = all_pages(o.context);
  l.k_cache = cache(whole != nullptr ? whole->k_cache : nullptr, n, kv_heads, first_kv(), 4);
  l.v_cache = cache(whole != nullptr ? whole->v_cache : nullptr, n, kv_heads, first_kv(), 4);
  if (!dense) l.index_cache = cache(whole != nullptr ? whole->index_cache : nullptr, n, 1, 0, 1);
}

void Rank::build_mlp(Layer& l) {
  const auto& s = p.shape;
  l.shared_gate_up = cuda::describe(Format::kE4M3Half, 2 * width, kHidden, 8);
  l.shared_gate_up.x_scale = l.qkv.x_scale;
  l.shared_down = cuda::describe(Format::kE4M3Half, kHidden, width, 8 / size);
  l.shared_down.x_scale = cuda::half_scale(cuda::activation_bound(s.alpha, s.limit, s.beta));
  for (Matrix* m : {&l.shared_gate_up, &l.shared_down}) {
    fill_matrix(*m, nullptr, 0, 0, 1);
    std::vector<float> factors;
    for (int i = 0; i < m->row_groups * 16; ++i) factors.push_back(scale_of(i + 5));
    m->row_scale = scales(factors);
  }
}

void Rank::build_experts(Layer& l, const Layer* whole) {
  const int parts = 8 / size;
  l.router = cuda::describe(Format::kBF16, 128, kHidden, cuda::kRouterParts);
  fill_matrix(l.router, whole != nullptr ? &whole->router : nullptr, 0, 0, 1);
  l.gate_up = l.shared_gate_up = cuda::describe(Format::kMXFP4, 2 * width, kHidden, 8);
  l.down = l.shared_down = cuda::describe(Format::kMXFP4, kHidden, width, parts);
  const int first_width = rank * l.gate_up.row_groups;
  fill_matrix(l.gate_up, whole != nullptr ? &whole->gate_up : nullptr, first_width, 0, 128);
  fill_matrix(l.down, whole != nullptr ? &whole->down : nullptr, 0, rank * parts, 128);
  fill_matrix(l.shared_gate_up, whole != nullptr ? &whole->shared_gate_up : nullptr, first_width, 0,
              1);
  fill_matrix(l.shared_down, whole != nullptr ? &whole->shared_down : nullptr, 0, rank * parts, 1);
  l.gate_up_stride = cuda::packed_bytes(l.gate_up);
  l.down_stride = cuda::packed_bytes(l.down);
}

void Rank::build(const Options& o, const Rank* whole) {
  CHECK(cudaSetDevice(device));
  auto& s = p.shape;
  s.hidden = kHidden;
  s.heads = heads;
  s.kv_heads = s.index_heads = kv_heads;
  s.group = heads / kv_heads;
  s.head_dim = s.index_dim = kHead;
  s.rotary = 64;
  s.block_size = 128;
  s.topk = 16;
  s.local_blocks = 1;
  s.experts = 128;
  s.chosen = 4;
  s.expert_width = s.mid_width = width;
  s.k_at = heads * kHead;
  s.v_at = s.k_at + kv_heads * kHead;
  s.index_q_at = s.v_at + kv_heads * kHead;
  s.index_k_at = s.index_q_at + kv_heads * kHead;
  s.projected = projected();
  s.kv_fp8 = s.index_fp8 = 1;
  s.eps = 1e-6F;
  s.routed_scale = 2.0F;
  s.alpha = 1.702F;
  s.limit = 7.0F;
  s.beta = 1.0F;
  s.k_scale = s.v_scale = s.index_scale = 0.02F;
  s.score_scale = 0.02F / std::sqrt(128.0F);
  auto* norm = own<std::uint16_t>(kHidden);
  CHECK(cudaMemset(norm, 0, kHidden * 2));
  auto* bias = own<float>(128);
  CHECK(cudaMemset(bias, 0, 512));
  for (int i = 0; i < o.layers; ++i) {
    Layer l;
    build_layer(l, whole != nullptr ? &whole->layers[static_cast<std::size_t>(i)] : nullptr, o);
    l.input_norm = l.post_norm = l.q_norm = l.k_norm = l.index_q_norm = l.index_k_norm = norm;
    l.index_q_scale = cuda::half_scale(std::sqrt(static_cast<float>(kHead)));
    l.router_bias = bias;
    layers.push_back(l);
  }
  kernels = cuda::kernels_of(s, layers[0]);
  auto* device_layers = own<Layer>(layers.size());
  CHECK(cudaMemcpy(device_layers, layers.data(), layers.size() * sizeof(Layer),
                   cudaMemcpyHostToDevice));
  p.layers = device_layers;
  const int n = pages_of(o.context);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(all_pages(o.context)));
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i);
  auto* device_tables = own<std::int32_t>(ids.size());
  CHECK(cudaMemcpy(device_tables, ids.data(), ids.size() * 4, cudaMemcpyHostToDevice));
  tables = device_tables;
  longest = o.context;
  set_context(o.context);
  p.hidden = own<std::uint16_t>(16 * kHidden);
  p.middle = own<std::uint16_t>(16 * kHidden);
  p.projected_stride = s.projected;
  p.projected = own<float>(cuda::kProjectionParts * 16ULL * s.projected);
  p.q = own<std::uint16_t>(16ULL * heads * kHead);
  p.score_stride = n * 8;
  p.scores = own<float>(16ULL * kv_heads * p.score_stride);
  p.block_ids = own<std::int32_t>(16ULL * kv_heads * 16);
  p.max_chunks = dense ? cuda::kMostPartials : 16;
  p.partials = own<float>(16ULL * kv_heads * p.max_chunks * cuda::partial_floats(s.group, kHead));
  p.attended = own<std::uint16_t>(16ULL * heads * kHead);
  p.router = own<float>(cuda::kRouterParts * 16 * 128);
  p.mid = own<std::uint16_t>(80ULL * width);
  p.table = own<cuda::Table>(1);
  p.normed = own<std::uint16_t>(16ULL * kHidden);
  p.record = own<cuda::Record>(1);
  CHECK(cudaMemset(p.record, 0, sizeof(cuda::Record)));
  p.deadline_ns = 2'000'000'000;
  p.stall_block = p.stall_stage = p.stall_step = -1;
  p.last_layer = o.layers;
  CHECK(cudaDeviceSynchronize());
}

// The ranks of one device, in one launch.
struct Group {
  int device = 0, blocks = 0, limit = 0;
  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
  std::vector<Rank*> ranks;
  Params* device_params = nullptr;
  Params* no_peers = nullptr;  // the same without mailboxes
  std::uint32_t* barriers = nullptr;
  Step* step = nullptr;
  Params argument{};

  void open(int on, const std::vector<Rank*>& its) {
    device = on;
    ranks = its;
    blocks = its[0]->blocks;
    CHECK(cudaSetDevice(device));
    CHECK(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    CHECK(cuda::prepare_kernels(limit));
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    barriers = allocate<std::uint32_t>(ranks.size() * cuda::kHandOffWords);
    step = allocate<Step>(1);
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      ranks[i]->p.barrier = barriers + i * cuda::kHandOffWords;
      ranks[i]->p.step = step;
    }
    if (ranks.size() == 1) return;
    device_params = allocate<Params>(ranks.size());
    no_peers = allocate<Params>(ranks.size());
  }
  void close() {
    CHECK(cudaSetDevice(device));
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaEventDestroy(begin));
    CHECK(cudaEventDestroy(end));
    CHECK(cudaFree(barriers));
    CHECK(cudaFree(step));
    if (device_params != nullptr) CHECK(cudaFree(device_params));
    if (no_peers != nullptr) CHECK(cudaFree(no_peers));
  }
  // n rows of sequences of `context` tokens, `query` last rows of each.
  void set_step(int n, int context, int query = 1) {
    std::vector<std::pair<int, int>> rows;  // sequence, position
    for (int r = 0; r < n; ++r) rows.emplace_back(r / query, context - query + r % query);
    set_rows(rows, context);
  }
  // Row r of that step alone.
  void set_row(int context, int query, int r) {
    set_rows({{r / query, context - query + r % query}}, context);
  }
  void set_rows(const std::vector<std::pair<int, int>>& rows, int context) {
    CHECK(cudaSetDevice(device));
    Step s;
    std::memset(&s, 0, sizeof s);
    s.rows = static_cast<std::int32_t>(rows.size());
    int deepest = 0;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      s.table[r] = rows[r].first;
      s.position[r] = rows[r].second;
      deepest = std::max(deepest, rows[r].second);
      for (int i = 0; i < 32; ++i) {
        const double angle = s.position[r] * std::pow(5e6, -2.0 * i / 64);
        s.rope[r][i] = static_cast<float>(std::cos(angle));
        s.rope[r][32 + i] = static_cast<float>(std::sin(angle));
      }
    }
    s.max_groups = deepest / 16 + 1;
    s.max_chunks[1] = std::min(16, deepest / 128 + 1);
    for (const auto& row : rows)
      s.max_chunks[0] = std::max(s.max_chunks[0], cuda::dense_partials(row.second / 128 + 1));
    s.score = deepest / 128 + 1 > 16 ? 1 : 0;
    CHECK(cudaMemcpy(step, &s, sizeof s, cudaMemcpyHostToDevice));
    for (Rank* r : ranks) r->set_context(context);
    argument = ranks[0]->p;
    const int row = std::max({ranks[0]->layers[0].qkv.row_bytes, ranks[0]->layers[0].o.row_bytes,
                              ranks[0]->layers[0].shared_down.row_bytes});
    if (!cuda::plan_shared_memory(s.rows, row,
                                  cuda::down_bytes(ranks[0]->layers, argument.shape.chosen, s.rows),
                                  limit, argument)) {
      std::fprintf(stderr, "no room in shared memory\n");
      std::exit(1);
    }
    if (ranks.size() == 1) return;
    std::vector<Params> all;
    for (const Rank* r : ranks) all.push_back(r->p);
    CHECK(cudaMemcpy(device_params, all.data(), all.size() * sizeof(Params), cudaMemcpyDefault));
    for (Params& p : all) p.mail = {};
    CHECK(cudaMemcpy(no_peers, all.data(), all.size() * sizeof(Params), cudaMemcpyDefault));
    argument.rank_params = device_params;
    argument.local_ranks = static_cast<int>(ranks.size());
  }
  void reset(int n) {
    CHECK(cudaSetDevice(device));
    for (const Rank* r : ranks) {
      CHECK(cuda::fill_random(r->p.hidden, static_cast<std::uint64_t>(n) * kHidden * 2,
                              cuda::Fill::kBF16, 99, stream));
    }
    CHECK(cudaGetLastError());
  }
  void run(bool mono, bool peers) {
    CHECK(cudaSetDevice(device));
    Params q = argument;
    if (!peers) {
      q.mail = {};
      if (q.rank_params != nullptr) q.rank_params = no_peers;
    }
    const cuda::Kernels kernels = ranks[0]->kernels;
    if (mono) {
      CHECK(cuda::launch_fused(q, kernels, blocks, stream));
      return;
    }
    for (int l = 0; l < argument.last_layer; ++l) {
      q.first_layer = l;
      q.last_layer = l + 1;
      for (int stage = cuda::kQkv; stage <= cuda::kDown; ++stage) {
        if (stage == cuda::kShared) continue;
        CHECK(cuda::launch_stage(static_cast<cuda::Stage>(stage), q, kernels, blocks, stream));
      }
    }
  }
  // One stage of one layer, without exchange.
  void run_stage(int layer, cuda::Stage stage) {
    CHECK(cudaSetDevice(device));
    Params q = argument;
    q.mail = {};
    q.first_layer = layer;
    q.last_layer = layer + 1;
    CHECK(cuda::launch_stage(stage, q, ranks[0]->kernels, blocks, stream));
  }
  // The hidden state of row r to row 0.
  void take_row(int r) {
    if (r == 0) return;
    CHECK(cudaMemcpyAsync(ranks[0]->p.hidden, ranks[0]->p.hidden + std::ptrdiff_t{r} * kHidden,
                          kHidden * 2, cudaMemcpyDeviceToDevice, stream));
  }
  void begin_step() {
    CHECK(cudaSetDevice(device));
    CHECK(cuda::launch_begin_step(argument, stream));
  }
  void finish() {
    CHECK(cudaSetDevice(device));
    CHECK(cudaStreamSynchronize(stream));
    cuda::Record r;
    CHECK(cudaMemcpy(&r, ranks[0]->p.record, sizeof r, cudaMemcpyDeviceToHost));
    if (r.set == 0) return;
    std::printf("GAVE UP: %s\n", cuda::describe_record(r).c_str());
    std::exit(1);
  }
  std::vector<std::uint16_t> hidden(const Rank& r, int n) const {
    CHECK(cudaSetDevice(device));
    std::vector<std::uint16_t> values(static_cast<std::size_t>(n) * kHidden);
    CHECK(cudaMemcpy(values.data(), r.p.hidden, values.size() * 2, cudaMemcpyDeviceToHost));
    return values;
  }
};

// Regions of ranks on devices of their own.
struct DevicePeers {
  std::vector<unsigned char*> regions;
  void connect(std::vector<Rank>& ranks) {
    const auto n = static_cast<int>(ranks.size());
    for (const Rank& r : ranks) {
      CHECK(cudaSetDevice(r.device));
      for (int other = 0; other < n; ++other) {
        if (other == r.device) continue;
        const cudaError_t error = cudaDeviceEnablePeerAccess(other, 0);
        if (error != cudaErrorPeerAccessAlreadyEnabled) CHECK(error);
        cudaGetLastError();
      }
      const auto bytes = static_cast<std::uint64_t>(cuda::mail_bytes(n, kHidden));
      regions.push_back(allocate<unsigned char>(bytes));
      CHECK(cudaMemset(regions.back(), 0, bytes));
      CHECK(cudaDeviceSynchronize());
    }
    for (Rank& r : ranks) {
      for (int to = 0; to < n; ++to) r.p.mail.region[to] = regions[static_cast<std::size_t>(to)];
      r.p.mail.ranks = n;
      r.p.mail.rank = r.rank;
      r.p.record = reinterpret_cast<cuda::Record*>(regions[static_cast<std::size_t>(r.rank)] +
                                                   cuda::kMailRecord);
    }
  }
};

}  // namespace bench
