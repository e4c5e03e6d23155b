// The protocol between ranks as processes: T-P1 and T-P7 with a rank killed, stopped or delayed at
// each stage in turn; more ranks and workers than cores.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "mono/protocol_chain.h"
#include "tp/launcher.h"
#include "tp/leftovers.h"

namespace monolayer::mono {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using tp::Group;
using tp::RankKind;
using tp::run_ranks;

constexpr ChainShape kShape{2, 96, 2};
// Where a rank meets its fate: before the fence, before each exchange, after its sends, before
// close.
constexpr int kStages = 2 + kShape.layers * 2 * 2;

struct Fate {
  enum Kind { kKilled, kStopped, kDelayed } kind;
  int stage;

  void meet() const {
    if (kind == kKilled) kill(getpid(), SIGKILL);
    if (kind == kStopped) kill(getpid(), SIGSTOP);
    if (kind == kDelayed) std::this_thread::sleep_for(milliseconds(30));
  }
  std::string text() const {
    static constexpr const char* kNames[] = {"killed", "stopped", "delayed"};
    return std::string(kNames[kind]) + " at stage " + std::to_string(stage);
  }
};

class ProtocolProcesses : public ::testing::Test {
 protected:
  void SetUp() override { shm_ = tp::names_in("/dev/shm"); }
  void TearDown() override {
    EXPECT_EQ(tp::names_in("/dev/shm"), shm_);
    EXPECT_TRUE(tp::processes_mapping_memory_of(getpid()).empty());
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
  }

  // Rank `victim` of four meets its fate in the second step. The others' errors are checked for
  // time here and returned.
  static std::vector<Status> run(int victim, const Fate& fate, milliseconds timeout,
                                 milliseconds grace) {
    auto results = run_ranks({RankKind::kProcesses, 4, grace}, [&](Group& group) -> Status {
      auto mailbox = Mailbox::create(group, {kShape.rows, kShape.columns});
      ML_RETURN_IF_ERROR(mailbox.status());
      Chain chain{kShape, {timeout, &group.poison()}, group.rank(), 4};
      std::vector<float> values;
      if (!mailbox->begin_step(chain.policy)) return group.status();
      if (!chain.run(*mailbox, 1, values)) return group.status();

      const auto at = [&](int stage) {
        if (group.rank() == victim && stage == fate.stage) fate.meet();
      };
      chain.before_stage = [&](int layer, int site) {
        at(1 + (layer * 2 + site) * 2);
        return true;
      };
      chain.after_send = [&](int layer, int site) { at(2 + (layer * 2 + site) * 2); };
      const auto start = Clock::now();
      at(0);
      Status status;
      if (!mailbox->begin_step(chain.policy) || !chain.run(*mailbox, 2, values)) {
        status = group.status();
      } else {
        at(kStages - 1);
        status = group.close(Deadline(timeout));
      }
      if (group.rank() != victim && Clock::now() - start > timeout + milliseconds(1000)) {
        return {Code::kInternal, "report", "later than the deadline plus one second"};
      }
      if (status.ok() && !same_bits(values, chain_expected(kShape, 2))) {
        return {Code::kInternal, "values", "differ"};
      }
      return status;
    });
    EXPECT_TRUE(results.ok()) << results.status().to_string();
    return results.ok() ? *results : std::vector<Status>(4);
  }

