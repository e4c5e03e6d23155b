// The native chain on a CUDA device, behind the same interface as the CPU's.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "backend/cpu/native.h"
#include "core/deadline.h"
#include "core/status.h"
#include "m3/config.h"
#include "m3/weights.h"

namespace monolayer::tp {
class Group;
}

namespace monolayer::cuda {

enum class Path : std::uint8_t {
  kNative,  // one launch per stage, replayed from a graph
  kMono     // one cooperative launch for every run of layers, all sparse or all dense
};

struct NativeOptions {
  Path path = Path::kNative;
  // Asked before every step, instead of `path`: steps that it does not let through are native.
  // Borrowed. Steps that take no fused layer at all are not asked about.
  cpu::StepJudge* policy = nullptr;
  bool graphs = true;  // false: plain launches
  // Of every wait of a block: for a hand-off, a peer's sums, the fence that begins a step.
  std::uint64_t deadline_ns = std::chrono::nanoseconds(Deadline::kDefault).count();
  int device = 0;
  // Tensor parallelism: `virtual_ranks` ranks in every launch, each on its share of the device's
  // multiprocessors; or one rank of a group, whose ranks each have a device of their own. Creation,
  // steps and close() are then collective, and every rank gets the same logits. The same bits
  // whatever the number of ranks.
  int virtual_ranks = 1;
  tp::Group* group = nullptr;  // borrowed
  // Borrowed; copies logits, unless there is a group. Null: the calling thread does.
  cpu::ThreadTeam* team = nullptr;

  // Tests: this block of that rank never arrives at that stage's hand-off (-1: at any), and at an
  // exchange never publishes; before each exchange one rank is late by up to delay_ns.
  int stall_block = -1, stall_rank = 0, stall_stage = -1;
  std::uint32_t delay_ns = 0;
  bool any_kernels = false;  // tests: the kernels for any shape also where those for M3 fit
  // Tests: only in this step (0: in every one), and steps that count as done before the first.
  std::uint64_t stall_step = 0, steps_done = 0;
  // Tests: in this step, counted from 1 (0: in none), layers from `abandon_layer` on are left out.
  std::uint64_t abandon_step = 0;
  int abandon_layer = 0;
};

// Uploads the weights. Refuses at once, with what was missing: no device, another architecture than
// sm_90, too little memory, shapes or formats the kernels do not take, a fused grid that cannot be
// resident. Steps of any number of rows run in groups of at most 16; the caches live on the device,
// the pool passed to step() only says their shape and must stay the same one. Traffic is not
// counted.
Result<std::unique_ptr<cpu::Native>> create_native(const m3::ModelConfig& config,
                                                   const m3::ModelWeights& weights,
                                                   const NativeOptions& options);

}  // namespace monolayer::cuda
