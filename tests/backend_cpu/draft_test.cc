// The fast draft against the plain one, its independence of chunking and neighbours, and what it
// refuses.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include "backend/cpu/draft.h"
#include "m3/draft_reference.h"
#include "m3/draft_synth.h"

namespace monolayer::cpu {
namespace {

namespace fs = std::filesystem;

const std::string kModel = std::string(MONOLAYER_SOURCE_DIR) + "/assets/nano";

struct Loaded {
  std::unique_ptr<Checkpoint> checkpoint;
  m3::DraftConfig config;
  m3::DraftWeights weights;
};

class DraftTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = fs::temp_directory_path() / ("draft_test." + std::to_string(getpid()));
    auto checkpoint = Checkpoint::open(kModel);
    ASSERT_TRUE(checkpoint.ok());
    target_ = std::make_unique<Checkpoint>(*std::move(checkpoint));
    config_ = *m3::parse_config(target_->config(), "config.json");
    weights_ = *m3::bind_weights(config_, *target_);
    team_ = *ThreadTeam::create({.threads = 2, .pin = false});
  }
  static void TearDownTestSuite() {
    team_.reset();
    target_.reset();
    fs::remove_all(folder_);
  }
  // A random draft on disk.
  static std::string make(const std::string& name, const m3::DraftSynthOptions& given) {
    m3::DraftSynthOptions options = given;
    options.out = (folder_ / name).string();
    options.force = true;
    const auto report = m3::synthesize_draft(config_, options);
    EXPECT_TRUE(report.ok()) << report.status().to_string();
    return options.out;
  }
  static Result<Loaded> load(const std::string& folder) {
    Loaded loaded;
    ML_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::open(folder));
    loaded.checkpoint = std::make_unique<Checkpoint>(std::move(checkpoint));
    ML_ASSIGN_OR_RETURN(loaded.config,
                        m3::parse_draft_config(loaded.checkpoint->config(),
                                               loaded.checkpoint->config_name(), config_));
    ML_ASSIGN_OR_RETURN(loaded.weights, m3::bind_draft_weights(loaded.config, *loaded.checkpoint));
    return loaded;
  }
  // Changes a field of a draft's config.json; null removes it.
  static std::string with(const std::string& name, const std::string& field,
                          const nlohmann::json& value) {
    std::string folder = make(name, {.heads = 4, .kv_heads = 2, .head_dim = 32});
    nlohmann::json config;
    std::ifstream(folder + "/config.json") >> config;
    if (value.is_null()) {
      config.erase(field);
    } else {
      config[field] = value;
    }
    std::ofstream(folder + "/config.json") << config.dump();
    return folder;
  }
  static std::string refusal(const std::string& folder) {
    const auto loaded = load(folder);
    return loaded.ok() ? "accepted" : loaded.status().to_string();
  }
  static std::vector<float> random(std::uint32_t seed, std::size_t count) {
    std::mt19937 engine(seed);
    std::normal_distribution<float> normal;
    std::vector<float> out(count);
    for (float& x : out) x = round_bf16(normal(engine));
    return out;
  }

  static fs::path folder_;
  static std::unique_ptr<Checkpoint> target_;
  static m3::ModelConfig config_;
  static m3::ModelWeights weights_;
  static std::unique_ptr<ThreadTeam> team_;
};
fs::path DraftTest::folder_;
std::unique_ptr<Checkpoint> DraftTest::target_;
m3::ModelConfig DraftTest::config_;
m3::ModelWeights DraftTest::weights_;
std::unique_ptr<ThreadTeam> DraftTest::team_;

double relative(const float* got, const std::vector<float>& expected) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(static_cast<double>(got[i]) - expected[i], 2);
    norm += std::pow(static_cast<double>(expected[i]), 2);
  }
  return std::sqrt(difference / norm);
}