 private:
  std::set<std::string> shm_;
};

TEST_F(ProtocolProcesses, T_P7_KilledAtEachStage) {
  for (int stage = 0; stage < kStages; ++stage) {
    const int victim = stage % 4;
    const Fate fate{Fate::kKilled, stage};
    const auto start = Clock::now();
    const auto results = run(victim, fate, milliseconds(5000), milliseconds(2000));
    EXPECT_LT(Clock::now() - start, milliseconds(2000)) << fate.text();  // long before deadlines
    for (int r = 0; r < 4; ++r) {
      const Status& status = results[static_cast<std::size_t>(r)];
      if (r == victim) {
        EXPECT_NE(status.message().find("ended by signal 9"), std::string::npos) << fate.text();
        continue;
      }
      EXPECT_EQ(status.code(), Code::kDeadlineExceeded) << fate.text();
      EXPECT_EQ(status.subject(), "rank " + std::to_string(victim)) << fate.text();
      EXPECT_EQ(status.message().find("ended without leaving the group (process "), 0U)
          << fate.text() << ": " << status.to_string();
    }
  }
}

TEST_F(ProtocolProcesses, T_P7_StoppedAtEachStage) {
  constexpr milliseconds kTimeout(150);
  for (int stage = 0; stage < kStages; ++stage) {
    const int victim = (stage + 1) % 4;
    const Fate fate{Fate::kStopped, stage};
    const auto results = run(victim, fate, kTimeout, milliseconds(200));
    const Status* first = nullptr;
    for (int r = 0; r < 4; ++r) {
      const Status& status = results[static_cast<std::size_t>(r)];
      if (r == victim) {
        EXPECT_NE(status.message().find("ended by signal 9"), std::string::npos) << fate.text();
        continue;
      }
      if (first == nullptr) first = &status;
      EXPECT_EQ(status.code(), Code::kDeadlineExceeded) << fate.text();
      EXPECT_EQ(status.to_string(), first->to_string()) << fate.text();
    }
    // It says what was waited for: which region and layer, whose words, which tag.
    const std::string& text = first->message();
    EXPECT_EQ(text.find("waited 150 ms"), 0U) << fate.text() << ": " << text;
    const std::size_t region = text.find("region ");
    ASSERT_NE(region, std::string::npos) << text;
    const std::string where = text.substr(region);
    if (stage == 0) {
      EXPECT_EQ(where.find("region fence, index "), 0U) << text;
    } else if (stage == kStages - 1) {
      EXPECT_EQ(where.find("region group.barrier"), 0U) << text;
    } else {
      EXPECT_NE(text.find("layer "), std::string::npos) << text;
      EXPECT_NE(text.find("stage "), std::string::npos) << text;
      EXPECT_NE(text.find("expected 0x20"), std::string::npos) << text;  // step 2
    }
  }
}

TEST_F(ProtocolProcesses, T_P7_DelayedAtEachStageIsNoFailure) {
  for (int stage = 0; stage < kStages; ++stage) {
    const Fate fate{Fate::kDelayed, stage};
    for (const Status& status : run(stage % 4, fate, milliseconds(3000), milliseconds(3000))) {
      EXPECT_TRUE(status.ok()) << fate.text() << ": " << status.to_string();
    }
  }
}

// T-P1 between processes: the same bits as one processor, with a rank delayed each time.
TEST_F(ProtocolProcesses, T_P1_SameBitsAsThreads) {
  for (const int ranks : {1, 2, 4, 8}) {
    for (const std::int64_t scatter_from : {1, 17}) {
      const ChainShape shape{4, 200, 5};
      const auto expected = chain_expected(shape, 7);
      const auto results = run_ranks({RankKind::kProcesses, ranks}, [&](Group& group) -> Status {
        auto mailbox = Mailbox::create(group, {4, 200, 2, 24, scatter_from});
        ML_RETURN_IF_ERROR(mailbox.status());
        Chain chain{shape, {milliseconds(5000), &group.poison()}, group.rank(), ranks};
        for (int repeat = 0; repeat < 20; ++repeat) {
          chain.before_stage = [&](int layer, int) {
            if (group.rank() == repeat % ranks && layer == repeat % 5) {
              std::this_thread::sleep_for(std::chrono::microseconds(300));
            }
            return true;
          };
          std::vector<float> values;
          if (!mailbox->begin_step(chain.policy)) return group.status();
          if (!chain.run(*mailbox, 7, values)) return group.status();
          if (!same_bits(values, expected)) return {Code::kInternal, "values", "differ"};
        }
        return {};
      });
      ASSERT_TRUE(results.ok());
      for (const Status& status : *results) EXPECT_TRUE(status.ok()) << status.to_string();
    }
  }
}

// T-P9 between processes: a reader never sees the tag of one store with the payload of another.
TEST_F(ProtocolProcesses, T_P9_AtomicityLitmus) {
  constexpr Tag kRounds = 100000;
  const auto payload = [](Tag tag) { return tag * 2654435761U ^ tag >> 3; };
  const auto results = run_ranks({RankKind::kProcesses, 2}, [&](Group& group) -> Status {
    ML_ASSIGN_OR_RETURN(tp::SymmetricRegion region, group.allocate(4096));
    Word* words = reinterpret_cast<Word*>(region.base[1]);  // of rank 1, pushed by rank 0
    if (group.rank() == 0) {
      for (Tag tag = 1; tag <= kRounds; ++tag) {
        for (int w = 0; w < 8; ++w) put_word(words + w, tag, payload(tag));
      }
      return {};
    }
    const Deadline deadline;
    for (Tag last = 0; last != kRounds && !deadline.expired();) {
      for (int w = 0; w < 8; ++w) {
        const Word seen = load_word(words + w);
        last = tag_of(seen);
        if (seen != 0 && payload_of(seen) != payload(last)) {
          return {Code::kInternal, "tag " + std::to_string(last), "with another's payload"};
        }
      }
    }
    return {};
  });
  ASSERT_TRUE(results.ok());
  for (const Status& status : *results) EXPECT_TRUE(status.ok()) << status.to_string();
}

// T-P10 between processes: plain data behind a flag, in the reader's memory.
TEST_F(ProtocolProcesses, T_P10_FlagLitmus) {
  constexpr std::uint64_t kRounds = 1000;
  constexpr std::size_t kPlain = 64;
  const auto results = run_ranks({RankKind::kProcesses, 2}, [&](Group& group) -> Status {
    ML_ASSIGN_OR_RETURN(tp::SymmetricRegion region, group.allocate(4096));
    // Zeroed memory is a flag at 0: the first two lines of rank 1's part, plain data after them.
    auto* flags = reinterpret_cast<Flag*>(region.base[1]);
    auto* plain = reinterpret_cast<std::uint64_t*>(region.base[1] + 2 * sizeof(Flag));
    const WaitPolicy policy{milliseconds(5000), &group.poison()};
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
      if (group.rank() == 0) {
        if (!flags[1].wait(round - 1, policy, {0, -1, -1, "empty"})) return group.status();
        for (std::size_t i = 0; i < kPlain; ++i) plain[i] = round * 1000 + i;
        flags[0].publish(round);
      } else {
        if (!flags[0].wait(round, policy, {1, -1, -1, "full"})) return group.status();
        for (std::size_t i = 0; i < kPlain; ++i) {
          if (plain[i] != round * 1000 + i) return {Code::kInternal, "plain word", "is old"};
        }
        flags[1].publish(round);
      }
    }
    return {};
  });
  ASSERT_TRUE(results.ok());
  for (const Status& status : *results) EXPECT_TRUE(status.ok()) << status.to_string();
}

