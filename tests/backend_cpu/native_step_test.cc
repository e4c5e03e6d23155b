// What a step refuses, and what it must not read.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "backend_cpu/native_harness.h"
#include "backend_cpu/random_model.h"

namespace monolayer::test {
namespace {

class NativeStep : public testing::Test {
 protected:
  NativeStep() : model_(tiny_config(), {}, 3), engine_(model_.config, model_.weights, {}) {}
  Status step(const std::vector<cpu::StepSequence>& sequences) {
    return engine_.native->step(sequences, *engine_.pool, logits_, nullptr);
  }
  // Refused with `expected` in the message, and not one byte of the caches touched.
  void expect_refused(const std::vector<cpu::StepSequence>& sequences,
                      const std::string& expected) {
    const std::vector<std::byte> before(engine_.pool->memory(),
                                        engine_.pool->memory() + engine_.pool->bytes());
    const Status status = step(sequences);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.to_string();
    EXPECT_NE(status.to_string().find(expected), std::string::npos) << status.to_string();
    EXPECT_EQ(0, std::memcmp(before.data(), engine_.pool->memory(), before.size()));
  }
  RandomModel model_;
  Engine engine_;
  std::vector<float> logits_;
  std::vector<std::int32_t> tokens_ = {1, 2, 3};
  std::vector<std::int32_t> pages_ = {5, 6};
  std::vector<std::int32_t> other_ = {6, 7};
};

TEST_F(NativeStep, RefusesBadSequencesBeforeWriting) {
  const cpu::StepSequence good{.tokens = tokens_, .start = 0, .pages = pages_, .logit_rows = 1};
  expect_refused({}, "no sequences");
  cpu::StepSequence bad = good;
  bad.tokens = {};
  expect_refused({good, bad}, "sequence 1: no tokens");
  bad = good;
  bad.logit_rows = 4;
  expect_refused({bad}, "logits of 4 rows");
  bad.logit_rows = -1;
  expect_refused({bad}, "logits of -1 rows");
  bad = good;
  bad.start = -1;
  expect_refused({bad}, "negative");
  bad.start = model_.config.max_positions - 2;
  expect_refused({bad}, "65536 positions");
  bad.start = std::numeric_limits<std::int64_t>::max();
  expect_refused({bad}, "65536 positions");
  for (const std::int32_t id : {-1, 150, std::numeric_limits<std::int32_t>::max()}) {
    const std::vector<std::int32_t> ids = {1, id};
    bad = good;
    bad.tokens = ids;
    expect_refused({bad}, "token 1 has id " + std::to_string(id));
  }
  bad = good;
  bad.start = 254;  // positions 254..256 need a third page
  expect_refused({bad}, "need 3");
  for (const std::int32_t page : {-1, 64, std::numeric_limits<std::int32_t>::min()}) {
    const std::vector<std::int32_t> table = {page};
    bad = good;
    bad.pages = table;
    expect_refused({bad}, "page " + std::to_string(page));
  }
}

TEST_F(NativeStep, RefusesPagesThatAreWrittenTwiceOrReadMeanwhile) {
  const cpu::StepSequence first{.tokens = tokens_, .start = 0, .pages = pages_, .logit_rows = 1};
  expect_refused({first, first}, "page 5 is written");
  // Sequence 1 still reads page 6 while sequence 0 writes it.
  cpu::StepSequence writer = first;
  writer.start = 130;
  cpu::StepSequence reader = first;
  reader.pages = other_;
  reader.start = 200;
  expect_refused({writer, reader}, "page 6 is read by entry 0");
  expect_refused({reader, writer}, "page 6 is read by entry 0");
  const std::vector<std::int32_t> twice = {5, 5};
  cpu::StepSequence bad = first;
  bad.pages = twice;
  bad.start = 126;
  expect_refused({bad}, "page 5");
  // Unused entries of a table are nobody's business; a shared prefix page is only read.
  const std::vector<std::int32_t> long_table = {5, -7, 9999};
  cpu::StepSequence good = first;
  good.pages = long_table;
  EXPECT_TRUE(step({good}).ok());
}

TEST_F(NativeStep, SharedPrefixPagesGiveTheSameBits) {
  const auto tokens = random_tokens(model_.config, 160, 1);
  const Output whole = run(engine_, tokens, {10, 11}, {160});
  // A second sequence reuses page 10 (complete) and computes the rest into page 12.
  cpu::StepSequence sequence;
  sequence.tokens = std::span(tokens).subspan(128);
  sequence.start = 128;
  const std::vector<std::int32_t> pages = {10, 12};
  sequence.pages = pages;
  sequence.logit_rows = 32;
  ASSERT_TRUE(step({sequence}).ok());
  EXPECT_EQ(0, std::memcmp(logits_.data(), whole.logits.data() + 128 * model_.config.vocab_size,
                           logits_.size() * 4));
  EXPECT_EQ(whole.cache, cache_bytes(model_.config, *engine_.pool, pages, 160));
}

TEST_F(NativeStep, LogitRows) {
  const auto tokens = random_tokens(model_.config, 40, 1);
  const Output whole = run(engine_, tokens, {0}, {40});
  const std::vector<std::int32_t> pages = {1};
  for (const std::int64_t rows : {0, 1, 7, 40}) {
    cpu::StepSequence sequence{.tokens = tokens, .start = 0, .pages = pages, .logit_rows = rows};
    ASSERT_TRUE(step({sequence}).ok());
    ASSERT_EQ(static_cast<std::int64_t>(logits_.size()), rows * model_.config.vocab_size);
    EXPECT_TRUE(std::equal(logits_.begin(), logits_.end(),
                           whole.logits.end() - static_cast<std::ptrdiff_t>(logits_.size())));
  }
}

TEST_F(NativeStep, NonFiniteLogitsAreAnErrorThatNamesTheRow) {
  std::vector<std::byte> broken(
      model_.weights.lm_head.weight.data,
      model_.weights.lm_head.weight.data + model_.weights.lm_head.weight.bytes);
  const bf16_t nan = 0x7fc0;
  std::memcpy(broken.data() + 17 * model_.config.hidden_size * 2, &nan, 2);
  m3::ModelWeights weights = model_.weights;
  weights.lm_head.weight.data = broken.data();
  Engine engine(model_.config, weights, {});
  cpu::StepSequence sequence{.tokens = tokens_, .start = 0, .pages = pages_, .logit_rows = 2};
  const Status status = engine.native->step({&sequence, 1}, *engine.pool, logits_, nullptr);
  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_NE(status.to_string().find("position 1 of sequence 0, token 17"), std::string::npos)
      << status.to_string();
}

TEST_F(NativeStep, RefusesWhatTheKernelsDoNotTake) {
  m3::ModelWeights weights = model_.weights;
  weights.layers[1].o.weight.dtype = DType::kF16;
  auto made = cpu::Native::create(model_.config, weights, *engine_.team, {});
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), Code::kUnsupported);
  EXPECT_NE(made.status().to_string().find("F16"), std::string::npos);
  m3::ModelConfig config = model_.config;
  config.block_size = 48;
  made = cpu::Native::create(config, model_.weights, *engine_.team, {});
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.status().to_string().find("sparse_block_size"), std::string::npos);
  // A pool made for another model.
  config = model_.config;
  config.num_kv_heads = 1;
  auto pool = cpu::CachePool::create(config, {}, 4);
  ASSERT_TRUE(pool.ok());
  cpu::StepSequence sequence{.tokens = tokens_, .start = 0, .pages = pages_, .logit_rows = 1};
  EXPECT_EQ(engine_.native->step({&sequence, 1}, **pool, logits_, nullptr).code(),
            Code::kInvalidArgument);
}