// Fault C18: as many KV heads as heads, and fewer; both forms run.
TEST_F(DraftTest, FaultC18_InferenceX1741_MultiHeadAndGroupedFormsFollowTheReference) {
  for (const std::int64_t kv : {1, 2, 8}) {
    SCOPED_TRACE(kv);
    auto loaded = load(make("forms", {.seed = 3, .heads = 8, .kv_heads = kv, .head_dim = 64}));
    ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
    auto draft = *Draft::create(loaded->config, loaded->weights, config_, weights_, *team_);
    const auto shape = Draft::cache_shape(loaded->config, config_);
    auto pool = *CachePool::create(shape, {}, 3);
    std::fill_n(pool->memory(), pool->bytes(), std::byte{0xff});
    m3::DraftReference reference(loaded->config, loaded->weights, weights_);

    constexpr std::size_t kRows = 200;
    const auto n = static_cast<std::size_t>(config_.hidden_size);
    const std::vector<float> aux = random(9, kRows * 3 * n);
    std::vector<float> hidden(kRows * n);
    ASSERT_TRUE(draft->combine(aux, hidden.data()).ok());
    std::vector<std::int32_t> tokens(kRows);
    for (std::size_t i = 0; i < kRows; ++i) tokens[i] = static_cast<std::int32_t>(i * 37 % 2000);
    const std::vector<std::int32_t> pages{2, 0};
    std::vector<Proposal> proposals;
    for (std::size_t i = 0; i < kRows; ++i) {
      const auto combined = reference.combine({aux.data() + i * 3 * n, 3 * n});
      EXPECT_LT(relative(hidden.data() + i * n, combined), 6e-3);
      DraftSequence row{{tokens.data() + i, 1},
                        static_cast<std::int64_t>(i) + 1,
                        pages,
                        hidden.data() + i * n,
                        true};
      const Status status = draft->step({&row, 1}, *pool, proposals);
      ASSERT_TRUE(status.ok()) << status.to_string();
      // The reference sees the same rounded states, so that only this layer's roundings differ.
      const auto expected =
          reference.step(tokens[i], {hidden.data() + i * n, n}, static_cast<std::int64_t>(i));
      EXPECT_LT(relative(proposals[0].hidden.data(), expected.hidden), 2e-2) << i;
      EXPECT_LT(relative(draft->logits().data(), expected.logits), 2e-2) << i;
    }
  }
}

TEST_F(DraftTest, ChunksAndNeighboursChangeNoBit) {
  auto loaded = load(make("chunks", {.seed = 4, .heads = 4, .kv_heads = 2, .head_dim = 64}));
  ASSERT_TRUE(loaded.ok());
  auto draft = *Draft::create(loaded->config, loaded->weights, config_, weights_, *team_);
  const auto shape = Draft::cache_shape(loaded->config, config_);
  const auto n = static_cast<std::size_t>(config_.hidden_size);
  constexpr std::size_t kRows = 150;
  const std::vector<float> hidden = random(5, kRows * n);
  std::vector<std::int32_t> tokens(kRows, 7);
  for (std::size_t i = 0; i < kRows; ++i) tokens[i] = static_cast<std::int32_t>(i * 91 % 2000);
  const std::vector<std::int32_t> pages{1, 3}, other_pages{0, 2};
  std::vector<Proposal> proposals;

  auto whole = *CachePool::create(shape, {}, 4);
  DraftSequence all{tokens, 1, pages, hidden.data(), true};
  ASSERT_TRUE(draft->step({&all, 1}, *whole, proposals).ok());
  const Proposal expected = proposals.at(0);

  auto cut = *CachePool::create(shape, {}, 4);
  for (const auto& [begin, end] : std::vector<std::pair<std::size_t, std::size_t>>{
           {0, 1}, {1, 100}, {100, 127}, {127, 130}, {130, 150}}) {
    const std::span<const std::int32_t> piece(tokens.data() + begin, end - begin);
    std::vector<DraftSequence> two{
        {piece, static_cast<std::int64_t>(begin) + 1, other_pages, hidden.data() + begin * n, true},
        {piece, static_cast<std::int64_t>(begin) + 1, pages, hidden.data() + begin * n, true}};
    ASSERT_TRUE(draft->step(two, *cut, proposals).ok());
  }
  EXPECT_EQ(proposals.at(1).token, expected.token);
  EXPECT_EQ(proposals.at(1).hidden, expected.hidden);
  EXPECT_EQ(proposals.at(0).hidden, expected.hidden);
}

