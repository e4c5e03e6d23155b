// Full-size sparse layers of one rank of a tensor-parallel group of four: distinct random weights
// for every layer, so that nothing is read from a cache that decoding would not find there. The
// native chain (a graph of one launch per stage) and the fused kernel (one launch for all layers)
// run in turn on the same step; their results must be the same bits. No exchange between ranks is
// part of it.
//
// `dense`: dense layers (attention to everything, an MLP of FP8) instead.
//
//   bench_cuda_layer [dense] [layers=57] [context=8192] [rows=1,4,16] [runs=15] [json=FILE]
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "backend/cuda/bench_kernels.h"
#include "peer_ranks.cuh"

namespace {

// One rank of four without its peers.
struct Bench {
  bool m3 = true;
  bool dense = false;
  cuda::Kernels kernels() const {
    if (!m3) return cuda::Kernels::kAny;
    return dense ? cuda::Kernels::kDenseM3 : cuda::Kernels::kSparseM3;
  }
  bool is_stage(int stage) const {
    return stage != cuda::kShared && (stage != cuda::kRouter || !dense);
  }
  int round = 0, flight = 0, known = 0;  // not 0: instead of what the plan says
  int shared_cap = 0;  // bytes a block may take of shared memory, if fewer than the device has
  int layers = 57, context = 8192, runs = 15, blocks = 0;
  std::vector<int> rows{1, 2, 4, 8, 16};
  cudaStream_t stream_ = nullptr;
  bench::Rank rank;
  bench::Group group;
  Params p{};  // of the step at hand

