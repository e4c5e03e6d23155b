// The kernels for MiniMax-M3 at the full size of its layers, whole and as one rank of four with all
// exchanges, over random weights and caches: the same bits alone and beside other rows, token by
// token and several at once, native and fused, and as the kernels for any shape compute them.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "backend/cuda/params.h"
#include "backend_cuda/m3_chain.h"

namespace monolayer::test {
namespace {

// 14,848: the longest whose blocks are all attended to by one row on a rank of four. Beyond 24,576
// tokens of more than 8 rows and 32,768 of fewer blocks are chosen otherwise (select.cuh).
constexpr std::int64_t kContexts[] = {1,     127,   128,   129,   2047,  2048,  2049,  8192,
                                      14848, 14849, 24576, 24577, 32768, 32769, 131072};

class M3Device : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (no_device()) GTEST_SKIP() << "no CUDA device";
  }
  int stand_in() const { return GetParam(); }
};

TEST_P(M3Device, RowsAloneAndTogetherNativeAndFused) {
  M3Chain chain(stand_in(), 2, 16, 131072);
  ASSERT_TRUE(chain.ok());
  ASSERT_TRUE(chain.m3_kernels());
  Tally tally;
  compare_rows(chain, kContexts, tally);
  tally.report();
}

TEST_P(M3Device, QueriesOfSeveralTokens) {
  M3Chain chain(stand_in(), 2, 8, 131072);
  ASSERT_TRUE(chain.ok());
  Tally tally;
  for (const std::int64_t context : kContexts) {
    for (std::int64_t query = 2; query <= 4 && query <= context; ++query) {
      const std::int64_t most = std::min<std::int64_t>(8, 16 / query);
      // Token by token, native.
      std::vector<std::vector<float>> want(static_cast<std::size_t>(most));
      for (std::int64_t at = context - query + 1; at <= context; ++at) {
        const std::vector<float> step = chain.logits(first(most), at, 1, false);
        for (std::int64_t s = 0; s < most; ++s) {
          const auto own = row(step, s);
          auto& all = want[static_cast<std::size_t>(s)];
          all.insert(all.end(), own.begin(), own.end());
        }
      }
      for (const bool mono : {false, true}) {
        for (std::int64_t n = 1; n <= most; ++n) {
          const std::vector<float> got = chain.logits(first(n), context, query, mono);
          for (std::int64_t s = 0; s < n; ++s) {
            const auto at = got.begin() + s * query * kM3Vocab;
            tally.same(want[static_cast<std::size_t>(s)], {at, at + query * kM3Vocab},
                       m3_where(context, n, mono) + " of " + std::to_string(query) + " tokens");
          }
        }
      }
    }
  }
  tally.report();
}

// As prompts are: passes of 16 rows of one sequence, and what is left over.
TEST_P(M3Device, ManyTokensOfASequence) {
  M3Chain chain(stand_in(), 2, 2, 40000);
  ASSERT_TRUE(chain.ok());
  Tally tally;
  for (const std::int64_t context : {40, 150, 2100, 8200, 33000}) {
    for (const std::int64_t query : {9, 16, 40}) {
      std::vector<float> want;
      for (std::int64_t at = context - query + 1; at <= context; ++at) {
        const std::vector<float> own = chain.logits({1}, at, 1, false);
        want.insert(want.end(), own.begin(), own.end());
      }
      for (const bool mono : {false, true})
        tally.same(want, chain.logits({1}, context, query, mono),
                   m3_where(context, 1, mono) + " of " + std::to_string(query) + " tokens");
    }
  }
  EXPECT_EQ(0, tally.differ);
}

TEST_P(M3Device, AMillionTokens) {
  M3Chain chain(stand_in(), 2, 2, 1 << 20);
  ASSERT_TRUE(chain.ok());
  Tally tally;
  compare_a_million_tokens(chain, tally);
  tally.report();
}

// Hand-offs by words, at the sizes where what they carry changes.
TEST_P(M3Device, OneRowAtEveryEdge) {
  Tally tally;
  for (const std::int64_t longest : {131072, 1 << 20}) {
    M3Chain chain(stand_in(), 3, 2, longest);
    ASSERT_TRUE(chain.ok());
    ASSERT_TRUE(chain.m3_kernels());
    for (const std::int64_t context :
         {1,    15,   16,   17,    127,   128,   129,   2047,  2048,   2049,   2064,
          2177, 8192, 8193, 32768, 32769, 65535, 65536, 65537, 131072, 1 << 20}) {
      if (context > longest || (longest > 131072 && context < longest)) continue;
      for (const std::int64_t sequence : {0, 1}) {
        const std::vector<float> want = chain.logits({sequence}, context, 1, false);
        for (int run = 0; run < 20; ++run)
          tally.same(want, chain.logits({sequence}, context, 1, true), m3_where(context, 1, true));
      }
    }
  }
  tally.report();
}

TEST_P(M3Device, TwoToFourRowsAtEveryEdge) {
  Tally tally;
  constexpr std::int64_t kLongest = 131072;
  M3Chain chain(stand_in(), 3, 4, kLongest);
  ASSERT_TRUE(chain.ok());
  ASSERT_TRUE(chain.m3_kernels());
  for (const std::int64_t context :
       {1, 15, 16, 17, 127, 128, 129, 2047, 2048, 2049, 2177, 8193, 32769, 65537, 131072}) {
    for (const auto& [n, query] :
         {std::pair{2, 1}, {3, 1}, {4, 1}, {1, 2}, {1, 3}, {1, 4}, {2, 2}}) {
      if (context < query) continue;
      const std::vector<float> want = chain.logits(first(n), context, query, false);
      for (int run = 0; run < 10; ++run)
        tally.same(want, chain.logits(first(n), context, query, true),
                   m3_where(context, n, true) + " of " + std::to_string(query) + " tokens");
    }
  }
  tally.report();
}

