// The kernels for MiniMax-M3's dense layers at full size, as one rank of two and of four with all
// exchanges: the same bits alone and beside other rows, token by token and several at once, native
// and fused, and as the kernels for any shape compute them.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <tuple>
#include <vector>

#include "backend/cuda/params.h"
#include "backend_cuda/m3_chain.h"

namespace monolayer::test {
namespace {

// Two dense layers, a run of their own in a fused step, and a sparse one.
M3Chain dense_chain(int stand_in, std::int64_t most, std::int64_t context,
                    cuda::NativeOptions options = {}) {
  return {stand_in, 1, most, context, options, false, 2};
}

// 32,768 tokens are the most whose pages have a partial each, 65,536 those of two a partial.
constexpr std::int64_t kContexts[] = {1,    127,   128,   129,   2047,  2048,
                                      2049, 16897, 32768, 32769, 65537, 131072};

class M3Dense : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (no_device()) GTEST_SKIP() << "no CUDA device";
  }
  int stand_in() const { return GetParam(); }
};

TEST_P(M3Dense, RowsAloneAndTogetherNativeAndFused) {
  M3Chain chain = dense_chain(stand_in(), 16, 131072);
  ASSERT_TRUE(chain.ok());
  Tally tally;
  compare_rows(chain, kContexts, tally);
  tally.report();
}

TEST_P(M3Dense, RowsOfDifferentLengthsAndSeveralTokens) {
  constexpr std::int64_t kLongest = 131072;
  M3Chain chain = dense_chain(stand_in(), 8, kLongest);
  ASSERT_TRUE(chain.ok());
  Tally tally;
  // Each sequence alone, one token at a time, native.
  const std::vector<std::int64_t> lengths = {70, 131072, 4, 33000, 2048, 300, 66000, 1000};
  std::vector<std::vector<float>> last(lengths.size());
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    const auto id = static_cast<std::int64_t>(s);
    std::vector<float> all;
    for (std::int64_t at = lengths[s] - 1; at <= lengths[s]; ++at)
      all = chain.logits({id}, at, 1, false);
    last[s] = all;
  }
  for (const bool mono : {false, true}) {
    for (std::int64_t query : {1, 2}) {
      for (std::size_t n = 1; n <= lengths.size(); ++n) {
        const std::vector<float> got = chain.logits_of(
            first(static_cast<std::int64_t>(n)), {lengths.begin(), lengths.end()}, query, mono);
        for (std::size_t s = 0; s < n; ++s)
          tally.same(last[s], row(got, static_cast<std::int64_t>(s) * query + query - 1),
                     m3_where(lengths[s], static_cast<std::int64_t>(n), mono) + " of " +
                         std::to_string(query) + " tokens");
      }
    }
  }
  tally.report();
}

TEST_P(M3Dense, AMillionTokens) {
  M3Chain chain = dense_chain(stand_in(), 2, 1 << 20);
  ASSERT_TRUE(chain.ok());
  Tally tally;
  compare_a_million_tokens(chain, tally);
  tally.report();
}

TEST_P(M3Dense, TheKernelsForAnyShapeGiveTheSame) {
  Tally tally;
  std::vector<std::vector<float>> want;
  for (const bool any : {true, false}) {
    M3Chain chain = dense_chain(stand_in(), 16, 66000, {.any_kernels = any});
    ASSERT_TRUE(chain.ok());
    ASSERT_NE(any, chain.m3_kernels());
    std::size_t at = 0;
    for (const std::int64_t context : {1, 129, 2049, 32769, 66000}) {
      for (const std::int64_t n : {1, 3, 7, 16}) {
        for (const bool mono : {false, true}) {
          const std::vector<float> got = chain.logits(first(n), context, 1, mono);
          if (any && !mono) {
            want.push_back(got);
          } else {
            tally.same(want[at], got, m3_where(context, n, mono) + (any ? ", any" : ""));
          }
        }
        ++at;
      }
    }
  }
  tally.report();
}

// The head of more than eight rows is another kernel, and a trace plans for sixteen whatever there
// are.
TEST_P(M3Dense, TracesShowTheLastNormOfAnyNumberOfRows) {
  std::vector<float> want;
  for (const bool any : {true, false}) {
    M3Chain chain = dense_chain(stand_in(), 16, 384, {.any_kernels = any});
    ASSERT_TRUE(chain.ok());
    if (any) want = chain.last_norms(first(16), 300, false);
    ASSERT_EQ(want.size(), 16U * 6144);
    chain.logits(first(16), 380, 1, false);  // what buffers hold is of another step
    for (const std::int64_t n : {3, 8, 9, 16}) {
      for (const bool mono : {false, true}) {
        const std::vector<float> got = chain.last_norms(first(n), 300, mono);
        EXPECT_EQ(std::vector<float>(want.begin(), want.begin() + n * 6144), got)
            << m3_where(300, n, mono) << (any ? ", any" : "");
      }
    }
  }
}

TEST_P(M3Dense, ManyRuns) {
  Tally tally;
  M3Chain chain = dense_chain(stand_in(), 16, 4096);
  ASSERT_TRUE(chain.ok());
  for (const std::int64_t n : {1, 2, 5, 16}) {
    const std::vector<float> want = chain.logits(first(n), 4096, 1, false);
    for (int run = 0; run < 100; ++run)
      tally.same(want, chain.logits(first(n), 4096, 1, true), m3_where(4096, n, true));
  }
  tally.report();
}

// A block that never arrives ends the step with a record; in the first two layers, which are dense,
// as a sparse one is not reached.
class M3DenseStall : public testing::TestWithParam<int> {};
TEST_P(M3DenseStall, StalledBlockIsReported) {
  if (no_device()) GTEST_SKIP() << "no CUDA device";
  int reported = 0;
  for (const int block : {3, 31, 131}) {
    cuda::NativeOptions options;
    options.deadline_ns = 50'000'000;
    options.stall_block = block;
    options.stall_stage = GetParam();
    M3Chain chain = dense_chain(4, 16, 4096, options);
    ASSERT_TRUE(chain.ok());
    for (const std::int64_t n : {1, 4, 16}) {
      std::vector<float> logits;
      const auto begin = std::chrono::steady_clock::now();
      const Status status = chain.step(first(n), 4096, 1, true, logits);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      EXPECT_LT(took.count(), 1.0);
      if (status.ok()) continue;
      EXPECT_NE(std::string::npos, status.to_string().find("gave up waiting"))
          << status.to_string();
      if (status.to_string().find("layer 0") != std::string::npos) ++reported;
    }
  }
  EXPECT_GT(reported, 0);
}
INSTANTIATE_TEST_SUITE_P(Stages, M3DenseStall,
                         testing::Values(cuda::kQkv, cuda::kHeads, cuda::kAttend, cuda::kMerge,
                                         cuda::kOutput, cuda::kGateUp, cuda::kDown,
                                         cuda::kInputNorm, cuda::kPostNorm),
                         [](const auto& test) { return "Stage" + std::to_string(test.param); });
INSTANTIATE_TEST_SUITE_P(Shapes, M3Dense, testing::Values(2, 4),
                         [](const auto& test) { return "RankOf" + std::to_string(test.param); });

}  // namespace
}  // namespace monolayer::test
