#include "engine/generator.h"

#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace monolayer::engine {
namespace {

constexpr std::int64_t kVocab = 32;

m3::ModelConfig tiny_config() {
  m3::ModelConfig config;
  config.hidden_size = 8;
  config.num_layers = 1;
  config.num_heads = 2;
  config.num_kv_heads = 1;
  config.head_dim = 4;
  config.rotary_dim = 4;
  config.vocab_size = kVocab;
  config.max_positions = 1000;
  config.index_heads = 1;
  config.index_dim = 4;
  config.block_size = 16;
  config.topk_blocks = 2;
  config.layers.resize(1);
  return config;
}

// A model whose next token is (last token + 1) mod vocabulary, and which checks how it is called.
class Counter : public cpu::Native {
 public:
  Status step(std::span<const cpu::StepSequence> sequences, cpu::CachePool& cache,
              std::vector<float>& logits, m3::TraceSink*) override {
    EXPECT_EQ(sequences.size(), 1U);
    const cpu::StepSequence& s = sequences[0];
    EXPECT_EQ(s.start, length);
    length += static_cast<std::int64_t>(s.tokens.size());
    EXPECT_GE(static_cast<std::int64_t>(s.pages.size()) * 128, length);
    std::set<std::int32_t> pages(s.pages.begin(), s.pages.end());
    EXPECT_EQ(pages.size(), s.pages.size());
    for (const std::int32_t page : pages) EXPECT_TRUE(page >= 0 && page < cache.pages());
    seen.insert(seen.end(), s.tokens.begin(), s.tokens.end());
    steps.push_back(static_cast<std::int64_t>(s.tokens.size()));
    if (fail_at == static_cast<std::int64_t>(steps.size()))
      return {Code::kInternal, "step", "failed on purpose"};
    logits.clear();
    ids.clear();
    const auto next = static_cast<std::int32_t>((s.tokens.back() + 1) % kVocab);
    if (s.logit_rows > 0 && s.greedy) ids = {next};
    if (s.logit_rows > 0 && !s.greedy) {
      logits.assign(kVocab, 0.0F);
      logits[static_cast<std::size_t>(next)] = 1;
    }
    traffic.weights = 100;
    return ok_status();
  }
  std::span<const std::int32_t> greedy_ids() const override { return ids; }
  const cpu::Traffic& last_traffic() const override { return traffic; }
  const cpu::Traffic& total_traffic() const override { return traffic; }
  void restart() {
    length = 0;
    seen.clear();
    steps.clear();
  }

  std::int64_t length = 0, fail_at = 0;
  std::vector<std::int32_t> seen, ids;
  std::vector<std::int64_t> steps;
  cpu::Traffic traffic;
};

class GeneratorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto pool = cpu::CachePool::create(config_, {}, 3);
    ASSERT_TRUE(pool.ok()) << pool.status().to_string();
    pool_ = std::move(*pool);
    generator_ = std::make_unique<Generator>(config_, native_, *pool_);
  }
  Result<GenerateReport> run(const std::vector<std::int32_t>& prompt,
                             const GenerateOptions& options) {
    native_.restart();
    out_.clear();
    return generator_->generate(prompt, options, [this](std::int32_t id) {
      out_.push_back(id);
      return static_cast<std::int64_t>(out_.size()) != cancel_after_;
    });
  }

  m3::ModelConfig config_ = tiny_config();
  Counter native_;
  std::unique_ptr<cpu::CachePool> pool_;
  std::unique_ptr<Generator> generator_;
  std::vector<std::int32_t> out_;
  std::int64_t cancel_after_ = -1;
};

