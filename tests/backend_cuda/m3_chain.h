// MiniMax-M3 at the full size of its layers over random weights and caches, for tests on a device.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/random_model.h"
#include "backend_cuda/device_harness.h"

namespace monolayer::test {

inline constexpr std::int64_t kM3Page = m3::kPageTokens;
inline constexpr std::int64_t kM3Vocab = 4096;

class Toggle : public cpu::StepJudge {
 public:
  bool fused(const cpu::StepShape& /*shape*/, int /*rank*/) override { return mono; }
  std::string reason(const cpu::StepShape& /*shape*/) const override { return "as the test says"; }
  bool mono = false;
};

// Sequences with pages of their own, all over the pool.
class M3Chain {
 public:
  // `most`: sequences of `context` tokens that the pool holds.
  M3Chain(int stand_in, std::int64_t layers, std::int64_t most, std::int64_t context,
          cuda::NativeOptions options = {}, bool f32_router = false, std::int64_t dense_layers = 0)
      : config_(cuda::m3_config(dense_layers, layers)), most_(most) {
    config_.vocab_size = kM3Vocab;
    options.policy = &toggle_;
    auto chain = cuda::create_random(
        config_, {.seed = 7, .stand_in = stand_in, .f32_router = f32_router}, options);
    EXPECT_TRUE(chain.ok()) << chain.status().to_string();
    if (!chain.ok()) return;
    chain_ = std::move(chain).value();
    pages_ = (context + kM3Page - 1) / kM3Page;
    auto pool = cpu::CachePool::reserve(config_, cuda::m3_caches(), most * pages_);
    EXPECT_TRUE(pool.ok()) << pool.status().to_string();
    pool_ = std::move(pool).value();
    const Status ready = chain_->prepare(*pool_);
    EXPECT_TRUE(ready.ok()) << ready.to_string();
    ok_ = ready.ok();
  }
  bool ok() const { return ok_; }
  bool m3_kernels() const { return chain_->m3_kernels(); }

  // Logits of the last `query` tokens of these sequences, `context` tokens long.
  Status step(const std::vector<std::int64_t>& which, std::int64_t context, std::int64_t query,
              bool mono, std::vector<float>& logits, std::int32_t other = 0) {
    return step_of(which, std::vector<std::int64_t>(which.size(), context), query, mono, logits,
                   other);
  }
  // The same, each as long as `contexts` says.
  Status step_of(const std::vector<std::int64_t>& which, const std::vector<std::int64_t>& contexts,
                 std::int64_t query, bool mono, std::vector<float>& logits, std::int32_t other = 0,
                 m3::TraceSink* sink = nullptr) {
    std::vector<std::vector<std::int32_t>> tables, tokens;
    for (std::size_t i = 0; i < which.size(); ++i) {
      tables.push_back(table(which[i], contexts[i]));
      auto& own = tokens.emplace_back();
      for (std::int64_t p = contexts[i] - query; p < contexts[i]; ++p)
        own.push_back(static_cast<std::int32_t>((1 + which[i] * 131 + p * 17 + other) % kM3Vocab));
    }
    std::vector<cpu::StepSequence> sequences;
    for (std::size_t i = 0; i < which.size(); ++i) {
      sequences.push_back({.tokens = tokens[i],
                           .start = contexts[i] - query,
                           .pages = tables[i],
                           .logit_rows = query});
    }
    toggle_.mono = mono;
    return chain_->step(sequences, *pool_, logits, sink);
  }
  // What leaves the last layer, normed: a row after the other.
  std::vector<float> last_norms(const std::vector<std::int64_t>& which, std::int64_t context,
                                bool mono) {
    struct LastNorms : m3::TraceSink {
      void hidden(std::int64_t layer, std::int64_t, std::span<const float> values) override {
        if (layer == last) rows.insert(rows.end(), values.begin(), values.end());
      }
      void blocks(std::int64_t, std::int64_t, std::int64_t, std::span<const std::int32_t>,
                  std::span<const float>) override {}
      void experts(std::int64_t, std::int64_t, std::span<const std::int32_t>,
                   std::span<const float>) override {}
      std::int64_t last = 0;
      std::vector<float> rows;
    } sink;
    sink.last = config_.num_layers;
    std::vector<float> out;
    const Status status =
        step_of(which, std::vector<std::int64_t>(which.size(), context), 1, mono, out, 0, &sink);
    EXPECT_TRUE(status.ok()) << status.to_string();
    return sink.rows;
  }
  std::vector<float> logits(const std::vector<std::int64_t>& which, std::int64_t context,
                            std::int64_t query, bool mono) {
    return logits_of(which, std::vector<std::int64_t>(which.size(), context), query, mono);
  }
  std::vector<float> logits_of(const std::vector<std::int64_t>& which,
                               const std::vector<std::int64_t>& contexts, std::int64_t query,
                               bool mono) {
    std::vector<float> out;
    const Status status = step_of(which, contexts, query, mono, out);
    EXPECT_TRUE(status.ok()) << status.to_string();
    return out;
  }

