// Row expansion and the refusals of a step.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <random>
#include <tuple>

#include "mono/library_fixture.h"
#include "mono/library_step.h"

namespace monolayer::mono {
namespace {

using test::kBlocks;
using test::Step;

constexpr StepLimits kLimits{kBlocks, kBlocks, kBlocks * 128};

// T-C4: 3 requests of q = 3 and lengths 300, 129, 0.
TEST(LibraryStep, TC4ExpandsRequestsToRows) {
  Step step({300, 129, 0}, 3);
  ExpandedStep rows;
  ASSERT_TRUE(expand_step(step.md, kLimits, rows).ok());
  ASSERT_EQ(rows.count, 9);
  const std::int64_t lengths[] = {298, 299, 300, 127, 128, 129};
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_TRUE(rows.rows[i].live) << i;
    EXPECT_EQ(rows.rows[i].position + 1, lengths[i]) << i;
    EXPECT_EQ(rows.rows[i].request, static_cast<int>(i / 3));
    EXPECT_EQ(rows.rows[i].main_table, step.main_table.data() + i / 3 * kBlocks);
    EXPECT_EQ(rows.rows[i].index_slot, step.index_slots[i]);
  }
  for (std::size_t i = 6; i < 9; ++i) {
    EXPECT_FALSE(rows.rows[i].live) << i;
    EXPECT_EQ(rows.rows[i].main_slot, -1);
    EXPECT_EQ(rows.rows[i].main_table, nullptr);
  }
}

TEST(LibraryStep, TC4SingleRowsPassTablesThrough) {
  Step step({1, 128, 129}, 1, 2);
  ExpandedStep rows;
  ASSERT_TRUE(expand_step(step.md, kLimits, rows).ok());
  ASSERT_EQ(rows.count, 5);
  EXPECT_EQ(rows.rows[1].position, 127);
  EXPECT_EQ(rows.rows[2].main_table, step.main_table.data() + 2 * kBlocks);
  EXPECT_FALSE(rows.rows[3].live);
  EXPECT_FALSE(rows.rows[4].live);
}

TEST(LibraryStep, RequestsMayHaveTheirOwnQueryLengths) {
  Step step({300, 129}, 2);
  // The first request gets 3 rows of the 4, the second 1.
  const std::int32_t queries[] = {3, 1};
  step.md.query_lens = queries;
  step.main_slots = {2 * 128 + 41, 2 * 128 + 42, 2 * 128 + 43, 4 * 128};
  step.index_slots = {5 * 128 + 41, 5 * 128 + 42, 5 * 128 + 43, 3 * 128};
  step.refresh();
  ExpandedStep rows;
  const Status status = expand_step(step.md, kLimits, rows);
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(rows.rows[0].position, 297);
  EXPECT_EQ(rows.rows[2].position, 299);
  EXPECT_EQ(rows.rows[3].position, 128);
}

// A request whose row has either slot at -1, or fewer tokens than rows, is padding, and its table
// is not looked at.
TEST(LibraryStep, PaddedRowsReadNothing) {
  Step step({300, 2}, 3);
  step.main_table[kBlocks] = 1 << 30;
  step.index_slots[2] = -1;
  ExpandedStep rows;
  const Status status = expand_step(step.md, kLimits, rows);
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_TRUE(rows.rows[1].live);
  for (std::size_t i = 2; i < 6; ++i) EXPECT_FALSE(rows.rows[i].live);
}

struct BadStep {
  const char* name;
  std::function<void(Step&)> change;
  const char* said;  // part of the line
};

class LibraryStepRefusals : public testing::TestWithParam<BadStep> {};

TEST_P(LibraryStepRefusals, NameValueAndBound) {
  Step step({300, 129}, 3);
  GetParam().change(step);
  ExpandedStep rows;
  const Status status = expand_step(step.md, kLimits, rows);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.to_string().find(GetParam().said), std::string::npos) << status.to_string();
}

