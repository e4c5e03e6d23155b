// The read stream by number of threads, and the hand-off time of the team.
//   bench_cpu_stream [--threads 1,2] [--repeats N] [--json]
#include "backend/cpu/stream.h"

#include "cpu_bench.h"

int main(int argc, char** argv) {
  using namespace monolayer;
  using namespace monolayer::bench;
  const bool json = flag(argc, argv, "--json");
  const int repeats = std::atoi(option(argc, argv, "--repeats", "15").c_str());
  for (const int threads : integers(option(argc, argv, "--threads", "1,2"))) {
    auto team = cpu::ThreadTeam::create({.threads = threads});
    if (!team.ok()) {
      std::fprintf(stderr, "%s\n", team.status().to_string().c_str());
      return 2;
    }
    cpu::ThreadTeam& members = *team.value();
    auto stream = cpu::ReadStream::create(members, cpu::StreamEffort::kThorough);
    if (!stream.ok()) {
      std::fprintf(stderr, "%s\n", stream.status().to_string().c_str());
      return 2;
    }
    std::vector<double> rates;
    std::vector<double> rounds;
    for (int i = 0; i < repeats; ++i) {
      rates.push_back(stream.value()->pass());
      constexpr int kRounds = 1000;
      rounds.push_back(seconds_of([&] {
                         for (int k = 0; k < kRounds; ++k) members.each([](int) {});
                       }) /
                       kRounds);
    }
    const auto [low, high] = std::minmax_element(rates.begin(), rates.end());
    if (json) {
      std::printf(
          "{\"bench\":\"stream\",\"threads\":%d,\"bytes\":%lld,\"gb_per_s\":%.3f,"
          "\"min\":%.3f,\"max\":%.3f,\"handoff_us\":%.3f}\n",
          threads, static_cast<long long>(stream.value()->bytes()), median(rates) / 1e9, *low / 1e9,
          *high / 1e9, median(rounds) * 1e6);
    } else {
      const std::string_view text = members.describe();
      std::printf("%.*s\n  read stream %.2f GB/s (%.2f to %.2f), hand-off %.2f us\n",
                  static_cast<int>(text.size()), text.data(), median(rates) / 1e9, *low / 1e9,
                  *high / 1e9, median(rounds) * 1e6);
    }
  }
  return 0;
}