 private:
  std::vector<std::int32_t> table(std::int64_t sequence, std::int64_t context) const {
    const std::int64_t all = most_ * pages_;
    const std::int64_t step = std::gcd<std::int64_t>(all, 37) == 1 ? 37 : 1;
    std::vector<std::int32_t> out;
    for (std::int64_t i = 0; i * kM3Page < context; ++i)
      out.push_back(static_cast<std::int32_t>((i * most_ + sequence) * step % all));
    return out;
  }

  m3::ModelConfig config_;
  Toggle toggle_;
  std::int64_t most_, pages_ = 0;
  std::unique_ptr<cpu::CachePool> pool_;
  std::unique_ptr<cuda::BenchChain> chain_;
  bool ok_ = false;
};

inline std::vector<std::int64_t> first(std::int64_t n) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(n));
  std::iota(out.begin(), out.end(), 0);
  return out;
}
// Row i of a.
inline std::vector<float> row(const std::vector<float>& a, std::int64_t i) {
  const auto at = a.begin() + i * kM3Vocab;
  return {at, at + kM3Vocab};
}

// Counts comparisons, so that a run says how much was compared.
struct Tally {
  std::int64_t compared = 0, differ = 0;
  void same(const std::vector<float>& want, const std::vector<float>& got,
            const std::string& what) {
    ++compared;
    if (want == got) return;
    if (++differ <= 10) ADD_FAILURE() << what << ": other bits";
  }
  void report() const {
    std::printf("%lld results, %lld differ\n", static_cast<long long>(compared),
                static_cast<long long>(differ));
    EXPECT_EQ(0, differ);
  }
};

inline std::string m3_where(std::int64_t context, std::int64_t n, bool mono) {
  return "context " + std::to_string(context) + ", " + std::to_string(n) + " sequences, " +
         (mono ? "fused" : "native");
}

// Sixteen sequences, native, against any first of them, each alone, and at another place.
inline void compare_rows(M3Chain& chain, std::span<const std::int64_t> contexts, Tally& tally) {
  for (const std::int64_t context : contexts) {
    const std::vector<float> want = chain.logits(first(16), context, 1, false);
    ASSERT_EQ(want.size(), 16U * kM3Vocab);
    EXPECT_NE(row(want, 0), row(want, 1));  // or nothing is compared
    for (const bool mono : {false, true}) {
      for (std::int64_t n = 1; n <= 16; ++n) {
        const std::vector<float> got = chain.logits(first(n), context, 1, mono);
        ASSERT_EQ(got.size(), static_cast<std::size_t>(n * kM3Vocab));
        tally.same({want.begin(), want.begin() + n * kM3Vocab}, got, m3_where(context, n, mono));
        tally.same(row(want, n - 1), chain.logits({n - 1}, context, 1, mono),
                   m3_where(context, 1, mono) + ", row " + std::to_string(n - 1) + " alone");
      }
      const std::vector<float> turned = chain.logits({9, 3, 15, 0, 6}, context, 1, mono);
      tally.same(row(want, 15), row(turned, 2), m3_where(context, 5, mono) + ", another place");
    }
  }
}

// Two sequences of a million tokens, which the chain's pool must hold, alone and four tokens of
// both at once.
inline void compare_a_million_tokens(M3Chain& chain, Tally& tally) {
  constexpr std::int64_t kMillion = 1 << 20;
  chain.logits(first(2), kMillion, 4, false);  // entries of the tokens before the last
  const std::vector<float> want = chain.logits(first(2), kMillion, 1, false);
  for (const bool mono : {false, true}) {
    for (const std::int64_t s : {0, 1})
      tally.same(row(want, s), chain.logits({s}, kMillion, 1, mono), m3_where(kMillion, 1, mono));
    const std::vector<float> four = chain.logits(first(2), kMillion, 4, mono);
    tally.same(row(want, 0), row(four, 3), m3_where(kMillion, 2, mono) + " of 4 tokens");
    tally.same(row(want, 1), row(four, 7), m3_where(kMillion, 2, mono) + " of 4 tokens");
  }
}

}  // namespace monolayer::test
