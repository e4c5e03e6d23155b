// Whole steps, or their sparse layers, of one rank of MiniMax-M3 at full size with random weights
// made on the device: the native graph and the fused kernel in turns, the stream between them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/status.h"

namespace monolayer::cuda {

struct BenchOptions {
  bool whole_step = true;                    // false: the sparse layers only
  std::vector<std::int64_t> contexts{8192};  // tokens of every row, its own counted
  std::vector<std::int64_t> rows{1};         // of a step, `query` of each sequence
  std::int64_t repeats = 15;                 // timed runs of each path; medians are reported
  std::int64_t query = 1;                    // rows of a sequence: its last tokens
  // Whose rank 0 is made; it stands in for the others in all exchanges. Or, with `every_rank`, all
  // of them on devices 0 to ranks - 1, each with the same random numbers: the slowest rank's time.
  int ranks = 4;
  bool every_rank = false;
  std::int64_t dense_layers = 3, sparse_layers = 57;
  bool f32_router = false;                        // as released checkpoints have it; or BF16
  DType kv = DType::kE4M3, index = DType::kE4M3;  // of the caches
  std::string path = "auto";                      // or "native", "mono": only that one is timed
};

struct BenchResult {
  std::int64_t context = 0, rows = 0;
  std::int64_t layers = 0;  // timed
  std::string skipped;      // why nothing was timed, or empty
  double experts = 0;       // read of a sparse layer, routed ones, on average
  std::int64_t bytes = 0;   // weights and caches that the timed part has to read
  double native_seconds = 0, mono_seconds = 0;  // on the device
  double native_best = 0, mono_best = 0;        // the fastest run
  // Of the host: a step as generate() and the server run it, with the upload, of greedy rows; and
  // with the download of all logits.
  double native_wall_seconds = 0, mono_wall_seconds = 0;
  double native_logits_seconds = 0, mono_logits_seconds = 0;
  double stream_bytes_per_second = 0;
  bool same_bits = true;  // hidden states and tokens of all runs of both paths
  double rate(double seconds) const { return static_cast<double>(bytes) / seconds; }
};

struct BenchSetup {
  std::string device;
  std::int64_t weight_bytes = 0;
  bool m3_kernels = false;
  std::string kernel_family;  // Native::kernel_family()
};

// `on_setup` once the weights are there, `on_result` after every combination; those that do not fit
// the device are reported as skipped, with both numbers. kUnsupported without a device.
Status run_bench(const BenchOptions& options,
                 const std::function<void(const BenchSetup&)>& on_setup,
                 const std::function<void(const BenchResult&)>& on_result);

}  // namespace monolayer::cuda
