// The draft on a device against the plain one and the CPU's, its independence of chunking and
// neighbours, and what it refuses.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "backend/cuda/draft.h"
#include "backend_cuda/device_harness.h"
#include "m3/draft_reference.h"
#include "m3/draft_synth.h"

namespace monolayer::test {
namespace {

namespace fs = std::filesystem;

struct Loaded {
  std::unique_ptr<Checkpoint> checkpoint;
  m3::DraftConfig config;
  m3::DraftWeights weights;
};

double relative(const float* got, const float* expected, std::size_t count) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < count; ++i) {
    difference += std::pow(static_cast<double>(got[i]) - expected[i], 2);
    norm += std::pow(static_cast<double>(expected[i]), 2);
  }
  return std::sqrt(difference / norm);
}

std::vector<float> random_states(std::uint32_t seed, std::size_t count) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(count);
  for (float& x : out) x = round_bf16(normal(engine));
  return out;
}

class DeviceDraft : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = fs::temp_directory_path() / ("device_draft." + std::to_string(getpid()));
    auto checkpoint = Checkpoint::open(std::string(MONOLAYER_SOURCE_DIR) + "/assets/nano");
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().to_string();
    target_ = std::make_unique<Checkpoint>(*std::move(checkpoint));
    config_ = *m3::parse_config(target_->config(), "config.json");
    weights_ = *m3::bind_weights(config_, *target_);
  }
  static void TearDownTestSuite() {
    target_.reset();
    fs::remove_all(folder_);
  }
  // A random draft of the embedded model.
  static Loaded load(const m3::DraftSynthOptions& given) {
    m3::DraftSynthOptions options = given;
    options.out = (folder_ / "draft").string();
    options.force = true;
    EXPECT_TRUE(m3::synthesize_draft(config_, options).ok());
    Loaded loaded;
    loaded.checkpoint = std::make_unique<Checkpoint>(*Checkpoint::open(options.out));
    loaded.config = *m3::parse_draft_config(loaded.checkpoint->config(), "config.json", config_);
    loaded.weights = *m3::bind_draft_weights(loaded.config, *loaded.checkpoint);
    return loaded;
  }
  static std::unique_ptr<cpu::Draft> on_device(const Loaded& loaded) {
    auto draft =
        cuda::create_draft(loaded.config, loaded.weights, config_, weights_, {.keep_logits = true});
    EXPECT_TRUE(draft.ok()) << draft.status().to_string();
    return draft.ok() ? std::move(*draft) : nullptr;
  }
  static std::unique_ptr<cpu::CachePool> pool(const Loaded& loaded, std::int64_t pages) {
    return *cpu::CachePool::reserve(cpu::Draft::cache_shape(loaded.config, config_), {}, pages);
  }
  static std::vector<std::int32_t> tokens(std::size_t count) {
    std::vector<std::int32_t> out(count);
    for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<std::int32_t>(i * 91 % 2000);
    return out;
  }
  static std::size_t hidden() { return static_cast<std::size_t>(config_.hidden_size); }

  static fs::path folder_;
  static std::unique_ptr<Checkpoint> target_;
  static m3::ModelConfig config_;
  static m3::ModelWeights weights_;
};
fs::path DeviceDraft::folder_;
std::unique_ptr<Checkpoint> DeviceDraft::target_;
m3::ModelConfig DeviceDraft::config_;
m3::ModelWeights DeviceDraft::weights_;

// Needs no device: the shape is looked at first.
TEST_F(DeviceDraft, ShapesTheKernelsDoNotTakeAreRefusedByName) {
  const auto refusal = [](const m3::DraftSynthOptions& options) {
    const Loaded loaded = load(options);
    const auto draft = cuda::create_draft(loaded.config, loaded.weights, config_, weights_, {});
    EXPECT_EQ(Code::kUnsupported, draft.status().code());
    return draft.status().to_string();
  };
  EXPECT_NE(refusal({.heads = 2, .kv_heads = 1, .head_dim = 36}).find("multiple of 8"),
            std::string::npos);
  EXPECT_NE(refusal({.heads = 2, .kv_heads = 1, .head_dim = 264}).find("at most 256"),
            std::string::npos);
  EXPECT_NE(refusal({.heads = 2, .kv_heads = 1, .head_dim = 64, .width = 132}).find("is 132"),
            std::string::npos);
}

