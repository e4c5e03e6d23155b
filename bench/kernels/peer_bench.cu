// Layers of MiniMax-M3 on the ranks of a tensor-parallel group, with their exchanges.
//
//   bench_cuda_peer bits  [layers=2] [rows=..] [context=1048576] [json=FILE]
//     One whole set of random layers and its shares for 2, 4 and 8 ranks on one device, and for two
//     devices if there are two: native chain and fused kernel, each compared bit for bit with one
//     rank's native chain. All row counts and contexts up to those given; several rows of a
//     sequence as well as one.
//   bench_cuda_peer speed [ranks=2] [layers=57] [rows=..] [context=8192] [runs=15] [standin]
//     [json=FILE]
//     The share of one rank of `ranks`, distinct random weights in every layer: on as many devices
//     as ranks, else (or asked to) on one that stands in for all (it writes what every rank would
//     write to it). The same with the exchanges left out (sums are then those of one rank): the
//     difference is the exchanges' exposed time. With a device a rank and a library of NCCL
//     (nccl.h) also the native chain without exchanges, but with an all-reduce of the library and a
//     kernel that adds its result behind every output and down stage, in one graph: its sums are
//     not used.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "nccl.h"
#include "peer_ranks.cuh"

using namespace bench;  // NOLINT: one program in two files

namespace {

struct Json {
  std::string text = "{";
  void add(const std::string& key, const std::string& value) {
    text += (text.back() == '{' ? "\"" : ", \"") + key + "\": " + value;
  }
  void write(const std::string& file) const {
    if (FILE* f = file.empty() ? nullptr : std::fopen(file.c_str(), "w")) {
      std::fprintf(f, "%s}\n", text.c_str());
      std::fclose(f);
    }
  }
};

// Steps of `rows` rows in sequences of `context` tokens, `query` rows of each.
struct Case {
  int context, rows, query;
};
std::vector<Case> cases_of(const Options& o) {
  std::vector<Case> cases;
  for (const int context : {1, 127, 128, 129, 2047, 2048, 2049, 8192, 131072, 1048576}) {
    if (context > o.context) continue;
    for (const int n : o.rows) {
      if (n > rows_at(context)) continue;
      for (int query = 1; query <= 4; ++query) {
        if (query == 1 || (n % query == 0 && context >= query))
          cases.push_back({context, n, query});
      }
    }
  }
  return cases;
}

// Every case on `groups`, against what one rank's native chain gave. What that gave is kept here
// and compared with every row of the case alone.
using Results = std::vector<std::vector<std::uint16_t>>;
struct Found {
  int differ = 0, compared = 0, alone_differ = 0, alone = 0;
};
void compare_alone(const Case& c, Group& g, const std::vector<std::uint16_t>& all, Found& found) {
  for (int r = 0; r < c.rows; ++r) {
    g.set_row(c.context, c.query, r);
    g.reset(c.rows);
    g.take_row(r);
    g.run(false, true);
    g.finish();
    const auto got = g.hidden(*g.ranks[0], 1);
    ++found.alone;
    if (std::equal(got.begin(), got.end(), all.begin() + std::ptrdiff_t{r} * kHidden)) continue;
    ++found.alone_differ;
    std::printf("context %d, row %d of %d, %d of a sequence: other bits than alone\n", c.context, r,
                c.rows, c.query);
  }
}
Found compare(const Options& o, std::vector<Group>& groups, Results& want, const char* what) {
  Found found;
  std::size_t at = 0;
  const bool first = want.empty();
  for (const Case& c : cases_of(o)) {
    for (Group& g : groups) g.set_step(c.rows, c.context, c.query);
    for (const bool mono : {false, true}) {
      for (Group& g : groups) g.reset(c.rows);
      const bool peers = groups[0].argument.mail.ranks > 1;
      if (peers)
        for (Group& g : groups) g.begin_step();
      for (Group& g : groups) g.run(mono, true);
      for (Group& g : groups) g.finish();
      for (const Group& g : groups) {
        for (const Rank* r : g.ranks) {
          const auto got = g.hidden(*r, c.rows);
          if (first && !mono) {
            want.push_back(got);
            continue;
          }
          ++found.compared;
          if (got == want[at]) continue;
          ++found.differ;
          std::printf("%s, context %d, %d rows, %d of a sequence, %s, rank %d: other bits\n", what,
                      c.context, c.rows, c.query, mono ? "fused" : "native", r->rank);
        }
      }
    }
    if (first) compare_alone(c, groups[0], want[at], found);
    ++at;
  }
  std::printf("%s: %d results compared, %d differ", what, found.compared, found.differ);
  if (first) std::printf("; %d rows alone, %d differ", found.alone, found.alone_differ);
  std::printf("\n");
  std::fflush(stdout);
  return found;
}

// Ranks of one whole on one device or on several.
struct Shares {
  std::string name;
  std::vector<Rank> ranks;
  std::unique_ptr<cuda::Peers> virtual_peers;
  DevicePeers peers;
  std::vector<Group> groups;

