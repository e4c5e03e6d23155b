// Several ranks on one device, in one launch: the same bits at every number of ranks, whoever is
// late; a rank that stops is reported, and what it leaves harms nobody.
#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>
#include <tuple>

#include "backend/cuda/params.h"
#include "backend_cpu/random_model.h"
#include "backend_cuda/device_harness.h"
#include "oracle_case.h"

namespace monolayer::test {
namespace {

using cuda::NativeOptions;
using cuda::Path;

// MONOLAYER_REPLAYS: how often a step is repeated; few unless asked for.
int replays() {
  const char* text = std::getenv("MONOLAYER_REPLAYS");
  return text != nullptr ? std::atoi(text) : 200;
}

std::size_t differences(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return std::max(a.size(), b.size());
  std::size_t count = 0;
  for (std::size_t i = 0; i < a.size(); ++i) count += a[i] != b[i] ? 1 : 0;
  return count;
}

// The embedded model, and one of its shape with the formats of MiniMax-M3 and random weights.
class Model {
 public:
  explicit Model(bool random) {
    if (random) {
      random_.emplace(nano_config(),
                      ModelFormats{.attention = WeightFormat::kFP8PerChannel,
                                   .dense = WeightFormat::kMXFP4,
                                   .experts = WeightFormat::kMXFP4,
                                   .shared = WeightFormat::kMXFP4,
                                   .router = DType::kBF16},
                      11);
      config_ = &random_->config;
      weights_ = &random_->weights;
      tokens = random_tokens(*config_, 320, 3);
      cache = fp8_cache();
      return;
    }
    auto loaded = OracleCase::load("nano");
    EXPECT_TRUE(loaded.ok()) << loaded.status().to_string();
    nano_.emplace(std::move(loaded).value());
    config_ = &nano_->config;
    weights_ = &nano_->weights;
    tokens = nano_->input_ids;
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const m3::ModelConfig& config() const { return *config_; }
  const m3::ModelWeights& weights() const { return *weights_; }
  std::vector<std::int32_t> tokens;
  cpu::CacheOptions cache;

 private:
  std::optional<RandomModel> random_;
  std::optional<OracleCase> nano_;
  const m3::ModelConfig* config_;
  const m3::ModelWeights* weights_;
};

class VirtualRanks : public testing::TestWithParam<std::tuple<bool, bool>> {
 protected:
  void SetUp() override {
    if (no_device()) GTEST_SKIP() << "no CUDA device";
    model_ = std::make_unique<Model>(std::get<0>(GetParam()));
  }
  NativeOptions options(int ranks) const {
    NativeOptions o;
    o.path = std::get<1>(GetParam()) ? Path::kMono : Path::kNative;
    o.virtual_ranks = ranks;
    return o;
  }
  std::unique_ptr<Device> device(const NativeOptions& o) const {
    return std::make_unique<Device>(model_->config(), model_->weights(), model_->cache, o);
  }
  std::unique_ptr<Model> model_;
};

TEST_P(VirtualRanks, SameBitsAtEverySize) {
  const auto one = device(options(1));
  const DeviceOutput want = one->run(model_->tokens, {512}, true);
  ASSERT_FALSE(want.logits.empty());
  for (const int ranks : {2, 4, 8}) {
    const auto many = device(options(ranks));
    const std::string what = std::to_string(ranks) + " ranks";
    const DeviceOutput traced = many->run(model_->tokens, {512}, true);
    EXPECT_EQ(0U, differences(want.logits, traced.logits)) << what << ", traced";
    EXPECT_EQ(want.trace.hidden_rows, traced.trace.hidden_rows) << what;
    EXPECT_EQ(want.trace.selections, traced.trace.selections) << what;
    EXPECT_EQ(want.trace.chosen_experts, traced.trace.chosen_experts) << what;
    EXPECT_EQ(0U, differences(want.logits, many->run(model_->tokens, {16}, false).logits)) << what;
    EXPECT_EQ(0U, differences(want.logits, many->run(model_->tokens, {1}, false).logits)) << what;
    EXPECT_EQ(0U, differences(want.logits,
                              many->run(model_->tokens, {13, 1, 2, 4, 16, 7, 5, 8}, false).logits))
        << what << ", ragged";
  }
}

// Graph replays of one step, in each of which another rank is late before each exchange.
TEST_P(VirtualRanks, T_P1_T_P6_SameBitsWhoeverIsLate) {
  const int context = 40;
  for (const int ranks : {4, 2, 8}) {
    for (const int rows : {1, 5}) {
      NativeOptions late = options(ranks);
      late.delay_ns = 3'000;
      const auto device_late = device(late);
      const std::vector<std::int32_t> tokens(model_->tokens.begin(),
                                             model_->tokens.begin() + context + rows);
      const auto want = device(options(1))->run(tokens, {context, rows}, false).logits;
      ASSERT_EQ(0U, differences(want, device_late->run(tokens, {context, rows}, false).logits));
      const auto pages = page_table(context + rows);
      const cpu::StepSequence sequence{
          .tokens = std::span<const std::int32_t>(tokens).subspan(context),
          .start = context,
          .pages = pages,
          .logit_rows = rows};
      const std::vector<float> last(want.end() - rows * model_->config().vocab_size, want.end());
      const bool often = std::get<0>(GetParam()) && ranks == 4 && rows == 1;
      const int count = often ? replays() : std::min(200, replays());
      int differ = 0;
      std::vector<float> logits;
      for (int i = 0; i < count; ++i) {
        const Status status =
            device_late->native().step({&sequence, 1}, device_late->pool(), logits, nullptr);
        ASSERT_TRUE(status.ok()) << status.to_string();
        differ += differences(last, logits) != 0 ? 1 : 0;
      }
      EXPECT_EQ(0, differ) << ranks << " ranks, " << rows << " rows";
      std::printf("%d ranks, %d rows: %d replays, %d differ\n", ranks, rows, count, differ);
    }
  }
}

// A rank stops in one step: that step fails with a record within the deadline; repeated, and in all
// steps after it, the bits are those of a run in which nothing happened.
TEST_P(VirtualRanks, T_P4_T_P7_StoppedStepIsReportedAndLeavesNothing) {
  const bool mono = std::get<1>(GetParam());
  const std::vector<std::int32_t> tokens(model_->tokens.begin(), model_->tokens.begin() + 12);
  const auto want = device(options(1))->run(tokens, {1}, false).logits;
  const auto vocab = static_cast<std::size_t>(model_->config().vocab_size);
  const auto pages = page_table(12);
  for (const int ranks : {2, 4}) {
    for (int stage = cuda::kQkv; stage <= cuda::kDown; ++stage) {
      // Without hand-offs in a launch, only exchanges can wait.
      if (stage == cuda::kShared) continue;
      if (!mono && stage != cuda::kOutput && stage != cuda::kDown) continue;
      NativeOptions stops = options(ranks);
      stops.deadline_ns = 30'000'000;
      stops.stall_block = 0;
      stops.stall_rank = ranks - 1;
      stops.stall_stage = stage;
      stops.stall_step = 6;
      const auto d = device(stops);
      int failures = 0;
      std::vector<float> all;
      for (std::int64_t at = 0; at < 12;) {
        const cpu::StepSequence sequence{.tokens = std::span<const std::int32_t>(tokens).subspan(
                                             static_cast<std::size_t>(at), 1),
                                         .start = at,
                                         .pages = pages,
                                         .logit_rows = 1};
        std::vector<float> logits;
        const auto begin = std::chrono::steady_clock::now();
        const Status status = d->native().step({&sequence, 1}, d->pool(), logits, nullptr);
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
        if (status.ok()) {
          all.insert(all.end(), logits.begin(), logits.end());
          ++at;
          continue;
        }
        EXPECT_EQ(5, at);
        EXPECT_LT(took.count(), 0.5);
        EXPECT_NE(std::string::npos, status.to_string().find("gave up waiting"));
        if (ranks == 2) std::printf("stage %d: %s\n", stage, status.to_string().c_str());
        ASSERT_LE(++failures, 1);
      }
      EXPECT_EQ(1, failures) << ranks << " ranks, stage " << stage;
      EXPECT_EQ(12 * vocab, all.size());
      EXPECT_EQ(0U, differences(want, all)) << ranks << " ranks, stage " << stage;
    }
  }
}

// Tags come again after 2^24 steps: the mailboxes are cleared, with late ranks around.
TEST_P(VirtualRanks, T_P5_T_P8_WrapClearsWhatIsLeft) {
  const std::vector<std::int32_t> tokens(model_->tokens.begin(), model_->tokens.begin() + 24);
  const auto want = device(options(1))->run(tokens, {1}, false).logits;
  for (const int ranks : {2, 8}) {
    NativeOptions o = options(ranks);
    o.delay_ns = 20'000;
    o.steps_done = (1U << 24) - 7;
    EXPECT_EQ(0U, differences(want, device(o)->run(tokens, {1}, false).logits)) << ranks;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, VirtualRanks, testing::Combine(testing::Bool(), testing::Bool()),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param) ? "Random" : "Nano") +
                                  (std::get<1>(test.param) ? "Mono" : "Native");
                         });

TEST(VirtualRanksOptions, NumbersThatDoNotDivideAreRefused) {
  if (no_device()) GTEST_SKIP() << "no CUDA device";
  const Model model(false);
  for (const int ranks : {0, 3, 16}) {
    NativeOptions o;
    o.virtual_ranks = ranks;
    EXPECT_FALSE(cuda::create_native(model.config(), model.weights(), o).ok()) << ranks;
  }
}

}  // namespace
}  // namespace monolayer::test
