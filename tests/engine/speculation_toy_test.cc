// Speculation on a made-up target: the law of what is drawn, drawn acceptance, and text.
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "engine/draft_model.h"
#include "engine/engine_harness.h"
#include "m3/draft_synth.h"

namespace monolayer::engine {
namespace {

constexpr std::int64_t kHidden = 32;

m3::ModelConfig target(std::int64_t vocab) {
  m3::ModelConfig c;
  c.hidden_size = kHidden;
  c.num_layers = 8;
  c.num_heads = 2;
  c.num_kv_heads = 1;
  c.head_dim = 16;
  c.rope_theta = 10000;
  c.vocab_size = vocab;
  c.max_positions = 1 << 16;
  c.rms_eps = 1e-6F;
  c.layers.resize(8);
  return c;
}

// Logits by a function of the row's token and position; states that depend on the token.
class ToyModel : public StepModel {
 public:
  using Logits = std::function<void(std::int32_t token, std::int64_t position, float* out)>;
  ToyModel(std::int64_t vocab, Logits logits) : vocab_(vocab), logits_(std::move(logits)) {}

  Status step(std::span<const cpu::StepSequence> sequences, std::vector<float>& out) override {
    out.clear();
    kept_.clear();
    for (const cpu::StepSequence& s : sequences) {
      const auto count = static_cast<std::int64_t>(s.tokens.size());
      for (std::int64_t row = 0; row < count; ++row) {
        const std::int32_t token = s.tokens[static_cast<std::size_t>(row)];
        for (std::int64_t i = 0; i < 3 * kHidden; ++i)
          kept_.push_back(round_bf16(static_cast<float>((token * 31 + i * 17) % 23 - 11)));
        if (row < count - s.logit_rows) continue;
        const std::size_t base = out.size();
        out.resize(base + static_cast<std::size_t>(vocab_), 0.0F);
        logits_(token, s.start + row, out.data() + base);
      }
    }
    return ok_status();
  }
  std::int64_t vocab_size() const override { return vocab_; }
  std::int64_t blocks() const override { return 256; }
  std::span<const float> kept() const override { return kept_; }

 private:
  const std::int64_t vocab_;
  const Logits logits_;
  std::vector<float> kept_;
};

// A random draft of the toy.
class Toy {
 public:
  Toy(std::int64_t vocab, SpeculationOptions options) : config_(target(vocab)) {
    folder_ = std::filesystem::temp_directory_path() / ("toy." + std::to_string(getpid()));
    m3::DraftSynthOptions synth;
    synth.out = folder_;
    synth.force = true;
    synth.width = 64;
    EXPECT_TRUE(m3::synthesize_draft(config_, synth).ok());
    draft_ = *open_draft(folder_, config_);
    weights_ = *m3::bind_draft_weights(draft_->config, draft_->checkpoint);
    team_ = *cpu::ThreadTeam::create({.threads = 1, .pin = false});
    fast_ = *cpu::Draft::create(draft_->config, weights_, config_, {}, *team_);
    pool_ = *cpu::CachePool::create(cpu::Draft::cache_shape(draft_->config, config_), {}, 256);
    speculator_ = std::make_unique<Speculator>(draft_->config, *fast_, *pool_, std::move(options));
  }
  ~Toy() { std::filesystem::remove_all(folder_); }
  Speculator& speculator() { return *speculator_; }

