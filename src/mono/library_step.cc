#include "mono/library_step.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/prefetch.h"
#include "mono/block_table.h"

namespace monolayer::mono {
namespace {

using std::to_string;

Status bad(const std::string& subject, const std::string& message) {
  return {Code::kInvalidArgument, "step: " + subject, message};
}

using Fault = StepFault;
using Finding = StepFinding;

bool usable(const void* data, std::uintptr_t unit) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  return address != 0 && address % unit == 0;
}

std::int64_t blocks_of(std::int64_t length) {
  return (length + ML_BLOCK_TOKENS - 1) / ML_BLOCK_TOKENS;
}

std::int64_t slot_of(const std::int32_t* table, std::int64_t position) {
  return std::int64_t{table[position / ML_BLOCK_TOKENS]} * ML_BLOCK_TOKENS +
         position % ML_BLOCK_TOKENS;
}

// Table and slots of one cache.
struct CacheSide {
  bool index = false;
  const std::int32_t* table = nullptr;
  std::int64_t width = 0, blocks = 0;
};

CacheSide side_of(const ml_step& step, const StepLimits& limits, bool index, std::int64_t request) {
  const std::int64_t width = index ? step.index_table_width : step.table_width;
  return {index,
          (index ? step.index_table : step.main_table) + request * std::max<std::int64_t>(width, 0),
          width, index ? limits.index_blocks : limits.blocks};
}

Fault check_table(const CacheSide& side, std::int64_t length) {
  const std::int64_t used = blocks_of(length);
  if (used > side.width) return Fault::kTableWidth;
  return blocks_within(side.table, used, side.blocks) ? Fault::kNone : Fault::kTableEntry;
}

// One table may serve both caches.
bool same_check(const CacheSide& a, const CacheSide& b) {
  return a.table == b.table && a.width == b.width && a.blocks == b.blocks;
}

Fault check_slot(const CacheSide& side, std::int64_t slot, std::int64_t position) {
  if (slot >= side.blocks * ML_BLOCK_TOKENS) return Fault::kSlotBeyond;
  return slot == slot_of(side.table, position) ? Fault::kNone : Fault::kSlotElsewhere;
}

ML_STEP_CODE Fault check_counts(const ml_step& step) {
  if (step.token_count < 1 || step.token_count > ML_MAX_ROWS) return Fault::kTokenCount;
  if (step.requests < 1 || step.requests > step.token_count) return Fault::kRequests;
  if (step.query_lens == nullptr && (step.query_len < 1 || step.query_len > ML_MAX_QUERY)) {
    return Fault::kQueryLength;
  }
  const bool arrays = reinterpret_cast<std::uintptr_t>(step.query_lens) % 4 == 0 &&
                      usable(step.main_table, 4) && usable(step.index_table, 4) &&
                      usable(step.seq_lens, 4) && usable(step.main_slots, 8) &&
                      usable(step.index_slots, 8);
  return arrays ? Fault::kNone : Fault::kArrays;
}

Finding check_writes(const ExpandedStep& step) {
  for (std::int64_t i = 1; i < step.count; ++i) {
    const StepRow& row = step.rows[static_cast<std::size_t>(i)];
    if (!row.live) continue;
    for (std::int64_t j = 0; j < i; ++j) {
      const StepRow& other = step.rows[static_cast<std::size_t>(j)];
      const bool main = row.main_slot == other.main_slot;
      if (other.live && (main || row.index_slot == other.index_slot)) {
        return {Fault::kWrittenTwice, !main, i, j};
      }
    }
  }
  return {};
}

ML_STEP_CODE void no_row(ExpandedStep& out, std::int64_t at) {
  out.rows[static_cast<std::size_t>(at)] = StepRow{};
  out.positions[static_cast<std::size_t>(at)] = -1;
}

// The tables of request `r`, and the rest of what its rows need.
Finding expand_request(const ml_step& step, const StepLimits& limits, std::int64_t r,
                       std::int64_t at, ExpandedStep& out) {
  const std::int64_t query = step.query_lens != nullptr ? step.query_lens[r] : step.query_len;
  if (query < 1 || query > ML_MAX_QUERY) return {Fault::kRequestRows, false, r, query};
  if (query > step.token_count - at) return {Fault::kRows, false, r, at + query};
  const std::int64_t length = step.seq_lens[r];
  if (length < 0 || length > limits.max_context) return {Fault::kLength, false, r, length};
  const CacheSide sides[] = {side_of(step, limits, false, r), side_of(step, limits, true, r)};
  if (length >= query) {
    for (const CacheSide& side : sides) {
      if (side.index && same_check(sides[0], side)) continue;
      const Fault fault = check_table(side, length);
      if (fault != Fault::kNone) return {fault, side.index, r, length};
    }
  }
  bool seen = false, ended = false;
  for (std::int64_t j = 0; j < query; ++j, ++at) {
    StepRow& row = out.rows[static_cast<std::size_t>(at)];
    const std::int64_t slots[] = {step.main_slots[at], step.index_slots[at]};
    if (std::min(slots[0], slots[1]) < -1) {
      return {Fault::kNegativeSlot, slots[0] >= -1, at, std::min(slots[0], slots[1])};
    }
    if (length < query || std::min(slots[0], slots[1]) < 0) {
      no_row(out, at);
      ended = seen;
      continue;
    }
    if (ended) return {Fault::kPaddingAmid, false, at, r};
    seen = true;
    row.live = true;
    row.request = static_cast<std::int32_t>(r);
    row.position = out.positions[static_cast<std::size_t>(at)] = length - query + j;
    row.main_table = sides[0].table;
    row.index_table = sides[1].table;
    row.main_slot = slots[0];
    row.index_slot = slots[1];
    for (const CacheSide& side : sides) {
      const std::int64_t slot = slots[side.index ? 1 : 0];
      const Fault fault = check_slot(side, slot, row.position);
      if (fault != Fault::kNone) return {fault, side.index, at, slot};
    }
  }
  return {};
}

// Slots of all rows, for whoever compares each with each. Slots are below 2^31; -1: no row.
struct WrittenSlots {
  std::int32_t main[kMaxRows], index[kMaxRows];
};

// Each is there once, as itself. Sixteen comparisons at a time are less than the branches they
// save.
ML_STEP_CODE bool distinct(const std::int32_t (&slots)[kMaxRows], std::int64_t count) {
  std::int32_t equal = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t mine = slots[i];
    for (std::int32_t other : slots) equal += other == mine ? 1 : 0;
  }
  return equal == count;
}