// Four ranks of four workers each, however few the cores: hand-offs inside a rank by flags, between
// ranks by words. Nobody starves: the deadline is far away, the whole takes a moment.
TEST_F(ProtocolProcesses, MoreRanksAndWorkersThanCores) {
  constexpr int kWorkers = 4, kLayers = 40;
  constexpr std::int64_t kColumns = 256;
  const auto results = run_ranks({RankKind::kProcesses, 4}, [&](Group& group) -> Status {
    auto mailbox = Mailbox::create(group, {1, kColumns});
    ML_RETURN_IF_ERROR(mailbox.status());
    const WaitPolicy policy{milliseconds(8000), &group.poison()};
    std::vector<float> values(kColumns, 1.0F);
    Flag done;  // arrivals of workers, never reset
    if (!mailbox->begin_step(policy)) return group.status();
    const auto worker = [&](int w) {
      const std::int64_t begin = w * kColumns / kWorkers, end = (w + 1) * kColumns / kWorkers;
      std::vector<float> mine(static_cast<std::size_t>(end - begin));
      for (int layer = 0; layer < kLayers; ++layer) {
        for (int site = 0; site < 2; ++site) {
          const std::uint64_t exchanges =
              static_cast<std::uint64_t>(layer) * 2 + (site == 1 ? 1 : 0);
          // Reads what all workers wrote in the exchange before ...
          const WaitPlace place{group.rank(), layer, site, "sum"};
          if (!done.wait(exchanges * 2 * kWorkers, policy, place)) return;
          float total = 0;
          for (const float value : values) total += value;
          for (float& value : mine) value = total / kColumns * 0.25F;
          const Block block{0, 1, begin, end, mine.data(), end - begin};
          if (!mailbox->all_reduce(mailbox->exchange(site, layer, 1), block, policy, place)) return;
          // ... and writes when all have read.
          done.add();
          if (!done.wait(exchanges * 2 * kWorkers + kWorkers, policy, place)) return;
          std::copy(mine.begin(), mine.end(), values.begin() + begin);
          done.add();
        }
      }
    };
    std::vector<std::thread> team;
    for (int w = 1; w < kWorkers; ++w) team.emplace_back(worker, w);
    worker(0);
    for (std::thread& thread : team) thread.join();
    ML_RETURN_IF_ERROR(group.status());
    for (const float value : values) {
      if (value != 1.0F) return {Code::kInternal, "value", std::to_string(value)};
    }
    return {};
  });
  ASSERT_TRUE(results.ok());
  for (const Status& status : *results) EXPECT_TRUE(status.ok()) << status.to_string();
}

}  // namespace
}  // namespace monolayer::mono
