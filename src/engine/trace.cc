#include "engine/trace.h"

#include <algorithm>

#include "checkpoint/safetensors_writer.h"

namespace monolayer::engine {
namespace {

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span<const T>(values));
}

// Keeps the chosen rows of what a forward pass shows.
class Recorder : public m3::TraceSink {
 public:
  Recorder(const m3::ModelConfig& config, const TraceInput& input)
      : config_(config), tokens_(static_cast<std::int64_t>(input.input_ids.size())) {
    slot_.assign(input.input_ids.size(), -1);
    for (std::size_t i = 0; i < input.rows.size(); ++i)
      slot_[static_cast<std::size_t>(input.rows[i])] = static_cast<std::int64_t>(i);
    const std::size_t rows = input.rows.size();
    hidden_.assign(static_cast<std::size_t>(config.num_layers + 1),
                   std::vector<float>(rows * static_cast<std::size_t>(config.hidden_size)));
    logits_.resize(rows * static_cast<std::size_t>(config.vocab_size));
    blocks_.resize(static_cast<std::size_t>(config.num_layers));
    for (std::int64_t i = 0; i < config.num_layers; ++i)
      if (config.layers[static_cast<std::size_t>(i)].sparse_attention)
        blocks_[static_cast<std::size_t>(i)].assign(
            static_cast<std::size_t>(tokens_ * config.index_heads * config.topk_blocks), -1);
  }

  void hidden(std::int64_t layer, std::int64_t row, std::span<const float> values) override {
    const std::int64_t slot = slot_[static_cast<std::size_t>(row)];
    if (slot < 0) return;
    std::copy(values.begin(), values.end(),
              hidden_[static_cast<std::size_t>(layer)].begin() + slot * config_.hidden_size);
  }

  void blocks(std::int64_t layer, std::int64_t row, std::int64_t head,
              std::span<const std::int32_t> ids, std::span<const float> /*scores*/) override {
    std::copy(ids.begin(), ids.end(),
              blocks_[static_cast<std::size_t>(layer)].begin() +
                  (row * config_.index_heads + head) * config_.topk_blocks);
  }

  // First chosen row at or after `begin`, or the end.
  std::int64_t first_row(std::int64_t begin, std::int64_t end) const {
    while (begin < end && slot_[static_cast<std::size_t>(begin)] < 0) ++begin;
    return begin;
  }

  // `logits` of rows [begin, end).
  void keep_logits(std::int64_t begin, std::int64_t end, const std::vector<float>& logits) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t slot = slot_[static_cast<std::size_t>(row)];
      if (slot < 0) continue;
      const auto from = logits.begin() + (row - begin) * config_.vocab_size;
      std::copy(from, from + config_.vocab_size, logits_.begin() + slot * config_.vocab_size);
    }
  }

  Status write(const std::string& path, const TraceInput& input) const {
    const auto rows = static_cast<std::int64_t>(input.rows.size());
    std::vector<TensorPlan> plan;
    std::vector<std::span<const std::byte>> data;
    const auto add = [&](std::string name, DType dtype, const Shape& shape, const auto& values) {
      plan.push_back({std::move(name), dtype, shape});
      data.push_back(bytes_of(values));
    };
    for (std::size_t i = 0; i < hidden_.size(); ++i)
      add("hidden." + std::to_string(i), DType::kF32, {rows, config_.hidden_size}, hidden_[i]);
    add("logits", DType::kF32, {rows, config_.vocab_size}, logits_);
    for (std::size_t i = 0; i < blocks_.size(); ++i)
      if (!blocks_[i].empty())
        add("blocks." + std::to_string(i), DType::kI32,
            {tokens_, config_.index_heads, config_.topk_blocks}, blocks_[i]);
    add("rows", DType::kI32, {rows}, input.rows);
    add("input_ids", DType::kI32, {tokens_}, input.input_ids);
    ML_ASSIGN_OR_RETURN(SafetensorsWriter writer, SafetensorsWriter::create(path, plan));
    for (std::size_t i = 0; i < plan.size(); ++i)
      ML_RETURN_IF_ERROR(writer.write(plan[i].name, data[i]));
    return writer.finish();
  }

 private:
  const m3::ModelConfig& config_;
  std::int64_t tokens_;
  std::vector<std::int64_t> slot_;  // position to place among the chosen rows, or -1
  std::vector<std::vector<float>> hidden_;
  std::vector<float> logits_;
  std::vector<std::vector<std::int32_t>> blocks_;
};

}  // namespace

Status write_trace(const std::string& path, const m3::ModelConfig& config, const TraceInput& input,
                   std::int64_t chunk, const TraceForward& forward) {
  const auto tokens = static_cast<std::int64_t>(input.input_ids.size());
  if (tokens > config.max_positions)
    return {Code::kInvalidArgument, "input_ids",
            "holds " + std::to_string(tokens) + " tokens, the model takes " +
                std::to_string(config.max_positions)};
  if (chunk < 1) return {Code::kInvalidArgument, "--chunk", "must be at least 1"};
  Recorder recorder(config, input);
  for (std::int64_t begin = 0; begin < tokens; begin += chunk) {
    const std::int64_t end = std::min(tokens, begin + chunk);
    const std::int64_t first = recorder.first_row(begin, end);
    const auto ids =
        std::span<const std::int32_t>(input.input_ids)
            .subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
    ML_ASSIGN_OR_RETURN(const std::vector<float> logits, forward(ids, end - first, &recorder));
    recorder.keep_logits(first, end, logits);
  }
  return recorder.write(path, input);
}

}  // namespace monolayer::engine