TEST_P(M3Device, TheKernelsForAnyShapeGiveTheSame) {
  for (const bool f32_router : {false, true}) {
    Tally tally;
    std::vector<std::vector<float>> want;
    {
      M3Chain chain(stand_in(), 2, 16, 8192, {.any_kernels = true}, f32_router);
      ASSERT_TRUE(chain.ok());
      ASSERT_FALSE(chain.m3_kernels());
      for (const std::int64_t context : {1, 129, 2049, 8192})
        for (const std::int64_t n : {1, 3, 7, 16})
          want.push_back(chain.logits(first(n), context, 1, false));
    }
    M3Chain chain(stand_in(), 2, 16, 8192, {}, f32_router);
    ASSERT_TRUE(chain.ok());
    ASSERT_TRUE(chain.m3_kernels());
    std::size_t at = 0;
    for (const std::int64_t context : {1, 129, 2049, 8192}) {
      for (const std::int64_t n : {1, 3, 7, 16}) {
        for (const bool mono : {false, true})
          tally.same(want[at], chain.logits(first(n), context, 1, mono),
                     m3_where(context, n, mono));
        ++at;
      }
    }
    EXPECT_EQ(0, tally.differ) << (f32_router ? "F32" : "BF16") << " router";
  }
}

// Other tokens at the same positions leave other keys, values and index keys where the next step
// writes its own: whoever reads before they are written computes something else.
TEST_P(M3Device, T_P2_EntriesAreReadAfterTheyAreWritten) {
  M3Chain chain(stand_in(), 2, 16, 4096);
  ASSERT_TRUE(chain.ok());
  int differ = 0, rounds = 0;
  for (const std::int64_t n : {1, 4, 16}) {
    for (const std::int64_t query : {1, 4}) {
      if (n * query > 16) continue;
      for (const bool mono : {false, true}) {
        const std::vector<float> want = chain.logits(first(n), 4096, query, false);
        std::vector<float> got;
        for (std::int32_t i = 0; i < 40; ++i, ++rounds) {
          ASSERT_TRUE(chain.step(first(n), 4096, query, mono, got, 100 + i).ok());
          EXPECT_NE(want, got) << "other tokens gave the same logits";
          ASSERT_TRUE(chain.step(first(n), 4096, query, mono, got).ok());
          differ += got != want ? 1 : 0;
        }
      }
    }
  }
  std::printf("%d rounds of other entries, %d differ\n", rounds, differ);
  EXPECT_EQ(0, differ);
}

// A block that never arrives ends the step with a record that names the stage, whatever it is and
// at every number of rows that has kernels of its own, and at two. Not every block has work in
// every stage, and nobody waits for one that has none. On a rank of four and of one row block 31
// attends to the newest keys, which are always chosen, and block 40 merges. Norms are a stage only
// of rows normed by part.
class M3Stall : public testing::TestWithParam<std::tuple<int, int>> {};
TEST_P(M3Stall, StalledBlockIsReported) {
  if (no_device()) GTEST_SKIP() << "no CUDA device";
  const auto [stand_in, stage] = GetParam();
  const std::vector<std::int64_t> rows =
      stage == cuda::kInputNorm  ? std::vector<std::int64_t>{8, 16}
      : stage == cuda::kPostNorm ? std::vector<std::int64_t>{16}
                                 : std::vector<std::int64_t>{1, 2, 4, 8, 16};
  std::map<std::int64_t, int> reported;
  for (const int block : {3, 31, 40, 64, 131}) {
    cuda::NativeOptions options;
    options.deadline_ns = 50'000'000;
    options.stall_block = block;
    options.stall_stage = stage;
    M3Chain chain(stand_in, 2, 16, 4096, options);
    ASSERT_TRUE(chain.ok());
    for (const std::int64_t n : rows) {
      std::vector<float> logits;
      const auto begin = std::chrono::steady_clock::now();
      const Status status = chain.step(first(n), 4096, 1, true, logits);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      std::printf("block %d, %lld rows, %.3f s: %s\n", block, static_cast<long long>(n),
                  took.count(), status.ok() ? "no work there" : status.to_string().c_str());
      std::fflush(stdout);
      EXPECT_LT(took.count(), 1.0);
      if (status.ok()) continue;
      ++reported[n];
      EXPECT_NE(std::string::npos, status.to_string().find("gave up waiting"))
          << status.to_string();
    }
  }
  for (const std::int64_t n : rows) EXPECT_GT(reported[n], 0) << n << " rows";
  M3Chain chain(stand_in, 1, 16, 4096);
  ASSERT_TRUE(chain.ok());
  EXPECT_FALSE(chain.logits(first(4), 4096, 1, true).empty());
}
INSTANTIATE_TEST_SUITE_P(Stages, M3Stall,
                         testing::Combine(testing::Values(1, 4),
                                          testing::Values(cuda::kQkv, cuda::kHeads, cuda::kAttend,
                                                          cuda::kMerge, cuda::kOutput,
                                                          cuda::kRouter, cuda::kGateUp, cuda::kDown,
                                                          cuda::kInputNorm, cuda::kPostNorm)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param) == 1 ? "Whole" : "RankOf4") +
                                  "Stage" + std::to_string(std::get<1>(test.param));
                         });

INSTANTIATE_TEST_SUITE_P(Shapes, M3Device, testing::Values(1, 4), [](const auto& test) {
  return test.param == 1 ? std::string("Whole") : "RankOf" + std::to_string(test.param);
});

}  // namespace
}  // namespace monolayer::test