// Each row with the bound that holds for the CPU's draft.
TEST_F(DeviceDraft, FormsFollowTheReference) {
  if (no_device()) GTEST_SKIP() << "no CUDA device";
  const m3::DraftSynthOptions forms[] = {
      {.seed = 3, .heads = 8, .kv_heads = 1, .head_dim = 64},
      {.seed = 4, .heads = 8, .kv_heads = 8, .head_dim = 64},
      {.seed = 5, .heads = 24, .kv_heads = 2, .head_dim = 128, .width = 776},
      {.seed = 6, .heads = 3, .kv_heads = 3, .head_dim = 168},
      {.seed = 7, .heads = 4, .kv_heads = 2, .head_dim = 256}};
  for (const m3::DraftSynthOptions& form : forms) {
    SCOPED_TRACE(form.seed);
    const Loaded loaded = load(form);
    const auto draft = on_device(loaded);
    ASSERT_NE(nullptr, draft);
    const auto pages = pool(loaded, 3);
    m3::DraftReference reference(loaded.config, loaded.weights, weights_);
    constexpr std::size_t kRows = 150;
    const std::size_t n = hidden();
    const std::vector<float> aux = random_states(9, kRows * 3 * n);
    std::vector<float> states(kRows * n);
    ASSERT_TRUE(draft->combine(aux, states.data()).ok());
    const std::vector<std::int32_t> ids = tokens(kRows), table{2, 0};
    std::vector<cpu::Proposal> proposals;
    for (std::size_t i = 0; i < kRows; ++i) {
      const auto combined = reference.combine({aux.data() + i * 3 * n, 3 * n});
      EXPECT_LT(relative(states.data() + i * n, combined.data(), n), 6e-3);
      const cpu::DraftSequence row{{ids.data() + i, 1},
                                   static_cast<std::int64_t>(i) + 1,
                                   table,
                                   states.data() + i * n,
                                   true};
      const Status status = draft->step({&row, 1}, *pages, proposals);
      ASSERT_TRUE(status.ok()) << status.to_string();
      const auto expected =
          reference.step(ids[i], {states.data() + i * n, n}, static_cast<std::int64_t>(i));
      EXPECT_LT(relative(proposals[0].hidden.data(), expected.hidden.data(), n), 2e-2) << i;
      const std::span<const float> logits = draft->logits();
      ASSERT_EQ(logits.size(), expected.logits.size());
      EXPECT_LT(relative(logits.data(), expected.logits.data(), logits.size()), 2e-2) << i;
      const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
      EXPECT_EQ(proposals[0].token,
                loaded.weights.target_ids.empty()
                    ? static_cast<std::int32_t>(best)
                    : loaded.weights.target_ids[static_cast<std::size_t>(best)]);
    }
  }
}

