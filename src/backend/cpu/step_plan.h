// A step's rows, checked and numbered: what every stage needs to know about "which row".
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/cpu/cache.h"
#include "backend/cpu/native.h"
#include "core/status.h"
#include "m3/config.h"

namespace monolayer::cpu {

// A page of a cache and a token in it.
struct CacheSlot {
  std::int32_t page = 0;
  std::int64_t token = 0;
};

struct PlannedRow {
  std::int32_t token = 0;
  std::int32_t sequence = 0;
  std::int64_t position = 0;
  CacheSlot main, index;  // where its entries go
};

struct PlannedSequence {
  std::int64_t first_row = 0, rows = 0, start = 0;
  std::span<const std::int32_t> pages;        // only those up to the last position
  std::span<const std::int32_t> index_pages;  // of index keys; the same if one table serves both
  std::int64_t first_logit_row = 0, logit_rows = 0;
};

// Rows of one sequence that a stage handles together.
struct RowTile {
  std::int64_t first_row = 0, rows = 0;
};

class StepPlan {
 public:
  // Checks everything that could make a stage read or write outside its memory, or make the result
  // depend on timing, and changes nothing on failure:
  //   - at least one sequence, each with a token; logit_rows within [0, tokens];
  //   - token ids within the vocabulary, positions below max_positions;
  //   - a table entry for every position, page ids within the pool;
  //   - a page that is written appears once among all used table entries of the step.
  Status build(std::span<const StepSequence> sequences, const m3::ModelConfig& config,
               const CachePool& cache);

  std::int64_t rows() const { return static_cast<std::int64_t>(rows_.size()); }
  const PlannedRow& row(std::int64_t i) const { return rows_[static_cast<std::size_t>(i)]; }
  std::span<const PlannedSequence> sequences() const { return sequences_; }
  std::int32_t page(std::int64_t row_index, std::int64_t page_index) const {
    const auto& sequence = sequences_[static_cast<std::size_t>(row(row_index).sequence)];
    return sequence.pages[static_cast<std::size_t>(page_index)];
  }
  std::int32_t index_page(std::int64_t row_index, std::int64_t page_index) const {
    const auto& sequence = sequences_[static_cast<std::size_t>(row(row_index).sequence)];
    return sequence.index_pages[static_cast<std::size_t>(page_index)];
  }
  const CacheSlot& main_slot(std::int64_t row_index) const { return row(row_index).main; }
  const CacheSlot& index_slot(std::int64_t row_index) const { return row(row_index).index; }
  // Rows with a result: their logits or, of greedy sequences, their likeliest tokens.
  std::int64_t logit_rows() const { return static_cast<std::int64_t>(logit_rows_.size()); }
  std::int64_t greedy_rows() const { return greedy_rows_; }
  std::int64_t full_rows() const { return logit_rows() - greedy_rows_; }  // with logits
  // Row of the step behind result i.
  std::int64_t logit_row(std::int64_t i) const { return result(i).row; }
  bool is_greedy(std::int64_t i) const { return result(i).greedy; }
  // Of result i among those of its kind.
  std::int64_t result_place(std::int64_t i) const { return result(i).place; }
  // The row of the step behind row `place` of the logits, or of the likeliest tokens.
  const PlannedRow& row_of_result(std::int64_t place, bool greedy) const;

  // Room for so many that were checked elsewhere, to be filled in; no logits.
  void take(std::int64_t sequences, std::int64_t rows) {
    sequences_.resize(static_cast<std::size_t>(sequences));
    rows_.resize(static_cast<std::size_t>(rows));
    logit_rows_.clear();
    greedy_rows_ = 0;
  }
  std::span<PlannedSequence> taken_sequences() { return sequences_; }
  std::span<PlannedRow> taken_rows() { return rows_; }

  // Cuts rows [begin, end) into tiles of at most `largest` rows of one sequence each.
  std::vector<RowTile> tiles(std::int64_t begin, std::int64_t end, std::int64_t largest) const;

 private:
  Status check_sequence(const StepSequence& sequence, std::size_t index,
                        const m3::ModelConfig& config) const;
  Status check_pages(std::span<const StepSequence> sequences, std::int64_t pool_pages);

  std::vector<PlannedRow> rows_;
  std::vector<PlannedSequence> sequences_;
  struct Result {
    std::int64_t row = 0, place = 0;
    bool greedy = false;
  };
  const Result& result(std::int64_t i) const { return logit_rows_[static_cast<std::size_t>(i)]; }
  std::vector<Result> logit_rows_;
  std::int64_t greedy_rows_ = 0;
  // Per page of the pool: the step in which it was last written, and by which table entry.
  struct Writer {
    std::uint64_t step = 0;
    std::int32_t sequence = 0;
    std::int64_t entry = 0;
  };
  std::vector<Writer> writers_;
  std::uint64_t step_ = 0;
};

}  // namespace monolayer::cpu