  bool on_one_device(int n, const Options& o, const Rank& whole) {
    ranks.resize(static_cast<std::size_t>(n));
    auto made = cuda::Peers::on_one_device(n, kHidden);
    if (!made.ok()) return false;
    virtual_peers = std::move(made).value();
    std::vector<Rank*> its;
    for (int r = 0; r < n; ++r) {
      Rank& rank = ranks[static_cast<std::size_t>(r)];
      rank.set_sizes(r, n, 0, multiprocessors() / n);
      rank.build(o, &whole);
      rank.p.mail = virtual_peers->mailbox(r);
      rank.p.record = virtual_peers->record(r);
      its.push_back(&rank);
    }
    groups.resize(1);
    groups[0].open(0, its);
    name = std::to_string(n) + " virtual ranks" +
           (ranks[0].kernels != cuda::Kernels::kAny ? "" : " (kernels for any shape)");
    return true;
  }
  void on_devices(int n, const Options& o, const Rank& whole) {
    ranks.resize(static_cast<std::size_t>(n));
    groups.resize(static_cast<std::size_t>(n));
    for (int r = 0; r < n; ++r)
      ranks[static_cast<std::size_t>(r)].set_sizes(r, n, r, multiprocessors());
    peers.connect(ranks);
    for (int r = 0; r < n; ++r) {
      Rank& rank = ranks[static_cast<std::size_t>(r)];
      rank.build(o, &whole);
      rank.p.record = reinterpret_cast<cuda::Record*>(peers.regions[static_cast<std::size_t>(r)] +
                                                      cuda::kMailRecord);
      groups[static_cast<std::size_t>(r)].open(r, {&rank});
    }
    name = std::to_string(n) + " devices";
  }
};

int bits(Options o, const std::string& json_file) {
  if (o.layers == 0) o.layers = 2;
  if (o.context == 0) o.context = 1048576;
  Rank whole;
  whole.set_sizes(0, 1, 0, multiprocessors());
  whole.build(o, nullptr);
  // Shares take what the caches hold before any step writes to them.
  std::vector<std::unique_ptr<Shares>> all;
  for (const int n : {2, 4, 8}) {
    all.push_back(std::make_unique<Shares>());
    if (!all.back()->on_one_device(n, o, whole)) return 1;
  }
  if (device_count() >= 2) {
    all.push_back(std::make_unique<Shares>());
    all.back()->on_devices(2, o, whole);
  }
  Results want;
  std::vector<Group> one(1);
  one[0].open(0, {&whole});
  const Found found = compare(o, one, want, "1 rank");
  int differ = found.differ + found.alone_differ;
  // Bits that are compared must say something.
  std::size_t not_finite = 0;
  for (const auto& result : want) {
    for (const std::uint16_t v : result) not_finite += (v & 0x7F80U) == 0x7F80U ? 1 : 0;
  }
  std::printf("%zu values are not finite\n", not_finite);
  if (not_finite != 0) return 1;
  Json json;
  json.add("layers", std::to_string(o.layers));
  json.add("cases", std::to_string(want.size()));
  const auto add = [&](const std::string& name, int compared, int others) {
    json.add(name, "{\"compared\": " + std::to_string(compared) +
                       ", \"differ\": " + std::to_string(others) + "}");
  };
  add("1 rank", found.compared, found.differ);
  add("rows alone", found.alone, found.alone_differ);
  for (const auto& shares : all) {
    const Found other = compare(o, shares->groups, want, shares->name.c_str());
    add(shares->name, other.compared, other.differ);
    differ += other.differ;
  }
  json.write(json_file);
  return differ != 0 ? 1 : 0;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

__global__ void add_sums(std::uint16_t* to, const std::uint16_t* base, const float* sums, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  const float x = __uint_as_float(static_cast<std::uint32_t>(base[i]) << 16);
  to[i] = static_cast<std::uint16_t>(__float_as_uint(x + sums[i]) >> 16);
}

// The native chain of all devices, every exchange an all-reduce of the library: one graph a device.
std::vector<cudaGraphExec_t> capture_with(Nccl& nccl, std::vector<Group>& groups, int n) {
  const std::size_t values = static_cast<std::size_t>(n) * kHidden;
  static std::vector<float*> sums;
  static std::vector<std::uint16_t*> results;
  std::vector<cudaStream_t> streams;
  for (Group& g : groups) {
    CHECK(cudaSetDevice(g.device));
    if (sums.size() < groups.size()) {
      sums.push_back(allocate<float>(16 * kHidden));
      results.push_back(allocate<std::uint16_t>(16 * kHidden));
      CHECK(cudaMemset(sums.back(), 0, 16 * kHidden * 4));
    }
    CHECK(cudaDeviceSynchronize());
    streams.push_back(g.stream);
  }
  const auto exchange = [&] {
    if (!nccl.all_reduce(sums, values, streams)) {
      std::fprintf(stderr, "NCCL: error\n");
      std::exit(1);
    }
  };
  exchange();  // opens what the library opens at its first use of a size
  for (Group& g : groups) g.finish();
  for (const cudaStream_t s : streams)
    CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
  const int layers = groups[0].argument.last_layer;
  for (int l = 0; l < layers; ++l) {
    for (int stage = cuda::kQkv; stage <= cuda::kDown; ++stage) {
      if (stage == cuda::kShared) continue;
      for (Group& g : groups) g.run_stage(l, static_cast<cuda::Stage>(stage));
      if (stage != cuda::kOutput && stage != cuda::kDown) continue;
      exchange();
      for (std::size_t i = 0; i < groups.size(); ++i) {
        CHECK(cudaSetDevice(groups[i].device));
        add_sums<<<(static_cast<int>(values) + 255) / 256, 256, 0, streams[i]>>>(
            results[i], groups[i].argument.hidden, sums[i], static_cast<int>(values));
        CHECK(cudaGetLastError());
      }
    }
  }
  std::vector<cudaGraphExec_t> graphs;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    CHECK(cudaSetDevice(groups[i].device));
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    CHECK(cudaStreamEndCapture(streams[i], &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphDestroy(graph));
    graphs.push_back(exec);
  }
  return graphs;
}

int speed(Options o, const std::string& json_file) {
  if (o.layers == 0) o.layers = 57;
  if (o.context == 0) o.context = 8192;
  const bool devices = device_count() >= o.ranks && !o.stand_in;
  const int all = multiprocessors();
  const std::size_t count = devices ? static_cast<std::size_t>(o.ranks) : 1;
  std::vector<Rank> ranks(count);
  for (std::size_t r = 0; r < count; ++r) {
    ranks[r].set_sizes(static_cast<int>(r), o.ranks, static_cast<int>(r), all);
    ranks[r].seed = 1 + (static_cast<std::uint64_t>(r) << 40);
  }
  DevicePeers peers;
  std::unique_ptr<cuda::Peers> stand_in;
  for (Rank& r : ranks) r.build(o, nullptr);
  if (devices) {
    peers.connect(ranks);
    // The router is the same on every rank.
    for (std::size_t l = 0; l < ranks[0].layers.size(); ++l) {
      const Matrix& from = ranks[0].layers[l].router;
      for (std::size_t r = 1; r < count; ++r) {
        CHECK(cudaSetDevice(ranks[r].device));
        const auto bytes = static_cast<std::uint64_t>(cuda::packed_bytes(from));
        copy<<<64, 256>>>(
            reinterpret_cast<uint4*>(const_cast<unsigned char*>(ranks[r].layers[l].router.data)),
            reinterpret_cast<const uint4*>(from.data), bytes / 16, bytes / 16, 1);
        CHECK(cudaDeviceSynchronize());
      }
    }
  } else {
    auto made = cuda::Peers::standing_in(o.ranks, kHidden);
    if (!made.ok()) return 1;
    stand_in = std::move(made).value();
    ranks[0].p.mail = stand_in->mailbox(0);
    ranks[0].p.record = stand_in->record(0);
  }
  std::vector<Group> groups(count);
  for (std::size_t r = 0; r < count; ++r) {
    groups[r].open(static_cast<int>(r), {&ranks[r]});
  }
  std::printf("share of %d ranks, %d layers, context %d, %s\n", o.ranks, o.layers, o.context,
              devices ? "a device each" : "one device standing in for all");
  Json json;
  json.add("ranks", std::to_string(o.ranks));
  json.add("devices", std::to_string(count));
  json.add("layers", std::to_string(o.layers));
  json.add("context", std::to_string(o.context));
  Nccl nccl;
  if (devices && nccl.open(o.ranks)) json.add("nccl_version", std::to_string(nccl.version()));
  std::vector<std::size_t> kinds{0, 1, 2, 3};
  if (nccl.is_open()) kinds.push_back(4);
  std::string rows = "[";
  for (const int n : o.rows) {
    for (Group& g : groups) g.set_step(n, o.context);
    // mono with exchanges, mono without, native with, native without, native with the library's.
    std::vector<std::vector<cudaGraphExec_t>> graphs(5);
    std::vector<std::vector<double>> us(5);
    if (nccl.is_open()) graphs[4] = capture_with(nccl, groups, n);
    for (std::size_t kind = 0; kind < 4; ++kind) {
      for (Group& g : groups) {
        CHECK(cudaSetDevice(g.device));
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t exec = nullptr;
        CHECK(cudaStreamBeginCapture(g.stream, cudaStreamCaptureModeThreadLocal));
        g.run(kind < 2, kind % 2 == 0);
        CHECK(cudaStreamEndCapture(g.stream, &graph));
        CHECK(cudaGraphInstantiate(&exec, graph, 0));
        CHECK(cudaGraphDestroy(graph));
        graphs[kind].push_back(exec);
      }
    }
    bool same = true;
    for (int i = 0; i < o.runs; ++i) {
      std::vector<std::uint16_t> result;
      for (const std::size_t kind : kinds) {
        for (std::size_t r = 0; r < count; ++r) {
          Group& g = groups[r];
          g.reset(n);
          hold<<<1, 1, 0, g.stream>>>(1'000'000);
          g.begin_step();
          CHECK(cudaEventRecord(g.begin, g.stream));
          CHECK(cudaGraphLaunch(graphs[kind][r], g.stream));
          CHECK(cudaEventRecord(g.end, g.stream));
        }
        for (Group& g : groups) g.finish();
        double longest = 0;
        for (Group& g : groups) {
          float ms = 0;
          CHECK(cudaSetDevice(g.device));
          CHECK(cudaEventElapsedTime(&ms, g.begin, g.end));
          longest = std::max(longest, static_cast<double>(ms));
        }
        if (i > 0) us[kind].push_back(longest * 1e3 / o.layers);
        if (kind != 0 && kind != 2) continue;
        for (const Group& g : groups) {
          const auto got = g.hidden(*g.ranks[0], n);
          if (result.empty()) result = got;
          same = same && got == result;
        }
      }
    }
    const double m = median(us[0]), m0 = median(us[1]), v = median(us[2]), v0 = median(us[3]);
    std::printf(
        "%2d rows: fused %7.2f us a layer, %7.2f without exchanges (%.2f exposed) | native %7.2f, "
        "%7.2f (%.2f) | same bits on all ranks and paths: %s\n",
        n, m, m0, m - m0, v, v0, v - v0, same ? "yes" : "NO");
    if (nccl.is_open())
      std::printf("        native with NCCL %7.2f (%.2f exposed)\n", median(us[4]),
                  median(us[4]) - v0);
    std::fflush(stdout);
    char line[400];
    std::snprintf(line, sizeof line,
                  "%s{\"rows\": %d, \"fused_us_a_layer\": %.2f, \"fused_without_us\": %.2f, "
                  "\"fused_exposed_us\": %.2f, \"native_us_a_layer\": %.2f, "
                  "\"native_without_us\": %.2f, \"native_exposed_us\": %.2f, \"same_bits\": %s}",
                  rows.size() > 1 ? ", " : "", n, m, m0, m - m0, v, v0, v - v0,
                  same ? "true" : "false");
    rows += line;
    if (nccl.is_open()) {
      rows.pop_back();
      rows += ", \"native_nccl_us_a_layer\": " + std::to_string(median(us[4])) + "}";
    }
    for (const auto& kind : graphs)
      for (cudaGraphExec_t exec : kind) CHECK(cudaGraphExecDestroy(exec));
  }
  json.add("rows", rows + "]");
  json.write(json_file);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  std::string json_file;
  bool wants_speed = false;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const std::string value = arg.substr(arg.find('=') + 1);
    if (arg == "speed") wants_speed = true;
    if (arg == "standin") o.stand_in = true;
    if (arg.rfind("layers=", 0) == 0) o.layers = std::atoi(value.c_str());
    if (arg.rfind("context=", 0) == 0) o.context = std::atoi(value.c_str());
    if (arg.rfind("runs=", 0) == 0) o.runs = std::atoi(value.c_str());
    if (arg.rfind("ranks=", 0) == 0) o.ranks = std::atoi(value.c_str());
    if (arg.rfind("json=", 0) == 0) json_file = value;
    if (arg.rfind("rows=", 0) != 0) continue;
    o.rows.clear();
    for (const char* at = value.c_str(); *at != 0;) {
      char* end = nullptr;
      o.rows.push_back(static_cast<int>(std::strtol(at, &end, 10)));
      at = *end == ',' ? end + 1 : end;
    }
  }
  return wants_speed ? speed(o, json_file) : bits(o, json_file);
}
