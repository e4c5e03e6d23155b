// Faults seen in other engines, tried on the native chain.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>

#include "backend_cpu/choice_follower.h"
#include "backend_cpu/choice_tally.h"
#include "backend_cpu/native_harness.h"
#include "backend_cpu/random_model.h"
#include "m3/reference.h"
#include "m3/reference_math.h"
#include "oracle_case.h"

namespace monolayer::test {
namespace {

// Four query, KV and index heads, so that four rows cannot be told from four heads by any shape;
// M3's blocks of 128 and top 16: sparse beyond 2,048 tokens.
m3::ModelConfig four_heads() {
  m3::ModelConfig c = tiny_config();
  c.num_heads = c.num_kv_heads = c.index_heads = 4;
  c.head_dim = c.index_dim = 32;
  c.block_size = 128;
  c.topk_blocks = 16;
  c.layers = {{true, true}, {true, true}};
  c.num_layers = 2;
  return c;
}

std::vector<std::int64_t> pages_of(const std::vector<std::int64_t>& contexts) {
  std::vector<std::int64_t> pages;
  pages.reserve(contexts.size());
  for (const std::int64_t n : contexts) {
    pages.push_back((n + m3::kPageTokens - 1) / m3::kPageTokens);
  }
  return pages;
}

// Block lists written as [token, head, k] and read as [head, token, k] mask whole rows.
TEST(FaultA1_Vllm49149_Selection, AsManyRowsAsHeadsAtMixedContexts) {
  const std::vector<std::int64_t> contexts = {300, 2500, 4097, 9000};
  RandomModel model(four_heads(), {}, 21);
  const m3::ModelConfig& c = model.config;
  const auto tokens = random_tokens(c, contexts.back(), 22);
  m3::Reference reference(c, model.weights);
  Recorder expected;
  const auto want = reference.forward(tokens, static_cast<std::int64_t>(tokens.size()), &expected);
  ASSERT_TRUE(want.ok()) << want.status().to_string();

  EngineOptions options;
  options.threads = 2;
  options.pool_pages = 140;
  Follower follower(c, model.weights, expected, kBf16Bounds.gap);
  options.choices = &follower;
  Engine engine(c, model.weights, options);
  std::vector<std::vector<std::int32_t>> tables;
  std::int32_t next_page = 0;
  for (const std::int64_t pages : pages_of(contexts)) {
    tables.push_back(page_table(pages * m3::kPageTokens, next_page));
    next_page += static_cast<std::int32_t>(pages);
  }
  std::vector<cpu::StepSequence> last;
  for (std::size_t i = 0; i < contexts.size(); ++i) {
    const std::int64_t n = contexts[i];
    const auto prompt = std::span(tokens).first(static_cast<std::size_t>(n));
    for (std::int64_t at = 0; at < n - 1; at += 512) {
      cpu::StepSequence chunk;
      chunk.tokens =
          prompt.subspan(static_cast<std::size_t>(at),
                         static_cast<std::size_t>(std::min<std::int64_t>(512, n - 1 - at)));
      chunk.start = at;
      chunk.pages = tables[i];
      chunk.logit_rows = 0;
      std::vector<float> none;
      ASSERT_TRUE(engine.native->step({&chunk, 1}, *engine.pool, none, nullptr).ok());
    }
    last.push_back({.tokens = prompt.last(1), .start = n - 1, .pages = tables[i], .logit_rows = 1});
  }

  Recorder batch;
  std::vector<float> logits;
  ASSERT_TRUE(engine.native->step(last, *engine.pool, logits, &batch).ok());
  ASSERT_EQ(logits.size(), contexts.size() * static_cast<std::size_t>(c.vocab_size));
  const auto width = static_cast<std::size_t>(c.vocab_size);
  std::int64_t unlike_heads = 0;
  for (std::size_t i = 0; i < contexts.size(); ++i) {
    const std::int64_t row = contexts[i] - 1;
    Recorder single;
    std::vector<float> alone;
    ASSERT_TRUE(engine.native->step({&last[i], 1}, *engine.pool, alone, &single).ok());
    EXPECT_EQ(0, std::memcmp(alone.data(), logits.data() + i * width, width * sizeof(float)))
        << "context " << contexts[i];
    for (std::int64_t layer = 0; layer < c.num_layers; ++layer) {
      for (std::int64_t head = 0; head < c.index_heads; ++head) {
        const auto& got = batch.selections.at({layer, row, head});
        EXPECT_EQ(got, single.selections.at({layer, row, head})) << contexts[i] << " " << head;
        EXPECT_EQ(got, expected.selections.at({layer, row, head})) << contexts[i] << " " << head;
        unlike_heads += got != batch.selections.at({layer, row, 0}) ? 1 : 0;
      }
    }
    const double error = relative_l2(
        std::span<const float>(logits).subspan(i * width, width),
        std::span<const float>(*want).subspan(static_cast<std::size_t>(row) * width, width));
    EXPECT_LE(error, kBf16Bounds.logits) << "context " << contexts[i];
    std::printf("context %ld: logits %.4f\n", static_cast<long>(contexts[i]), error);
  }
  // All but the shortest context choose; heads that always agreed could not show a mix-up.
  EXPECT_GE(unlike_heads, 12);
  EXPECT_LE(follower.blocks_tally.largest_gap, kBf16Bounds.gap);
  EXPECT_LE(follower.experts_tally.largest_gap, kBf16Bounds.gap);
  std::printf("blocks %s; experts %s\n", follower.blocks_tally.text().c_str(),
              follower.experts_tally.text().c_str());
}

// Experts that ran plain SiLU: far from the clamps the text stays fluent.
TEST(FaultA2_Vllm48929_Activation, EveryVariantAgreesWithTheReference) {
  m3::ModelConfig config;
  config.swiglu_alpha = 1.702F;
  config.swiglu_limit = 7.0F;
  config.swiglu_beta = 1.0F;
  std::vector<float> gate, up;
  for (const float g : {-30.0F, -8.0F, 0.0F, 7.5F, 30.0F}) {
    for (const float u : {-9.0F, 0.0F, 9.0F}) {
      gate.push_back(g);
      up.push_back(u);
    }
  }
  for (const cpu::Tiles* tiles : cpu::available_tiles()) {
    std::vector<float> out(gate.size());
    tiles->swiglu(gate.data(), up.data(), static_cast<std::int64_t>(out.size()),
                  config.swiglu_alpha, config.swiglu_limit, config.swiglu_beta, out.data());
    for (std::size_t i = 0; i < out.size(); ++i) {
      const float want = m3::clamped_swiglu(config, gate[i], up[i]);
      EXPECT_NEAR(out[i], want, std::fabs(want) * 0x1p-8F)
          << tiles->name << " " << gate[i] << " " << up[i];
    }
  }
}

// One token in the last block, and whatever the page held before behind it.
TEST(FaultA3_VllmAscend13391_TailBlock, FiftyRepeatsOverAnyLeftovers) {
  RandomModel model(four_heads(), {}, 23);
  const std::int64_t length = 2049;
  const auto tokens = random_tokens(model.config, length, 24);
  const auto pages = page_table(length);
  EngineOptions options;
  options.threads = 2;
  Engine engine(model.config, model.weights, options);
  std::memset(engine.pool->memory(), 0, engine.pool->bytes());
  const Output zeros = run(engine, tokens, pages, {512});
  const auto width = static_cast<std::size_t>(model.config.vocab_size);
  const std::span<const float> want = std::span<const float>(zeros.logits).last(width);
  for (int repeat = 0; repeat < 50; ++repeat) {
    const float infinity = std::numeric_limits<float>::infinity();
    poison_tail(model.config, *engine.pool, pages, length, repeat % 2 == 0 ? infinity : -infinity);
    const cpu::StepSequence last{
        .tokens = std::span(tokens).last(1), .start = length - 1, .pages = pages, .logit_rows = 1};
    std::vector<float> logits;
    ASSERT_TRUE(engine.native->step({&last, 1}, *engine.pool, logits, nullptr).ok());
    ASSERT_EQ(0, std::memcmp(logits.data(), want.data(), width * sizeof(float))) << repeat;
  }
}

// A page is reused whole: keys, values and index keys. Five turns over a shared prefix, each with
// pages of its own behind it, give the bits of computing everything anew.
TEST(FaultA4_VmlxSwift75_SharedPages, FiveTurnsEqualNoReuse) {
  RandomModel model(four_heads(), {}, 25);
  const auto tokens = random_tokens(model.config, 3000 + 5 * 40, 26);
  EngineOptions options;
  options.threads = 2;
  options.pool_pages = 80;
  Engine reuse(model.config, model.weights, options);
  Engine anew(model.config, model.weights, options);
  const auto width = static_cast<std::size_t>(model.config.vocab_size);
  std::vector<std::int32_t> table;
  std::int32_t next_page = 0;
  std::int64_t cached = 0;
  for (std::int64_t turn = 1; turn <= 5; ++turn) {
    const std::int64_t length = 3000 + turn * 40;
    const auto text = std::span(tokens).first(static_cast<std::size_t>(length));
    // Only complete pages are shared; the rest is computed again into fresh pages.
    const std::int64_t shared = cached / m3::kPageTokens;
    table.resize(static_cast<std::size_t>(shared));
    while (static_cast<std::int64_t>(table.size()) * m3::kPageTokens < length) {
      table.push_back(next_page++);
    }
    std::vector<float> logits;
    for (std::int64_t at = shared * m3::kPageTokens; at < length; at += 512) {
      const std::int64_t n = std::min<std::int64_t>(512, length - at);
      const cpu::StepSequence chunk{
          .tokens = text.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(n)),
          .start = at,
          .pages = table,
          .logit_rows = 1};
      ASSERT_TRUE(reuse.native->step({&chunk, 1}, *reuse.pool, logits, nullptr).ok());
    }
    const Output want = run(anew, {text.begin(), text.end()}, page_table(length), {512});
    EXPECT_EQ(0, std::memcmp(logits.data(), want.logits.data() + want.logits.size() - width,
                             width * sizeof(float)))
        << "turn " << turn;
    cached = length;
  }
}

}  // namespace
}  // namespace monolayer::test
