// Check mode over the real executors: native layers against the fused ones.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <random>
#include <thread>

#include "api/backends.h"
#include "backend/cpu/cache.h"
#include "backend/cpu/library_views.h"
#include "backend_cpu/random_model.h"
#include "dispatch/checked_backend.h"
#include "mono/library_bind.h"
#include "tp/group.h"

namespace monolayer::dispatch {
namespace {

using test::RandomModel;

// Flips one bit of what the executor behind it leaves, at its n-th layer call.
struct Plant {
  std::string stage;
  std::int64_t layer = 0;  // executor's index
  std::size_t row = 0, column = 0;
};

class PlantingExecutor : public mono::Executor {
 public:
  PlantingExecutor(std::unique_ptr<mono::Executor> inner, mono::ExecutorConfig config, Plant plant)
      : inner_(std::move(inner)), config_(std::move(config)), plant_(std::move(plant)) {}
  Status prepare(std::span<const mono::StepRow> rows) override {
    rows_.assign(rows.begin(), rows.end());
    return inner_->prepare(rows);
  }
  Status prepare_checked(std::span<const mono::StepRow> rows) override { return prepare(rows); }
  Status run_layers(std::int64_t first, std::int64_t count, const bf16_t* hidden,
                    const bf16_t* residual, bf16_t* hidden_out, bf16_t* residual_out) override {
    ML_RETURN_IF_ERROR(
        inner_->run_layers(first, count, hidden, residual, hidden_out, residual_out));
    if (first != plant_.layer) return {};
    const auto width = static_cast<std::size_t>(config_.shape.hidden_size);
    const mono::CacheView& c = config_.caches[static_cast<std::size_t>(first)];
    if (plant_.stage == "hidden") hidden_out[plant_.row * width + plant_.column] ^= 1;
    if (plant_.stage == "residual") residual_out[plant_.row * width + plant_.column] ^= 1;
    if (plant_.stage == "v cache") {
      const std::int64_t slot = rows_[plant_.row].main_slot;
      c.v[slot / 128 * c.block_bytes + slot % 128 * c.token_bytes +
          static_cast<std::int64_t>(plant_.column) * 2] ^= std::byte{1};
    }
    return {};
  }
  std::span<const std::int32_t> selections() const override { return inner_->selections(); }
  const mono::ExecutorStatistics& statistics() const override { return inner_->statistics(); }
  Status close() override { return inner_->close(); }

 private:
  std::unique_ptr<mono::Executor> inner_;
  mono::ExecutorConfig config_;
  Plant plant_;
  std::vector<mono::StepRow> rows_;
};

class PlantingBackend : public mono::LibraryBackend {
  class Build : public mono::Construction {
   public:
    Build(std::unique_ptr<mono::Construction> inner, mono::ExecutorConfig config, Plant plant)
        : inner_(std::move(inner)), config_(std::move(config)), plant_(std::move(plant)) {}
    std::span<const std::string_view> stages() const override { return inner_->stages(); }
    Status run(std::size_t stage) override { return inner_->run(stage); }
    std::unique_ptr<mono::Executor> finish() override {
      return std::make_unique<PlantingExecutor>(inner_->finish(), std::move(config_), plant_);
    }

   private:
    std::unique_ptr<mono::Construction> inner_;
    mono::ExecutorConfig config_;
    Plant plant_;
  };

 public:
  explicit PlantingBackend(Plant plant) : plant_(std::move(plant)) {}
  const mono::DeviceTraits& traits() const override { return api::cpu_backend().traits(); }
  Status supports(const mono::ExecutorConfig& config) const override {
    return api::cpu_backend().supports(config);
  }
  std::unique_ptr<mono::Construction> construct(mono::ExecutorConfig config,
                                                const mono::BuildOptions& options) override {
    auto inner = api::cpu_backend().construct(config, options);
    return std::make_unique<Build>(std::move(inner), std::move(config), plant_);
  }

 private:
  Plant plant_;
};

// One rank's library over NaN-filled BF16 caches, and steps of random rows.
struct Rank {
  std::unique_ptr<cpu::CachePool> pool;
  std::unique_ptr<mono::Library> library;
  std::vector<bf16_t> hidden, residual;  // outputs of the last step

  Status create(const RandomModel& model, mono::LibraryBackend& backend, int rank, int ranks,
                tp::Group* group) {
    ML_ASSIGN_OR_RETURN(const m3::RankShape shape, m3::rank_shape(model.config, rank, ranks));
    const m3::ModelConfig local = m3::rank_config(model.config, shape);
    ML_ASSIGN_OR_RETURN(pool, cpu::CachePool::create(local, {}, 8));
    std::memset(static_cast<void*>(pool->memory()), 0xff, pool->bytes());
    ML_ASSIGN_OR_RETURN(mono::LibraryInput input,
                        mono::bind_library(model.config, model.weights, rank, ranks));
    for (const mono::LayerInput& layer : input.layers) {
      const auto id = layer.spec.layer_id;
      input.caches.push_back(cpu::cache_spec(local, pool->layer(id), id, 512));
    }
    input.context.worker_threads = 1;
    ML_ASSIGN_OR_RETURN(library, mono::Library::create(std::move(input), backend, group));
    return {};
  }

