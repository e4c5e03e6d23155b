// The EAGLE3 draft: a one-layer model that guesses the target's next tokens from the target's
// hidden states.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "checkpoint/checkpoint.h"
#include "checkpoint/tensor.h"
#include "core/status.h"
#include "m3/config.h"

namespace monolayer::m3 {

inline constexpr std::size_t kAuxLayers = 3;
inline constexpr std::int64_t kMostDrafts = 7;  // with the target's own token, 8 rows of a sequence

struct DraftConfig {
  std::int64_t hidden_size = 0;  // the target's
  std::int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t vocab_size = 0;        // the target's
  std::int64_t draft_vocab_size = 0;  // rows of the draft's own head
  double rope_theta = 0;              // half-split pairs over the whole head
  float rms_eps = 0;
  std::int64_t max_positions = 0;  // the target's if the file declares none
  // Target layers whose ENTERING residual stream feeds the draft, ascending.
  std::array<std::int64_t, kAuxLayers> aux_layers{};
  std::vector<std::string> notes;

  std::int64_t q_width() const { return num_heads * head_dim; }
  std::int64_t kv_width() const { return num_kv_heads * head_dim; }
};

// (2, n / 2, n - 3) of a target with n layers.
std::array<std::int64_t, kAuxLayers> default_aux_layers(std::int64_t layers);

// Reads a draft's config.json, flat or with a nested text_config. kUnsupported or kInvalidFile,
// naming the field and both figures, for what this build cannot run or `target` does not fit.
Result<DraftConfig> parse_draft_config(const nlohmann::json& root, const std::string& name,
                                       const ModelConfig& target);

// Views into the draft's checkpoint; matrices are BF16 [out, in], vectors BF16.
struct DraftWeights {
  TensorView embed;                               // [vocab, hidden]; empty: the target's
  TensorView fc;                                  // [hidden, 3 * hidden]
  std::array<TensorView, kAuxLayers> fc_norms;    // [hidden]
  TensorView input_norm, hidden_norm, post_norm;  // [hidden]
  TensorView q, k, v;                             // [width, 2 * hidden]
  TensorView o;                                   // [hidden, q_width]
  TensorView gate, up, down;
  TensorView final_norm;
  TensorView lm_head;  // [draft_vocab, hidden]; empty: the target's
  // Target id of each draft id; empty: the same.
  std::vector<std::int32_t> target_ids;
};

// Exactly the published tensors, under `layers.0.` or `midlayer.`, with or without `model.` before.
// The embedding, and the head of a draft with the whole vocabulary, may be absent. kInvalidFile
// naming the tensors that are missing or unexpected, or the one whose type, shape or values are
// wrong.
Result<DraftWeights> bind_draft_weights(const DraftConfig& config, const Checkpoint& checkpoint);

}  // namespace monolayer::m3
