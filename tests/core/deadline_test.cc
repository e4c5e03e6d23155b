// Bounded waits: what they report, how long they take, and that the first failure is everybody's.
#include "core/deadline.h"

#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <string>
#include <thread>
#include <vector>

namespace monolayer {
namespace {

using std::chrono::milliseconds;

WaitRecord failed(int rank, const std::string& why) {
  WaitRecord record;
  record.kind = WaitRecord::Kind::kFailed;
  record.code = Code::kIoError;
  record.rank = rank;
  return record.set_detail(why);
}

TEST(Deadline, ExpiresOnce) {
  EXPECT_EQ(Deadline().timeout(), milliseconds(10'000));
  const Deadline soon(milliseconds(5));
  EXPECT_FALSE(soon.expired());
  EXPECT_GT(soon.remaining().count(), 0);
  std::this_thread::sleep_for(milliseconds(6));
  EXPECT_TRUE(soon.expired());
  EXPECT_EQ(soon.remaining().count(), 0);
}

TEST(WaitRecord, OneLineWithAllThatIsKnown) {
  WaitRecord record;
  EXPECT_TRUE(record.to_status().ok());
  record.kind = WaitRecord::Kind::kDeadline;
  record.rank = 3;
  record.timeout_ms = 250;
  record.index = 12345678901;
  record.expected = 0xdeadbeef;
  record.set_region("scores");
  EXPECT_EQ(
      record.to_status().to_string(),
      "rank 3: waited 250 ms, region scores, index 12345678901: expected 0xdeadbeef, saw 0x0");
  record.layer = 7;
  record.stage = 2;
  record.set_detail("a note");
  EXPECT_EQ(record.to_status().to_string(),
            "rank 3: waited 250 ms, layer 7, stage 2, region scores, index 12345678901: expected "
            "0xdeadbeef, saw 0x0 (a note)");
  record.set_region(std::string(100, 'r')).set_detail(std::string(1000, 'd') + "\n");
  const std::string cut = record.to_status().to_string();
  EXPECT_NE(cut.find(" " + std::string(31, 'r') + ","), std::string::npos) << cut;
  EXPECT_NE(cut.find("(" + std::string(159, 'd') + ")"), std::string::npos) << cut;
}

TEST(Poison, OneOfManyIsFirst) {
  for (int repeat = 0; repeat < 50; ++repeat) {
    Poison poison;
    EXPECT_TRUE(poison.status().ok());
    std::atomic<int> winners{0};
    std::vector<std::string> seen(4);
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < seen.size(); ++t) {
      threads.emplace_back([&, t] {
        if (poison.raise(failed(static_cast<int>(t), "mine"))) ++winners;
        seen[t] = poison.status().to_string();
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(winners.load(), 1);
    for (const std::string& text : seen) EXPECT_EQ(text, seen[0]);
    EXPECT_NE(seen[0].find("mine"), std::string::npos);
  }
}

// A process that is killed while it writes the record must not hang those who read it.
TEST(Poison, WriterKilledBetweenItsStores) {
  alignas(Poison) std::byte memory[sizeof(Poison)];
  const auto* poison = new (memory) Poison;
  std::atomic_ref<std::uint32_t>(*reinterpret_cast<std::uint32_t*>(memory)).store(1);
  EXPECT_TRUE(poison->raised());
  const auto start = Deadline::Clock::now();
  const Status status = poison->status();
  EXPECT_LT(Deadline::Clock::now() - start, milliseconds(800));
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  EXPECT_NE(status.message().find("while reporting a failure"), std::string::npos);
}

TEST(Waiter, GivesUpInTimeAndPoisons) {
  Poison poison;
  const auto start = Deadline::Clock::now();
  Waiter waiter({milliseconds(60), &poison});
  while (waiter.again()) {
  }
  const auto took = Deadline::Clock::now() - start;
  EXPECT_GE(took, milliseconds(60));
  EXPECT_LT(took, milliseconds(560));
  WaitRecord record;
  record.rank = 1;
  record.set_region("x");
  const Status status = waiter.give_up(record);
  EXPECT_EQ(status.message(), "waited 60 ms, region x, index -1: expected 0x0, saw 0x0");
  EXPECT_EQ(poison.status().to_string(), status.to_string());
}

TEST(Waiter, PoisonEndsItWithTheFirstError) {
  Poison poison;
  std::thread other([&] {
    std::this_thread::sleep_for(milliseconds(30));
    poison.raise(failed(2, "disk"));
  });
  const auto start = Deadline::Clock::now();
  Waiter waiter({milliseconds(10'000), &poison});
  while (waiter.again()) {
  }
  EXPECT_LT(Deadline::Clock::now() - start, milliseconds(1000));
  EXPECT_EQ(waiter.give_up({}).to_string(), "rank 2: disk");
  other.join();
}

// Whoever was stopped for longer than the timeout looks once more before giving up.
TEST(Waiter, LooksAgainAfterTheTimeHasPassed) {
  Poison poison;
  Waiter waiter({milliseconds(5), &poison, 0});
  EXPECT_TRUE(waiter.again());
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_TRUE(waiter.again());  // the last look
  EXPECT_FALSE(waiter.again());
}

}  // namespace
}  // namespace monolayer
