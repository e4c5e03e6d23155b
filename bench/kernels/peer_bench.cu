// Layers of MiniMax-M3 on the ranks of a tensor-parallel group, with their exchanges.
//
//   bench_cuda_peer bits  [layers=2] [rows=..] [context=..] [json=FILE]
//     One whole set of random layers and its shares for 2, 4 and 8 ranks on one device, and for two
//     devices if there are two: native chain and fused kernel, each compared bit for bit with one
//     rank's native chain.
//   bench_cuda_peer speed [ranks=2] [layers=57] [rows=..] [context=8192] [runs=15] [standin]
//     [json=FILE]
//     The share of one rank of `ranks`, distinct random weights in every layer: on as many devices
//     as ranks, else (or asked to) on one that stands in for all (it writes what every rank would
//     write to it). The same with the exchanges left out (sums are then those of one rank): the
//     difference is the exchanges' exposed time.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

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

// Every context and row count on `groups`, against what one rank's native chain gave.
using Results = std::vector<std::vector<std::uint16_t>>;
int compare(const Options& o, std::vector<Group>& groups, Results& want, const char* what) {
  int differ = 0;
  std::size_t at = 0;
  int cases = 0;
  const bool first = want.empty();
  for (const int context : {127, 128, 129, 2047, 2048, 2049, 8192}) {
    if (context > o.context) continue;
    for (const int n : o.rows) {
      for (Group& g : groups) g.set_step(n, context);
      for (const bool mono : {false, true}) {
        for (Group& g : groups) g.reset(n);
        const bool peers = groups[0].argument.mail.ranks > 1;
        if (peers)
          for (Group& g : groups) g.begin_step();
        for (Group& g : groups) g.run(mono, true);
        for (Group& g : groups) g.finish();
        for (const Group& g : groups) {
          for (const Rank* r : g.ranks) {
            const auto got = g.hidden(*r, n);
            if (first && !mono) {
              want.push_back(got);
              continue;
            }
            ++cases;
            if (got == want[at]) continue;
            ++differ;
            std::printf("%s, context %d, %d rows, %s, rank %d: other bits\n", what, context, n,
                        mono ? "fused" : "native", r->rank);
          }
        }
      }
      ++at;
    }
  }
  std::printf("%s: %d results compared, %d differ\n", what, cases, differ);
  std::fflush(stdout);
  return differ;
}

int bits(Options o, const std::string& json_file) {
  if (o.layers == 0) o.layers = 2;
  const int all = multiprocessors();
  Rank whole;
  whole.set_sizes(0, 1, 0, all);
  whole.build(o, nullptr);
  Results want;
  int differ = 0;
  Json json;
  json.add("layers", std::to_string(o.layers));
  {
    std::vector<Group> groups(1);
    groups[0].open(0, {&whole});
    differ += compare(o, groups, want, "1 rank");
    // Bits that are compared must say something.
    std::size_t not_finite = 0;
    for (const auto& result : want) {
      for (const std::uint16_t v : result) not_finite += (v & 0x7F80U) == 0x7F80U ? 1 : 0;
    }
    std::printf("%zu values are not finite\n", not_finite);
    if (not_finite != 0) return 1;
    groups[0].close();
  }
  json.add("one_rank_differences", std::to_string(differ));
  for (const int n : {2, 4, 8}) {
    std::vector<Rank> ranks(static_cast<std::size_t>(n));
    std::vector<Rank*> its;
    auto peers = cuda::Peers::on_one_device(n, kHidden);
    if (!peers.ok()) return 1;
    for (int r = 0; r < n; ++r) {
      Rank& rank = ranks[static_cast<std::size_t>(r)];
      rank.set_sizes(r, n, 0, all / n);
      rank.build(o, &whole);
      rank.p.mail = (*peers)->mailbox(r);
      rank.p.record = (*peers)->record(r);
      its.push_back(&rank);
    }
    std::vector<Group> groups(1);
    groups[0].open(0, its);
    const std::string what =
        std::to_string(n) + " virtual ranks" + (ranks[0].m3 ? "" : " (kernels for any shape)");
    const int found = compare(o, groups, want, what.c_str());
    json.add("virtual_" + std::to_string(n) + "_differences", std::to_string(found));
    differ += found;
    groups[0].close();
    for (Rank& r : ranks) r.release();
  }
  if (device_count() >= 2) {
    std::vector<Rank> ranks(2);
    for (int r = 0; r < 2; ++r) ranks[static_cast<std::size_t>(r)].set_sizes(r, 2, r, all);
    DevicePeers peers;
    peers.connect(ranks);
    std::vector<Group> groups(2);
    for (int r = 0; r < 2; ++r) {
      Rank& rank = ranks[static_cast<std::size_t>(r)];
      rank.build(o, &whole);
      rank.p.record = reinterpret_cast<cuda::Record*>(peers.regions[static_cast<std::size_t>(r)] +
                                                      cuda::kMailRecord);
      groups[static_cast<std::size_t>(r)].open(r, {&rank});
    }
    const int found = compare(o, groups, want, "2 devices");
    json.add("two_devices_differences", std::to_string(found));
    differ += found;
  }
  json.write(json_file);
  return differ != 0 ? 1 : 0;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int speed(Options o, const std::string& json_file) {
  if (o.layers == 0) o.layers = 57;
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
  for (std::size_t r = 0; r < count; ++r) groups[r].open(static_cast<int>(r), {&ranks[r]});
  std::printf("share of %d ranks, %d layers, context %d, %s\n", o.ranks, o.layers, o.context,
              devices ? "a device each" : "one device standing in for all");
  Json json;
  json.add("ranks", std::to_string(o.ranks));
  json.add("devices", std::to_string(count));
  json.add("layers", std::to_string(o.layers));
  json.add("context", std::to_string(o.context));
  std::string rows = "[";
  for (const int n : o.rows) {
    for (Group& g : groups) g.set_step(n, o.context);
    // mono with exchanges, mono without, native with, native without.
    std::vector<std::vector<cudaGraphExec_t>> graphs(4);
    std::vector<std::vector<double>> us(4);
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
      for (const std::size_t kind : {0U, 1U, 2U, 3U}) {
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
        if (kind % 2 != 0) continue;
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
    std::fflush(stdout);
    char line[400];
    std::snprintf(line, sizeof line,
                  "%s{\"rows\": %d, \"fused_us_a_layer\": %.2f, \"fused_without_us\": %.2f, "
                  "\"fused_exposed_us\": %.2f, \"native_us_a_layer\": %.2f, "
                  "\"native_without_us\": %.2f, \"native_exposed_us\": %.2f, \"same_bits\": %s}",
                  rows.size() > 1 ? ", " : "", n, m, m0, m - m0, v, v0, v - v0,
                  same ? "true" : "false");
    rows += line;
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