  // Two requests with q rows each, at `length` tokens before the step.
  Status step(std::int32_t length, std::int32_t q, std::int64_t width, std::uint64_t seed) {
    const std::int32_t table[] = {0, 2, 4, 6, 7, 5, 3, 1};
    const std::int32_t lengths[] = {length + q, length + q};
    std::vector<std::int64_t> slots, positions;
    for (int r = 0; r < 2; ++r) {
      for (std::int32_t i = 0; i < q; ++i) {
        const std::int64_t at = length + i;
        positions.push_back(at);
        slots.push_back(std::int64_t{table[r * 4 + at / 128]} * 128 + at % 128);
      }
    }
    const std::int64_t rows = 2 * q;
    ml_step md{};
    md.size = sizeof md;
    md.token_count = static_cast<std::int32_t>(rows);
    md.requests = 2;
    md.query_len = q;
    md.table_width = md.index_table_width = 4;
    md.main_table = md.index_table = table;
    md.seq_lens = lengths;
    md.main_slots = md.index_slots = slots.data();
    ML_RETURN_IF_ERROR(library->prepare_step(md));
    std::mt19937_64 random(seed);
    std::vector<bf16_t> x(static_cast<std::size_t>(rows * width)), y(x);
    for (bf16_t& v : x) v = f32_to_bf16(static_cast<float>(random() >> 40) * 0x1p-23F - 1);
    for (bf16_t& v : y) v = f32_to_bf16(static_cast<float>(random() >> 40) * 0x1p-23F - 1);
    mono::LibraryOutput out;
    const auto layers = static_cast<std::int64_t>(library->input().layers.size());
    const ml_tensor p = cpu::host_tensor(positions.data(), ML_I64, ML_LAYOUT_ROWS, {rows});
    ML_RETURN_IF_ERROR(library->forward_layers(
        library->input().layers.front().spec.layer_id, layers,
        cpu::host_tensor(x.data(), ML_BF16, ML_LAYOUT_ROWS, {rows, width}),
        cpu::host_tensor(y.data(), ML_BF16, ML_LAYOUT_ROWS, {rows, width}), p, out));
    hidden.assign(out.hidden, out.hidden + rows * width);
    residual.assign(out.residual, out.residual + rows * width);
    return {};
  }
};

void on_ranks(int ranks, const std::function<void(int, tp::Group*)>& f) {
  if (ranks == 1) return f(0, nullptr);
  auto groups = std::move(tp::make_thread_group(ranks)).value();
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      f(r, groups[static_cast<std::size_t>(r)].get());
      static_cast<void>(groups[static_cast<std::size_t>(r)]->close());
    });
  }
  for (std::thread& t : threads) t.join();
}

RandomModel tiny() {
  m3::ModelConfig config = test::tiny_config();
  config.dense_width = config.shared_width = 128;  // what two ranks divide
  return RandomModel(config, {}, 5);
}

// T-C3: check mode takes the same steps as the fused path alone, finds no difference, and leaves
// the same bits.
TEST(CheckReal, TC3NativeAndFusedAgreeOverSteps) {
  const RandomModel model = tiny();
  for (const int ranks : {1, 2}) {
    on_ranks(ranks, [&](int rank, tp::Group* group) {
      Rank plain, checked;
      CheckedBackend backend(api::cpu_backend());
      Status status = plain.create(model, api::cpu_backend(), rank, ranks, group);
      ASSERT_TRUE(status.ok()) << status.to_string();
      status = checked.create(model, backend, rank, ranks, group);
      ASSERT_TRUE(status.ok()) << status.to_string();
      std::int32_t length = 0;
      for (std::uint64_t i = 0; i < 60; ++i) {
        const auto q = static_cast<std::int32_t>(1 + i % 4);
        status = plain.step(length, q, model.config.hidden_size, i);
        ASSERT_TRUE(status.ok()) << status.to_string();
        status = checked.step(length, q, model.config.hidden_size, i);
        ASSERT_TRUE(status.ok()) << status.to_string();
        ASSERT_EQ(plain.hidden, checked.hidden) << "step " << i;
        ASSERT_EQ(plain.residual, checked.residual) << "step " << i;
        length += q;
      }
      const auto& executor = dynamic_cast<CheckedExecutor&>(checked.library->executor());
      EXPECT_EQ(executor.layers_compared(), 60 * 2);
      EXPECT_EQ(std::memcmp(plain.pool->memory(), checked.pool->memory(), plain.pool->bytes()), 0);
      EXPECT_TRUE(plain.library->close().ok());
      EXPECT_TRUE(checked.library->close().ok());
    });
  }
}

TEST(CheckReal, PlantedBitIsFoundWithLayerStageRowAndColumn) {
  const RandomModel model = tiny();
  for (const char* stage : {"v cache", "residual", "hidden"}) {
    Plant plant{stage, 1, 3, 17};
    PlantingBackend fused(plant);
    CheckedBackend backend(fused, {1, 2});
    Rank rank;
    Status status = rank.create(model, backend, 0, 1, nullptr);
    ASSERT_TRUE(status.ok()) << status.to_string();
    // From the first token on: of NaN, which the unwritten entries are, no sign is promised.
    status = rank.step(0, 2, model.config.hidden_size, 9);
    EXPECT_EQ(status.code(), Code::kInternal);
    const std::string expected = "layer 2, " + std::string(stage) + ", row 3, column 17: native 0x";
    EXPECT_NE(status.to_string().find(expected), std::string::npos) << status.to_string();
    // The library is lost: its caches are not to be trusted.
    EXPECT_EQ(rank.step(2, 2, model.config.hidden_size, 9).code(), Code::kFailedPrecondition);
  }
}

}  // namespace
}  // namespace monolayer::dispatch
