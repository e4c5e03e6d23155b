// This machine's read stream: the rate against which every other rate is stated.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "backend/cpu/thread_team.h"
#include "core/status.h"

namespace monolayer::cpu {

enum class StreamEffort : std::uint8_t {
  kQuick,     // under 0.1 s on ordinary machines; a few percent of spread
  kThorough,  // for benches, about a second
};

// A buffer the team reads from end to end, each worker its own contiguous share, adding up plain
// 64-bit words, a cache line an iteration. Four times the last-level cache, at least 256 MiB
// (quick: at most 64 MiB, so that large caches flatter it; where more than that is mapped anyway,
// measure over the mapping).
class ReadStream {
 public:
  // kResourceExhausted if the buffer cannot be had. Touches it with the team's own threads.
  static Result<std::unique_ptr<ReadStream>> create(ThreadTeam& team, StreamEffort effort);
  ~ReadStream();
  ReadStream(const ReadStream&) = delete;
  ReadStream& operator=(const ReadStream&) = delete;

  std::int64_t bytes() const { return bytes_; }
  // One pass; bytes per second.
  double pass();
  // The median of `passes` passes.
  double median(int passes);

 private:
  ReadStream(ThreadTeam& team, void* memory, std::int64_t bytes);

  ThreadTeam& team_;
  std::byte* memory_;
  std::int64_t bytes_;
};

// Bytes per second of the read stream with this team over memory that is there already: the median
// of three passes. Nothing is allocated. 0 for less than a cache line.
double measure_stream(ThreadTeam& team, std::span<const std::byte> memory);

// Bytes per second of the read stream with this team, over a buffer of its own.
Result<double> measure_stream(ThreadTeam& team, StreamEffort effort);

}  // namespace monolayer::cpu