const BadStep kBad[] = {
    {"no_rows", [](Step& s) { s.md.token_count = 0; }, "token_count: is 0, must be in [1, 16]"},
    {"17_rows", [](Step& s) { s.md.token_count = 17; }, "token_count: is 17, must be in [1, 16]"},
    {"no_requests", [](Step& s) { s.md.requests = 0; }, "requests: is 0"},
    {"query_9", [](Step& s) { s.md.query_len = 9; }, "query_len: is 9, must be in [1, 8]"},
    {"rows_short", [](Step& s) { s.md.token_count = 5; }, "requests 0 to 1 have 6 rows"},
    {"table_null", [](Step& s) { s.md.main_table = nullptr; }, "main_table: null pointer"},
    {"slots_null", [](Step& s) { s.md.index_slots = nullptr; }, "index_slots: null pointer"},
    {"misaligned",
     [](Step& s) {
       s.md.main_slots = reinterpret_cast<const std::int64_t*>(
           reinterpret_cast<const char*>(s.md.main_slots) + 4);
     },
     "main_slots: is not aligned to 8"},
    {"query_lens_misaligned",
     [](Step& s) {
       s.md.query_lens =
           reinterpret_cast<const std::int32_t*>(reinterpret_cast<const char*>(&s.md) + 2);
     },
     "query_lens: is not aligned to 4"},
    {"too_long", [](Step& s) { s.seq_lens[1] = 1025; },
     "request 1 has length 1025, must be in [0, 1024]"},
    {"negative_length", [](Step& s) { s.seq_lens[0] = -1; }, "request 0 has length -1"},
    {"narrow_table", [](Step& s) { s.md.table_width = 1; },
     "main_table_width: is 1, request 0 of 300 tokens needs 3"},
    {"negative_width", [](Step& s) { s.md.index_table_width = -4; }, "index_table_width: is -4"},
    {"block_beyond", [](Step& s) { s.main_table[1] = 8; },
     "entry 1 of request 0 is block 8, the cache has 8"},
    {"block_negative", [](Step& s) { s.index_table[0] = -1; },
     "index_table: entry 0 of request 0 is block -1"},
    {"slot_beyond", [](Step& s) { s.main_slots[0] = 1024; },
     "row 0 has slot 1024, the cache has 1024"},
    {"slot_past_2_31", [](Step& s) { s.main_slots[0] = std::int64_t{1} << 32; }, "slot 4294967296"},
    {"slot_minus_2", [](Step& s) { s.index_slots[4] = -2; }, "row 4 has slot -2"},
    {"slot_elsewhere", [](Step& s) { s.main_slots[0] += 1; }, "the table puts position 297 at 297"},
    {"gap", [](Step& s) { s.main_slots[1] = -1; }, "row 2 of request 0 follows a padded row"},
};

INSTANTIATE_TEST_SUITE_P(All, LibraryStepRefusals, testing::ValuesIn(kBad),
                         [](const auto& c) { return std::string(c.param.name); });

TEST(LibraryStep, TwoRowsOneSlot) {
  Step step({130, 130}, 1);
  step.main_table[kBlocks] = step.main_table[0];
  step.main_table[kBlocks + 1] = step.main_table[1];
  step.main_slots[1] = step.main_slots[0];
  ExpandedStep rows;
  const Status status = expand_step(step.md, kLimits, rows);
  EXPECT_NE(status.to_string().find("rows 0 and 1 both write slot 129"), std::string::npos)
      << status.to_string();
}

// Random steps, good and bad, against the rules written down once more and read row by row.
bool accepted_by_the_rules(const ml_step& s) {
  if (s.token_count < 1 || s.token_count > 16 || s.requests < 1 || s.requests > s.token_count) {
    return false;
  }
  std::vector<std::int64_t> main_written, index_written;
  std::int64_t row = 0;
  for (std::int64_t r = 0; r < s.requests; ++r) {
    const std::int64_t q = s.query_lens[r], length = s.seq_lens[r];
    if (q < 1 || q > 8 || row + q > s.token_count || length < 0 || length > kLimits.max_context) {
      return false;
    }
    std::vector<bool> live;
    for (std::int64_t i = row; i < row + q; ++i) {
      if (s.main_slots[i] < -1 || s.index_slots[i] < -1) return false;
      live.push_back(length >= q && s.main_slots[i] >= 0 && s.index_slots[i] >= 0);
    }
    for (std::int64_t p = 0; length >= q && p < length; ++p) {
      if (p / 128 >= s.table_width || p / 128 >= s.index_table_width) return false;
      const std::int32_t a = s.main_table[r * s.table_width + p / 128];
      const std::int32_t b = s.index_table[r * s.index_table_width + p / 128];
      if (a < 0 || b < 0 || a >= kBlocks || b >= kBlocks) return false;
    }
    for (std::int64_t j = 0; j < q; ++j) {
      if (!live[static_cast<std::size_t>(j)]) continue;
      for (std::int64_t k = 0; k + 1 < j; ++k) {  // live, padded, live
        for (std::int64_t m = k + 1; m < j; ++m) {
          if (live[static_cast<std::size_t>(k)] && !live[static_cast<std::size_t>(m)]) return false;
        }
      }
      const std::int64_t p = length - q + j;
      const std::int64_t a = s.main_table[r * s.table_width + p / 128] * 128 + p % 128;
      const std::int64_t b = s.index_table[r * s.index_table_width + p / 128] * 128 + p % 128;
      if (s.main_slots[row + j] != a || s.index_slots[row + j] != b) return false;
      if (std::count(main_written.begin(), main_written.end(), a) != 0 ||
          std::count(index_written.begin(), index_written.end(), b) != 0) {
        return false;
      }
      main_written.push_back(a);
      index_written.push_back(b);
    }
    row += q;
  }
  return true;
}

