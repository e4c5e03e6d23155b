// Host cost of a decision, of prepare_step, of a step as the runner takes it (decision, lifecycle
// with the storage's pointers looked at, prepare_step) and of a layer's call, with an executor that
// does nothing (what the library itself costs) and with the CPU's (its preparation included).
// Warm: medians of batches. Cold: medians of single calls after several times the last-level cache
// was read, when an engine has filled in its step's arrays and nothing else. bench_step_overhead
// has the same in decode steps.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <vector>

#include "api/backends.h"
#include "dispatch/dispatcher.h"
#include "dispatch/runner.h"
#include "mono/library_fixture.h"
#include "stamps.h"

namespace monolayer {
namespace {

using mono::test::Deployment;
using mono::test::FakeBackend;
using mono::test::Step;

// Reads several times the last-level cache, so that the next call finds neither its data nor its
// code there, as after a decode step.
class Eviction {
 public:
  Eviction() : memory_(kBytes / sizeof(std::uint64_t), 1) {}
  void run() {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < memory_.size(); i += 8) sum += memory_[i];
    sum_ = sum;
  }

 private:
  static constexpr std::size_t kBytes = std::size_t{256} << 20;
  std::vector<std::uint64_t> memory_;
  volatile std::uint64_t sum_ = 0;
};

// Whether layers read as much, and when they did.
struct LayerWork {
  bench::Stamps stamps;
  Eviction* reads = nullptr;
};

class IdleExecutor : public mono::Executor {
 public:
  explicit IdleExecutor(LayerWork& work) : work_(work) {}
  Status prepare(std::span<const mono::StepRow>) override { return {}; }
  Status prepare_checked(std::span<const mono::StepRow>) override { return {}; }
  BENCH_STAMPS Status run_layers(std::int64_t, std::int64_t, const bf16_t*, const bf16_t*, bf16_t*,
                                 bf16_t*) override {
    if (work_.reads == nullptr) return {};
    work_.stamps.begun = bench::Stamps::Clock::now();
    work_.reads->run();
    work_.stamps.ended = bench::Stamps::Clock::now();
    return {};
  }
  std::span<const std::int32_t> selections() const override { return {}; }
  const mono::ExecutorStatistics& statistics() const override { return statistics_; }
  Status close() override { return {}; }

 private:
  LayerWork& work_;
  mono::ExecutorStatistics statistics_;
};

class IdleBackend : public mono::LibraryBackend {
  class Build : public mono::Construction {
   public:
    explicit Build(LayerWork& work) : work_(work) {}
    std::span<const std::string_view> stages() const override { return {}; }
    Status run(std::size_t) override { return {}; }
    std::unique_ptr<mono::Executor> finish() override {
      return std::make_unique<IdleExecutor>(work_);
    }

   private:
    LayerWork& work_;
  };

 public:
  explicit IdleBackend(LayerWork& work) : work_(work) {}
  const mono::DeviceTraits& traits() const override { return FakeBackend::cpu_traits(); }
  Status supports(const mono::ExecutorConfig&) const override { return {}; }
  std::unique_ptr<mono::Construction> construct(mono::ExecutorConfig,
                                                const mono::BuildOptions&) override {
    return std::make_unique<Build>(work_);
  }

 private:
  LayerWork& work_;
};

// Median over batches of `each` calls, in microseconds a call.
template <typename F>
double median_us(F&& f, int each = 200, int batches = 51) {
  std::vector<double> times;
  for (int b = 0; b < batches; ++b) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < each; ++i) f();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    times.push_back(took.count() / each);
  }
  std::nth_element(times.begin(), times.begin() + batches / 2, times.end());
  return times[static_cast<std::size_t>(batches / 2)];
}

