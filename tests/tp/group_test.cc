// Groups of threads: agreement, exchange, the fixed tree, symmetric memory, failure.
#include "tp/group.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>

#include "tp/thread_ranks.h"

namespace monolayer::tp {
namespace {

using std::chrono::milliseconds;

TEST(Group, RefusesOddSizes) {
  for (const int ranks : {-1, 0, 3, 5, 6, 7, 9, 16}) {
    EXPECT_EQ(make_thread_group(ranks).status().code(), Code::kInvalidArgument) << ranks;
  }
}

TEST(Group, BarrierSeparatesWritesFromReads) {
  for (const int ranks : {1, 2, 4, 8}) {
    std::vector<int> values(static_cast<std::size_t>(ranks));
    expect_ok(on_threads(ranks, [&](Group& group) -> Status {
      for (int round = 1; round <= 200; ++round) {
        values[static_cast<std::size_t>(group.rank())] = round;  // plain: the barrier orders it
        ML_RETURN_IF_ERROR(group.barrier());
        for (const int value : values) {
          if (value != round) return {Code::kInternal, "value", std::to_string(value)};
        }
        ML_RETURN_IF_ERROR(group.fence());
      }
      return group.close();
    }));
  }
}

TEST(Group, GatherAndBroadcastAnySize) {
  for (const int ranks : {1, 2, 4, 8}) {
    expect_ok(on_threads(ranks, [&](Group& group) -> Status {
      for (const std::size_t bytes : {0UL, 1UL, 100UL, 65536UL, 65537UL, 300000UL}) {
        std::vector<std::byte> mine(bytes);
        const auto fill = [](std::size_t i, int rank) {
          return static_cast<std::byte>(i * 7 + static_cast<std::size_t>(rank) * 31);
        };
        for (std::size_t i = 0; i < bytes; ++i) mine[i] = fill(i, group.rank());
        std::vector<std::byte> all(bytes * static_cast<std::size_t>(group.size()));
        ML_RETURN_IF_ERROR(group.all_gather(mine, all));
        for (std::size_t i = 0; i < all.size(); ++i) {
          if (all[i] != fill(i % bytes, static_cast<int>(i / bytes))) {
            return {Code::kInternal, "gathered byte", std::to_string(i)};
          }
        }
        const int root = group.size() - 1;
        ML_RETURN_IF_ERROR(group.broadcast(mine, root));
        for (std::size_t i = 0; i < bytes; ++i) {
          if (mine[i] != fill(i, root)) return {Code::kInternal, "byte", std::to_string(i)};
        }
      }
      return group.close();
    }));
  }
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) {
    return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y);
  });
}

// The same eighths give the same bits at every group size.
TEST(Group, ReductionIsTheSameTreeAtEverySize) {
  constexpr std::size_t kCount = 40000;
  std::mt19937 random(5);
  std::uniform_int_distribution<int> exponent(-30, 30);
  std::normal_distribution<float> normal;
  std::array<std::vector<float>, 8> eighths;
  for (auto& eighth : eighths) {
    eighth.resize(kCount);
    for (float& value : eighth) value = std::ldexp(normal(random), exponent(random));
  }
  std::vector<float> expected(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    const float low = (eighths[0][i] + eighths[1][i]) + (eighths[2][i] + eighths[3][i]);
    const float high = (eighths[4][i] + eighths[5][i]) + (eighths[6][i] + eighths[7][i]);
    expected[i] = low + high;
  }
  for (const int ranks : {1, 2, 4, 8}) {
    expect_ok(on_threads(ranks, [&](Group& group) -> Status {
      const std::size_t each = 8 / static_cast<std::size_t>(group.size());
      std::vector<const float*> parts;
      for (std::size_t p = 0; p < each; ++p) {
        parts.push_back(eighths[static_cast<std::size_t>(group.rank()) * each + p].data());
      }
      std::vector<float> sum(kCount);
      sum_eighths(parts, sum);
      ML_RETURN_IF_ERROR(group.all_reduce(sum));
      if (!same_bits(sum, expected)) {
        return {Code::kInternal, "sum", "differs in bits"};
      }
      return group.close();
    }));
  }
}

TEST(Group, SymmetricMemoryIsZeroedAndEverybodys) {
  for (const int ranks : {1, 2, 4, 8}) {
    expect_ok(on_threads(ranks, [&](Group& group) -> Status {
      auto region = group.allocate(10000);
      ML_RETURN_IF_ERROR(region.status());
      const auto me = static_cast<std::size_t>(group.rank());
      for (std::size_t i = 0; i < region->bytes; ++i) {
        if (region->base[me][i] != std::byte{0}) return {Code::kInternal, "byte", "not zero"};
      }
      ML_RETURN_IF_ERROR(group.barrier());
      for (int r = 0; r < group.size(); ++r) {
        region->base[static_cast<std::size_t>(r)][me] = static_cast<std::byte>(me + 1);
      }
      ML_RETURN_IF_ERROR(group.barrier());
      for (std::size_t r = 0; r < static_cast<std::size_t>(group.size()); ++r) {
        if (region->base[me][r] != static_cast<std::byte>(r + 1)) {
          return {Code::kInternal, "byte", "not the peer's"};
        }
      }
      ML_RETURN_IF_ERROR(group.release(*region));
      if (region->base[me] != nullptr) return {Code::kInternal, "region", "not emptied"};
      ML_RETURN_IF_ERROR(group.allocate(1).status());  // close() releases this one
      return group.close();
    }));
  }
}

