// What `quantization_config` says about each matrix.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/status.h"

namespace monolayer {

class Checkpoint;

enum class WeightFormat : std::uint8_t {
  kPlain,          // BF16, F32 or F16 as stored, no scales
  kMXFP4,          // E2M1, two a byte, one E8M0 per 32 along the row
  kMXFP8,          // E4M3, one E8M0 per 32 along the row
  kFP8PerChannel,  // E4M3, one float32 per row
};

std::string_view format_name(WeightFormat format);  // "plain", "mxfp4", "mxfp8", "fp8-per-channel"

// The formats of a checkpoint's matrices by module name. A module is a tensor name without
// ".weight" of a linear layer (embeddings, norms and routers are never asked for), for example
// "language_model.model.layers.3.block_sparse_moe.experts.0.w1".
//
// Patterns (README.md has examples): "re:X" is the regular expression X anchored at the start of
// the name; a pattern with any of * ? [ is a shell pattern that must match the whole name, where *
// also matches dots; anything else must equal the name or a run of its dot-separated components, so
// that "gate" names "block_sparse_moe.gate" but not "gate_proj". Each pattern is tried on every
// spelling of the wrapper prefix (as stored, and with "language_model.model.",
// "model.language_model.", "language_model.", "model." or none).
//
// Precedence: a matching entry of layer_quant_config (first in file order), then exclude, then
// layer_type_quant_config for linear layers, then the global format.
class QuantizationConfig {
 public:
  // `root`: the whole config.json. Without a quantization_config every matrix is plain. Wrong types
  // are kInvalidFile with the field's path; formats this build does not read are kUnsupported by
  // name. `file` is the config's name in messages. `layer_order`: the keys of layer_quant_config in
  // file order, which the parsed JSON does not keep; keys not listed follow in sorted order.
  static Result<QuantizationConfig> parse(const nlohmann::json& root, const std::string& file,
                                          const std::vector<std::string>& layer_order = {});
  // The same for an opened checkpoint, with its file order.
  static Result<QuantizationConfig> of(const Checkpoint& checkpoint);

  QuantizationConfig();  // everything plain

  // The configured format. kUnsupported when the matching entry asks for one this build lacks;
  // kResourceExhausted when a regular expression exceeds its step limit on this name.
  Result<WeightFormat> format_for(std::string_view module) const;
  // Whether tensors stored in `format` agree with the configuration. More than one format agrees
  // only where two statements contradict each other: excluded by one, quantised by another.
  Result<bool> allows(std::string_view module, WeightFormat format) const;

  const std::string& method() const;              // "quark", "mxfp8", ...; empty if none
  const std::string& file() const;                // for messages
  const std::vector<std::string>& notes() const;  // fields seen and ignored, one line each

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

}  // namespace monolayer
