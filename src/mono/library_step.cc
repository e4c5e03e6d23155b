#include "mono/library_step.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace monolayer::mono {
namespace {

using std::to_string;

Status bad(const std::string& subject, const std::string& message) {
  return {Code::kInvalidArgument, "step: " + subject, message};
}

Status check_counts(const ml_step& step) {
  if (step.token_count < 1 || step.token_count > ML_MAX_ROWS) {
    return bad("token_count", "is " + to_string(step.token_count) + ", must be in [1, " +
                                  to_string(ML_MAX_ROWS) + "]");
  }
  if (step.requests < 1 || step.requests > step.token_count) {
    return bad("requests", "is " + to_string(step.requests) + ", must be in [1, " +
                               to_string(step.token_count) + "]");
  }
  if (step.query_lens == nullptr && (step.query_len < 1 || step.query_len > ML_MAX_QUERY)) {
    return bad("query_len", "is " + to_string(step.query_len) + ", must be in [1, " +
                                to_string(ML_MAX_QUERY) + "]");
  }
  const std::pair<const char*, const void*> arrays[] = {{"main_table", step.main_table},
                                                        {"index_table", step.index_table},
                                                        {"seq_lens", step.seq_lens},
                                                        {"main_slots", step.main_slots},
                                                        {"index_slots", step.index_slots}};
  if (reinterpret_cast<std::uintptr_t>(step.query_lens) % 4 != 0) {
    return bad("query_lens", "is not aligned to 4 bytes");
  }
  for (const auto& [name, data] : arrays) {
    if (data == nullptr) return bad(name, "null pointer");
    const std::size_t unit = std::strstr(name, "slots") != nullptr ? 8 : 4;
    if (reinterpret_cast<std::uintptr_t>(data) % unit != 0) {
      return bad(name, "is not aligned to " + to_string(unit) + " bytes");
    }
  }
  return {};
}

// One block table row against the blocks that `length` tokens use.
Status check_table(const char* name, const std::int32_t* table, std::int64_t width,
                   std::int64_t request, std::int64_t length, std::int64_t blocks) {
  const std::int64_t used = (length + ML_BLOCK_TOKENS - 1) / ML_BLOCK_TOKENS;
  if (used > width) {
    return bad(std::string(name) + "_width", "is " + to_string(width) + ", request " +
                                                 to_string(request) + " of " + to_string(length) +
                                                 " tokens needs " + to_string(used));
  }
  // The sign bit of id or of bound - 1 - id says "outside"; a plain loop of or's is vectorised, and
  // long contexts have thousands of entries.
  const auto bound = static_cast<std::uint32_t>(blocks);
  std::uint32_t outside = 0;
  for (std::int64_t i = 0; i < used; ++i) {
    const auto id = static_cast<std::uint32_t>(table[i]);
    outside |= id | (bound - 1 - id);
  }
  if (outside >> 31 == 0) return {};
  const std::int32_t* entry = std::find_if(table, table + used, [&](std::int32_t id) {
    return static_cast<std::uint32_t>(id) >= bound;
  });
  return bad(name, "entry " + to_string(entry - table) + " of request " + to_string(request) +
                       " is block " + to_string(*entry) + ", the cache has " + to_string(blocks));
}

Status check_slot(const char* name, std::int64_t row, std::int64_t slot, const std::int32_t* table,
                  std::int64_t position, std::int64_t blocks) {
  if (slot >= blocks * ML_BLOCK_TOKENS) {
    return bad(name, "row " + to_string(row) + " has slot " + to_string(slot) + ", the cache has " +
                         to_string(blocks * ML_BLOCK_TOKENS));
  }
  const std::int64_t expected = std::int64_t{table[position / ML_BLOCK_TOKENS]} * ML_BLOCK_TOKENS +
                                position % ML_BLOCK_TOKENS;
  if (slot != expected) {
    return bad(name, "row " + to_string(row) + " has slot " + to_string(slot) +
                         ", the table puts position " + to_string(position) + " at " +
                         to_string(expected));
  }
  return {};
}

Status check_writes(const ExpandedStep& step) {
  for (std::int64_t i = 1; i < step.count; ++i) {
    const StepRow& row = step.rows[static_cast<std::size_t>(i)];
    if (!row.live) continue;
    for (std::int64_t j = 0; j < i; ++j) {
      const StepRow& other = step.rows[static_cast<std::size_t>(j)];
      if (!other.live) continue;
      if (row.main_slot == other.main_slot || row.index_slot == other.index_slot) {
        const bool main = row.main_slot == other.main_slot;
        return bad(main ? "main_slots" : "index_slots",
                   "rows " + to_string(j) + " and " + to_string(i) + " both write slot " +
                       to_string(main ? row.main_slot : row.index_slot));
      }
    }
  }
  return {};
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
  out = ml_step{};
  std::memcpy(&out, step, size);
  return {};
}

Status expand_step(const ml_step& step, const StepLimits& limits, ExpandedStep& out) {
  ML_RETURN_IF_ERROR(check_counts(step));
  out.count = step.token_count;
  std::int64_t at = 0;  // first row of the request
  for (std::int64_t r = 0; r < step.requests; ++r) {
    const std::int64_t query = step.query_lens != nullptr ? step.query_lens[r] : step.query_len;
    if (query < 1 || query > ML_MAX_QUERY) {
      return bad("query_lens", "request " + to_string(r) + " has " + to_string(query) +
                                   " rows, must be in [1, " + to_string(ML_MAX_QUERY) + "]");
    }
    if (query > step.token_count - at) {
      return bad("token_count", "is " + to_string(step.token_count) + ", requests 0 to " +
                                    to_string(r) + " have " + to_string(at + query) + " rows");
    }
    const std::int64_t length = step.seq_lens[r];
    if (length < 0 || length > limits.max_context) {
      return bad("seq_lens", "request " + to_string(r) + " has length " + to_string(length) +
                                 ", must be in [0, " + to_string(limits.max_context) +
                                 "] (max_context)");
    }
    const bool live_request = length >= query;
    const std::int32_t* main = step.main_table + r * std::max(step.table_width, 0);
    const std::int32_t* index = step.index_table + r * std::max(step.index_table_width, 0);
    if (live_request) {
      ML_RETURN_IF_ERROR(
          check_table("main_table", main, step.table_width, r, length, limits.blocks));
      ML_RETURN_IF_ERROR(check_table("index_table", index, step.index_table_width, r, length,
                                     limits.index_blocks));
    }
    bool seen = false, ended = false;
    for (std::int64_t j = 0; j < query; ++j, ++at) {
      StepRow& row = out.rows[static_cast<std::size_t>(at)];
      row = StepRow{};
      const std::int64_t main_slot = step.main_slots[at], index_slot = step.index_slots[at];
      if (main_slot < -1 || index_slot < -1) {
        return bad(main_slot < -1 ? "main_slots" : "index_slots",
                   "row " + to_string(at) + " has slot " +
                       to_string(std::min(main_slot, index_slot)) +
                       ", must be -1 (padding) or above");
      }
      if (!live_request || main_slot < 0 || index_slot < 0) {
        ended = seen;
        continue;
      }
      if (ended) {
        return bad("main_slots", "row " + to_string(at) + " of request " + to_string(r) +
                                     " follows a padded row of the same request");
      }
      seen = true;
      row.live = true;
      row.request = static_cast<std::int32_t>(r);
      row.position = length - query + j;
      row.main_table = main;
      row.index_table = index;
      row.main_slot = main_slot;
      row.index_slot = index_slot;
      ML_RETURN_IF_ERROR(
          check_slot("main_slots", at, main_slot, main, row.position, limits.blocks));
      ML_RETURN_IF_ERROR(
          check_slot("index_slots", at, index_slot, index, row.position, limits.index_blocks));
    }
  }
  for (; at < step.token_count; ++at) out.rows[static_cast<std::size_t>(at)] = StepRow{};
  return check_writes(out);
}

}  // namespace monolayer::mono