 private:
  m3::ModelConfig config_;
  std::string folder_;
  std::unique_ptr<OpenDraft> draft_;
  m3::DraftWeights weights_;
  std::unique_ptr<cpu::ThreadTeam> team_;
  std::unique_ptr<cpu::Draft> fast_;
  std::unique_ptr<cpu::CachePool> pool_;
  std::unique_ptr<Speculator> speculator_;
};

// Every byte is a token of its own, in GPT-2's alphabet.
Tokenizer byte_tokenizer() {
  std::string vocab;
  int other = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool plain = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
    char name[16];
    std::snprintf(name, sizeof(name), "\\u%04x", static_cast<unsigned>(plain ? byte : other++));
    vocab += (byte > 0 ? ",\"" : "\"") + std::string(name) + "\":" + std::to_string(byte);
  }
  return *Tokenizer::parse(
      R"({"added_tokens":[],"normalizer":null,"pre_tokenizer":{"type":"ByteLevel",)"
      R"("add_prefix_space":false,"trim_offsets":true,"use_regex":true},"post_processor":null,)"
      R"("decoder":{"type":"ByteLevel"},"model":{"type":"BPE","merges":[],"vocab":{)" +
          vocab + "}}}",
      "bytes");
}

EngineOptions options_with(Speculator* speculator) {
  EngineOptions options;
  options.scheduler.max_sequences = 32;
  options.scheduler.max_step_tokens = 512;
  options.speculator = speculator;
  return options;
}

// 20,000 and more draws of a known law through guesses of which a known share is right: counts
// must follow the law, and the share accepted must be the guessed tokens' probability.
TEST(SpeculationLaw, TwentyThousandDrawsFollowTheTargetsDistribution) {
  constexpr std::int64_t kVocab = 12;
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 1.2F);
  std::vector<float> table(kVocab * kVocab);
  for (float& x : table) x = normal(random);
  ToyModel model(kVocab, [&](std::int32_t token, std::int64_t, float* out) {
    std::copy_n(table.data() + token * kVocab, kVocab, out);
  });
  const Tokenizer tokenizer = byte_tokenizer();
  constexpr double kTemperature = 0.8;
  const auto law = [&](std::int64_t token) {
    std::vector<double> p(kVocab);
    double total = 0;
    for (std::int64_t i = 0; i < kVocab; ++i)
      total += p[static_cast<std::size_t>(i)] = std::exp(
          static_cast<double>(table[static_cast<std::size_t>(token * kVocab + i)]) / kTemperature);
    for (double& x : p) x /= total;
    return p;
  };
  // The likeliest token after the last one known, in turn with the second token of the vocabulary.
  std::vector<double> probability_sum(1, 0.0);
  SpeculationOptions options;
  options.rewrite = [&](const Sequence& sequence, std::int64_t index, std::int32_t guess) {
    if (index > 0) return guess;
    const auto p = law(sequence.tokens.back());
    const std::int32_t mine =
        sequence.size() % 2 == 0 ? greedy_token(std::vector<float>(p.begin(), p.end())) : 1;
    probability_sum[0] += p[static_cast<std::size_t>(mine)];
    return mine;
  };
  Toy toy(kVocab, options);
  Harness harness(model, tokenizer, options_with(&toy.speculator()));
  ASSERT_TRUE(harness.status().ok()) << harness.status().to_string();
  Harness plain(model, tokenizer, options_with(nullptr));

