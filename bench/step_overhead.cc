// Host cost of a step and of a layer's call where it is paid: in decode steps of a synthetic model,
// which read hundreds of megabytes between two of them. First the project's own chain: from a
// step's decision to its first layer, with what asking for the memory of that costs at the step's
// begin. Then another engine's way: it calls the library, one layer after the other. Of a layer's
// call all counts but the executor's run; of both, the clocks' own time too.
//
//   bench_step_overhead MODEL_DIR [PASSES [STEPS]]
//
// Other work on the machine evicts caches too: each line is the pass with the lowest median.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/cpu/library_backend.h"
#include "backend/cpu/library_views.h"
#include "backend/cpu/mono_chain.h"
#include "core/dtype.h"
#include "engine/bench_batch.h"
#include "engine/native_run.h"
#include "mono/library_bind.h"
#include "stamps.h"

namespace monolayer {
namespace {

using bench::Stamps;

constexpr std::int64_t kRows[] = {1, 2, 4, 8, 16};
constexpr std::int64_t kContext = 128;

double quantile(std::vector<double> values, double q) {
  const std::ptrdiff_t at = std::lround(q * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[static_cast<std::size_t>(at)];
}

// Times of several passes; those of the pass with the lowest median are told.
class Passes {
 public:
  void begin() { passes_.emplace_back(); }
  void add(double us) { passes_.back().push_back(us); }
  void print(const char* name) const {
    const auto best = std::min_element(
        passes_.begin(), passes_.end(),
        [](const auto& a, const auto& b) { return quantile(a, 0.5) < quantile(b, 0.5); });
    std::vector<double> medians;
    for (const auto& pass : passes_) medians.push_back(quantile(pass, 0.5));
    std::printf(", \"%s\": %.2f, \"%s_p90\": %.2f, \"%s_median_of_medians\": %.2f", name,
                quantile(*best, 0.5), name, quantile(*best, 0.9), name, quantile(medians, 0.5));
  }

 private:
  std::vector<std::vector<double>> passes_;
};

class StampedExecutor : public mono::Executor {
 public:
  StampedExecutor(std::unique_ptr<mono::Executor> inner, Stamps& stamps)
      : inner_(std::move(inner)), stamps_(stamps) {}
  Status prepare(std::span<const mono::StepRow> rows) override { return inner_->prepare(rows); }
  Status prepare_checked(std::span<const mono::StepRow> rows) override {
    return inner_->prepare_checked(rows);
  }
  mono::StepMemory step_memory() const override { return inner_->step_memory(); }
  BENCH_STAMPS Status run_layers(std::int64_t first, std::int64_t count, const bf16_t* hidden,
                                 const bf16_t* residual, bf16_t* hidden_out,
                                 bf16_t* residual_out) override {
    stamps_.begun = Stamps::Clock::now();
    Status ran = inner_->run_layers(first, count, hidden, residual, hidden_out, residual_out);
    stamps_.ended = Stamps::Clock::now();
    return ran;
  }
  std::span<const std::int32_t> selections() const override { return inner_->selections(); }
  const mono::ExecutorStatistics& statistics() const override { return inner_->statistics(); }
  Status close() override { return inner_->close(); }

 private:
  std::unique_ptr<mono::Executor> inner_;
  Stamps& stamps_;
};

class StampedBackend : public mono::LibraryBackend {
  class Build : public mono::Construction {
   public:
    Build(std::unique_ptr<mono::Construction> inner, Stamps& stamps)
        : inner_(std::move(inner)), stamps_(stamps) {}
    std::span<const std::string_view> stages() const override { return inner_->stages(); }
    Status run(std::size_t stage) override { return inner_->run(stage); }
    std::unique_ptr<mono::Executor> finish() override {
      return std::make_unique<StampedExecutor>(inner_->finish(), stamps_);
    }

   private:
    std::unique_ptr<mono::Construction> inner_;
    Stamps& stamps_;
  };

 public:
  StampedBackend(cpu::ThreadTeam& team, Stamps& stamps) : inner_(&team), stamps_(stamps) {}
  const mono::DeviceTraits& traits() const override { return inner_.traits(); }
  Status supports(const mono::ExecutorConfig& config) const override {
    return inner_.supports(config);
  }
  std::unique_ptr<mono::Construction> construct(mono::ExecutorConfig config,
                                                const mono::BuildOptions& options) override {
    return std::make_unique<Build>(inner_.construct(std::move(config), options), stamps_);
  }

 private:
  cpu::LibraryBackend inner_;
  Stamps& stamps_;
};

Result<mono::LibraryInput> library_input(const engine::OpenModel& model, engine::NativeRun& run) {
  ML_ASSIGN_OR_RETURN(mono::LibraryInput input,
                      mono::bind_library(model.config, run.weights(), 0, 1));
  for (const mono::LayerInput& layer : input.layers) {
    const cpu::LayerCache& cache = run.pool().layer(layer.spec.layer_id);
    input.caches.push_back(
        cpu::cache_spec(model.config, cache, layer.spec.layer_id, cache.pages * m3::kPageTokens));
  }
  return input;
}

// A step of `rows` requests of one row each, as an engine keeps it.
struct EngineStep {
  explicit EngineStep(std::int64_t rows) {
    const std::int64_t width = kContext / m3::kPageTokens + 1;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t i = 0; i < width; ++i) {
        table.push_back(static_cast<std::int32_t>(r * width + i));
      }
      lengths.push_back(static_cast<std::int32_t>(kContext + 1));
      slots.push_back(std::int64_t{table.back()} * m3::kPageTokens);
      positions.push_back(kContext);
    }
    md.size = sizeof md;
    md.token_count = md.requests = static_cast<std::int32_t>(rows);
    md.query_len = 1;
    md.table_width = md.index_table_width = static_cast<std::int32_t>(width);
    md.main_table = md.index_table = table.data();
    md.seq_lens = lengths.data();
    md.main_slots = md.index_slots = slots.data();
  }
  std::vector<std::int32_t> table, lengths;
  std::vector<std::int64_t> slots, positions;
  ml_step md{};
};

Status measure_chain(const engine::OpenModel& model, engine::NativeRun& run, int passes,
                     int steps) {
  auto& chain = dynamic_cast<cpu::MonoChain&>(run.native());
  std::vector<float> logits;
  std::uint64_t state = 1;
  for (const std::int64_t rows : kRows) {
    engine::BenchBatch batch(rows, kContext, 1);
    Passes times;
    std::int64_t bytes = 0;
    for (int pass = 0; pass < passes; ++pass) {
      times.begin();
      for (int i = -1; i < steps; ++i) {  // the first makes the plans
        batch.draw_tokens(model.config.vocab_size, state);
        const std::int64_t fused = chain.paths().mono;
        ML_RETURN_IF_ERROR(chain.step(batch.sequences, run.pool(), logits, nullptr));
        if (chain.paths().mono == fused) return {Code::kInternal, "step", "did not go fused"};
        if (i >= 0) times.add(1e6 * chain.prepare_seconds());
      }
      bytes = chain.last_traffic().total();
    }
    std::printf("{\"caller\": \"chain\", \"rows\": %lld, \"bytes_between\": %lld",
                static_cast<long long>(rows), static_cast<long long>(bytes));
    times.print("step_us");
    std::printf("},\n");
  }
  return {};
}

Status measure_library(const engine::OpenModel& model, engine::NativeRun& run, int passes,
                       int steps) {
  Stamps stamps;
  StampedBackend backend(run.team(), stamps);
  ML_ASSIGN_OR_RETURN(auto input, library_input(model, run));
  std::vector<std::int64_t> ids;
  for (const mono::LayerInput& layer : input.layers) ids.push_back(layer.spec.layer_id);
  ML_ASSIGN_OR_RETURN(const auto library,
                      mono::Library::create(std::move(input), backend, nullptr));
  const std::int64_t hidden = model.config.hidden_size;
  for (const std::int64_t rows : kRows) {
    const EngineStep step(rows);
    std::vector<bf16_t> first(static_cast<std::size_t>(rows * hidden) + 32);
    std::vector<bf16_t> zeros(first.size(), 0);
    for (std::size_t i = 0; i < first.size(); ++i) {
      first[i] = f32_to_bf16(std::sin(static_cast<float>(i)));
    }
    const auto aligned = [](std::vector<bf16_t>& v) {
      const auto at = reinterpret_cast<std::uintptr_t>(v.data()) + 63;
      return reinterpret_cast<bf16_t*>(at / 64 * 64);
    };
    Passes prepare, call, in, out;
    for (int pass = 0; pass < passes; ++pass) {
      for (Passes* times : {&prepare, &call, &in, &out}) times->begin();
      for (int i = -1; i < steps; ++i) {
        const auto before = Stamps::Clock::now();
        ML_RETURN_IF_ERROR(library->prepare_step(step.md));
        if (i >= 0) prepare.add(Stamps::microseconds(Stamps::Clock::now() - before));
        mono::LibraryOutput now{aligned(first), aligned(zeros)};
        for (const std::int64_t id : ids) {
          const auto x = cpu::host_tensor(now.hidden, ML_BF16, ML_LAYOUT_ROWS, {rows, hidden});
          const auto residual =
              cpu::host_tensor(now.residual, ML_BF16, ML_LAYOUT_ROWS, {rows, hidden});
          const auto positions =
              cpu::host_tensor(step.positions.data(), ML_I64, ML_LAYOUT_ROWS, {rows});
          ML_RETURN_IF_ERROR(
              bench::stamped_call(*library, id, x, residual, positions, now, stamps));
          if (i < 0) continue;
          in.add(stamps.into_the_run());
          out.add(stamps.out_of_it());
          call.add(stamps.into_the_run() + stamps.out_of_it());
        }
      }
    }
    std::printf("{\"caller\": \"layer by layer\", \"rows\": %lld, \"bytes_of_a_layer\": %lld",
                static_cast<long long>(rows),
                static_cast<long long>(library->executor().statistics().weight_bytes));
    prepare.print("prepare_step_us");
    call.print("layer_call_us");
    in.print("into_the_run_us");
    out.print("out_of_it_us");
    std::printf("},\n");
  }
  return library->close();
}

Status measure(const std::string& folder, int passes, int steps) {
  ML_ASSIGN_OR_RETURN(const auto model, engine::open_model(folder));
  engine::NativeRunOptions options;
  options.threads = 2;
  options.context_tokens = (kContext + m3::kPageTokens) * kRows[std::size(kRows) - 1];
  options.path = "mono";
  ML_ASSIGN_OR_RETURN(const auto run, engine::NativeRun::load(*model, options));
  std::fill_n(run->pool().memory(), run->pool().bytes(), std::byte{0x3c});
  ML_RETURN_IF_ERROR(measure_chain(*model, *run, passes, steps));
  return measure_library(*model, *run, passes, steps);
}

}  // namespace
}  // namespace monolayer

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s MODEL_DIR [PASSES [STEPS]]\n", argv[0]);
    return 2;
  }
  const int passes = argc > 2 ? std::atoi(argv[2]) : 5;
  const int steps = argc > 3 ? std::atoi(argv[3]) : 15;
  const auto status = monolayer::measure(argv[1], std::max(passes, 1), std::max(steps, 1));
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.to_string().c_str());
  return status.ok() ? 0 : 1;
}
