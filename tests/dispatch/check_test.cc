// Check mode finds what was planted, and nothing where nothing was.
#include <gtest/gtest.h>

#include <cstring>

#include "dispatch/check.h"

namespace monolayer::dispatch {
namespace {

constexpr std::int64_t kWidth = 24, kHeads = 2, kDim = 4, kIndexDim = 3, kLayers = 3, kTopk = 2;

enum class Plant { kNone, kK, kV, kIndex, kSelection, kResidual, kHidden };

// A toy layer: cache entries, selections and outputs are functions of the inputs, of what the cache
// held before, and of what earlier rows wrote.
class ToyExecutor : public mono::Executor {
 public:
  ToyExecutor(std::vector<mono::CacheView> caches, Plant plant, std::int64_t layer, std::size_t row,
              std::size_t column)
      : caches_(std::move(caches)), plant_(plant), layer_(layer), row_(row), column_(column) {}
  Status prepare(std::span<const mono::StepRow> rows) override {
    rows_.assign(rows.begin(), rows.end());
    return {};
  }
  Status prepare_checked(std::span<const mono::StepRow> rows) override { return prepare(rows); }
  Status run_layers(std::int64_t first, std::int64_t, const bf16_t* hidden, const bf16_t* residual,
                    bf16_t* hidden_out, bf16_t* residual_out) override {
    const mono::CacheView& c = caches_[static_cast<std::size_t>(first)];
    selections_.assign(rows_.size() * kHeads * kTopk, -1);
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      if (!rows_[r].live) continue;
      const bool here = first == layer_ && r == row_;
      auto* k = reinterpret_cast<bf16_t*>(c.k + rows_[r].main_slot * c.token_bytes);
      auto* v = reinterpret_cast<bf16_t*>(c.v + rows_[r].main_slot * c.token_bytes);
      std::byte* index = c.index_keys + rows_[r].index_slot * c.index_token_bytes;
      const bf16_t old = k[0];  // an entry already written would change the result
      for (std::size_t d = 0; d < kDim; ++d) {
        k[d] = static_cast<bf16_t>(hidden[r * kWidth + d] + d +
                                   (here && plant_ == Plant::kK && d == column_ ? 1 : 0));
        v[d] = static_cast<bf16_t>(2 * k[d] + (here && plant_ == Plant::kV && d == column_));
      }
      for (std::size_t d = 0; d < kIndexDim; ++d) {
        index[d] = static_cast<std::byte>(hidden[r * kWidth + d] +
                                          (here && plant_ == Plant::kIndex && d == column_));
      }
      selections_[r * kHeads * kTopk] = static_cast<std::int32_t>(first);
      if (here && plant_ == Plant::kSelection) selections_[r * kHeads * kTopk + column_] ^= 4;
      for (std::size_t i = 0; i < kWidth; ++i) {
        const auto sum = static_cast<bf16_t>(hidden[r * kWidth + i] +
                                             (residual != nullptr ? residual[r * kWidth + i] : 0));
        residual_out[r * kWidth + i] =
            static_cast<bf16_t>(sum + (here && plant_ == Plant::kResidual && i == column_));
        hidden_out[r * kWidth + i] =
            static_cast<bf16_t>(3 * sum + old + (here && plant_ == Plant::kHidden && i == column_));
      }
    }
    return {};
  }
  std::span<const std::int32_t> selections() const override { return selections_; }
  const mono::ExecutorStatistics& statistics() const override { return statistics_; }
  Status close() override { return {}; }

 private:
  std::vector<mono::CacheView> caches_;
  Plant plant_;
  std::int64_t layer_;
  std::size_t row_, column_;
  std::vector<mono::StepRow> rows_;
  std::vector<std::int32_t> selections_;
  mono::ExecutorStatistics statistics_;
};

struct Toy {
  std::vector<std::vector<std::byte>> memory;
  mono::ExecutorConfig config;
  std::vector<mono::StepRow> rows;
  std::vector<bf16_t> hidden, residual, hidden_out, residual_out;
  std::unique_ptr<CheckedExecutor> checked;

