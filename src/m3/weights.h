// Tensor names to roles: every weight of the model as a borrowed view into the checkpoint.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/quantized_tensor.h"
#include "m3/config.h"

namespace monolayer::m3 {

// All matrices are [out, in] row-major in their stored format.
struct MlpWeights {
  QuantizedMatrix gate, up;  // [width, hidden]
  QuantizedMatrix down;      // [hidden, width]
};

struct LayerWeights {
  TensorView input_norm, post_norm;       // BF16 [hidden]
  QuantizedMatrix q, k, v;                // [q_width | kv_width, hidden]
  QuantizedMatrix o;                      // [hidden, q_width]
  TensorView q_norm, k_norm;              // BF16 [head_dim]
  QuantizedMatrix index_q, index_k;       // sparse: [index_width | index_dim, hidden]
  TensorView index_q_norm, index_k_norm;  // sparse: BF16 [index_dim]
  MlpWeights dense;                       // dense layers
  QuantizedMatrix router;                 // MoE: F32 or BF16 [experts, hidden]
  TensorView router_bias;                 // MoE: F32 [experts], or empty
  std::vector<MlpWeights> experts;        // MoE: [num_experts]
  MlpWeights shared;                      // MoE: empty if the model has none
};

struct ModelWeights {
  QuantizedMatrix embed;    // BF16 [vocab, hidden]
  QuantizedMatrix lm_head;  // BF16 [vocab, hidden]
  TensorView final_norm;    // BF16 [hidden]
  std::vector<LayerWeights> layers;

  std::string layout;                // which name layout was recognised, for the log
  std::vector<std::string> ignored;  // names deliberately not used (vision, projector, mtp)
};

// Accounts for every tensor of the checkpoint: used, or on the documented ignore list. Missing or
// unexpected names: kInvalidFile with the counts and the first five of each. Shapes and dtypes are
// checked against `config`; stored values as `check` says (ValueCheck::kAll reads every quantised
// weight once). Views stay valid while `checkpoint` lives.
Result<ModelWeights> bind_weights(const ModelConfig& config, const Checkpoint& checkpoint,
                                  ValueCheck check = ValueCheck::kAll);

}  // namespace monolayer::m3