  std::vector<std::vector<std::int64_t>> counts(kVocab, std::vector<std::int64_t>(kVocab));
  std::int64_t draws = 0;
  std::vector<std::uint64_t> ids;
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    Request r;
    r.prompt = {static_cast<std::int32_t>(seed % kVocab)};
    r.max_tokens = 200;
    r.ignore_eos = true;
    r.sampling.temperature = kTemperature;
    r.sampling.seed = seed;
    ids.push_back(*harness.engine().submit(r));
  }
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    const auto answer = harness.wait(ids[seed]);
    ASSERT_TRUE(answer && answer->tokens.size() == 200);
    std::int64_t last = static_cast<std::int64_t>(seed) % kVocab;
    for (const std::int32_t token : answer->tokens) {
      ++counts[static_cast<std::size_t>(last)][static_cast<std::size_t>(token)];
      last = token;
      ++draws;
    }
  }
  ASSERT_GE(draws, 20000);
  double statistic = 0, freedom = 0;
  for (std::int64_t from = 0; from < kVocab; ++from) {
    const auto p = law(from);
    std::int64_t total = 0;
    for (const std::int64_t n : counts[static_cast<std::size_t>(from)]) total += n;
    if (total < 500) continue;
    freedom -= 1;
    for (std::int64_t to = 0; to < kVocab; ++to) {
      const double expected = p[static_cast<std::size_t>(to)] * static_cast<double>(total);
      if (expected < 5) continue;
      const auto seen =
          static_cast<double>(counts[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)]);
      statistic += (seen - expected) * (seen - expected) / expected;
      freedom += 1;
    }
  }
  ASSERT_GT(freedom, 40);
  EXPECT_LT(statistic, freedom + 4 * std::sqrt(2 * freedom));
  ASSERT_TRUE(harness.wait_idle());
  const SpeculationStats stats = harness.engine().stats().speculation;
  const auto steps = static_cast<double>(stats.steps);
  EXPECT_NEAR(static_cast<double>(stats.accepted_at[0]) / steps, probability_sum[0] / steps,
              4 * 0.5 / std::sqrt(steps));
  EXPECT_GT(stats.accepted_at[0], 1000);
  // And the seeded tokens are those of a run without guesses.
  Request r;
  r.prompt = {5};
  r.max_tokens = 100;
  r.ignore_eos = true;
  r.sampling.temperature = kTemperature;
  r.sampling.seed = 17;
  EXPECT_EQ(harness.ask(r)->tokens, plain.ask(r)->tokens);
}

// Steps of one sequence until `steps` had all three guesses: mean tokens by coin.
TEST(SpeculationLaw, Conformance16_SyntheticLengthIsMetOverTenThousandSteps) {
  const auto rates = rates_of_length(2.78, 3);
  ASSERT_TRUE(rates.ok());
  ASSERT_EQ(rates->size(), 3U);
  EXPECT_DOUBLE_EQ((*rates)[0], 1);
  EXPECT_NEAR((*rates)[1], 0.78, 1e-12);
  EXPECT_EQ((*rates)[2], 0);
  EXPECT_FALSE(rates_of_length(4.01, 3).ok());
  EXPECT_FALSE(rates_of_length(0.99, 3).ok());
  ToyModel model(256, [](std::int32_t, std::int64_t, float* out) { out[65] = 9; });
  const Tokenizer tokenizer = byte_tokenizer();
  SpeculationOptions options;
  options.synthetic_rates = *rates;
  options.rewrite = [](const Sequence&, std::int64_t, std::int32_t) { return 66; };
  Toy toy(256, options);
  Harness harness(model, tokenizer, options_with(&toy.speculator()));
  std::vector<std::uint64_t> ids;
  Request r;
  r.prompt = {1};
  r.max_tokens = 1000;
  r.ignore_eos = true;
  ids.reserve(28);
  for (int i = 0; i < 28; ++i) ids.push_back(*harness.engine().submit(r));
  std::int64_t guessed = 0;
  for (const std::uint64_t id : ids) {
    const auto answer = harness.wait(id);
    ASSERT_TRUE(answer && answer->tokens.size() == 1000);
    // Accepted places carry the guess, the others the target's token.
    for (const std::int32_t token : answer->tokens) {
      EXPECT_TRUE(token == 65 || token == 66);
      if (token == 66) ++guessed;
    }
  }
  ASSERT_TRUE(harness.wait_idle());
  const SpeculationStats stats = harness.engine().stats().speculation;
  EXPECT_TRUE(stats.synthetic);
  ASSERT_GE(stats.steps, 10000);
  EXPECT_NEAR(1 + static_cast<double>(stats.accepted) / static_cast<double>(stats.steps), 2.78,
              0.02);
  EXPECT_NEAR(static_cast<double>(guessed), static_cast<double>(stats.accepted), 28);
  r.logprobs = 0;
  EXPECT_FALSE(harness.engine().submit(r).ok()) << "figures of a text that is not the model's";
}

