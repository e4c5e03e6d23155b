#include "backend/cpu/step_rows.h"

#include <algorithm>
#include <limits>
#include <string>

#include "core/prefetch.h"
#include "mono/block_table.h"

namespace monolayer::cpu {
namespace {

using mono::StepRow;
using std::to_string;

// What is wrong with a row, in numbers; refusal() has the words.
enum class Fault : std::uint8_t {
  kNone,
  kRowCount,
  kPosition,
  kGap,
  kTooMany,
  kNoTable,
  kTableEntry,
  kSlot,
  kApart,
  kWrittenTwice,
};

struct Finding {
  Fault fault = Fault::kNone;
  bool index = false;   // the index cache's table or slot
  std::size_t row = 0;  // of the caller
  std::int64_t before = 0;
};

// The slot must be where the table puts the row's own position: the row reads its own entry there.
std::int64_t slot_of(const std::int32_t* table, std::int64_t position) {
  return table[position / m3::kPageTokens] * m3::kPageTokens + position % m3::kPageTokens;
}

CacheSlot cache_slot(std::int64_t slot) {
  return {static_cast<std::int32_t>(slot / m3::kPageTokens), slot % m3::kPageTokens};
}

Fault check_entries(const std::int32_t* table, std::int64_t slot, std::int64_t position,
                    std::int64_t blocks) {
  if (table == nullptr) return Fault::kNoTable;
  if (!mono::blocks_within(table, position / m3::kPageTokens + 1, blocks)) {
    return Fault::kTableEntry;
  }
  return slot == slot_of(table, position) ? Fault::kNone : Fault::kSlot;
}

// Row `i` against those before it; `joins`: it continues the request of the last one.
Fault check_among(std::span<const StepRow> rows, std::size_t i, bool joins) {
  for (std::size_t j = 0; j < i; ++j) {
    if (!rows[j].live) continue;
    if (!joins && rows[j].request == rows[i].request) return Fault::kApart;
    if (rows[j].main_slot == rows[i].main_slot) return Fault::kWrittenTwice;
  }
  return Fault::kNone;
}

Finding check(std::span<const StepRow> rows, const RowBounds& bounds) {
  if (rows.empty() || rows.size() > static_cast<std::size_t>(mono::kMaxRows)) {
    return {Fault::kRowCount, false, 0, 0};
  }
  const StepRow* last = nullptr;
  std::int64_t together = 0;  // rows of the last request
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const StepRow& row = rows[i];
    if (!row.live) continue;
    if (row.position < 0 || row.position >= bounds.positions) {
      return {Fault::kPosition, false, i, 0};
    }
    const bool joins = last != nullptr && row.request == last->request;
    if (joins && row.position != last->position + 1) return {Fault::kGap, false, i, last->position};
    if (joins && together == mono::kMaxQueryLength) return {Fault::kTooMany, false, i, 0};
    Fault fault = check_entries(row.main_table, row.main_slot, row.position, bounds.blocks);
    if (fault != Fault::kNone) return {fault, false, i, 0};
    if (bounds.sparse) {
      fault = check_entries(row.index_table, row.index_slot, row.position, bounds.index_blocks);
      if (fault != Fault::kNone) return {fault, true, i, 0};
    }
    fault = check_among(rows, i, joins);
    if (fault != Fault::kNone) return {fault, false, i, 0};
    together = joins ? together + 1 : 1;
    last = &row;
  }
  return {};
}

std::string entry_text(const std::int32_t* table, std::int64_t blocks) {
  std::int64_t i = 0;
  while (table[i] >= 0 && table[i] < blocks) ++i;
  return " table entry " + to_string(i) + " is block " + to_string(table[i]) + ", the cache has " +
         to_string(blocks);
}

std::string words(std::span<const StepRow> rows, const RowBounds& bounds, const Finding& found) {
  const StepRow& row = rows[found.row];
  const std::string request = "request " + to_string(row.request);
  const std::string side = found.index ? "index" : "main";
  const std::int32_t* table = found.index ? row.index_table : row.main_table;
  switch (found.fault) {
    case Fault::kPosition:
      return "position " + to_string(row.position) + ", from 0 to " +
             to_string(bounds.positions - 1);
    case Fault::kGap:
      return "position " + to_string(row.position) + " of " + request + " does not follow " +
             to_string(found.before);
    case Fault::kTooMany:
      return request + " has more than " + to_string(mono::kMaxQueryLength) + " rows";
    case Fault::kNoTable:
      return "no " + side + " table";
    case Fault::kTableEntry:
      return side + entry_text(table, found.index ? bounds.index_blocks : bounds.blocks);
    case Fault::kSlot:
      return side + " slot " + to_string(found.index ? row.index_slot : row.main_slot) +
             ", its table puts position " + to_string(row.position) + " into slot " +
             to_string(slot_of(table, row.position));
    case Fault::kApart:
      return request + " has rows apart from each other";
    default:
      return "main slot " + to_string(row.main_slot) + " is another row's too";
  }
}

Status refusal(std::span<const StepRow> rows, const RowBounds& bounds, const Finding& found) {
  if (found.fault == Fault::kRowCount) {
    return {Code::kInvalidArgument, "step",
            to_string(rows.size()) + " rows, from 1 to " + to_string(mono::kMaxRows)};
  }
  return {Code::kInvalidArgument, "row " + to_string(found.row), words(rows, bounds, found)};
}

}  // namespace