TEST(Group, CloseIsIdempotentAndFinal) {
  expect_ok(on_threads(2, [&](Group& group) -> Status {
    ML_RETURN_IF_ERROR(group.close());
    ML_RETURN_IF_ERROR(group.close());
    if (group.barrier().code() != Code::kFailedPrecondition) {
      return {Code::kInternal, "barrier", "not refused after close"};
    }
    return {};
  }));
}

// T-L3: one rank that is not ready postpones and disables nothing.
TEST(Agreement, T_L3_NotReadyPostpones) {
  expect_ok(on_threads(4, [&](Group& group) -> Status {
    Agreement agreement = group.agree({}, group.rank() != 2);
    if (agreement.outcome != Agreement::Outcome::kNotReady || agreement.ranks != 4 ||
        agreement.status.to_string() != "rank 2: not ready") {
      return {Code::kInternal, "agreement", agreement.status.to_string()};
    }
    agreement = group.agree({}, true);
    if (!agreement.ok()) return agreement.status;
    return group.close();
  }));
}

// T-L4: unsupported on a peer is told apart from any other failure, on every rank alike.
TEST(Agreement, T_L4_UnsupportedAndOtherFailures) {
  expect_ok(on_threads(4, [&](Group& group) -> Status {
    const Status unsupported(Code::kUnsupported, "layer 3 w2", "format fp5");
    Agreement agreement = group.agree(group.rank() % 2 == 1 ? unsupported : Status{});
    if (agreement.outcome != Agreement::Outcome::kUnsupported || agreement.ranks != 0b1010 ||
        agreement.status.code() != Code::kUnsupported ||
        agreement.status.to_string() != "ranks 1, 3: layer 3 w2: format fp5") {
      return {Code::kInternal, "unsupported", agreement.status.to_string()};
    }
    Status mine;
    if (group.rank() == 1) mine = unsupported;
    if (group.rank() == 2) mine = Status(Code::kIoError, "cache", "gone");
    agreement = group.agree(mine, group.rank() != 3);
    if (agreement.outcome != Agreement::Outcome::kFailed || agreement.ranks != 0b0100 ||
        agreement.status.code() != Code::kIoError ||
        agreement.status.to_string() != "rank 2: cache: gone") {
      return {Code::kInternal, "failed", agreement.status.to_string()};
    }
    return group.close();  // the group is as good as before
  }));
}

TEST(Agreement, SameValueOrWhoDiffers) {
  expect_ok(on_threads(4, [&](Group& group) -> Status {
    ML_RETURN_IF_ERROR(group.agree_same(7, "rows"));
    const Status status = group.agree_same(group.rank() == 3 ? 8 : 7, "rows");
    if (status.to_string() != "rows: differs between ranks: 7 on rank 0, 8 on rank 3") {
      return {Code::kInternal, "status", status.to_string()};
    }
    return group.close();
  }));
}

TEST(Group, DifferentCallsAreFoundOut) {
  const auto results = on_threads(2, [&](Group& group) -> Status {
    const Deadline deadline(milliseconds(2000));
    if (group.rank() == 0) return group.barrier(deadline);
    return group.agree({}, deadline).status;
  });
  expect_same_error(results, Code::kFailedPrecondition);
  EXPECT_NE(results[0].to_string().find("barrier"), std::string::npos);
  EXPECT_NE(results[0].to_string().find("agree"), std::string::npos);
}

TEST(Group, MissingRankIsNamedWithinTheDeadline) {
  const auto start = Deadline::Clock::now();
  const auto results = on_threads(4, [&](Group& group) -> Status {
    if (group.rank() == 2) {
      std::this_thread::sleep_for(milliseconds(300));
    }
    Status status = group.barrier(Deadline(milliseconds(100)));
    Status closed = group.close();
    if (closed.to_string() != status.to_string()) return closed;
    return status;
  });
  EXPECT_LT(Deadline::Clock::now() - start, milliseconds(1300));
  expect_same_error(results, Code::kDeadlineExceeded);
  EXPECT_NE(results[0].message().find("rank 2 has not arrived"), std::string::npos)
      << results[0].to_string();
  EXPECT_NE(results[0].message().find("waited 100 ms"), std::string::npos);
}

TEST(Group, FailureOfOneEndsTheWaitsOfAll) {
  const auto start = Deadline::Clock::now();
  const auto results = on_threads(4, [&](Group& group) -> Status {
    if (group.rank() == 1) {
      std::this_thread::sleep_for(milliseconds(50));
      group.fail({Code::kIoError, "disk", "on fire"});
      return group.status();
    }
    return group.barrier();
  });
  EXPECT_LT(Deadline::Clock::now() - start, milliseconds(1000));
  expect_same_error(results, Code::kIoError);
  EXPECT_EQ(results[0].to_string(), "rank 1: disk: on fire");
}

TEST(Group, DestroyedWithoutCloseLeavesPeersMemory) {
  auto group = make_thread_group(2);
  ASSERT_TRUE(group.ok());
  std::byte* memory = nullptr;
  std::thread other([&] { (void)(*group)[1]->allocate(4096); });
  {
    auto region = (*group)[0]->allocate(4096);
    ASSERT_TRUE(region.ok());
    memory = region->base[1];
  }
  other.join();
  ::testing::internal::CaptureStderr();
  group->clear();
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("destroyed without close"), std::string::npos) << said;
  memory[0] = std::byte{1};  // still mapped
}

}  // namespace
}  // namespace monolayer::tp
