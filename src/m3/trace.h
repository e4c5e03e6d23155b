// What a forward pass can show of its inside; the same interface for every path.
#pragma once

#include <cstdint>
#include <span>

namespace monolayer::m3 {

class TraceSink {
 public:
  virtual ~TraceSink() = default;
  // Residual stream of one row entering layer `layer`; layer == num_layers: after the final norm.
  // `row` counts the rows of the sequence from 0 (its absolute position).
  virtual void hidden(std::int64_t layer, std::int64_t row, std::span<const float> values) = 0;
  // Selected blocks of one row and index head on a sparse layer, ascending, without padding.
  // `scores` holds the pooled score of every existing block (forced blocks: their raw score).
  virtual void blocks(std::int64_t layer, std::int64_t row, std::int64_t head,
                      std::span<const std::int32_t> ids, std::span<const float> scores) = 0;
  // Experts of one row on an MoE layer, ascending; `scores` holds score + bias of every expert.
  virtual void experts(std::int64_t /*layer*/, std::int64_t /*row*/,
                       std::span<const std::int32_t> /*ids*/, std::span<const float> /*scores*/) {}
};

// Decides near ties in a path's stead, so that two arithmetics can be compared on the same choices.
// Called with the path's own choice in `ids` (ascending) and the scores it was made by; what stands
// in `ids` afterwards, as many distinct ids in ascending order, is used.
class ChoiceSource {
 public:
  virtual ~ChoiceSource() = default;
  // `scores` of every existing block, in the keys' own units.
  virtual void blocks(std::int64_t layer, std::int64_t row, std::int64_t head,
                      std::span<const float> scores, std::span<std::int32_t> ids) = 0;
  // `scores`: score + bias of every expert.
  virtual void experts(std::int64_t layer, std::int64_t row, std::span<const float> scores,
                       std::span<std::int32_t> ids) = 0;
};

}  // namespace monolayer::m3
