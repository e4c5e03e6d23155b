// The protocol between ranks as threads: T-P1, T-P4, T-P5, T-P8, T-P9, T-P10.
#include "mono/protocol.h"

#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <set>
#include <thread>

#include "mono/protocol_chain.h"
#include "mono/protocol_mailbox.h"
#include "tp/thread_ranks.h"

namespace monolayer::mono {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using tp::Group;
using tp::on_threads;

Status wrong(const char* what, std::int64_t where) {
  return {Code::kInternal, what, std::to_string(where)};
}

WaitPolicy policy_of(Group& group, milliseconds timeout = milliseconds(5000)) {
  return {timeout, &group.poison()};
}

Result<Mailbox> make_mailbox(Group& group, const ChainShape& shape, int nonce_bits = 24,
                             std::int64_t scatter_from = 8) {
  return Mailbox::create(group, {shape.rows, shape.columns, 2, nonce_bits, scatter_from});
}

TEST(Tags, UniqueInARoundAndNeverZero) {
  TagScheme scheme;
  scheme.nonce_bits = 5;
  std::set<Tag> seen;
  for (std::uint64_t step = 32; step < 64; ++step) {
    for (int layer = 0; layer < TagScheme::kLayers; ++layer) {
      const Tag tag = scheme.tag(step, layer);
      EXPECT_NE(tag, 0U);
      EXPECT_TRUE(seen.insert(tag).second) << step << ' ' << layer;
    }
  }
  EXPECT_TRUE(scheme.begins_round(32) && scheme.begins_round(64));
  EXPECT_FALSE(scheme.begins_round(33) || scheme.begins_round(63));
  const TagScheme full;
  EXPECT_EQ(full.tag((1U << 24) - 1, TagScheme::kLayers - 1), 0xffffffffU);
  EXPECT_TRUE(full.begins_round(1U << 24));
}

TEST(Words, AnyPayloadIsLegal) {
  Poison poison;
  std::vector<Word> words(5, 0);
  const std::uint32_t patterns[] = {0, 0xffffffffU, 0x7fc00001U, 0x80000000U, 0x7f800001U};
  for (std::size_t i = 0; i < 5; ++i) put_word(&words[i], 7, patterns[i]);
  std::uint32_t payloads[5];
  ASSERT_TRUE(poll_words(words.data(), 7, payloads, 5, {milliseconds(100), &poison}, {}));
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(payloads[i], patterns[i]);
}

TEST(Words, AnEmptyWordIsWaitedForAndReported) {
  Poison poison;
  std::vector<Word> words(3, 0);
  put_word(&words[0], 0x1203, 1);
  put_word(&words[1], 0x1202, 2);
  float values[3];
  const WaitPlace place{2, 5, 3, "scores"};
  EXPECT_FALSE(
      poll_floats(words.data(), 0x1203, values, 3, {milliseconds(30), &poison}, place, 10));
  EXPECT_EQ(poison.status().to_string(),
            "rank 2: waited 30 ms, layer 5, stage 3, region scores, index 11: expected 0x1203, saw "
            "0x1202");
  EXPECT_EQ(poison.status().code(), Code::kDeadlineExceeded);
}

TEST(Mailboxes, BadShapesAreRefusedOnAllRanks) {
  tp::expect_ok(on_threads(2, [](Group& group) -> Status {
    const MailboxShape shapes[] = {{0, 64},        {16, 0},         {16, 64, 1},
                                   {16, 64, 2, 0}, {16, 64, 2, 25}, {1 << 20, 1 << 24}};
    for (const MailboxShape& shape : shapes) {
      if (Mailbox::create(group, shape).status().code() != Code::kInvalidArgument) {
        return wrong("shape", &shape - shapes);
      }
    }
    // Good on each rank, but not the same.
    const std::int64_t rows = 4 + group.rank();
    const auto differing = Mailbox::create(group, {rows, 64});
    if (differing.status().code() != Code::kFailedPrecondition) return wrong("rows", rows);
    return group.close();
  }));
}

// T-P1: the same step again and again with a rank delayed somewhere else each time, at every group
// size, row count and variant: the same bits as one processor gets.
TEST(Protocol, T_P1_SameBitsWhoeverIsLate) {
  for (const int ranks : {1, 2, 4, 8}) {
    for (const std::int64_t rows : {1, 4, 16}) {
      const ChainShape shape{rows, 104, 6};
      const std::vector<float> expected = chain_expected(shape, 1);
      for (const std::int64_t scatter_from : {1, 17}) {
        tp::expect_ok(on_threads(ranks, [&](Group& group) -> Status {
          auto mailbox = make_mailbox(group, shape, 24, scatter_from);
          ML_RETURN_IF_ERROR(mailbox.status());
          std::mt19937 random(99);  // the same on all ranks
          for (int repeat = 0; repeat < 100 / ranks; ++repeat) {
            const auto late = static_cast<int>(random() % static_cast<unsigned>(ranks));
            const auto at = static_cast<int>(random() % 12);
            Chain chain{shape, policy_of(group), group.rank(), ranks, [&](int layer, int site) {
                          if (group.rank() == late && layer * 2 + site == at) {
                            std::this_thread::sleep_for(microseconds(200));
                          }
                          return true;
                        }};
            std::vector<float> values;
            if (!mailbox->begin_step(chain.policy)) return group.status();
            if (!chain.run(*mailbox, 1, values)) return group.status();
            if (!same_bits(values, expected)) return wrong("repeat", repeat);
          }
          ML_RETURN_IF_ERROR(mailbox->release(group));
          return group.close();
        }));
      }
    }
  }
}

// Several workers a rank, each with some rows and columns, in orders that differ between ranks.
TEST(Protocol, BlocksOfManyWorkersInAnyOrder) {
  constexpr std::int64_t kRows = 5, kColumns = 1000;
  for (const int ranks : {2, 4, 8}) {
    for (const std::int64_t scatter_from : {1, 17}) {
      tp::expect_ok(on_threads(ranks, [&](Group& group) -> Status {
        auto mailbox = Mailbox::create(group, {kRows, kColumns, 2, 24, scatter_from});
        ML_RETURN_IF_ERROR(mailbox.status());
        const WaitPolicy policy = policy_of(group);
        for (int round = 0; round < 20; ++round) {
          std::vector<float> values(kRows * kColumns);
          const auto root = [&](int rank, std::size_t i) {
            return std::ldexp(static_cast<float>(i % 97) + 1, (rank * 7 + round) % 40 - 20);
          };
          for (std::size_t i = 0; i < values.size(); ++i) values[i] = root(group.rank(), i);
          if (!mailbox->begin_step(policy)) return group.status();
          const Exchange exchange = mailbox->exchange(round % 2, 0, kRows);
          const WaitPlace place{group.rank(), 0, 0, "sum"};
          bool ok[2] = {false, false};
          const auto worker = [&](int w) {
            std::vector<Block> blocks;
            for (std::int64_t row = 0; row < kRows; ++row) {
              const std::int64_t begin = w == 0 ? 0 : 333, end = w == 0 ? 333 : kColumns;
              blocks.push_back({row, row + 1, begin, end,
                                &values[static_cast<std::size_t>(row * kColumns + begin)],
                                kColumns});
            }
            if (group.rank() % 2 == 1) std::reverse(blocks.begin(), blocks.end());
            for (const Block& block : blocks) mailbox->send(exchange, block);
            for (const Block& block : blocks) {
              if (!mailbox->reduce(exchange, block, policy, place)) return;
            }
            for (const Block& block : blocks) {
              if (!mailbox->gather(exchange, block, policy, place)) return;
            }
            ok[w] = true;
          };
          std::thread second(worker, 1);
          worker(0);
          second.join();
          if (!ok[0] || !ok[1]) return group.status();
          for (std::size_t i = 0; i < values.size(); ++i) {
            float roots[8] = {};
            for (int r = 0; r < ranks; ++r) roots[r] = root(r, i);
            if (values[i] != tp::add_roots(roots, ranks)) {
              return wrong("value", static_cast<std::int64_t>(i));
            }
          }
        }
        return group.close();
      }));
    }
  }
}

// T-P4: steps abandoned on all ranks, each rank somewhere else, also twice in a row and before
// anything was sent; the full step after them is right. One rank is late all the time.
TEST(Protocol, T_P4_AbandonedStepsLeaveNothing) {
  const ChainShape shape{4, 64, 4};
  for (const int ranks : {2, 4}) {
    for (const std::int64_t scatter_from : {1, 17}) {
      tp::expect_ok(on_threads(ranks, [&](Group& group) -> Status {
        auto mailbox = make_mailbox(group, shape, 24, scatter_from);
        ML_RETURN_IF_ERROR(mailbox.status());
        std::mt19937 random(3);  // the same on all ranks
        for (int repeat = 0; repeat < 60; ++repeat) {
          const auto late = static_cast<int>(random() % static_cast<unsigned>(ranks));
          const int abandoned = static_cast<int>(random() % 3);
          const int at = static_cast<int>(random() % 7);
          const auto pushing =
              static_cast<unsigned>(random());  // ranks that go half a stage further
          Chain chain{shape, policy_of(group), group.rank(), ranks};
          for (int i = 0; i < abandoned; ++i) {
            if (!mailbox->begin_step(chain.policy)) return group.status();
            chain.before_stage = [&](int layer, int site) { return layer * 2 + site < at; };
            std::vector<float> values;
            if (!chain.run(*mailbox, static_cast<std::uint32_t>(100 + i), values)) {
              return group.status();
            }
            if ((pushing >> group.rank() & 1) != 0) {  // it pushes once more, and reads nothing
              std::vector<float> junk(values.size(), std::numeric_limits<float>::quiet_NaN());
              mailbox->send(mailbox->exchange(at % 2, at / 2, shape.rows),
                            {0, shape.rows, 0, shape.columns, junk.data(), shape.columns});
            }
          }
          chain.before_stage = [&](int layer, int site) {
            if (group.rank() == late && layer + site == 0) {
              std::this_thread::sleep_for(microseconds(300));
            }
            return true;
          };
          const auto seed = static_cast<std::uint32_t>(repeat);
          std::vector<float> values;
          if (!mailbox->begin_step(chain.policy)) return group.status();
          if (!chain.run(*mailbox, seed, values)) return group.status();
          if (!same_bits(values, chain_expected(shape, seed))) return wrong("repeat", repeat);
        }
        return group.close();
      }));
    }
  }
}

// T-P5: a rank more than 100 ms late finds its peers' first pushes intact, in an ordinary step and
// in one that clears the words; the step counter grows by one per step.
TEST(Protocol, T_P5_LateRankLosesNothing) {
  const ChainShape shape{2, 64, 2};
  tp::expect_ok(on_threads(4, [&](Group& group) -> Status {
    auto mailbox = make_mailbox(group, shape, 1);  // clears in every second step
    ML_RETURN_IF_ERROR(mailbox.status());
    for (int step = 1; step <= 5; ++step) {
      if (group.rank() == step % 4) std::this_thread::sleep_for(milliseconds(110));
      Chain chain{shape, policy_of(group), group.rank(), 4};
      std::vector<float> values;
      if (!mailbox->begin_step(chain.policy)) return group.status();
      if (mailbox->step() != static_cast<std::uint64_t>(step)) return wrong("step", step);
      if (!chain.run(*mailbox, 8, values)) return group.status();
      if (!same_bits(values, chain_expected(shape, 8))) return wrong("bits in step", step);
    }
    return group.close();
  }));
}

// T-P8: with few nonce bits every tag recurs after 2, 4 or 8 steps. A step is abandoned after its
// first stages, the steps up to the one with the same tags push nothing, and in that one a rank is
// late: the words that are left are what its peers would take for its own.
TEST(Protocol, T_P8_WrapClearsWhatIsLeft) {
  const ChainShape shape{2, 32, 3};
  for (const int bits : {1, 2, 3}) {
    const int period = 1 << bits;
    tp::expect_ok(on_threads(2, [&](Group& group) -> Status {
      auto mailbox = make_mailbox(group, shape, bits);
      ML_RETURN_IF_ERROR(mailbox.status());
      int stop = 0;
      Chain chain{shape, policy_of(group), group.rank(), 2};
      const auto step = [&](std::uint32_t seed, std::vector<float>& values) -> Status {
        if (!mailbox->begin_step(chain.policy)) return group.status();
        return chain.run(*mailbox, seed, values) ? Status{} : group.status();
      };
      for (int trial = 0; trial < 60; ++trial) {
        std::vector<float> values;
        chain.before_stage = [&](int layer, int site) { return layer * 2 + site < stop; };
        stop = 1 + trial % 6;
        ML_RETURN_IF_ERROR(step(static_cast<std::uint32_t>(1000 + trial), values));
        stop = 0;
        for (int i = 1; i < period; ++i) ML_RETURN_IF_ERROR(step(0, values));
        const auto late = trial % 2;
        chain.before_stage = [&](int layer, int site) {
          if (group.rank() == late && layer + site == 0) {
            std::this_thread::sleep_for(milliseconds(2));
          }
          return true;
        };
        const auto seed = static_cast<std::uint32_t>(trial);
        ML_RETURN_IF_ERROR(step(seed, values));
        if (!same_bits(values, chain_expected(shape, seed))) return wrong("trial", trial);
      }
      return group.close();
    }));
  }
}

// The control of T-P8: without the clearing, words of the round before are taken for this round's.
TEST(Protocol, T_P8_RecurringTagsAreTheDanger) {
  TagScheme scheme;
  scheme.nonce_bits = 1;
  Word word = 0;
  put_word(&word, scheme.tag(3, 0), 5);
  EXPECT_EQ(tag_of(load_word(&word)), scheme.tag(5, 0));
  clear_words(&word, 1);
  EXPECT_NE(tag_of(load_word(&word)), scheme.tag(5, 0));
}

// T-P9: a reader never sees the tag of one store with the payload of another.
TEST(Protocol, T_P9_AtomicityLitmus) {
  constexpr int kWords = 8;
  constexpr std::uint32_t kRounds = 200000;
  alignas(64) Word words[kWords] = {};
  const auto payload = [](Tag tag) { return tag * 2654435761U ^ tag >> 3; };
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (Tag tag = 1; tag <= kRounds; ++tag) {
      for (Word& word : words) put_word(&word, tag, payload(tag));
    }
    done.store(true);
  });
  std::uint64_t looks = 0, mismatches = 0, changes = 0;
  Tag last = 0;
  while (!done.load()) {
    for (Word& word : words) {
      const Word seen = load_word(&word);
      if (seen == 0) continue;
      ++looks;
      if (tag_of(seen) != last) ++changes;
      last = tag_of(seen);
      if (payload_of(seen) != payload(tag_of(seen))) ++mismatches;
    }
  }
  writer.join();
  EXPECT_EQ(mismatches, 0U);
  RecordProperty("looks", std::to_string(looks));
  RecordProperty("changes", std::to_string(changes));
}