TEST_F(DraftTest, FaultC17_Vllm45538_WhatDoesNotFitTheTargetIsRefusedWithBothFigures) {
  using Json = nlohmann::json;
  EXPECT_NE(refusal(with("aux", "eagle_aux_hidden_state_layer_ids", Json{2, 30, 57}))
                .find("names layer 30; must ascend within the target's 8 layers"),
            std::string::npos);
  EXPECT_NE(refusal(with("hidden", "hidden_size", 512)).find("is 512, the target's is 256"),
            std::string::npos);
  EXPECT_NE(refusal(with("vocab", "vocab_size", 4096)).find("is 4096, the target's is 2048"),
            std::string::npos);
  m3::ModelConfig four = config_;
  four.num_layers = 4;
  const auto loaded = m3::parse_draft_config(
      Checkpoint::open(with("four", "eagle_aux_hidden_state_layer_ids", nullptr))->config(),
      "config.json", four);
  ASSERT_FALSE(loaded.ok());
  EXPECT_NE(loaded.status().to_string().find("target's 4 layers"), std::string::npos);
}

TEST_F(DraftTest, OtherStructuresAreRefusedByName) {
  using Json = nlohmann::json;
  for (const auto& [field, value] :
       std::vector<std::pair<std::string, Json>>{{"architectures", Json{"LlamaForCausalLM"}},
                                                 {"num_hidden_layers", 2},
                                                 {"head_dim", 33},
                                                 {"num_key_value_heads", 3},
                                                 {"norm_output", false},
                                                 {"fc_norm", false},
                                                 {"attention_bias", true},
                                                 {"rope_theta", nullptr},
                                                 {"rms_norm_eps", nullptr},
                                                 {"rope_scaling", Json{{"factor", 2}}},
                                                 {"hidden_act", "gelu"},
                                                 {"sliding_window", 4096},
                                                 {"draft_vocab_size", 100}}) {
    const std::string message = refusal(with("field", field, value));
    EXPECT_NE(message, "accepted") << field;
    EXPECT_NE(message.find(field == "num_key_value_heads" ? "num_attention_heads"
                           : field == "draft_vocab_size"  ? "lm_head.weight"
                                                          : field),
              std::string::npos)
        << message;
  }
  EXPECT_EQ(refusal(with("window", "sliding_window", false)), "accepted");
  EXPECT_EQ(refusal(with("moved", "rope_theta", 10000)), "accepted");
}

TEST_F(DraftTest, ANumberThatIsNoneIsAnError) {
  auto loaded = load(make("nan", {.heads = 4, .kv_heads = 2, .head_dim = 32}));
  ASSERT_TRUE(loaded.ok());
  auto draft = *Draft::create(loaded->config, loaded->weights, config_, weights_, *team_);
  auto pool = *CachePool::create(Draft::cache_shape(loaded->config, config_), {}, 1);
  std::vector<float> hidden(static_cast<std::size_t>(config_.hidden_size), NAN);
  const std::vector<std::int32_t> tokens{5}, pages{0};
  DraftSequence row{tokens, 1, pages, hidden.data(), true};
  std::vector<Proposal> proposals;
  const Status status = draft->step({&row, 1}, *pool, proposals);
  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_TRUE(proposals.empty());
  row.start = 0;
  EXPECT_EQ(draft->step({&row, 1}, *pool, proposals).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace monolayer::cpu