bool same_rows(const ExpandedStep& a, const ExpandedStep& b) {
  return a.count == b.count &&
         std::equal(a.rows.begin(), a.rows.begin() + a.count, b.rows.begin(),
                    [](const StepRow& x, const StepRow& y) {
                      const auto tied = [](const StepRow& r) {
                        return std::tie(r.live, r.request, r.position, r.main_table, r.index_table,
                                        r.main_slot, r.index_slot);
                      };
                      return tied(x) == tied(y);
                    }) &&
         std::equal(a.positions.begin(), a.positions.begin() + a.count, b.positions.begin());
}

TEST(LibraryStep, RandomStepsAreTakenExactlyByTheRules) {
  std::mt19937_64 random(3);
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  int taken = 0, refused = 0, shortly = 0;
  for (int i = 0; i < 100000; ++i) {
    const std::int64_t requests = 1 + below(4);
    std::vector<std::int32_t> lengths;
    for (std::int64_t r = 0; r < requests; ++r) {
      lengths.push_back(static_cast<std::int32_t>(below(8) == 0 ? below(4) : 1 + below(256)));
    }
    Step step(lengths, static_cast<std::int32_t>(1 + below(4)),
              static_cast<std::int32_t>(below(3)));
    std::vector<std::int32_t> queries(static_cast<std::size_t>(requests), step.md.query_len);
    step.md.query_lens = queries.data();
    // At most three values become something else.
    for (std::int64_t n = below(4); n > 0; --n) {
      const auto pick = [&](auto& values) -> auto& {
        return values[static_cast<std::size_t>(below(static_cast<std::int64_t>(values.size())))];
      };
      switch (below(8)) {
        case 0:
          pick(step.main_table) = static_cast<std::int32_t>(below(12) - 2);
          break;
        case 1:
          pick(step.index_table) = static_cast<std::int32_t>(below(12) - 2);
          break;
        case 2:
          pick(step.main_slots) = below(1030) - 3;
          break;
        case 3:
          pick(step.index_slots) = -1;
          break;
        case 4:
          pick(step.seq_lens) = static_cast<std::int32_t>(below(1100) - 20);
          break;
        case 5:
          pick(queries) = static_cast<std::int32_t>(below(10));
          break;
        case 6:
          pick(step.main_slots) = -1;
          break;
        default:
          step.md.token_count -= static_cast<std::int32_t>(below(2));
          break;
      }
    }
    ExpandedStep rows;
    const Status status = expand_step(step.md, kLimits, rows);
    ASSERT_EQ(status.ok(), accepted_by_the_rules(step.md)) << i << ": " << status.to_string();
    (status.ok() ? taken : refused) += 1;
    // The short way takes nothing that the long one refuses, and leaves the same rows.
    ExpandedStep examined;
    const bool found_nothing = examine_step(step.md, kLimits, examined).none();
    ASSERT_EQ(found_nothing, status.ok()) << i;
    if (!take_step(step.md, kLimits, rows)) continue;
    ASSERT_TRUE(found_nothing && same_rows(rows, examined)) << i;
    ++shortly;
  }
  EXPECT_GT(taken, 20000);
  EXPECT_GT(refused, 20000);
  EXPECT_GT(shortly, 20000);
}

TEST(LibraryStep, StructSizesAreChecked) {
  Step step({5}, 1);
  ml_step full;
  EXPECT_TRUE(read_step(&step.md, full).ok());
  step.md.size = sizeof(ml_step) + 8;
  EXPECT_EQ(read_step(&step.md, full).code(), Code::kInvalidArgument);
  EXPECT_EQ(read_step(nullptr, full).code(), Code::kInvalidArgument);
  // An older struct ends before a field, never within one.
  step.md.size = offsetof(ml_step, stream);
  EXPECT_TRUE(read_step(&step.md, full).ok());
  step.md.size = offsetof(ml_step, index_slots) + 3;
  const Status cut = read_step(&step.md, full);
  EXPECT_EQ(cut.code(), Code::kInvalidArgument);
  EXPECT_NE(cut.message().find("must be a multiple of 8"), std::string::npos) << cut.to_string();
}

}  // namespace
}  // namespace monolayer::mono