// T-P10: plain words written before a flag is published are all there once the flag is seen; the
// reader's own flag frees them for the next round.
TEST(Protocol, T_P10_FlagLitmus) {
  constexpr std::uint64_t kRounds = 5000;
  std::vector<std::uint64_t> plain(64);
  Flag full, empty;
  Poison poison;
  const WaitPolicy policy{milliseconds(5000), &poison};
  std::thread writer([&] {
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
      if (!empty.wait(round - 1, policy, {0, -1, -1, "empty"})) return;
      for (std::size_t i = 0; i < plain.size(); ++i) plain[i] = round * 1000 + i;
      full.publish(round);
    }
  });
  std::uint64_t errors = 0;
  for (std::uint64_t round = 1; round <= kRounds; ++round) {
    if (!full.wait(round, policy, {0, -1, -1, "full"})) break;
    for (std::size_t i = 0; i < plain.size(); ++i) errors += plain[i] != round * 1000 + i ? 1 : 0;
    empty.publish(round);
  }
  writer.join();
  EXPECT_EQ(errors, 0U);
  EXPECT_TRUE(poison.status().ok()) << poison.status().to_string();
}

// Many writers, one reader: the flag counts arrivals.
TEST(Protocol, T_P10_FlagCountsArrivals) {
  constexpr int kWriters = 4, kRounds = 2000;
  std::vector<int> plain(kWriters);
  Flag arrived, next;
  Poison poison;
  const WaitPolicy policy{milliseconds(5000), &poison};
  std::vector<std::thread> writers;
  for (std::size_t w = 0; w < kWriters; ++w) {
    writers.emplace_back([&, w] {
      for (int round = 1; round <= kRounds; ++round) {
        plain[w] = round;
        arrived.add();
        if (!next.wait(static_cast<std::uint64_t>(round), policy, {0, -1, -1, "next"})) return;
      }
    });
  }
  int errors = 0;
  for (int round = 1; round <= kRounds; ++round) {
    const auto target = static_cast<std::uint64_t>(round) * kWriters;
    if (!arrived.wait(target, policy, {0, -1, -1, "arrived"})) break;
    for (const int value : plain) errors += value != round ? 1 : 0;
    next.publish(static_cast<std::uint64_t>(round));
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(errors, 0);
  EXPECT_TRUE(poison.status().ok()) << poison.status().to_string();
}

// A rank that stops answering in the middle of a step: its peers name the word they wait for, and
// all fail alike.
TEST(Protocol, T_P7_MissingThreadIsReported) {
  const ChainShape shape{2, 64, 4};
  const auto start = Deadline::Clock::now();
  const auto results = on_threads(4, [&](Group& group) -> Status {
    auto mailbox = make_mailbox(group, shape);
    ML_RETURN_IF_ERROR(mailbox.status());
    Chain chain{shape, policy_of(group, milliseconds(200)), group.rank(), 4,
                [&](int layer, int site) { return group.rank() != 3 || layer * 2 + site < 5; }};
    std::vector<float> values;
    bool stopped = false;
    if (!mailbox->begin_step(chain.policy)) return group.status();
    if (chain.run(*mailbox, 8, values, &stopped) && stopped) {
      while (!group.poison().raised()) std::this_thread::sleep_for(milliseconds(1));
    }
    Status status = group.status();
    (void)group.close();
    return status;
  });
  EXPECT_LT(Deadline::Clock::now() - start, milliseconds(1200));
  tp::expect_same_error(results, Code::kDeadlineExceeded);
  EXPECT_NE(results[0].message().find("layer 2, stage 1, region mlp sum, index "),
            std::string::npos)
      << results[0].to_string();
  EXPECT_NE(results[0].message().find("expected 0x103, saw 0x102"), std::string::npos)
      << results[0].to_string();
}

}  // namespace
}  // namespace monolayer::mono