// Median of calls that find nothing in a cache but what `filled` has just written, in microseconds.
template <typename Fill, typename F>
double cold_us(Eviction& eviction, Fill&& filled, F&& f, int calls = 101) {
  std::vector<double> times;
  for (int i = 0; i < calls; ++i) {
    eviction.run();
    filled();
    static_cast<void>(std::chrono::steady_clock::now());  // the clock's own code and data
    const auto begin = std::chrono::steady_clock::now();
    f();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    times.push_back(took.count());
  }
  std::nth_element(times.begin(), times.begin() + calls / 2, times.end());
  return times[static_cast<std::size_t>(calls / 2)];
}

// A step of the runner that ends where its layers would begin.
struct PrepareOnly : mono::StepPaths {
  const ml_step* step = nullptr;
  int native = 0;
  Status run_native() override {
    ++native;
    return {};
  }
  Status run_mono(mono::Library& library) override { return library.prepare_step(*step); }
};

// `layers`: of an idle executor, else null.
int measure(const char* name, mono::LibraryBackend& backend, LayerWork* layers,
            Eviction& eviction) {
  Deployment deployment({0, 1, true, false, ML_BF16});
  deployment.input.context.worker_threads = 1;
  auto made = mono::Library::create(deployment.input, backend, nullptr);
  if (!made.ok()) {
    std::fprintf(stderr, "%s: %s\n", name, made.status().to_string().c_str());
    return 1;
  }
  mono::Library& library = **made;
  mono::Lifecycle lifecycle(deployment.input, backend, nullptr, {});
  for (const ml_cache_spec& cache : deployment.input.caches) {
    static_cast<void>(lifecycle.bind_main(cache));
    static_cast<void>(lifecycle.bind_index(cache.layer_id, cache.index, cache.index_scale));
  }
  dispatch::DeploymentFacts deployed;
  deployed.sparse_moe_layers = dispatch::configured(std::int64_t{3});
  auto dispatcher =
      std::move(dispatch::Dispatcher::create(deployed, dispatch::PathChoice::kAuto)).value();
  dispatch::StepRunner runner(dispatcher, lifecycle, [] { return std::vector<ml_cache_spec>(); });
  PrepareOnly paths;
  const std::vector<const void*> bound(library.storage().begin(), library.storage().end());
  std::vector<const void*> storage = bound;
  for (const int rows : {1, 4, 8, 16}) {
    const int query = rows == 16 ? 4 : 1;
    Step step(
        std::vector<std::int32_t>(static_cast<std::size_t>(rows / query), query == 4 ? 250 : 128),
        query);
    const Step values = step;
    dispatch::StepFacts facts;
    facts.rows = facts.query_rows = dispatch::scheduled(std::int64_t{rows});
    facts.requests = facts.index_requests = dispatch::scheduled(std::int64_t{rows / query});
    facts.longest_query = dispatch::scheduled(std::int64_t{query});
    paths.step = &step.md;
    int failures = 0;
    const auto count = [&](bool good) { failures += good ? 0 : 1; };
    const auto fill = [&] {
      step = values;
      step.refresh();
      storage = bound;
      facts.rows = dispatch::scheduled(std::int64_t{rows});
    };
    const auto decide = [&] { count(dispatcher.decide(facts).path == dispatch::Path::kMono); };
    const auto prepare = [&] { count(library.prepare_step(step.md).ok()); };
    const auto run = [&] {
      count(runner
                .step(facts, dispatch::Generation::from_scheduler(0), dispatch::scheduled(false),
                      paths, storage)
                .ok());
    };
    const double prepare_us = median_us(prepare);
    std::printf(
        "{\"executor\": \"%s\", \"rows\": %d, \"decide_us\": %.3f, \"prepare_step_us\": %.3f, "
        "\"runner_us\": %.3f, \"cold_decide_us\": %.2f, \"cold_prepare_step_us\": %.2f, "
        "\"cold_runner_us\": %.2f",
        name, rows, median_us(decide), prepare_us, median_us(run), cold_us(eviction, fill, decide),
        cold_us(eviction, fill, prepare), cold_us(eviction, fill, run));
    count(paths.native == 0);
    std::vector<bf16_t> activations(static_cast<std::size_t>(rows) * 64 + 16);
    ml_tensor x = mono::test::activation(activations.data(), rows, 64);
    ml_tensor positions = mono::test::position_tensor(step.positions);
    if (layers != nullptr) {
      // Three calls a step; what preparing costs is taken off. Cold: after a layer that has read as
      // much, the next one's way into its run and out of it; and where the caller has read it.
      mono::LibraryOutput out;
      const auto forward = [&](std::int64_t id) {
        count(library.forward_layers(id, 1, x, x, positions, out).ok());
      };
      const double warm = median_us([&] {
        prepare();
        for (std::int64_t id = 3; id < 6; ++id) forward(id);
      });
      const auto begin = [&] {
        prepare();
        eviction.run();
        x = mono::test::activation(activations.data(), rows, 64);
        positions = mono::test::position_tensor(step.positions);
      };
      std::printf(", \"layer_call_us\": %.3f, \"cold_first_layer_call_us\": %.2f",
                  (warm - prepare_us) / 3, cold_us(eviction, begin, [&] { forward(3); }));
      std::vector<double> calls;
      layers->reads = &eviction;
      for (int i = 0; i < 50; ++i) {
        prepare();
        for (std::int64_t id = 3; id < 6; ++id) {
          count(bench::stamped_call(library, id, x, x, positions, out, layers->stamps).ok());
          if (id > 3) calls.push_back(layers->stamps.into_the_run() + layers->stamps.out_of_it());
        }
      }
      layers->reads = nullptr;
      std::nth_element(calls.begin(), calls.begin() + 50, calls.end());
      std::printf(", \"cold_layer_call_us\": %.2f", calls[50]);
    }
    std::printf("},\n");
    if (failures != 0) {
      std::fprintf(stderr, "%d calls were refused\n", failures);
      return 1;
    }
  }
  bool held = true;
  const auto check = [&] { held = held && library.check_storage(storage).ok(); };
  std::printf("{\"storage_pointers\": %zu, \"check_us\": %.3f, \"cold_check_us\": %.2f},\n",
              storage.size(), median_us(check),
              cold_us(
                  eviction, [] {}, check));
  return held && library.close().ok() && lifecycle.close().ok() ? 0 : 1;
}

