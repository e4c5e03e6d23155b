// Likeliest tokens that the step chooses itself: those of its logits, ties and all, in any mix of
// sequences that want one or the other.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "backend/cpu/likeliest.h"
#include "backend_cpu/native_harness.h"
#include "backend_cpu/random_model.h"
#include "backend_cpu/rank_harness.h"
#include "backend_cpu/tied_model.h"

namespace monolayer::test {
namespace {

TEST(Likeliest, OrdersAsNumbersDoAndAmongEqualsByLowerId) {
  const float large = std::numeric_limits<float>::max();
  const float tiny = std::numeric_limits<float>::denorm_min();
  const std::vector<float> values{-large, -2, -1, -tiny, -0.0F, 0, tiny, 1, 1.5F, large};
  for (const float a : values) {
    for (const float b : values) {
      for (const auto& [i, j] : {std::pair{3, 4}, {4, 3}, {0, 200063}}) {
        const bool ahead = a > b || (a == b && i < j);
        EXPECT_EQ(cpu::likeliest_key(a, i) > cpu::likeliest_key(b, j), ahead)
            << a << " at " << i << ", " << b << " at " << j;
      }
      EXPECT_TRUE(cpu::likeliest_is_finite(cpu::likeliest_key(a, 7)));
    }
  }
  EXPECT_EQ(cpu::likeliest_id(cpu::likeliest_key(-3, 200063)), 200063);
}

TEST(Likeliest, WhatIsNoNumberWinsAndNamesTheFirst) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::nanf(""),
        std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    const std::vector<float> row{1, bad, std::numeric_limits<float>::max(), bad};
    const std::uint64_t key = cpu::likeliest_of(row, 10);
    EXPECT_FALSE(cpu::likeliest_is_finite(key));
    EXPECT_EQ(cpu::likeliest_id(key), 11);
  }
}

TEST(Likeliest, PartsInAnyOrderGiveTheWhole) {
  std::mt19937 random(4);
  std::vector<float> row(1000);
  for (int round = 0; round < 200; ++round) {
    for (float& v : row) v = static_cast<float>(random() % 40) - 20;  // many ties
    std::vector<std::size_t> cuts{0, row.size()};
    for (int i = 0; i < 5; ++i) cuts.push_back(random() % row.size());
    std::sort(cuts.begin(), cuts.end());
    std::vector<std::uint64_t> keys;
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      const auto part = std::span(row).subspan(cuts[i], cuts[i + 1] - cuts[i]);
      // As a rank that counts from 0, moved.
      const std::uint64_t key = cpu::likeliest_of(part, 0);
      if (!part.empty())
        keys.push_back(cpu::likeliest_moved(key, static_cast<std::int64_t>(cuts[i])));
    }
    std::shuffle(keys.begin(), keys.end(), random);
    EXPECT_EQ(cpu::likeliest_id(*std::max_element(keys.begin(), keys.end())), first_largest(row));
  }
}

// Three sequences of a step, in pages of their own.
struct Batch {
  explicit Batch(const m3::ModelConfig& config) {
    for (std::size_t s = 0; s < 3; ++s) {
      for (std::size_t i = 0; i < 3 + 4 * s; ++i)
        tokens[s].push_back(static_cast<std::int32_t>((7 + 31 * s + 13 * i) %
                                                      static_cast<std::size_t>(config.vocab_size)));
      pages[s] = {static_cast<std::int32_t>(s)};
      sequences.push_back({.tokens = tokens[s],
                           .start = 0,
                           .pages = pages[s],
                           .logit_rows = static_cast<std::int64_t>(1 + s)});
    }
  }
  std::vector<std::int32_t> tokens[3], pages[3];
  std::vector<cpu::StepSequence> sequences;
};

// What a step of that mix must give, from the logits of all rows.
struct Expected {
  std::vector<float> logits;
  std::vector<std::int32_t> ids;
  Expected(const std::vector<float>& all, std::int64_t vocab, unsigned greedy) {
    std::int64_t row = 0;
    for (unsigned s = 0; s < 3; ++s) {
      for (unsigned i = 0; i <= s; ++i, ++row) {
        const auto values = std::span(all).subspan(static_cast<std::size_t>(row * vocab),
                                                   static_cast<std::size_t>(vocab));
        if ((greedy >> s & 1U) != 0) {
          ids.push_back(first_largest(values));
        } else {
          logits.insert(logits.end(), values.begin(), values.end());
        }
      }
    }
  }
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * 4) == 0);
}