// The rest of a sequence's last page and every other page hold infinities, NaN or zeros.
class Poison : public testing::TestWithParam<bool> {};

TEST_P(Poison, NothingPastASequenceIsRead) {
  RandomModel model(tiny_config(), {}, 3);
  EngineOptions options;
  if (GetParam()) options.cache = fp8_cache();
  options.pool_pages = 20;
  options.threads = 2;
  // Contexts that end with one token in a block, with one in a page, and in the middle.
  for (const std::int64_t length : {65, 129, 257, 200}) {
    const auto tokens = random_tokens(model.config, length, 9);
    const std::vector<std::int32_t> pages = page_table(length, 7, 2);
    Engine clean(model.config, model.weights, options);
    std::memset(clean.pool->memory(), 0, clean.pool->bytes());
    const Output want = run(clean, tokens, pages, {length - 3, 1});
    for (const float value :
         {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
          std::numeric_limits<float>::quiet_NaN(), 3e38F}) {
      Engine engine(model.config, model.weights, options);
      poison_pool(*engine.pool, value);
      expect_same_bits(want, run(engine, tokens, pages, {length - 3, 1}), "poisoned pool");
      // Decode the last token again over a freshly poisoned tail, several times.
      for (int repeat = 0; repeat < 3; ++repeat) {
        poison_tail(model.config, *engine.pool, pages, length, value);
        cpu::StepSequence last{.tokens = std::span(tokens).last(1),
                               .start = length - 1,
                               .pages = pages,
                               .logit_rows = 1};
        std::vector<float> logits;
        ASSERT_TRUE(engine.native->step({&last, 1}, *engine.pool, logits, nullptr).ok());
        EXPECT_EQ(0, std::memcmp(logits.data(),
                                 want.logits.data() + (length - 1) * model.config.vocab_size,
                                 logits.size() * 4));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Caches, Poison, testing::Bool());

}  // namespace
}  // namespace monolayer::test
