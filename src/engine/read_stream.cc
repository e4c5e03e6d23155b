#include "engine/read_stream.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <vector>

namespace monolayer::engine {
namespace {

constexpr std::size_t kSmallestBuffer = std::size_t{64} << 20;
constexpr std::size_t kStep = 256;

// Eight independent sums keep enough loads in flight; the result only keeps them alive.
std::uint64_t sum_words(const std::byte* data, std::size_t bytes) {
  std::uint64_t sums[8] = {};
  for (std::size_t at = 0; at + kStep <= bytes; at += kStep) {
    std::uint64_t words[kStep / 8];
    std::memcpy(words, data + at, kStep);
    for (std::size_t i = 0; i < kStep / 8; ++i) sums[i % 8] += words[i];
  }
  std::uint64_t sum = 0;
  for (const std::uint64_t part : sums) sum += part;
  return sum;
}

}  // namespace

double read_pass(cpu::ThreadTeam& team, std::span<const std::byte> data) {
  static std::atomic<std::uint64_t> sink{0};
  const auto members = static_cast<std::size_t>(team.size());
  const auto start = std::chrono::steady_clock::now();
  team.each([&](int worker) {
    const auto w = static_cast<std::size_t>(worker);
    const std::size_t begin = data.size() / kStep * w / members * kStep;
    const std::size_t end = data.size() / kStep * (w + 1) / members * kStep;
    sink.fetch_add(sum_words(data.data() + begin, end - begin), std::memory_order_relaxed);
  });
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return static_cast<double>(data.size()) / std::max(seconds, 1e-9);
}

double measure_read_stream(cpu::ThreadTeam& team, std::span<const std::byte> data, int passes) {
  std::vector<std::byte> own;
  if (data.size() < kSmallestBuffer) {
    own.assign(kSmallestBuffer, std::byte{1});
    data = own;
  }
  data = data.first(std::min(data.size(), std::size_t{512} << 20));
  std::vector<double> rates;
  read_pass(team, data);
  for (int i = 0; i < passes; ++i) rates.push_back(read_pass(team, data));
  std::nth_element(rates.begin(), rates.begin() + passes / 2, rates.end());
  return rates[static_cast<std::size_t>(passes / 2)];
}

}  // namespace monolayer::engine
