#include "dispatch/check.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace monolayer::dispatch {
namespace {

constexpr const char* kCacheNames[] = {"k cache", "v cache", "index cache"};

std::uint32_t read_bits(const std::byte* at, std::size_t bytes) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, at, bytes);
  return bits;
}

}  // namespace

std::string Difference::to_string() const {
  char bits[64];
  std::snprintf(bits, sizeof bits, "native 0x%x, fused 0x%x", control, fused);
  return "layer " + std::to_string(layer) + ", " + stage + ", row " + std::to_string(row) +
         ", column " + std::to_string(column) + ": " + bits;
}

CheckedExecutor::CheckedExecutor(std::unique_ptr<mono::Executor> control,
                                 std::unique_ptr<mono::Executor> fused,
                                 const mono::ExecutorConfig& config,
                                 std::vector<std::int64_t> layer_ids)
    : control_(std::move(control)),
      fused_(std::move(fused)),
      shape_(config.shape),
      caches_(config.caches),
      layer_ids_(std::move(layer_ids)) {}

Status CheckedExecutor::prepare(std::span<const mono::StepRow> rows) {
  ML_RETURN_IF_ERROR(control_->prepare(rows));
  ML_RETURN_IF_ERROR(fused_->prepare(rows));
  rows_.assign(rows.begin(), rows.end());
  return {};
}

// The slots that the step's rows write in a layer.
void CheckedExecutor::list_entries(std::int64_t layer) {
  entries_.clear();
  const mono::CacheView& cache = caches_[static_cast<std::size_t>(layer)];
  std::size_t offset = 0;
  const auto add = [&](std::byte* at, std::int64_t width, DType dtype, std::size_t row,
                       std::int64_t column, int which) {
    const std::size_t unit = dtype_size(dtype);
    const std::size_t bytes = static_cast<std::size_t>(width) * unit;
    entries_.push_back({at, bytes, offset, static_cast<std::int64_t>(row), column, which, unit});
    offset += bytes;
  };
  for (int which = 0; which < 3; ++which) {
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      const mono::StepRow& row = rows_[r];
      if (!row.live) continue;
      if (which == 2) {
        if (cache.index_keys == nullptr) continue;
        add(cache.index_keys + row.index_slot / m3::kPageTokens * cache.index_block_bytes +
                row.index_slot % m3::kPageTokens * cache.index_token_bytes,
            shape_.index_dim, cache.index, r, 0, which);
        continue;
      }
      std::byte* base = which == 0 ? cache.k : cache.v;
      for (std::int64_t head = 0; head < shape_.num_kv_heads; ++head) {
        add(base + row.main_slot / m3::kPageTokens * cache.block_bytes + head * cache.head_bytes +
                row.main_slot % m3::kPageTokens * cache.token_bytes,
            shape_.head_dim, cache.kv, r, head * shape_.head_dim, which);
      }
    }
  }
}

void CheckedExecutor::save(std::vector<std::byte>& to) const {
  to.resize(entries_.empty() ? 0 : entries_.back().offset + entries_.back().bytes);
  for (const Entry& e : entries_) std::memcpy(to.data() + e.offset, e.at, e.bytes);
}

void CheckedExecutor::restore(const std::vector<std::byte>& from) const {
  for (const Entry& e : entries_) std::memcpy(e.at, from.data() + e.offset, e.bytes);
}

void CheckedExecutor::compare(std::int64_t layer, std::span<const std::int32_t> control_selection,
                              const bf16_t* hidden, const bf16_t* residual) {
  const auto differ = [&](const char* stage, std::int64_t row, std::int64_t column,
                          std::uint32_t control, std::uint32_t fused) {
    const auto at = static_cast<std::size_t>(layer);
    first_ = {at < layer_ids_.size() ? layer_ids_[at] : layer, stage, row, column, control, fused};
  };
  for (const Entry& e : entries_) {
    const std::byte* control = control_entries_.data() + e.offset;
    if (std::memcmp(control, e.at, e.bytes) == 0) continue;
    for (std::size_t i = 0; i < e.bytes; i += e.unit) {
      const std::uint32_t a = read_bits(control + i, e.unit), b = read_bits(e.at + i, e.unit);
      if (a == b) continue;
      return differ(kCacheNames[e.cache], e.row, e.column + static_cast<std::int64_t>(i / e.unit),
                    a, b);
    }
  }
  const auto fused_selection = fused_->selections();
  if (control_selection.size() != fused_selection.size()) {
    return differ("selection", 0, 0, static_cast<std::uint32_t>(control_selection.size()),
                  static_cast<std::uint32_t>(fused_selection.size()));
  }
  const std::size_t per_row = rows_.empty() ? 1 : control_selection.size() / rows_.size();
  for (std::size_t i = 0; i < control_selection.size(); ++i) {
    if (control_selection[i] == fused_selection[i]) continue;
    return differ("selection", static_cast<std::int64_t>(i / per_row),
                  static_cast<std::int64_t>(i % per_row),
                  static_cast<std::uint32_t>(control_selection[i]),
                  static_cast<std::uint32_t>(fused_selection[i]));
  }
  const std::size_t width = static_cast<std::size_t>(shape_.hidden_size);
  const std::size_t n = rows_.size() * width;
  const std::pair<const char*, std::pair<const bf16_t*, const bf16_t*>> outputs[] = {
      {"residual", {control_residual_.data(), residual}},
      {"hidden", {control_hidden_.data(), hidden}}};
  for (const auto& [stage, values] : outputs) {
    const auto [a, b] = std::mismatch(values.first, values.first + n, values.second);
    if (a == values.first + n) continue;
    const auto at = static_cast<std::size_t>(a - values.first);
    return differ(stage, static_cast<std::int64_t>(at / width),
                  static_cast<std::int64_t>(at % width), *a, *b);
  }
}

Status CheckedExecutor::run_layers(std::int64_t first, std::int64_t count, const bf16_t* hidden,
                                   const bf16_t* residual, bf16_t* hidden_out,
                                   bf16_t* residual_out) {
  const std::size_t n = rows_.size() * static_cast<std::size_t>(shape_.hidden_size);
  control_hidden_.resize(n);
  control_residual_.resize(n);
  // Outputs may alias inputs, and both executors need the inputs.
  in_hidden_.assign(hidden, hidden + n);
  if (residual != nullptr) in_residual_.assign(residual, residual + n);
  const bf16_t* residual_in = residual != nullptr ? in_residual_.data() : nullptr;
  for (std::int64_t layer = first; layer < first + count; ++layer) {
    list_entries(layer);
    save(before_);
    ML_RETURN_IF_ERROR(control_->run_layers(layer, 1, in_hidden_.data(), residual_in,
                                            control_hidden_.data(), control_residual_.data()));
    save(control_entries_);
    restore(before_);
    const auto selected = control_->selections();
    const std::vector<std::int32_t> control_selection(selected.begin(), selected.end());
    ML_RETURN_IF_ERROR(
        fused_->run_layers(layer, 1, in_hidden_.data(), residual_in, hidden_out, residual_out));
    ++layers_;
    compare(layer, control_selection, hidden_out, residual_out);
    if (first_.found()) return {Code::kInternal, "check mode", first_.to_string()};
    in_hidden_.assign(hidden_out, hidden_out + n);
    in_residual_.assign(residual_out, residual_out + n);
    residual_in = in_residual_.data();
  }
  return {};
}

Status CheckedExecutor::close() {
  const Status control = control_->close();
  const Status fused = fused_->close();
  return control.ok() ? fused : control;
}

}  // namespace monolayer::dispatch