TEST_F(GeneratorTest, DecodesAfterAChunkedPrefill) {
  std::vector<std::int32_t> prompt(10);
  for (std::size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<std::int32_t>(i * 3);
  GenerateOptions options;
  options.max_tokens = 4;
  options.prefill_chunk = 4;
  const auto report = run(prompt, options);
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  EXPECT_EQ(out_, (std::vector<std::int32_t>{28, 29, 30, 31}));
  EXPECT_EQ(native_.steps, (std::vector<std::int64_t>{4, 4, 2, 1, 1, 1}));
  prompt.insert(prompt.end(), {28, 29, 30});
  EXPECT_EQ(native_.seen, prompt);
  EXPECT_EQ(report->finish, Finish::kLength);
  EXPECT_EQ(report->prompt_tokens, 10);
  EXPECT_EQ(report->generated_tokens, 4);
  EXPECT_EQ(report->decode_steps, 3);
  EXPECT_EQ(report->decode_tokens, 3);
  EXPECT_EQ(report->prefill.weights, 300);
  EXPECT_EQ(report->decode.weights, 300);
}

TEST_F(GeneratorTest, StopsAtAStopIdWithoutShowingIt) {
  GenerateOptions options;
  options.stop_ids = {7, 9};
  const auto report = run({5}, options);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(out_, (std::vector<std::int32_t>{6}));
  EXPECT_EQ(report->finish, Finish::kStop);
  EXPECT_EQ(report->generated_tokens, 1);
}

TEST_F(GeneratorTest, PoolAndContextLimitTheLength) {
  GenerateOptions options;
  options.max_tokens = 100000;
  auto report = run({0}, options);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->prompt_tokens + report->generated_tokens, 3 * 128);
  options.max_context = 20;
  report = run({0}, options);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->generated_tokens, 19);
}

TEST_F(GeneratorTest, PagesAreFreeAgainAfterwards) {
  GenerateOptions options;
  options.max_tokens = 300;
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(run({1, 2, 3}, options).ok());
  native_.fail_at = 2;
  for (int i = 0; i < 5; ++i) EXPECT_EQ(run({1}, options).status().code(), Code::kInternal);
  native_.fail_at = 0;
  EXPECT_TRUE(run({1}, options).ok());
}

TEST_F(GeneratorTest, CallbackCancels) {
  cancel_after_ = 3;
  const auto report = run({1}, {});
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->finish, Finish::kCancelled);
  EXPECT_EQ(report->generated_tokens, 3);
}

TEST_F(GeneratorTest, RefusesBeforeTheFirstStep) {
  const auto refused = [&](const std::vector<std::int32_t>& prompt,
                           const GenerateOptions& options) {
    const auto report = run(prompt, options);
    EXPECT_EQ(report.status().code(), Code::kInvalidArgument);
    EXPECT_TRUE(native_.steps.empty());
    return report.status().to_string();
  };
  EXPECT_NE(refused({}, {}).find("empty"), std::string::npos);
  EXPECT_NE(refused({1, 32}, {}).find("from 0 to 31"), std::string::npos);
  EXPECT_NE(refused({-1}, {}).find("-1"), std::string::npos);
  const std::string too_long = refused(std::vector<std::int32_t>(384, 1), {});
  EXPECT_NE(too_long.find("384 tokens"), std::string::npos) << too_long;
  EXPECT_NE(too_long.find("prompt of 383"), std::string::npos) << too_long;
  GenerateOptions options;
  options.max_tokens = 0;
  refused({1}, options);
  options = {};
  options.sampling.top_p = 0;
  refused({1}, options);
}

TEST_F(GeneratorTest, SampledTextDependsOnTheSeedAlone) {
  GenerateOptions options;
  options.max_tokens = 40;
  options.sampling = {.temperature = 2, .top_p = 1, .top_k = 0, .seed = 11};
  ASSERT_TRUE(run({3, 4, 5, 6, 7}, options).ok());
  const auto first = out_;
  options.prefill_chunk = 2;
  ASSERT_TRUE(run({3, 4, 5, 6, 7}, options).ok());
  EXPECT_EQ(out_, first);
  options.sampling.seed = 12;
  ASSERT_TRUE(run({3, 4, 5, 6, 7}, options).ok());
  EXPECT_NE(out_, first);
}

}  // namespace
}  // namespace monolayer::engine
