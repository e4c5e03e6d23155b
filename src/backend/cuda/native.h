// The native chain on a CUDA device, behind the same interface as the CPU's.
#pragma once

#include <memory>
#include <string>

#include "backend/cpu/native.h"
#include "core/status.h"
#include "m3/config.h"
#include "m3/weights.h"

namespace monolayer::cuda {

enum class Path : std::uint8_t {
  kNative,  // one launch per stage, replayed from a graph
  kMono     // one cooperative launch for every run of sparse layers
};

struct NativeOptions {
  Path path = Path::kNative;
  bool graphs = true;                         // false: plain launches
  std::uint64_t deadline_ns = 2'000'000'000;  // of every wait inside the fused kernel
  int stall_block = -1;                       // tests: this block never arrives at a hand-off
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
