// The embedded model with a draft, an engine on both, and the answers without either.
#pragma once

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "engine/draft_model.h"
#include "engine/engine_harness.h"
#include "engine/generator.h"
#include "engine/requests.h"
#include "m3/draft_synth.h"

namespace monolayer::engine {

// What a test decides about guesses: right ones as far as `right` says, wrong ones after.
class Script {
 public:
  // Answers that guesses are taken from, by prompt.
  void know(const Request& request, std::vector<std::int32_t> answer) {
    answers_[request.prompt] = std::move(answer);
  }
  // How many guesses of a step are right, by the number of tokens generated before it.
  std::function<std::int64_t(std::int64_t generated)> right;

  std::int32_t operator()(const Sequence& sequence, std::int64_t index, std::int32_t guess) const {
    const std::vector<std::int32_t> prompt(sequence.tokens.begin(),
                                           sequence.tokens.begin() + sequence.prompt_tokens);
    const auto at = answers_.find(prompt);
    if (at == answers_.end()) return guess;
    const auto place = static_cast<std::size_t>(sequence.generated() + index);
    const std::int32_t truth = place < at->second.size() ? at->second[place] : 0;
    return index < right(sequence.generated()) ? truth : (truth + 1) % 2048;
  }

 private:
  std::map<std::vector<std::int32_t>, std::vector<std::int32_t>> answers_;
};

class Speculation : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto model = open_model(folder());
    ASSERT_TRUE(model.ok()) << model.status().to_string();
    model_ = std::move(*model);
    tokenizer_ = std::make_unique<Tokenizer>(*Tokenizer::load(folder()));
    run_ = load("native", 1);
    random_ = std::filesystem::temp_directory_path() / ("draft." + std::to_string(getpid()));
    m3::DraftSynthOptions options;
    options.out = random_;
    options.seed = 11;
    options.force = true;
    options.heads = 4;
    options.kv_heads = 2;
    options.head_dim = 64;
    ASSERT_TRUE(m3::synthesize_draft(model_->config, options).ok());
    auto draft = open_draft(random_, model_->config);
    ASSERT_TRUE(draft.ok()) << draft.status().to_string();
    draft_ = std::move(*draft);
    weights_ = *m3::bind_draft_weights(draft_->config, draft_->checkpoint);
  }
  static void TearDownTestSuite() {
    draft_.reset();
    std::filesystem::remove_all(random_);
    run_.reset();
    tokenizer_.reset();
    model_.reset();
  }
  static std::string folder() { return std::string(MONOLAYER_SOURCE_DIR) + "/assets/nano"; }
  static std::unique_ptr<NativeRun> load(const std::string& path, int ranks,
                                         const std::string& cache = "auto") {
    NativeRunOptions options;
    options.context_tokens = 64 * 128;
    options.threads = 1;
    options.path = path;
    options.ranks = ranks;
    options.cache_types = {cache, cache};
    auto run = NativeRun::load(*model_, options);
    EXPECT_TRUE(run.ok()) << run.status().to_string();
    return std::move(*run);
  }

  static std::vector<std::int32_t> prompt(std::uint32_t seed, std::size_t length) {
    return random_prompt(seed, length);
  }
  static Request request(std::vector<std::int32_t> ids, std::int64_t tokens, double temperature) {
    return random_request(std::move(ids), tokens, temperature);
  }
  static std::vector<std::int32_t> alone(const Request& r) {
    return answer_alone(*model_, *run_, r);
  }

  struct Setup {
    std::int64_t k = 3, blocks = 64, sequences = 16, step_tokens = 512;
    bool prefix_caching = true;
    NativeRun* run = nullptr;  // null: the native one, with a pool of its own
    std::function<std::int32_t(const Sequence&, std::int64_t, std::int32_t)> rewrite = {};
    std::vector<double> rates = {};
  };
  // k = 0: no draft at all.
  std::unique_ptr<Harness> engine(const Setup& setup) {
    NativeRun& run = setup.run != nullptr ? *setup.run : *run_;
    pool_.reset();
    if (setup.run == nullptr) {
      auto pool = cpu::CachePool::create(model_->config, {}, setup.blocks);
      EXPECT_TRUE(pool.ok());
      pool_ = std::move(*pool);
    }
    cpu::CachePool& pool = pool_ != nullptr ? *pool_ : run.pool();
    native_model_ = std::make_unique<NativeModel>(model_->config, run.native(), pool);
    EngineOptions options;
    options.scheduler.max_sequences = setup.sequences;
    options.scheduler.max_step_tokens = setup.step_tokens;
    options.prefix_caching = setup.prefix_caching;
    options.poison_dead_blocks = setup.run == nullptr;
    speculator_.reset();
    if (setup.k > 0) {
      fast_ =
          *cpu::Draft::create(draft_->config, weights_, model_->config, run.weights(), run.team());
      draft_pool_ = *cpu::CachePool::create(cpu::Draft::cache_shape(draft_->config, model_->config),
                                            {}, pool.pages());
      EXPECT_TRUE(run.native().capture(draft_->config.aux_layers).ok());
      SpeculationOptions speculation;
      speculation.tokens = setup.k;
      speculation.rewrite = setup.rewrite;
      speculation.synthetic_rates = setup.rates;
      EXPECT_TRUE(check_speculation(speculation).ok());
      speculator_ = std::make_unique<Speculator>(draft_->config, *fast_, *draft_pool_, speculation);
      if (setup.run == nullptr)
        for (std::int32_t block = 0; block < pool.pages(); ++block) speculator_->poison(block);
      options.speculator = speculator_.get();
    }
    auto harness = std::make_unique<Harness>(*native_model_, *tokenizer_, options);
    EXPECT_TRUE(harness->status().ok()) << harness->status().to_string();
    return harness;
  }
  // After the engine is gone or idle.
  void expect_healthy(Harness& harness) {
    EXPECT_TRUE(harness.wait_idle());
    const SpeculationStats stats = harness.engine().stats().speculation;
    EXPECT_EQ(stats.failures, 0) << "drafts read entries nobody had written";
  }

  static std::unique_ptr<OpenModel> model_;
  static std::unique_ptr<NativeRun> run_;
  static std::unique_ptr<Tokenizer> tokenizer_;
  static std::string random_;
  static std::unique_ptr<OpenDraft> draft_;
  static m3::DraftWeights weights_;
  std::unique_ptr<cpu::CachePool> pool_, draft_pool_;
  std::unique_ptr<cpu::Draft> fast_;
  std::unique_ptr<NativeModel> native_model_;
  std::unique_ptr<Speculator> speculator_;
};
inline std::unique_ptr<OpenModel> Speculation::model_;
inline std::unique_ptr<NativeRun> Speculation::run_;
inline std::unique_ptr<Tokenizer> Speculation::tokenizer_;
inline std::string Speculation::random_;
inline std::unique_ptr<OpenDraft> Speculation::draft_;
inline m3::DraftWeights Speculation::weights_;

}  // namespace monolayer::engine
