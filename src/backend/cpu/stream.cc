#include "backend/cpu/stream.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

namespace monolayer::cpu {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

std::int64_t buffer_bytes(StreamEffort effort) {
  const std::int64_t cache = std::max<std::int64_t>(sysconf(_SC_LEVEL3_CACHE_SIZE), 0);
  return effort == StreamEffort::kQuick ? std::clamp(4 * cache, 16 * kMiB, 64 * kMiB)
                                        : std::clamp(4 * cache, 256 * kMiB, 2048 * kMiB);
}

// Whole cache lines of worker `worker` of `size`.
std::int64_t share_begin(std::int64_t bytes, int worker, int size) {
  return bytes / 64 * worker / size * 64;
}

// Four sums of two words, written as such and kept apart from the callers: left to the optimizer,
// an array of sums went through memory in some of them, which read at a third of the rate.
using WordPair = std::uint64_t __attribute__((vector_size(16)));

WordPair load_pair(const std::byte* from) {
  WordPair words;
  std::memcpy(&words, from, sizeof(words));
  return words;
}

[[gnu::noinline]] std::uint64_t sum_lines(const std::byte* begin, const std::byte* end) {
  WordPair a{};
  WordPair b{};
  WordPair c{};
  WordPair d{};
  for (; begin < end; begin += 64) {
    a += load_pair(begin);
    b += load_pair(begin + 16);
    c += load_pair(begin + 32);
    d += load_pair(begin + 48);
  }
  const WordPair sum = (a + b) + (c + d);
  return sum[0] + sum[1];
}

struct TimedSum {
  std::uint64_t sum = 0;
  double rate = 0;  // bytes per second
};

// The team reads whole cache lines of [memory, memory + bytes) once.
TimedSum read_once(ThreadTeam& team, const std::byte* memory, std::int64_t bytes) {
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(team.size()) * 8);
  const auto start = std::chrono::steady_clock::now();
  team.each([&](int worker) {
    sums[static_cast<std::size_t>(worker) * 8] =
        sum_lines(memory + share_begin(bytes, worker, team.size()),
                  memory + share_begin(bytes, worker + 1, team.size()));
  });
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  TimedSum result;
  for (const std::uint64_t sum : sums) result.sum += sum;
  if (seconds.count() > 0) result.rate = static_cast<double>(bytes) / seconds.count();
  return result;
}

template <typename F>
double median_of(int passes, F&& pass) {
  std::vector<double> rates;
  for (int i = 0; i < std::max(passes, 1); ++i) rates.push_back(pass());
  const auto middle = rates.begin() + static_cast<std::ptrdiff_t>(rates.size() / 2);
  std::nth_element(rates.begin(), middle, rates.end());
  return *middle;
}

}  // namespace

ReadStream::ReadStream(ThreadTeam& team, void* memory, std::int64_t bytes)
    : team_(team), memory_(static_cast<std::byte*>(memory)), bytes_(bytes) {}

ReadStream::~ReadStream() { munmap(memory_, static_cast<std::size_t>(bytes_)); }

Result<std::unique_ptr<ReadStream>> ReadStream::create(ThreadTeam& team, StreamEffort effort) {
  const std::int64_t bytes = buffer_bytes(effort);
  void* memory = mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return Status(Code::kResourceExhausted, "read stream",
                  "no memory for a buffer of " + std::to_string(bytes) + " bytes");
  }
  madvise(memory, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);  // a wish, may be refused
  std::unique_ptr<ReadStream> stream(new ReadStream(team, memory, bytes));
  // Written, because untouched pages would all read from one page of zeros.
  team.each([&](int worker) {
    const std::int64_t begin = share_begin(bytes, worker, team.size());
    const std::int64_t end = share_begin(bytes, worker + 1, team.size());
    std::memset(stream->memory_ + begin, 1, static_cast<std::size_t>(end - begin));
  });
  return stream;
}

double ReadStream::pass() {
  const TimedSum read = read_once(team_, memory_, bytes_);
  // Every byte is 1: a pass that skipped some would be caught.
  const bool complete = read.sum == 0x0101010101010101U * static_cast<std::uint64_t>(bytes_ / 8);
  return complete ? read.rate : 0;
}

double ReadStream::median(int passes) {
  return median_of(passes, [this] { return pass(); });
}

double measure_stream(ThreadTeam& team, std::span<const std::byte> memory) {
  const auto bytes = static_cast<std::int64_t>(memory.size() / 64 * 64);
  return median_of(3, [&] { return read_once(team, memory.data(), bytes).rate; });
}

Result<double> measure_stream(ThreadTeam& team, StreamEffort effort) {
  ML_ASSIGN_OR_RETURN(const auto stream, ReadStream::create(team, effort));
  return stream->median(effort == StreamEffort::kQuick ? 3 : 15);
}

}  // namespace monolayer::cpu