TEST(Greedy, IdsAreThoseOfTheLogitsInEveryMix) {
  const TiedModel model(tiny_config());
  const std::int64_t vocab = model.config.vocab_size;
  Batch batch(model.config);
  for (const int threads : {1, 2, 5}) {
    EngineOptions options;
    options.threads = threads;
    Engine engine(model.config, model.weights, options);
    std::vector<float> all, logits;
    ASSERT_TRUE(engine.native->step(batch.sequences, *engine.pool, all, nullptr).ok());
    ASSERT_EQ(static_cast<std::int64_t>(all.size()), 6 * vocab);
    EXPECT_TRUE(engine.native->greedy_ids().empty());
    for (std::int64_t row = 0; row < 6; ++row) {  // the plan of this test: ties are there
      const auto values = std::span(all).subspan(static_cast<std::size_t>(row * vocab),
                                                 static_cast<std::size_t>(vocab));
      EXPECT_GT(std::count(values.begin(), values.end(),
                           values[static_cast<std::size_t>(first_largest(values))]),
                2);
    }
    for (const unsigned greedy : {7U, 0U, 5U, 2U, 1U, 6U, 3U, 4U}) {
      for (unsigned s = 0; s < 3; ++s) batch.sequences[s].greedy = (greedy >> s & 1U) != 0;
      ASSERT_TRUE(engine.native->step(batch.sequences, *engine.pool, logits, nullptr).ok());
      const Expected expected(all, vocab, greedy);
      const auto ids = engine.native->greedy_ids();
      EXPECT_EQ(std::vector(ids.begin(), ids.end()), expected.ids) << greedy;
      EXPECT_TRUE(same_bits(logits, expected.logits)) << greedy;
    }
    for (cpu::StepSequence& s : batch.sequences) s.greedy = false;
  }
}

TEST(Greedy, EveryRankGetsTheIdsOfTheWholeModel) {
  const TiedModel model(nano_config());
  Batch batch(model.config);
  std::vector<float> all;
  {
    Engine engine(model.config, model.weights, {});
    ASSERT_TRUE(engine.native->step(batch.sequences, *engine.pool, all, nullptr).ok());
  }
  batch.sequences[0].greedy = batch.sequences[2].greedy = true;
  const Expected expected(all, model.config.vocab_size, 5);
  on_ranks(2, [&](int rank, tp::Group& group) {
    const auto shape = m3::rank_shape(model.config, rank, 2);
    ASSERT_TRUE(shape.ok()) << shape.status().to_string();
    const auto team = *cpu::ThreadTeam::create({.threads = 1, .pin = false});
    const auto pool = *cpu::CachePool::create(m3::rank_config(model.config, *shape), {}, 8);
    cpu::NativeOptions options;
    options.group = &group;
    const auto native = *cpu::Native::create(model.config, model.weights, *team, options);
    std::vector<float> logits;
    const Status status = native->step(batch.sequences, *pool, logits, nullptr);
    ASSERT_TRUE(status.ok()) << status.to_string();
    const auto ids = native->greedy_ids();
    EXPECT_EQ(std::vector(ids.begin(), ids.end()), expected.ids) << rank;
    EXPECT_TRUE(same_bits(logits, expected.logits)) << rank;
  });
}

TEST(Greedy, LogitsThatAreNoNumbersAreAnErrorThatNamesRowAndToken) {
  const RandomModel model(tiny_config(), {}, 3);
  const QuantizedMatrix& head = model.weights.lm_head;
  std::vector<std::byte> broken(head.weight.data, head.weight.data + head.weight.bytes);
  const std::uint16_t nan = 0x7fc0;
  std::memcpy(broken.data() + 17 * model.config.hidden_size * 2, &nan, 2);
  m3::ModelWeights weights = model.weights;
  weights.lm_head.weight.data = broken.data();
  Engine engine(model.config, weights, {});
  Batch batch(model.config);
  std::vector<float> logits;
  batch.sequences[0].logit_rows = 0;
  batch.sequences[1].greedy = true;
  const Status status = engine.native->step(batch.sequences, *engine.pool, logits, nullptr);
  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_NE(status.to_string().find("position 5 of sequence 1, token 17"), std::string::npos)
      << status.to_string();
}

}  // namespace
}  // namespace monolayer::test
