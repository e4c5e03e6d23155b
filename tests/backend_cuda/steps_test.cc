// Steps of one device, alone and as four ranks on it, among what must not matter: entries that the
// step itself writes, rows that are no numbers, a multiprocessor that something else holds.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <tuple>

#include "backend_cpu/random_model.h"
#include "backend_cuda/device_harness.h"
#include "backend_cuda/hand_over.h"
#include "backend_cuda/peer_litmus.h"
#include "core/dtype.h"

namespace monolayer::test {
namespace {

constexpr std::int64_t kTokens = 40;

class DeviceSteps : public testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  DeviceSteps()
      : model_(nano_config(),
               {.attention = WeightFormat::kFP8PerChannel,
                .dense = WeightFormat::kMXFP4,
                .experts = WeightFormat::kMXFP4,
                .shared = WeightFormat::kMXFP4,
                .router = DType::kBF16},
               11),
        tokens_(random_tokens(model_.config, kTokens, 5)),
        pages_(page_table(kTokens)) {}
  void SetUp() override {
    if (no_device()) GTEST_SKIP() << "no CUDA device";
  }
  // Runs the prompt token by token; the logits of its tokens.
  std::vector<float> start(std::uint64_t deadline_ns = 2'000'000'000) {
    cuda::NativeOptions options;
    options.virtual_ranks = std::get<0>(GetParam());
    options.path = std::get<1>(GetParam()) ? cuda::Path::kMono : cuda::Path::kNative;
    options.deadline_ns = deadline_ns;
    device_ = std::make_unique<Device>(model_.config, model_.weights, fp8_cache(), options);
    return device_->run(tokens_, {1}, false).logits;
  }
  cpu::StepSequence last(const std::vector<std::int32_t>& tokens, std::int64_t rows) const {
    return {.tokens = std::span<const std::int32_t>(tokens).subspan(
                static_cast<std::size_t>(kTokens - rows), static_cast<std::size_t>(rows)),
            .start = kTokens - rows,
            .pages = pages_,
            .logit_rows = rows};
  }
  std::vector<float> step(std::span<const cpu::StepSequence> sequences) {
    std::vector<float> logits;
    const Status status = device_->native().step(sequences, device_->pool(), logits, nullptr);
    EXPECT_TRUE(status.ok()) << status.to_string();
    return logits;
  }
  std::vector<float> tail(const std::vector<float>& all, std::int64_t rows) const {
    return {all.end() - rows * model_.config.vocab_size, all.end()};
  }