// What the widest tables cost: every block id that a request uses is looked at.
void measure_long_context() {
  for (const std::int32_t length : {16384, 131072, 1048576}) {
    const std::int32_t blocks = length / ML_BLOCK_TOKENS;
    std::vector<std::int32_t> table(static_cast<std::size_t>(blocks));
    for (std::int32_t i = 0; i < blocks; ++i) table[static_cast<std::size_t>(i)] = i;
    const std::int64_t slot = length - 1;
    ml_step md{};
    md.size = sizeof md;
    md.token_count = md.requests = md.query_len = 1;
    md.table_width = md.index_table_width = blocks;
    md.main_table = md.index_table = table.data();
    md.seq_lens = &length;
    md.main_slots = md.index_slots = &slot;
    mono::ExpandedStep rows;
    int failures = 0;
    const double us = median_us([&] {
      failures += mono::expand_step(md, {blocks, blocks, length}, rows).ok() ? 0 : 1;
    });
    std::printf("{\"tokens\": %d, \"checks_us\": %.3f%s},\n", length, us,
                failures != 0 ? ", \"refused\": true" : "");
  }
}

}  // namespace
}  // namespace monolayer

int main() {
  monolayer::LayerWork work;
  monolayer::IdleBackend idle(work);
  monolayer::Eviction eviction;
  const int first = monolayer::measure("idle", idle, &work, eviction);
  const int second = monolayer::measure("cpu", monolayer::api::cpu_backend(), nullptr, eviction);
  monolayer::measure_long_context();
  return first + second;
}
