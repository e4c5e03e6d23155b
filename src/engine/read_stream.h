// How fast this machine's threads can read memory: the yardstick of every decode figure.
#pragma once

#include <cstddef>
#include <span>

#include "backend/cpu/thread_team.h"

namespace monolayer::engine {

// Bytes a second of one pass over `data` by the whole team, each member its contiguous share.
double read_pass(cpu::ThreadTeam& team, std::span<const std::byte> data);

// Median of `passes` passes over `data`, or, when it holds fewer than 64 MB, over a buffer of that
// size made for the purpose. Takes a few hundredths of a second on small data.
double measure_read_stream(cpu::ThreadTeam& team, std::span<const std::byte> data, int passes = 5);

}  // namespace monolayer::engine