  void build();
  void set_step(int n);
  void reset(int n) { group.reset(n); }
  void native(Params q, int stage_only = -1);
  void fused(Params q) { CHECK(cuda::launch_fused(q, kernels(), blocks, stream_)); }
  cudaGraphExec_t capture(const std::function<void()>& work) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    work();
    CHECK(cudaStreamEndCapture(stream_, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphDestroy(graph));
    return exec;
  }
  float time(const std::function<void()>& work) {
    static cudaEvent_t begin = nullptr;
    static cudaEvent_t end = nullptr;
    if (begin == nullptr) {
      CHECK(cudaEventCreate(&begin));
      CHECK(cudaEventCreate(&end));
    }
    CHECK(cudaEventRecord(begin, stream_));
    work();
    CHECK(cudaEventRecord(end, stream_));
    CHECK(cudaEventSynchronize(end));
    float ms = 0;
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    return ms;
  }
  std::vector<std::uint16_t> hidden(int n) const { return group.hidden(rank, n); }
  void check_record() {
    cuda::Record r;
    CHECK(cudaMemcpy(&r, p.record, sizeof r, cudaMemcpyDeviceToHost));
    if (r.set == 0) return;
    std::printf("GAVE UP: block %u layer %u stage %u expected %u saw %u\n", r.block, r.layer,
                r.stage, r.expected, r.seen);
    CHECK(cudaMemset(p.record, 0, sizeof r));
  }
  double expert_reads(int n);
};

void Bench::build() {
  blocks = bench::multiprocessors();
  bench::Options options;
  options.layers = layers;
  options.context = context;
  rank.dense = dense;
  rank.set_sizes(0, 4, 0, blocks);
  rank.build(options, nullptr);
  group.open(0, {&rank});
  stream_ = group.stream;
  if (shared_cap > 0) group.limit = std::min(group.limit, shared_cap);
}

void Bench::set_step(int n) {
  group.set_step(n, context);
  p = group.argument;
  if (flight > 0) p.in_flight = std::min(flight, p.slots);
  if (known > 0) p.known_in_flight = std::min(known, p.slots);
  if (round > 0) p.round = std::min(round, p.round);
}

void Bench::native(Params q, int stage_only) {
  for (int l = 0; l < layers; ++l) {
    q.first_layer = l;
    q.last_layer = l + 1;
    for (int stage = cuda::kQkv; stage <= cuda::kDown; ++stage) {
      if (!is_stage(stage) || (stage_only >= 0 && stage != stage_only)) continue;
      CHECK(cuda::launch_stage(static_cast<cuda::Stage>(stage), q, kernels(), blocks, stream_));
    }
  }
}

// Experts read per layer, on average over the layers.
double Bench::expert_reads(int n) {
  if (dense) return 0;
  reset(n);
  double sum = 0;
  for (int l = 0; l < layers; ++l) {
    Params q = p;
    q.first_layer = l;
    q.last_layer = l + 1;
    for (int stage = cuda::kQkv; stage <= cuda::kDown; ++stage) {
      if (stage == cuda::kShared) continue;
      CHECK(cuda::launch_stage(static_cast<cuda::Stage>(stage), q, kernels(), blocks, stream_));
    }
    cuda::Table t;
    CHECK(cudaStreamSynchronize(stream_));
    CHECK(cudaMemcpy(&t, p.table, sizeof t, cudaMemcpyDeviceToHost));
    std::set<int> experts;
    for (int i = t.shared_passes; i < t.passes; ++i) experts.insert(t.expert[i]);
    sum += static_cast<double>(experts.size());
  }
  return sum / layers;
}

double median(std::vector<float> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

const char* kNames[] = {"embed",  "qkv",    "heads",   "attend", "merge", "output",
                        "router", "shared", "gate_up", "down",   "head"};

}  // namespace

int main(int argc, char** argv) {
  Bench b;
  std::string json_file;
  bool sweep = false;
  bool once = false;  // for a profiler: two fused runs of each row count
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const std::string value = arg.substr(arg.find('=') + 1);
    if (arg.rfind("layers=", 0) == 0) b.layers = std::atoi(value.c_str());
    if (arg.rfind("context=", 0) == 0) b.context = std::atoi(value.c_str());
    if (arg.rfind("runs=", 0) == 0) b.runs = std::atoi(value.c_str());
    if (arg.rfind("json=", 0) == 0) json_file = value;
    if (arg == "any") b.m3 = false;
    if (arg == "dense") b.dense = true;
    if (arg == "once") once = true;
    if (arg == "sweep") sweep = true;
    if (arg.rfind("round=", 0) == 0) b.round = std::atoi(value.c_str());
    if (arg.rfind("flight=", 0) == 0) b.flight = std::atoi(value.c_str());
    if (arg.rfind("known=", 0) == 0) b.known = std::atoi(value.c_str());
    if (arg.rfind("shared=", 0) == 0) b.shared_cap = std::atoi(value.c_str());
    if (arg.rfind("rows=", 0) == 0) {
      b.rows.clear();
      for (const char* at = value.c_str(); *at != 0;) {
        char* end = nullptr;
        b.rows.push_back(static_cast<int>(std::strtol(at, &end, 10)));
        at = *end == ',' ? end + 1 : end;
      }
    }
  }
  b.build();
  const Layer& l0 = b.rank.layers[0];
  const double fixed = static_cast<double>(cuda::packed_bytes(l0.qkv) + cuda::packed_bytes(l0.o) +
                                           (b.dense ? 0 : cuda::packed_bytes(l0.router)) +
                                           cuda::packed_bytes(l0.shared_gate_up) +
                                           cuda::packed_bytes(l0.shared_down));
  const double expert = static_cast<double>(l0.gate_up_stride + l0.down_stride);
  std::vector<float> streams;
  auto* sink = bench::allocate<std::uint32_t>(static_cast<std::uint64_t>(b.blocks) * 512);
  // What a sparse layer's experts take, which dense layers have not.
  const std::uint64_t stream_bytes =
      b.dense ? std::uint64_t{640} << 20 : static_cast<std::uint64_t>(l0.gate_up_stride) * 128;
  const unsigned char* own_stream =
      b.dense ? b.rank.random(stream_bytes, cuda::Fill::kE4M3) : nullptr;
  const std::uint64_t vectors = stream_bytes / 16;
  const auto one_stream = [&](int layer) {
    return b.time([&] {
      const Layer& l = b.rank.layers[static_cast<std::size_t>(layer)];
      CHECK(cuda::read_stream(b.dense ? own_stream : l.gate_up.data, stream_bytes, sink, b.blocks,
                              b.stream_));
    });
  };
  const auto weight_bytes =
      static_cast<std::uint64_t>(fixed + 128 * expert) * static_cast<std::uint64_t>(b.layers);
  std::string json = "{\"layers\": " + std::to_string(b.layers) +
                     ", \"context\": " + std::to_string(b.context) +
                     ", \"weight_bytes\": " + std::to_string(weight_bytes) + ", \"rows\": [";
  std::printf("%d layers, %.1f GB of weights, context %d, %d blocks\n", b.layers,
              static_cast<double>(weight_bytes) / 1e9, b.context, b.blocks);
  std::printf(
      "rows experts      MB | native us   GB/s  share | fused us   GB/s  share | ratio same\n");
  bool first_row = true;
  for (const int n : b.rows) {
    if (n > bench::rows_at(b.context)) {
      std::fprintf(stderr, "rows: is %d, of %d tokens there are caches for %d\n", n, b.context,
                   bench::rows_at(b.context));
      return 2;
    }
    b.set_step(n);
    if (b.m3 && cuda::kernels_of(b.p.shape, b.rank.layers[0]) != b.kernels()) {
      std::fprintf(stderr, "not the layers that the kernels are compiled for\n");
      return 1;
    }
    if (once) {
      for (int i = 0; i < 2; ++i) {
        b.reset(n);
        b.fused(b.p);
        CHECK(cudaStreamSynchronize(b.stream_));
      }
      continue;
    }
    const double experts = b.expert_reads(n);
    const double chunk_bytes = (b.dense ? b.context : std::min(b.context, 2048)) * 256.0;
    const double scored = !b.dense && b.context > 2048 ? b.context * 128.0 : 0.0;
    const double bytes = fixed + experts * expert + n * (chunk_bytes + scored);
    cudaGraphExec_t native_graph = b.capture([&] { b.native(b.p); });
    cudaGraphExec_t fused_graph = b.capture([&] { b.fused(b.p); });
    std::vector<float> native_ms;
    std::vector<float> fused_ms;
    std::vector<std::uint16_t> native_out;
    bool same = true;
    for (int i = 0; i < b.runs; ++i) {
      b.reset(n);
      native_ms.push_back(b.time([&] { CHECK(cudaGraphLaunch(native_graph, b.stream_)); }));
      const auto a = b.hidden(n);
      b.reset(n);
      fused_ms.push_back(b.time([&] { CHECK(cudaGraphLaunch(fused_graph, b.stream_)); }));
      const auto c = b.hidden(n);
      same = same && a == c;
      if (i == 0) native_out = a;
      same = same && a == native_out;
      streams.push_back(one_stream(i % b.layers));
      b.check_record();
    }
    const double stream_rate = static_cast<double>(vectors) * 16 / median(streams) / 1e6;
    const double native_us = median(native_ms) * 1e3 / b.layers;
    const double fused_us = median(fused_ms) * 1e3 / b.layers;
    std::printf(
        "%4d %7.2f %7.1f | %9.2f %6.0f %5.1f%% | %8.2f %6.0f %5.1f%% | %5.2f %s (slots %d, in "
        "flight %d; stream %.0f GB/s)\n",
        n, experts, bytes / 1e6, native_us, bytes / native_us / 1e3,
        bytes / native_us / 10 / stream_rate, fused_us, bytes / fused_us / 1e3,
        bytes / fused_us / 10 / stream_rate, native_us / fused_us, same ? "yes" : "NO", b.p.slots,
        b.p.in_flight, stream_rate);
    char line[512];
    std::snprintf(line, sizeof line,
                  "%s{\"rows\": %d, \"experts\": %.2f, \"bytes_a_layer\": %.0f, "
                  "\"native_us_a_layer\": %.2f, \"fused_us_a_layer\": %.2f, "
                  "\"fused_us_best\": %.2f, \"stream_gb_s\": %.0f, \"same_bits\": %s",
                  first_row ? "" : ", ", n, experts, bytes, native_us, fused_us,
                  *std::min_element(fused_ms.begin(), fused_ms.end()) * 1e3 / b.layers, stream_rate,
                  same ? "true" : "false");
    json += line;
    std::uint64_t digest = 0;  // of the result, to compare builds
    for (const std::uint16_t v : native_out) digest = (digest ^ v) * 0x100000001b3ULL;
    std::snprintf(line, sizeof line, ", \"digest\": \"%016llx\"",
                  static_cast<unsigned long long>(digest));
    json += line;
    std::printf("     digest %016llx\n", static_cast<unsigned long long>(digest));
    first_row = false;
    // Timeline of the fused kernel: cycles of work and of waiting, mean over layers and blocks.
    const std::size_t per_layer = static_cast<std::size_t>(cuda::kStages) * 2 * b.blocks;
    auto* stamps = bench::allocate<std::uint32_t>(per_layer * b.layers);
    CHECK(cudaMemset(stamps, 0, per_layer * b.layers * 4));
    Params q = b.p;
    q.stamps = stamps;
    b.reset(n);
    b.fused(q);
    CHECK(cudaStreamSynchronize(b.stream_));
    std::vector<std::uint32_t> host(per_layer * b.layers);
    CHECK(cudaMemcpy(host.data(), stamps, host.size() * 4, cudaMemcpyDeviceToHost));
    CHECK(cudaFree(stamps));
    double work[cuda::kStages] = {}, waited[cuda::kStages] = {}, slowest[cuda::kStages] = {};
    double total = 0;
    for (int l = 1; l < b.layers; ++l) {
      double largest[cuda::kStages] = {};
      for (int block = 0; block < b.blocks; ++block) {
        const auto at = [&](int layer, int stage, int which) {
          return host[static_cast<std::size_t>(layer) * per_layer +
                      (static_cast<std::size_t>(stage) * 2 + which) * b.blocks + block];
        };
        std::uint32_t previous = at(l - 1, cuda::kDown, 1);
        for (int stage = cuda::kQkv; stage <= cuda::kDown; ++stage) {
          if (at(l, stage, 0) == 0 || at(l, stage, 1) == 0) continue;
          const double w = at(l, stage, 1) - at(l, stage, 0);
          work[stage] += w;
          largest[stage] = std::max(largest[stage], w);
          // A stage may begin before the one before it has ended: a warp hands over its own part.
          waited[stage] += static_cast<std::int32_t>(at(l, stage, 0) - previous);
          previous = at(l, stage, 1);
        }
        total += previous - at(l - 1, cuda::kDown, 1);
      }
      for (int s = 0; s < cuda::kStages; ++s) slowest[s] += largest[s];
    }
    const double samples = static_cast<double>(b.layers - 1) * b.blocks;
    const double scale = b.layers > 1 ? fused_us / (total / samples) : 0;
    std::printf("     SM clock %.0f MHz by the stamps\n", total / samples / fused_us);
    json += ", \"stages\": {";
    bool first_stage = true;
    for (int s = cuda::kQkv; s <= cuda::kDown; ++s) {
      if (b.dense && !b.is_stage(s)) continue;
      cudaGraphExec_t stage_graph = b.capture([&] { b.native(b.p, s); });
      std::vector<float> ms;
      for (int i = 0; i < 5; ++i) {
        ms.push_back(b.time([&] { CHECK(cudaGraphLaunch(stage_graph, b.stream_)); }));
      }
      CHECK(cudaGraphExecDestroy(stage_graph));
      std::printf(
          "     %-8s fused: work %5.2f (slowest %5.2f) wait %5.2f us | own launch %5.2f us\n",
          kNames[s], work[s] / samples * scale, slowest[s] / std::max(1, b.layers - 1) * scale,
          waited[s] / samples * scale, median(ms) * 1e3 / b.layers);
      std::snprintf(line, sizeof line,
                    "%s\"%s\": {\"work_us\": %.2f, \"slowest_us\": %.2f, \"wait_us\": %.2f, "
                    "\"own_launch_us\": %.2f}",
                    first_stage ? "" : ", ", kNames[s], work[s] / samples * scale,
                    slowest[s] / std::max(1, b.layers - 1) * scale, waited[s] / samples * scale,
                    median(ms) * 1e3 / b.layers);
      json += line;
      first_stage = false;
    }
    json += "}}";
    for (const int flight : {4, 6, 8, 10, 12, 16, 32}) {
      if (!sweep) break;
      b.p.in_flight = std::min(flight, b.p.slots);
      cudaGraphExec_t graph = b.capture([&] { b.fused(b.p); });
      std::vector<float> ms;
      for (int i = 0; i < 9; ++i) {
        b.reset(n);
        ms.push_back(b.time([&] { CHECK(cudaGraphLaunch(graph, b.stream_)); }));
      }
      CHECK(cudaGraphExecDestroy(graph));
      std::printf("     in flight %2d: %.2f us\n", b.p.in_flight, median(ms) * 1e3 / b.layers);
    }
    CHECK(cudaGraphExecDestroy(native_graph));
    CHECK(cudaGraphExecDestroy(fused_graph));
    std::fflush(stdout);
  }
  json += "]}\n";
  if (!json_file.empty()) {
    if (FILE* file = std::fopen(json_file.c_str(), "w")) {
      std::fputs(json.c_str(), file);
      std::fclose(file);
    }
  }
  return 0;
}
