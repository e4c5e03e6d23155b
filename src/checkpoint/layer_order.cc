// The order of layer_quant_config's entries decides which pattern wins; only the text still has it.
#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint.h"
#include "checkpoint/quantization.h"

namespace monolayer {

Result<QuantizationConfig> QuantizationConfig::of(const Checkpoint& checkpoint) {
  std::vector<std::string> order;
  const bool nested = !checkpoint.config().contains("quantization_config");
  const nlohmann::json::json_pointer layers(std::string(nested ? "/text_config" : "") +
                                            "/quantization_config/layer_quant_config");
  if (checkpoint.config().contains(layers) && checkpoint.config().at(layers).is_object()) {
    // The text was parsed before, so this neither throws nor nests deeply.
    const auto ordered = nlohmann::ordered_json::parse(checkpoint.config_text(), nullptr,
                                                       /*allow_exceptions=*/false);
    const nlohmann::ordered_json::json_pointer same(layers.to_string());
    if (!ordered.is_discarded() && ordered.contains(same)) {
      for (const auto& [key, value] : ordered.at(same).items()) order.push_back(key);
    }
  }
  return parse(checkpoint.config(), checkpoint.config_name(), order);
}

}  // namespace monolayer