RowBounds row_bounds(const m3::ModelConfig& config, const Caches& caches,
                     std::int64_t max_context) {
  RowBounds out;
  out.blocks = out.index_blocks = std::numeric_limits<std::int32_t>::max();
  out.positions = std::min(max_context, config.max_positions);
  for (const LayerCache& layer : caches.layers) {
    out.blocks = std::min(out.blocks, layer.pages);
    if (layer.index == nullptr) continue;
    out.sparse = true;
    out.index_blocks = std::min(out.index_blocks, layer.index_pages);
  }
  return out;
}

Status plan_rows(std::span<const StepRow> rows, const RowBounds& bounds, StepPlan& plan,
                 LiveRows& live) {
  const Finding found = check(rows, bounds);
  if (found.fault != Fault::kNone) return refusal(rows, bounds, found);
  take_rows(rows, bounds.sparse, plan, live);
  return {};
}

ML_STEP_CODE void take_rows(std::span<const StepRow> rows, bool sparse, StepPlan& plan,
                            LiveRows& live) {
  std::int64_t live_rows = 0, requests = 0;
  std::int32_t last = 0;
  for (const StepRow& row : rows) {
    if (!row.live) continue;
    if (live_rows++ == 0 || row.request != last) ++requests;
    last = row.request;
  }
  plan.take(requests, live_rows);
  PlannedSequence* const sequences = plan.taken_sequences().data();
  PlannedRow* const planned = plan.taken_rows().data();
  std::int32_t at = 0, number = -1;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const StepRow& row = rows[i];
    if (!row.live) continue;
    if (at == 0 || row.request != planned[at - 1].token) {
      PlannedSequence& begun = sequences[++number];
      begun = {};
      begun.first_row = at;
      begun.start = row.position;
    }
    PlannedSequence& sequence = sequences[number];
    ++sequence.rows;
    const auto entries = static_cast<std::size_t>(row.position / m3::kPageTokens + 1);
    sequence.pages = {row.main_table, entries};
    if (sparse) sequence.index_pages = {row.index_table, entries};
    // No stage after the embedding reads the token; here it holds the request's number.
    planned[at] = {row.request, number, row.position, cache_slot(row.main_slot),
                   cache_slot(row.index_slot)};
    live[static_cast<std::size_t>(at++)] = static_cast<std::int64_t>(i);
  }
}

}  // namespace monolayer::cpu
