// A small deployment in memory and a backend without kernels, for tests of the library's checks and
// life: the fake executor records what it is asked and writes recognisable outputs.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "mono/library.h"

namespace monolayer::mono::test {

inline constexpr std::int64_t kBlocks = 8;

// Tensors own their bytes in one arena per deployment.
class Deployment {
 public:
  struct Options {
    int rank = 0, ranks = 1;
    bool fused_shared = true;
    bool stacked = true;
    std::int32_t cache = ML_E4M3;
  };
  explicit Deployment(const Options& options);
  Deployment() : Deployment(Options{}) {}

  LibraryInput input;

  ml_tensor tensor(std::int32_t dtype, std::initializer_list<std::int64_t> shape,
                   std::int32_t layout = ML_LAYOUT_ROWS);
  ml_cache_spec cache(std::int64_t layer_id);  // fresh memory

 private:
  ml_matrix matrix(std::int64_t rows, std::int64_t cols, std::int32_t dtype, std::int32_t scale,
                   std::int64_t count = 0);
  ml_mlp mlp(std::int64_t width, std::int32_t dtype, std::int32_t scale, std::int64_t count = 0);
  LayerInput layer(std::int64_t id);

  Options options_;
  m3::RankShape shape_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

// What the fakes of all ranks did.
struct FakeLog {
  std::atomic<int> constructions{0}, live_executors{0}, closes{0}, runs{0};
  std::atomic<int> local_allocations{0};  // held by constructions and executors
};

class FakeBackend : public LibraryBackend {
 public:
  explicit FakeBackend(FakeLog& log) : log_(log) {}
  static const DeviceTraits& cpu_traits();
  const DeviceTraits& traits() const override { return traits_; }
  Status supports(const ExecutorConfig&) const override { return support; }
  std::unique_ptr<Construction> construct(ExecutorConfig config,
                                          const BuildOptions& options) override;

  Status support;       // of this rank
  int fail_stage = -1;  // which construction stage fails
  Status stage_failure{Code::kResourceExhausted, "arena", "injected"};
  Status run_failure;  // of every run_layers
  FakeLog& log() { return log_; }

 private:
  DeviceTraits traits_ = cpu_traits();
  FakeLog& log_;
};
inline constexpr std::size_t kFakeStages = 6;

// f(rank, group) on `ranks` threads of one group; groups are closed afterwards.
void on_ranks(int ranks, const std::function<void(int, tp::Group&)>& f);

// A step of `requests` requests of `query` rows and these lengths over a table of kBlocks blocks
// dealt out in order; keeps its arrays alive.
struct Step {
  Step(std::vector<std::int32_t> lengths, std::int32_t query, std::int32_t padded_rows = 0);
  ml_step md;
  std::vector<std::int32_t> main_table, index_table, seq_lens;
  std::vector<std::int64_t> main_slots, index_slots, positions;
  void refresh();  // pointers and counts after a change of the arrays
};

ml_tensor activation(void* data, std::int64_t rows, std::int64_t hidden);
ml_tensor position_tensor(std::vector<std::int64_t>& positions);

}  // namespace monolayer::mono::test
