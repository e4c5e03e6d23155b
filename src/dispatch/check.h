// Check mode: every layer of every step on two executors, compared bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/status.h"
#include "mono/executor.h"

namespace monolayer::dispatch {

// Where two executors first differ, in the order in which a layer produces things.
struct Difference {
  std::int64_t layer = -1;  // its id
  std::string stage;      // "k cache", "v cache", "index cache", "selection", "residual", "hidden"
  std::int64_t row = -1;  // of the step
  std::int64_t column = -1;  // element of the row (cache: of the row's entry, heads in order)
  std::uint32_t control = 0, fused = 0;  // the bits found
  bool found() const { return layer >= 0; }
  std::string to_string() const;
};

// Runs `control` and then `fused` on the same inputs, one layer at a time. The control's cache
// entries of the step are set aside and the slots restored before the other runs, so that each
// reads only what it wrote. The step goes on from the fused results. Both borrow the same caches
// and, in a group, make the same collective calls on every rank.
class CheckedExecutor : public mono::Executor {
 public:
  // `config` as both were built with; `layer_ids` of its layers for messages (empty: 0, 1, ...).
  CheckedExecutor(std::unique_ptr<mono::Executor> control, std::unique_ptr<mono::Executor> fused,
                  const mono::ExecutorConfig& config, std::vector<std::int64_t> layer_ids = {});

  Status prepare(std::span<const mono::StepRow> rows) override;
  Status prepare_checked(std::span<const mono::StepRow> rows) override { return prepare(rows); }
  // kInternal with the difference in words if there is one; the caches and outputs are then those
  // of the fused executor.
  Status run_layers(std::int64_t first, std::int64_t count, const bf16_t* hidden,
                    const bf16_t* residual, bf16_t* hidden_out, bf16_t* residual_out) override;
  std::span<const std::int32_t> selections() const override { return fused_->selections(); }
  const mono::ExecutorStatistics& statistics() const override { return fused_->statistics(); }
  Status close() override;

  const Difference& first_difference() const { return first_; }
  std::int64_t layers_compared() const { return layers_; }

 private:
  struct Entry {  // a row's bytes in one cache
    std::byte* at;
    std::size_t bytes, offset;  // into the snapshots
    std::int64_t row, column;   // of its first element
    int cache;                  // 0 k, 1 v, 2 index
    std::size_t unit;           // bytes of an element
  };

  void list_entries(std::int64_t layer);
  void save(std::vector<std::byte>& to) const;
  void restore(const std::vector<std::byte>& from) const;
  void compare(std::int64_t layer, std::span<const std::int32_t> control_selection,
               const bf16_t* hidden, const bf16_t* residual);

  std::unique_ptr<mono::Executor> control_, fused_;
  const m3::ModelConfig shape_;
  const std::vector<mono::CacheView> caches_;
  const std::vector<std::int64_t> layer_ids_;
  std::vector<mono::StepRow> rows_;
  std::vector<Entry> entries_;
  std::vector<std::byte> before_, control_entries_;
  std::vector<bf16_t> control_hidden_, control_residual_, in_hidden_, in_residual_;
  Difference first_;
  std::int64_t layers_ = 0;
};

}  // namespace monolayer::dispatch
