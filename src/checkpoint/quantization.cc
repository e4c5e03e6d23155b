#include "checkpoint/quantization.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "checkpoint/module_pattern.h"
#include "checkpoint/quantization_fields.h"
#include "checkpoint/text_io.h"

namespace monolayer {

std::string_view format_name(WeightFormat format) {
  switch (format) {
    case WeightFormat::kPlain:
      return "plain";
    case WeightFormat::kMXFP4:
      return "mxfp4";
    case WeightFormat::kMXFP8:
      return "mxfp8";
    case WeightFormat::kFP8PerChannel:
      return "fp8-per-channel";
  }
  return "?";
}

struct QuantizationConfig::State {
  struct Layer {
    ModulePatterns patterns;  // exactly one
    ConfiguredFormat format;
  };
  struct Match {
    ConfiguredFormat format;
    bool excluded_too = false;  // a layer entry and an exclude pattern both match
  };

  std::string method, file;
  std::vector<std::string> notes;
  std::vector<Layer> layers;
  ModulePatterns exclude;
  ConfiguredFormat by_default;

  Result<Match> match(std::string_view module) const {
    const std::vector<std::string> spellings = module_spellings(module);
    ML_ASSIGN_OR_RETURN(const bool excluded, exclude.matches(spellings));
    for (const Layer& layer : layers) {
      ML_ASSIGN_OR_RETURN(const bool matches, layer.patterns.matches(spellings));
      if (matches) return Match{layer.format, excluded};
    }
    return excluded ? Match{} : Match{by_default, false};
  }

  Status parse_quark(const JsonField& config, const std::vector<std::string>& layer_order);
  Status parse_uniform(const JsonField& config);
  Status add_exclusions(const JsonField& list);
};

namespace {

// Lists of modules left unquantised go by many names.
constexpr std::string_view kIgnoreLists[] = {
    "exclude",       "ignored_layers",  "modules_to_not_convert", "ignore",
    "ignore_layers", "exclude_modules", "exclude_layers"};

bool is_linear_type(std::string_view type) {
  // "Linear", "nn.Linear", "<class 'torch.nn.modules.linear.Linear'>"
  while (!type.empty() && (type.back() == '>' || type.back() == '\'')) type.remove_suffix(1);
  return type == "Linear" || type.ends_with(".Linear");
}

// The keys of `object`: those in `order` first, as they come there.
std::vector<std::string> ordered_keys(const nlohmann::json& object,
                                      const std::vector<std::string>& order) {
  std::vector<std::string> keys;
  std::set<std::string> listed;
  for (const std::string& key : order) {
    if (object.contains(key) && listed.insert(key).second) keys.push_back(key);
  }
  for (const auto& [key, value] : object.items()) {
    if (listed.count(key) == 0) keys.push_back(key);
  }
  return keys;
}

}  // namespace

Status QuantizationConfig::State::add_exclusions(const JsonField& list) {
  if (list.is_null()) return ok_status();
  if (!list.json().is_array()) return list.wrong_type("a list of strings");
  for (std::size_t i = 0; i < list.json().size(); ++i) {
    const JsonField entry = list.at(i);
    if (!entry.json().is_string()) return entry.wrong_type("a string");
    ML_RETURN_IF_ERROR(exclude.add(entry.json().get_ref<const std::string&>(), file, entry.path()));
  }
  return ok_status();
}

Status QuantizationConfig::State::parse_quark(const JsonField& config,
                                              const std::vector<std::string>& layer_order) {
  ML_ASSIGN_OR_RETURN(by_default, quark_format(config.get("global_quant_config")));
  ML_RETURN_IF_ERROR(add_exclusions(config.get("exclude")));
  const JsonField by_layer = config.get("layer_quant_config");
  ML_ASSIGN_OR_RETURN(const bool has_layers, by_layer.is_filled_object());
  if (has_layers) {
    for (const std::string& pattern : ordered_keys(by_layer.json(), layer_order)) {
      Layer layer;
      ML_RETURN_IF_ERROR(layer.patterns.add(pattern, file, by_layer.path()));
      ML_ASSIGN_OR_RETURN(layer.format, quark_format(by_layer.get(pattern)));
      layers.push_back(std::move(layer));
    }
  }
  const JsonField by_type = config.get("layer_type_quant_config");
  ML_ASSIGN_OR_RETURN(const bool has_types, by_type.is_filled_object());
  if (has_types) {
    for (const auto& [type, value] : by_type.json().items()) {
      ML_ASSIGN_OR_RETURN(const ConfiguredFormat format, quark_format(by_type.get(type)));
      if (is_linear_type(type)) {
        by_default = format;
      } else {
        notes.push_back(by_type.path() + ": layer type " + quote_name(type) + " is ignored");
      }
    }
  }
  const JsonField exported = config.get("export");
  ML_ASSIGN_OR_RETURN(const bool has_export, exported.is_filled_object());
  if (!has_export) return ok_status();
  ML_ASSIGN_OR_RETURN(const std::string_view kind, exported.get("weight_format").string_or(""));
  if (!kind.empty() && kind != "real_quantized")
    return exported.get("weight_format").unsupported(quote_name(kind));
  return ok_status();
}

Status QuantizationConfig::State::parse_uniform(const JsonField& config) {
  ML_ASSIGN_OR_RETURN(by_default, uniform_format(method, config));
  for (const std::string_view list : kIgnoreLists)
    ML_RETURN_IF_ERROR(add_exclusions(config.get(std::string(list))));
  return ok_status();
}

QuantizationConfig::QuantizationConfig() : state_(std::make_shared<State>()) {}

Result<QuantizationConfig> QuantizationConfig::parse(const nlohmann::json& root,
                                                     const std::string& file,
                                                     const std::vector<std::string>& layer_order) {
  ML_ASSIGN_OR_RETURN(const JsonField config, find_quantization_config(root, file));
  QuantizationConfig parsed;
  if (config.is_null()) return parsed;
  if (!config.json().is_object()) return config.wrong_type("an object");
  ML_ASSIGN_OR_RETURN(const std::string_view method, config.get("quant_method").string_or(""));
  if (method.empty()) {
    return Status(Code::kInvalidFile, file,
                  config.path() + ": field 'quant_method' is missing or empty");
  }
  auto state = std::make_shared<State>();
  state->file = file;
  state->method = method;
  ML_RETURN_IF_ERROR(state->method == "quark" ? state->parse_quark(config, layer_order)
                                              : state->parse_uniform(config));
  parsed.state_ = std::move(state);
  return parsed;
}

Result<WeightFormat> QuantizationConfig::format_for(std::string_view module) const {
  ML_ASSIGN_OR_RETURN(const State::Match match, state_->match(module));
  if (!match.format.unsupported.empty()) {
    return Status(Code::kUnsupported, state_->file,
                  match.format.unsupported + " (configured for " + quote_name(module) + ")");
  }
  return match.format.format;
}

Result<bool> QuantizationConfig::allows(std::string_view module, WeightFormat format) const {
  ML_ASSIGN_OR_RETURN(const State::Match match, state_->match(module));
  if (match.excluded_too && format == WeightFormat::kPlain) return true;
  ML_ASSIGN_OR_RETURN(const WeightFormat wanted, format_for(module));
  return wanted == format;
}

const std::string& QuantizationConfig::method() const { return state_->method; }
const std::string& QuantizationConfig::file() const { return state_->file; }
const std::vector<std::string>& QuantizationConfig::notes() const { return state_->notes; }

}  // namespace monolayer
