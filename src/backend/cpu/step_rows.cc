#include "backend/cpu/step_rows.h"

#include <algorithm>
#include <limits>
#include <string>

namespace monolayer::cpu {
namespace {

using std::to_string;

Status bad(std::size_t row, const std::string& message) {
  return {Code::kInvalidArgument, "row " + to_string(row), message};
}

struct Bounds {
  std::int64_t blocks = std::numeric_limits<std::int64_t>::max();
  std::int64_t index_blocks = std::numeric_limits<std::int64_t>::max();
  bool sparse = false;
};

Bounds bounds(const Caches& caches) {
  Bounds out;
  for (const LayerCache& layer : caches.layers) {
    out.blocks = std::min(out.blocks, layer.pages);
    if (layer.index == nullptr) continue;
    out.sparse = true;
    out.index_blocks = std::min(out.index_blocks, layer.index_pages);
  }
  return out;
}

// The first entry outside [0, blocks), or -1.
std::int64_t first_outside(const std::int32_t* table, std::int64_t entries, std::int64_t blocks) {
  std::int32_t low = 0, high = 0;
  for (std::int64_t i = 0; i < entries; ++i) {
    low = std::min(low, table[i]);
    high = std::max(high, table[i]);
  }
  if (low >= 0 && high < blocks) return -1;
  for (std::int64_t i = 0; i < entries; ++i) {
    if (table[i] < 0 || table[i] >= blocks) return i;
  }
  return -1;
}

Status check_table(std::size_t row, const char* name, const std::int32_t* table,
                   std::int64_t entries, std::int64_t blocks) {
  if (table == nullptr) return bad(row, std::string("no ") + name + " table");
  const std::int64_t entry = first_outside(table, entries, blocks);
  if (entry < 0) return {};
  return bad(row, std::string(name) + " table entry " + to_string(entry) + " is block " +
                      to_string(table[entry]) + ", the cache has " + to_string(blocks));
}

// The slot must be where the table puts the row's own position: the row reads its own entry there.
Status check_slot(std::size_t row, const char* name, std::int64_t slot, const std::int32_t* table,
                  std::int64_t position) {
  const std::int64_t expected =
      table[position / m3::kPageTokens] * m3::kPageTokens + position % m3::kPageTokens;
  if (slot == expected) return {};
  return bad(row, std::string(name) + " slot " + to_string(slot) + ", its table puts position " +
                      to_string(position) + " into slot " + to_string(expected));
}

}  // namespace

Status plan_rows(std::span<const mono::StepRow> rows, const m3::ModelConfig& config,
                 const Caches& caches, std::int64_t max_context, StepPlan& plan,
                 std::vector<std::int64_t>& live) {
  if (rows.empty() || static_cast<std::int64_t>(rows.size()) > mono::kMaxRows) {
    return {Code::kInvalidArgument, "step",
            to_string(rows.size()) + " rows, from 1 to " + to_string(mono::kMaxRows)};
  }
  const Bounds bound = bounds(caches);
  const std::int64_t longest = std::min(max_context, config.max_positions);
  std::vector<PlannedSequence> sequences;
  std::vector<PlannedRow> planned;
  std::vector<std::int64_t> kept;
  std::int32_t last_request = -1;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const mono::StepRow& row = rows[i];
    if (!row.live) continue;
    if (row.position < 0 || row.position >= longest) {
      return bad(i,
                 "position " + to_string(row.position) + ", from 0 to " + to_string(longest - 1));
    }
    const bool joins = !planned.empty() && row.request == last_request;
    if (joins && row.position != planned.back().position + 1) {
      return bad(i, "position " + to_string(row.position) + " of request " +
                        to_string(row.request) + " does not follow " +
                        to_string(planned.back().position));
    }
    if (joins && sequences.back().rows == mono::kMaxQueryLength) {
      return bad(i, "request " + to_string(row.request) + " has more than " +
                        to_string(mono::kMaxQueryLength) + " rows");
    }
    const std::int64_t entries = row.position / m3::kPageTokens + 1;
    ML_RETURN_IF_ERROR(check_table(i, "main", row.main_table, entries, bound.blocks));
    ML_RETURN_IF_ERROR(check_slot(i, "main", row.main_slot, row.main_table, row.position));
    if (bound.sparse) {
      ML_RETURN_IF_ERROR(check_table(i, "index", row.index_table, entries, bound.index_blocks));
      ML_RETURN_IF_ERROR(check_slot(i, "index", row.index_slot, row.index_table, row.position));
    }
    if (!joins) {
      for (const PlannedSequence& other : sequences) {
        if (planned[static_cast<std::size_t>(other.first_row)].token == row.request) {
          return bad(i, "request " + to_string(row.request) + " has rows apart from each other");
        }
      }
      PlannedSequence& sequence = sequences.emplace_back();
      sequence.first_row = static_cast<std::int64_t>(planned.size());
      sequence.start = row.position;
      last_request = row.request;
    }
    PlannedSequence& sequence = sequences.back();
    ++sequence.rows;
    sequence.pages = {row.main_table, static_cast<std::size_t>(entries)};
    if (bound.sparse) sequence.index_pages = {row.index_table, static_cast<std::size_t>(entries)};
    const auto slot = [](std::int64_t s) {
      return CacheSlot{static_cast<std::int32_t>(s / m3::kPageTokens), s % m3::kPageTokens};
    };
    for (const PlannedRow& other : planned) {
      const CacheSlot mine = slot(row.main_slot);
      if (other.main.page == mine.page && other.main.token == mine.token) {
        return bad(i, "main slot " + to_string(row.main_slot) + " is another row's too");
      }
    }
    // No stage after the embedding reads the token; here it holds the request's number.
    planned.push_back({row.request, static_cast<std::int32_t>(sequences.size() - 1), row.position,
                       slot(row.main_slot), slot(row.index_slot)});
    kept.push_back(static_cast<std::int64_t>(i));
  }
  plan.assign(std::move(sequences), std::move(planned));
  live = std::move(kept);
  return {};
}

}  // namespace monolayer::cpu