  RandomModel model_;
  std::vector<std::int32_t> tokens_, pages_;
  std::unique_ptr<Device> device_;
};

TEST_P(DeviceSteps, T_P2_EntriesAreReadAfterTheyAreWritten) {
  const std::vector<float> want = start();
  int differ = 0;
  for (int i = 0; i < 200; ++i) {
    const std::int64_t rows = i % 2 == 0 ? 1 : 4;
    const auto other = other_tokens(model_.config, tokens_, static_cast<std::uint64_t>(100 + i));
    const cpu::StepSequence junk = last(other, rows);
    EXPECT_NE(tail(want, rows), step({&junk, 1})) << "other tokens gave the same logits";
    const cpu::StepSequence own = last(tokens_, rows);
    differ += step({&own, 1}) != tail(want, rows) ? 1 : 0;
  }
  EXPECT_EQ(0, differ) << "of 200 rounds of other entries";
}

TEST_P(DeviceSteps, T_P3_RowsThatAreNoNumbersHarmNoOther) {
  const std::uint16_t poison[] = {f32_to_bf16(std::numeric_limits<float>::quiet_NaN()),
                                  f32_to_bf16(std::numeric_limits<float>::infinity()),
                                  f32_to_bf16(3e38F)};
  // Tokens that the sequence does not use get embeddings of poison.
  const std::int64_t hidden = model_.config.hidden_size;
  std::vector<std::int32_t> bad;
  for (std::int32_t token = 0; bad.size() < std::size(poison); ++token) {
    if (std::find(tokens_.begin(), tokens_.end(), token) != tokens_.end()) continue;
    auto* row = const_cast<std::byte*>(model_.weights.embed.weight.data) + token * hidden * 2;
    for (std::int64_t i = 0; i < hidden; ++i) std::memcpy(row + i * 2, &poison[bad.size()], 2);
    bad.push_back(token);
  }
  const std::vector<float> want = start();
  const std::vector<std::int32_t> other_pages{1};
  for (std::int64_t rows = 1; rows < 16; ++rows) {
    std::vector<std::int32_t> others;
    for (std::int64_t i = rows; i < 16; ++i)
      others.push_back(bad[static_cast<std::size_t>(i) % bad.size()]);
    const cpu::StepSequence both[] = {
        last(tokens_, rows), {.tokens = others, .start = 0, .pages = other_pages, .logit_rows = 0}};
    EXPECT_EQ(tail(want, rows), step(both)) << rows << " rows beside poison";
    EXPECT_EQ(tail(want, rows), step({both, 1})) << rows << " rows before poison";
  }
}

// What enters single layers is kept for a draft, also where fused layers would follow each other,
// and changes nothing.
TEST_P(DeviceSteps, KeepsWhatEntersLayers) {
  const std::vector<float> want = start();
  const DeviceOutput traced = device_->run(tokens_, {64}, true);
  const std::vector<std::int64_t> layers{1, 4, 5};
  ASSERT_TRUE(device_->native().capture(layers).ok());
  for (const std::int64_t rows : {1, 3, 16, 20}) {
    const cpu::StepSequence own = last(tokens_, rows);
    EXPECT_EQ(tail(want, rows), step({&own, 1}));
    const std::span<const float> kept = device_->native().captured();
    const auto hidden = static_cast<std::size_t>(model_.config.hidden_size);
    ASSERT_EQ(kept.size(), static_cast<std::size_t>(rows) * layers.size() * hidden);
    std::size_t at = 0;
    for (std::int64_t r = kTokens - rows; r < kTokens; ++r) {
      for (const std::int64_t layer : layers) {
        const auto row = kept.subspan(at, hidden);
        EXPECT_EQ(traced.trace.hidden_rows.at({layer, r}), std::vector(row.begin(), row.end()))
            << rows << " rows, layer " << layer << ", position " << r;
        at += hidden;
      }
    }
  }
  for (const std::vector<std::int64_t>& bad : {std::vector<std::int64_t>{6}, {2, 1}, {-1}})
    EXPECT_EQ(Code::kInvalidArgument, device_->native().capture(bad).code());
}

// Guesses that the target does not take leave nothing behind: logits and kept states of all later
// steps are those of a run without guesses. 8 rows of a sequence are the most that are verified.
TEST_P(DeviceSteps, RejectedGuessesLeaveNothingBehind) {
  const std::vector<float> want = start();
  const std::vector<std::int64_t> layers{1, 4, 5};
  ASSERT_TRUE(device_->native().capture(layers).ok());
  const auto states = layers.size() * static_cast<std::size_t>(model_.config.hidden_size);
  const std::int64_t vocab = model_.config.vocab_size;
  std::vector<float> kept;  // of every position, token by token
  for (std::int64_t at = 0; at < kTokens; ++at) {
    const cpu::StepSequence one{
        .tokens = std::span<const std::int32_t>(tokens_).subspan(static_cast<std::size_t>(at), 1),
        .start = at,
        .pages = pages_};
    step({&one, 1});
    const auto row = device_->native().captured();
    kept.insert(kept.end(), row.begin(), row.end());
  }
  for (const std::int64_t guesses : {1, 3, 7}) {
    std::int64_t at = kTokens / 2;
    for (std::uint64_t round = 0; at + guesses < kTokens; ++round) {
      // As many right ones as the round says, wrong ones behind them.
      const std::int64_t right = static_cast<std::int64_t>(round) % (guesses + 1);
      std::vector<std::int32_t> tokens(tokens_.begin() + at, tokens_.begin() + at + guesses + 1);
      for (std::int64_t i = right + 1; i <= guesses; ++i)
        tokens[static_cast<std::size_t>(i)] =
            static_cast<std::int32_t>((tokens[static_cast<std::size_t>(i)] + 1 + i) % vocab);
      const cpu::StepSequence verified{
          .tokens = tokens, .start = at, .pages = pages_, .logit_rows = guesses + 1};
      const std::vector<float> logits = step({&verified, 1});
      const auto row = device_->native().captured();
      ASSERT_EQ(row.size(), tokens.size() * states);
      for (std::int64_t i = 0; i <= right; ++i, ++at) {
        EXPECT_TRUE(std::equal(want.begin() + at * vocab, want.begin() + (at + 1) * vocab,
                               logits.begin() + i * vocab))
            << guesses << " guesses, position " << at;
        const auto from = row.subspan(static_cast<std::size_t>(i) * states, states);
        EXPECT_TRUE(std::equal(from.begin(), from.end(),
                               kept.begin() + at * static_cast<std::ptrdiff_t>(states)))
            << guesses << " guesses, position " << at;
      }
    }
  }
}

// A launch waits until all its blocks fit: the step is late, not hung, and its bits are the same.
TEST_P(DeviceSteps, T_P11_AHeldMultiprocessorDelaysTheStep) {
  const std::vector<float> want = start();
  cudaStream_t other = nullptr;
  ASSERT_EQ(cudaSuccess, cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  ASSERT_EQ(cudaSuccess, occupy_multiprocessor(300'000'000, other));
  const cpu::StepSequence own = last(tokens_, 1);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(tail(want, 1), step({&own, 1}));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_EQ(cudaSuccess, cudaStreamSynchronize(other));
  EXPECT_EQ(cudaSuccess, cudaStreamDestroy(other));
  EXPECT_LT(took.count(), 1.5);
  // Launches of one stage run beside what holds the multiprocessor unless they exchange.
  if (std::get<1>(GetParam()) || std::get<0>(GetParam()) > 1) {
    EXPECT_GT(took.count(), 0.2);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, DeviceSteps,
                         testing::Combine(testing::Values(1, 4), testing::Bool()),
                         [](const auto& test) {
                           return std::to_string(std::get<0>(test.param)) + "Ranks" +
                                  (std::get<1>(test.param) ? "Mono" : "Native");
                         });

class HandOver : public testing::TestWithParam<bool> {};
TEST_P(HandOver, NothingIsReadBeforeItIsThereOrOverwrittenBeforeItIsRead) {
  if (no_device()) GTEST_SKIP() << "no CUDA device";
  std::uint32_t* wrong = nullptr;
  ASSERT_EQ(cudaSuccess, cudaMallocHost(reinterpret_cast<void**>(&wrong), sizeof *wrong));
  *wrong = 0;
  ASSERT_EQ(cudaSuccess, run_hand_over(GetParam(), 1000, wrong, nullptr));
  ASSERT_EQ(cudaSuccess, cudaDeviceSynchronize());
  EXPECT_EQ(0U, *wrong);
  cudaFreeHost(wrong);
}
INSTANTIATE_TEST_SUITE_P(By, HandOver, testing::Bool(), [](const auto& test) {
  return std::string(test.param ? "BarriersOfTheBlock" : "TransactionBarriers");
});

// One sparse layer of the embedded model's shape and one step of it: little enough for tools that
// look at every access of shared memory.
// MONOLAYER_PATH=mono or native: only that one.
TEST(SmallStep, NativeAndFused) {
  if (no_device()) GTEST_SKIP() << "no CUDA device";
  m3::ModelConfig config = nano_config();
  config.layers = {config.layers.back()};
  config.num_layers = 1;
  config.vocab_size = 256;
  const RandomModel model(config,
                          {.attention = WeightFormat::kFP8PerChannel,
                           .dense = WeightFormat::kMXFP4,
                           .experts = WeightFormat::kMXFP4,
                           .shared = WeightFormat::kMXFP4,
                           .router = DType::kBF16},
                          3);
  std::vector<float> logits[2];
  const char* only = std::getenv("MONOLAYER_PATH");
  for (const bool mono : {false, true}) {
    if (only != nullptr && (std::string(only) == "mono") != mono) continue;
    cuda::NativeOptions options;
    options.path = mono ? cuda::Path::kMono : cuda::Path::kNative;
    options.graphs = false;
    options.deadline_ns = 300'000'000'000;
    Device device(model.config, model.weights, fp8_cache(), options);
    logits[mono ? 1 : 0] = device.run({7, 9}, {2}, false).logits;
  }
  if (only != nullptr) return;
  EXPECT_EQ(logits[0].size(), 512U);
  EXPECT_EQ(logits[0], logits[1]);
}

}  // namespace
}  // namespace monolayer::test