  Toy(Plant plant, std::int64_t layer, std::size_t row, std::size_t column) {
    config.shape.hidden_size = kWidth;
    config.shape.num_kv_heads = 1;
    config.shape.index_heads = kHeads;
    config.shape.head_dim = kDim;
    config.shape.index_dim = kIndexDim;
    config.shape.topk_blocks = kTopk;
    for (std::int64_t l = 0; l < kLayers; ++l) {
      mono::CacheView c;
      c.index = DType::kE4M3;
      c.token_bytes = kDim * 2;
      c.head_bytes = c.block_bytes = 128 * c.token_bytes;
      c.index_token_bytes = kIndexDim;
      c.index_block_bytes = 128 * kIndexDim;
      c.blocks = c.index_blocks = 2;
      for (std::byte** at : {&c.k, &c.v, &c.index_keys}) {
        memory.emplace_back(2 * 128 * kDim * 2, std::byte{7});
        *at = memory.back().data();
      }
      config.caches.push_back(c);
    }
    for (int r = 0; r < 3; ++r) {
      mono::StepRow s;
      s.live = r != 1;
      s.main_slot = 130 + r;
      s.index_slot = 5 + r;
      rows.push_back(s);
    }
    hidden.assign(3 * kWidth, 11);
    residual.assign(3 * kWidth, 5);
    hidden_out.assign(3 * kWidth, 0);
    residual_out = hidden_out;
    checked = std::make_unique<CheckedExecutor>(
        std::make_unique<ToyExecutor>(config.caches, Plant::kNone, 0, 0, 0),
        std::make_unique<ToyExecutor>(config.caches, plant, layer, row, column), config);
  }
  Status run() {
    ML_RETURN_IF_ERROR(checked->prepare(rows));
    return checked->run_layers(0, kLayers, hidden.data(), residual.data(), hidden_out.data(),
                               residual_out.data());
  }
};

TEST(CheckMode, EqualExecutorsAgree) {
  Toy toy(Plant::kNone, 0, 0, 0);
  for (int step = 0; step < 3; ++step) {
    const Status status = toy.run();
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  EXPECT_EQ(toy.checked->layers_compared(), 3 * kLayers);
  EXPECT_FALSE(toy.checked->first_difference().found());
}

TEST(CheckMode, PlantedDifferencesAreFoundWhereTheyAre) {
  struct Case {
    Plant plant;
    const char* stage;
    std::size_t column;
  };
  const Case cases[] = {{Plant::kK, "k cache", 3},          {Plant::kV, "v cache", 1},
                        {Plant::kIndex, "index cache", 2},  {Plant::kSelection, "selection", 1},
                        {Plant::kResidual, "residual", 23}, {Plant::kHidden, "hidden", 17}};
  for (const Case& c : cases) {
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      for (const std::size_t row : {0U, 2U}) {
        Toy toy(c.plant, layer, row, c.column);
        const Status status = toy.run();
        EXPECT_EQ(status.code(), Code::kInternal) << c.stage;
        const Difference& d = toy.checked->first_difference();
        EXPECT_EQ(d.layer, layer);
        EXPECT_EQ(d.stage, c.stage);
        EXPECT_EQ(d.row, static_cast<std::int64_t>(row));
        EXPECT_EQ(d.column, static_cast<std::int64_t>(c.column));
        EXPECT_NE(d.control, d.fused);
        EXPECT_NE(status.to_string().find(d.to_string()), std::string::npos);
      }
    }
  }
}

// Padded rows are not compared and not touched.
TEST(CheckMode, PlantOnAPaddedRowIsNoDifference) {
  Toy toy(Plant::kHidden, 1, 1, 3);
  EXPECT_TRUE(toy.run().ok());
}

}  // namespace
}  // namespace monolayer::dispatch