Status refused_arrays(const ml_step& step) {
  if (reinterpret_cast<std::uintptr_t>(step.query_lens) % 4 != 0) {
    return bad("query_lens", "is not aligned to 4 bytes");
  }
  const std::pair<const char*, const void*> arrays[] = {{"main_table", step.main_table},
                                                        {"index_table", step.index_table},
                                                        {"seq_lens", step.seq_lens},
                                                        {"main_slots", step.main_slots},
                                                        {"index_slots", step.index_slots}};
  for (const auto& [name, data] : arrays) {
    if (data == nullptr) return bad(name, "null pointer");
    const std::uintptr_t unit = std::strstr(name, "slots") != nullptr ? 8 : 4;
    if (!usable(data, unit)) return bad(name, "is not aligned to " + to_string(unit) + " bytes");
  }
  return {};
}

std::string between(std::int64_t value, std::int64_t low, std::int64_t high) {
  return to_string(value) + ", must be in [" + to_string(low) + ", " + to_string(high) + "]";
}

Status refused_entry(const char* name, const CacheSide& side, const Finding& found) {
  std::int64_t i = 0;
  while (side.table[i] >= 0 && side.table[i] < side.blocks) ++i;
  return bad(name, "entry " + to_string(i) + " of request " + to_string(found.at) + " is block " +
                       to_string(side.table[i]) + ", the cache has " + to_string(side.blocks));
}

}  // namespace

Status read_step(const ml_step* step, ml_step& out) {
  if (step == nullptr) return bad("step", "null pointer");
  std::uint32_t size = 0;
  std::memcpy(&size, step, sizeof size);
  if (size < sizeof size || size > sizeof(ml_step)) {
    return bad("size", "is " + to_string(size) + ", this library knows up to " +
                           to_string(sizeof(ml_step)) + " bytes");
  }
  if (size % alignof(ml_step) != 0) {  // it would end within a pointer
    return bad("size",
               "is " + to_string(size) + ", must be a multiple of " + to_string(alignof(ml_step)));
  }
  out = ml_step{};
  std::memcpy(&out, step, size);
  return {};
}

ML_STEP_CODE bool take_step(const ml_step& step, const StepLimits& limits, ExpandedStep& out) {
  if (check_counts(step) != Fault::kNone) return false;
  const bool one_table = step.main_table == step.index_table &&
                         step.table_width == step.index_table_width &&
                         limits.blocks == limits.index_blocks;
  WrittenSlots written;
  std::memset(&written, 0xff, sizeof written);
  out.count = step.token_count;
  const std::int32_t* main_table = step.main_table;
  const std::int32_t* index_table = step.index_table;
  std::int64_t at = 0, misplaced = 0;
  for (std::int64_t r = 0; r < step.requests; ++r) {
    const std::int64_t query = step.query_lens != nullptr ? step.query_lens[r] : step.query_len;
    const std::int64_t length = step.seq_lens[r], used = blocks_of(length);
    if (query < 1 || query > std::min<std::int64_t>(ML_MAX_QUERY, step.token_count - at) ||
        length < query || length > limits.max_context || used > step.table_width ||
        used > step.index_table_width || !blocks_within(main_table, used, limits.blocks) ||
        (!one_table && !blocks_within(index_table, used, limits.index_blocks))) {
      return false;
    }
    for (std::int64_t position = length - query; position < length; ++position, ++at) {
      const auto i = static_cast<std::size_t>(at);
      const std::int64_t main = slot_of(main_table, position);
      const std::int64_t index = slot_of(index_table, position);
      misplaced |= (main ^ step.main_slots[at]) | (index ^ step.index_slots[at]);
      written.main[i] = static_cast<std::int32_t>(main);
      written.index[i] = static_cast<std::int32_t>(index);
      out.positions[i] = position;
      out.rows[i] = {true, static_cast<std::int32_t>(r), position, main_table, index_table, main,
                     index};
    }
    main_table += step.table_width;
    index_table += step.index_table_width;
  }
  const std::int64_t live = at;
  for (; at < step.token_count; ++at) no_row(out, at);
  // Rows of one request are at positions of their own.
  return misplaced == 0 &&
         (step.requests == 1 || (distinct(written.main, live) && distinct(written.index, live)));
}