// Coins accept every guess, and every guess would end the answer.
TEST(SpeculationLaw, SyntheticAcceptanceKeepsMinTokens) {
  ToyModel model(256, [](std::int32_t, std::int64_t, float* out) { out[65] = 9; });
  const Tokenizer tokenizer = byte_tokenizer();
  SpeculationOptions options;
  options.synthetic_rates = {1, 1, 1};
  options.rewrite = [](const Sequence&, std::int64_t, std::int32_t) { return 66; };
  Toy toy(256, options);
  Harness harness(model, tokenizer, options_with(&toy.speculator()));
  Request r;
  r.prompt = {1};
  r.max_tokens = 40;
  r.min_tokens = 10;
  for (const bool by_stop : {false, true}) {
    r.eos_ids.clear();
    r.stop_ids.clear();
    (by_stop ? r.stop_ids : r.eos_ids) = {66};
    const auto answer = harness.ask(r);
    ASSERT_TRUE(answer);
    // A guess that may not be taken is not accepted: the target's own token stands in its place.
    std::vector<std::int32_t> expected(10, 65);
    expected.push_back(66);
    EXPECT_EQ(answer->tokens, expected);
    EXPECT_EQ(*answer->finish, FinishReason::kStop);
  }
  ASSERT_TRUE(harness.wait_idle());
  EXPECT_EQ(harness.engine().stats().speculation.accepted, 0);  // the last one ends its answer
}

// Fault F38: forced tokens of one byte each, in runs of any length, give whole characters.
TEST(SpeculationText, FaultF38_Ferrox124_CharactersOfManyBytesStreamWhole) {
  const std::string text =
      "ďábelské 🙂 日本 👨‍👩‍👧 é́ \xf0\x9f\x87\xa8\xf0\x9f\x87\xbf.";
  ToyModel model(256, [&](std::int32_t, std::int64_t position, float* out) {
    out[static_cast<unsigned char>(text[static_cast<std::size_t>(position) % text.size()])] = 9;
  });
  const Tokenizer tokenizer = byte_tokenizer();
  for (std::int64_t right = 0; right <= 7; ++right) {
    SpeculationOptions options;
    options.tokens = 7;
    options.rewrite = [&](const Sequence& sequence, std::int64_t index, std::int32_t) {
      const auto at = static_cast<std::size_t>(sequence.size() - 1 + index) % text.size();
      const auto truth = static_cast<std::int32_t>(static_cast<unsigned char>(text[at]));
      return index < right ? truth : (truth + 1) % 256;
    };
    Toy toy(256, options);
    std::vector<std::string> pieces;
    std::mutex mutex;
    bool done = false;
    std::condition_variable changed;
    auto engine = Engine::start(model, tokenizer, options_with(&toy.speculator()),
                                [&](const std::vector<RequestOutput>& outputs) {
                                  const std::lock_guard lock(mutex);
                                  for (const RequestOutput& o : outputs) {
                                    pieces.push_back(o.text);
                                    done |= o.finish.has_value();
                                  }
                                  changed.notify_all();
                                });
    ASSERT_TRUE(engine.ok());
    Request r;
    r.prompt = {0};
    r.max_tokens = static_cast<std::int64_t>(text.size());
    r.ignore_eos = true;
    ASSERT_TRUE((*engine)->submit(r).ok());
    std::unique_lock lock(mutex);
    ASSERT_TRUE(changed.wait_for(lock, std::chrono::seconds(60), [&] { return done; }));
    std::string joined;
    for (const std::string& piece : pieces) {
      // A piece that begins inside a character, or a replacement character, is a broken one.
      if (!piece.empty()) {
        EXPECT_NE(static_cast<unsigned char>(piece[0]) & 0xC0U, 0x80U);
      }
      EXPECT_EQ(piece.find("\xef\xbf\xbd"), std::string::npos);
      joined += piece;
    }
    EXPECT_EQ(joined, text) << right << " right";
    lock.unlock();
  }
}

}  // namespace
}  // namespace monolayer::engine