TEST_F(DeviceDraft, ChunksAndNeighboursChangeNoBit) {
  if (no_device()) GTEST_SKIP() << "no CUDA device";
  const Loaded loaded = load({.seed = 4, .heads = 4, .kv_heads = 2, .head_dim = 64});
  const auto draft = on_device(loaded);
  ASSERT_NE(nullptr, draft);
  const std::size_t n = hidden();
  constexpr std::size_t kRows = 150;
  const std::vector<float> states = random_states(5, kRows * n);
  const std::vector<std::int32_t> ids = tokens(kRows), table{1, 3}, other_table{0, 2};
  std::vector<cpu::Proposal> proposals;
  const auto whole = pool(loaded, 4);
  const cpu::DraftSequence all{ids, 1, table, states.data(), true};
  ASSERT_TRUE(draft->step({&all, 1}, *whole, proposals).ok());
  const cpu::Proposal expected = proposals.at(0);

  const auto cut = pool(loaded, 4);
  for (const auto& [begin, end] : std::vector<std::pair<std::size_t, std::size_t>>{
           {0, 1}, {1, 100}, {100, 127}, {127, 130}, {130, 145}, {145, 148}, {148, 150}}) {
    const std::span<const std::int32_t> piece(ids.data() + begin, end - begin);
    const float* from = states.data() + begin * n;
    const auto start = static_cast<std::int64_t>(begin) + 1;
    const cpu::DraftSequence two[] = {{piece, start, other_table, from, true},
                                      {piece, start, table, from, true}};
    const Status status = draft->step(two, *cut, proposals);
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  ASSERT_EQ(2U, proposals.size());
  for (const cpu::Proposal& proposal : proposals) {
    EXPECT_EQ(proposal.token, expected.token);
    EXPECT_EQ(proposal.hidden, expected.hidden);
  }
  EXPECT_EQ(4096U, draft->logits().size());  // of two rows
}

// More pages than chunks of a context: chunks of several pages, and more sequences than rows of a
// launch.
TEST_F(DeviceDraft, LongContextsAndManySequencesFollowTheCpu) {
  if (no_device()) GTEST_SKIP() << "no CUDA device";
  const Loaded loaded = load({.seed = 8, .heads = 4, .kv_heads = 2, .head_dim = 64});
  const auto draft = on_device(loaded);
  ASSERT_NE(nullptr, draft);
  const auto team = *cpu::ThreadTeam::create({.pin = false});
  const auto slow = *cpu::Draft::create(loaded.config, loaded.weights, config_, weights_, *team);
  const std::size_t n = hidden();
  constexpr std::size_t kRows = 65 * 128 + 7, kSequences = 19;
  constexpr std::int64_t kPages = 66 + kSequences;
  const std::vector<float> states = random_states(5, (kRows + 4) * n);
  const std::vector<std::int32_t> ids = tokens(kRows + 4);
  const auto table = page_table(kRows);
  const auto there = pool(loaded, kPages);
  const auto here =
      *cpu::CachePool::create(cpu::Draft::cache_shape(loaded.config, config_), {}, kPages);
  std::vector<cpu::Proposal> got, expected;
  const cpu::DraftSequence prompt{std::span(ids).first(kRows), 1, table, states.data(), true};
  ASSERT_TRUE(draft->step({&prompt, 1}, *there, got).ok());
  ASSERT_TRUE(slow->step({&prompt, 1}, *here, expected).ok());
  EXPECT_LT(relative(got.at(0).hidden.data(), expected.at(0).hidden.data(), n), 2e-2);
  // The long one goes on beside short ones.
  std::vector<std::vector<std::int32_t>> tables;
  for (std::size_t i = 0; i < kSequences; ++i)
    tables.push_back({static_cast<std::int32_t>(66 + i)});
  std::vector<cpu::DraftSequence> many;
  for (std::size_t i = 0; i < kSequences; ++i)
    many.push_back({std::span(ids).subspan(i, 3), 1, tables[i], states.data() + i * n, true});
  many.insert(many.begin() + 5, {std::span(ids).last(4), static_cast<std::int64_t>(kRows) + 1,
                                 table, states.data() + kRows * n, true});
  ASSERT_TRUE(draft->step(many, *there, got).ok());
  ASSERT_TRUE(slow->step(many, *here, expected).ok());
  ASSERT_EQ(got.size(), many.size());
  ASSERT_EQ(draft->logits().size(), slow->logits().size());
  for (std::size_t i = 0; i < many.size(); ++i) {
    EXPECT_LT(relative(got[i].hidden.data(), expected[i].hidden.data(), n), 2e-2) << i;
    EXPECT_LT(relative(draft->logits().data() + i * 2048, slow->logits().data() + i * 2048, 2048),
              2e-2)
        << i;
  }
}

TEST_F(DeviceDraft, WhatIsWrongWithAStepIsAnError) {
  if (no_device()) GTEST_SKIP() << "no CUDA device";
  const Loaded loaded = load({.heads = 4, .kv_heads = 2, .head_dim = 32});
  const auto draft = on_device(loaded);
  ASSERT_NE(nullptr, draft);
  const auto pages = pool(loaded, 1);
  const std::vector<float> bad(hidden(), NAN), good(hidden(), 1);
  const std::vector<std::int32_t> ids{5}, table{0}, outside{1};
  std::vector<cpu::Proposal> proposals;
  cpu::DraftSequence row{ids, 1, table, bad.data(), true};
  EXPECT_EQ(draft->step({&row, 1}, *pages, proposals).code(), Code::kInternal);
  EXPECT_TRUE(proposals.empty());
  row.hidden = good.data();
  EXPECT_TRUE(draft->step({&row, 1}, *pages, proposals).ok());
  row.pages = outside;
  EXPECT_EQ(draft->step({&row, 1}, *pages, proposals).code(), Code::kInvalidArgument);
  row.pages = table;
  row.start = 0;
  EXPECT_EQ(draft->step({&row, 1}, *pages, proposals).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace monolayer::test