ML_REFUSAL_CODE StepFinding examine_step(const ml_step& step, const StepLimits& limits,
                                         ExpandedStep& out) {
  const Fault counts = check_counts(step);
  if (counts != Fault::kNone) return {counts, false, 0, 0};
  out.count = step.token_count;
  std::int64_t at = 0;  // first row of the request
  for (std::int64_t r = 0; r < step.requests; ++r) {
    const Finding found = expand_request(step, limits, r, at, out);
    if (found.fault != Fault::kNone) return found;
    at += step.query_lens != nullptr ? step.query_lens[r] : step.query_len;
  }
  for (; at < step.token_count; ++at) no_row(out, at);
  return check_writes(out);
}

ML_REFUSAL_CODE Status step_refusal(const ml_step& step, const StepLimits& limits,
                                    const ExpandedStep& rows, const StepFinding& found) {
  const char* table = found.index ? "index_table" : "main_table";
  const char* slots = found.index ? "index_slots" : "main_slots";
  const std::string request = "request " + to_string(found.at);
  const std::string row = "row " + to_string(found.at);
  const std::int64_t blocks = found.index ? limits.index_blocks : limits.blocks;
  switch (found.fault) {
    case Fault::kNone:
      return {};
    case Fault::kTokenCount:
      return bad("token_count", "is " + between(step.token_count, 1, ML_MAX_ROWS));
    case Fault::kRequests:
      return bad("requests", "is " + between(step.requests, 1, step.token_count));
    case Fault::kQueryLength:
      return bad("query_len", "is " + between(step.query_len, 1, ML_MAX_QUERY));
    case Fault::kArrays:
      return refused_arrays(step);
    case Fault::kRequestRows:
      return bad("query_lens", request + " has " + to_string(found.value) +
                                   " rows, must be in [1, " + to_string(ML_MAX_QUERY) + "]");
    case Fault::kRows:
      return bad("token_count", "is " + to_string(step.token_count) + ", requests 0 to " +
                                    to_string(found.at) + " have " + to_string(found.value) +
                                    " rows");
    case Fault::kLength:
      return bad("seq_lens", request + " has length " +
                                 between(found.value, 0, limits.max_context) + " (max_context)");
    case Fault::kTableWidth:
      return bad(std::string(table) + "_width",
                 "is " + to_string(found.index ? step.index_table_width : step.table_width) + ", " +
                     request + " of " + to_string(found.value) + " tokens needs " +
                     to_string(blocks_of(found.value)));
    case Fault::kTableEntry:
      return refused_entry(table, side_of(step, limits, found.index, found.at), found);
    case Fault::kNegativeSlot:
      return bad(slots,
                 row + " has slot " + to_string(found.value) + ", must be -1 (padding) or above");
    case Fault::kPaddingAmid:
      return bad(slots, row + " of request " + to_string(found.value) +
                            " follows a padded row of the same request");
    case Fault::kSlotBeyond:
      return bad(slots, row + " has slot " + to_string(found.value) + ", the cache has " +
                            to_string(blocks * ML_BLOCK_TOKENS));
    case Fault::kSlotElsewhere: {
      const StepRow& mine = rows.rows[static_cast<std::size_t>(found.at)];
      const std::int64_t expected =
          slot_of(found.index ? mine.index_table : mine.main_table, mine.position);
      return bad(slots, row + " has slot " + to_string(found.value) + ", the table puts position " +
                            to_string(mine.position) + " at " + to_string(expected));
    }
    case Fault::kWrittenTwice: {
      const StepRow& mine = rows.rows[static_cast<std::size_t>(found.at)];
      return bad(slots, "rows " + to_string(found.value) + " and " + to_string(found.at) +
                            " both write slot " +
                            to_string(found.index ? mine.index_slot : mine.main_slot));
    }
  }
  return {};
}

Status expand_step(const ml_step& step, const StepLimits& limits, ExpandedStep& out) {
  if (take_step(step, limits, out)) return {};
  const StepFinding found = examine_step(step, limits, out);
  return found.none() ? Status{} : step_refusal(step, limits, out, found);
}

}  // namespace monolayer::mono
