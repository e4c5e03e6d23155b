#include "checkpoint/quantization_fields.h"

#include <nlohmann/json.hpp>

#include "checkpoint/text_io.h"

namespace monolayer {
namespace {

const nlohmann::json& null_json() {
  static const nlohmann::json null;
  return null;
}

ConfiguredFormat refused(const JsonField& field, const std::string& what) {
  return {WeightFormat::kPlain, field.path() + ": " + what + " is not supported"};
}

// "e4m3" under any of the spellings in use.
bool is_e4m3(std::string_view name) {
  return name == "e4m3" || name == "e4m3fn" || name == "fp8_e4m3" || name == "float8_e4m3fn" ||
         name == "fp8" || name == "float8_e4m3";
}

Result<ConfiguredFormat> quark_mx(const JsonField& weight, WeightFormat format) {
  ML_ASSIGN_OR_RETURN(const std::int64_t group, weight.get("group_size").integer_or(32));
  if (group != 32) return refused(weight.get("group_size"), std::to_string(group));
  ML_ASSIGN_OR_RETURN(const std::string_view scale, weight.get("scale_format").string_or("e8m0"));
  if (scale != "e8m0") return refused(weight.get("scale_format"), quote_name(scale));
  ML_ASSIGN_OR_RETURN(const std::int64_t axis, weight.get("ch_axis").integer_or(-1));
  if (axis != -1 && axis != 1) return refused(weight.get("ch_axis"), std::to_string(axis));
  return ConfiguredFormat{format, {}};
}

Result<ConfiguredFormat> quark_fp8(const JsonField& weight, std::string_view scheme) {
  if (scheme == "per_group") {
    if (weight.get("scale_format").is_null()) return refused(weight, "grouped FP8 without E8M0");
    return quark_mx(weight, WeightFormat::kMXFP8);
  }
  if (scheme != "per_channel")
    return refused(weight.get("qscheme"), quote_name(scheme) + " with dtype 'fp8_e4m3'");
  ML_ASSIGN_OR_RETURN(const std::int64_t axis, weight.get("ch_axis").integer_or(0));
  if (axis != 0) return refused(weight.get("ch_axis"), std::to_string(axis));
  return ConfiguredFormat{WeightFormat::kFP8PerChannel, {}};
}

// weight_block_size as two numbers; {0, 0} when absent.
Result<std::pair<std::int64_t, std::int64_t>> block_size(const JsonField& field) {
  if (field.is_null()) return std::pair<std::int64_t, std::int64_t>{0, 0};
  if (!field.json().is_array() || field.json().size() != 2)
    return field.wrong_type("a list of two integers");
  ML_ASSIGN_OR_RETURN(const std::int64_t rows, field.at(0).integer_or(0));
  ML_ASSIGN_OR_RETURN(const std::int64_t cols, field.at(1).integer_or(0));
  return std::pair<std::int64_t, std::int64_t>{rows, cols};
}

}  // namespace

bool JsonField::is_null() const { return json_->is_null(); }

JsonField JsonField::get(const std::string& key) const {
  std::string path = path_ + "." + (key.size() <= 120 ? key : quote_name(key));
  if (!json_->is_object()) return {&null_json(), std::move(path), file_};
  const auto at = json_->find(key);
  return {at == json_->end() ? &null_json() : &*at, std::move(path), file_};
}

JsonField JsonField::at(std::size_t index) const {
  return {&(*json_)[index], path_ + "[" + std::to_string(index) + "]", file_};
}

Status JsonField::wrong_type(std::string_view expected) const {
  return {Code::kInvalidFile, *file_,
          path_ + " is " + json_->type_name() + ", expected " + std::string(expected)};
}

Status JsonField::unsupported(std::string_view what) const {
  return {Code::kUnsupported, *file_, path_ + ": " + std::string(what) + " is not supported"};
}

Result<std::string_view> JsonField::string_or(std::string_view absent) const {
  if (is_null()) return absent;
  if (!json_->is_string()) return wrong_type("a string");
  return std::string_view(json_->get_ref<const std::string&>());
}

Result<std::int64_t> JsonField::integer_or(std::int64_t absent) const {
  if (is_null()) return absent;
  if (!json_->is_number_integer()) return wrong_type("an integer");
  if (json_->is_number_unsigned() && json_->get<std::uint64_t>() > INT64_MAX)
    return wrong_type("an integer below 2^63");
  return json_->get<std::int64_t>();
}

Result<bool> JsonField::bool_or(bool absent) const {
  if (is_null()) return absent;
  if (!json_->is_boolean()) return wrong_type("a boolean");
  return json_->get<bool>();
}

Result<bool> JsonField::is_filled_object() const {
  if (is_null() || (json_->is_array() && json_->empty())) return false;
  if (!json_->is_object()) return wrong_type("an object");
  return !json_->empty();
}

Result<JsonField> find_quantization_config(const nlohmann::json& root, const std::string& file) {
  const JsonField top(&root, "config", &file);
  JsonField outer = top.get("quantization_config");
  JsonField inner = top.get("text_config").get("quantization_config");
  for (const char* other : {"compression_config", "hf_quant_config"}) {
    if (!top.get(other).is_null()) return top.get(other).unsupported("this kind of config");
  }
  if (outer.is_null()) return inner;
  if (!inner.is_null() && inner.json() != outer.json()) {
    return Status(Code::kInvalidFile, file,
                  "quantization_config and text_config.quantization_config differ");
  }
  return outer;
}

Result<ConfiguredFormat> quark_format(const JsonField& entry) {
  if (entry.is_null()) return ConfiguredFormat{};
  if (!entry.json().is_object()) return entry.wrong_type("an object");
  const JsonField weight = entry.get("weight");
  if (weight.is_null()) return ConfiguredFormat{};
  if (weight.json().is_array()) return refused(weight, "quantisation in several levels (NVFP4)");
  if (!weight.json().is_object()) return weight.wrong_type("an object");
  ML_ASSIGN_OR_RETURN(const std::string_view dtype, weight.get("dtype").string_or(""));
  if (dtype.empty()) return weight.get("dtype").wrong_type("a string");
  ML_ASSIGN_OR_RETURN(const std::string_view scheme, weight.get("qscheme").string_or("per_group"));
  ML_ASSIGN_OR_RETURN(const bool dynamic, weight.get("is_dynamic").bool_or(false));
  if (dynamic) return refused(weight.get("is_dynamic"), "a dynamically quantised weight");
  ML_ASSIGN_OR_RETURN(const bool symmetric, weight.get("symmetric").bool_or(true));
  if (!symmetric) return refused(weight.get("symmetric"), "an asymmetric weight");
  if (dtype == "bfloat16" || dtype == "float16" || dtype == "float32") return ConfiguredFormat{};
  if (dtype == "fp8_e4m3") return quark_fp8(weight, scheme);
  if (dtype == "fp4") {
    if (scheme != "per_group")
      return refused(weight.get("qscheme"), quote_name(scheme) + " with dtype 'fp4'");
    return quark_mx(weight, WeightFormat::kMXFP4);
  }
  if (dtype == "mx") {
    ML_ASSIGN_OR_RETURN(const std::string_view element,
                        weight.get("mx_element_dtype").string_or(""));
    if (element == "fp4") return quark_mx(weight, WeightFormat::kMXFP4);
    if (element == "fp8_e4m3") return quark_mx(weight, WeightFormat::kMXFP8);
    return refused(weight.get("mx_element_dtype"), quote_name(element));
  }
  return refused(weight.get("dtype"), quote_name(dtype));
}

Result<ConfiguredFormat> uniform_format(const std::string& method, const JsonField& config) {
  if (method == "modelopt") {
    ML_ASSIGN_OR_RETURN(const std::string_view algorithm, config.get("quant_algo").string_or(""));
    if (algorithm == "MXFP8") return ConfiguredFormat{WeightFormat::kMXFP8, {}};
    return config.get("quant_algo").unsupported("modelopt " + quote_name(algorithm));
  }
  const bool mxfp8 = method == "mxfp8";
  const bool fp8 = method == "fp8" || method == "ptpc_fp8" || method == "fbgemm_fp8";
  if (!mxfp8 && !fp8) return config.get("quant_method").unsupported(quote_name(method));
  for (const char* field : {"fmt", "element_format", "weight_dtype"}) {
    ML_ASSIGN_OR_RETURN(const std::string_view element, config.get(field).string_or("e4m3"));
    if (!is_e4m3(element)) return config.get(field).unsupported(quote_name(element));
  }
  ML_ASSIGN_OR_RETURN(const std::string_view scale, config.get("scale_fmt").string_or("ue8m0"));
  if (scale != "ue8m0" && scale != "e8m0")
    return config.get("scale_fmt").unsupported(quote_name(scale));
  const JsonField block_field = config.get("weight_block_size");
  ML_ASSIGN_OR_RETURN(const auto block, block_size(block_field));
  ML_ASSIGN_OR_RETURN(const std::int64_t group, config.get("group_size").integer_or(32));
  if (mxfp8 && group != 32) return config.get("group_size").unsupported(std::to_string(group));
  if (block.first == 1 && block.second == 32) return ConfiguredFormat{WeightFormat::kMXFP8, {}};
  if (!block_field.is_null()) {
    return block_field.unsupported("[" + std::to_string(block.first) + ", " +
                                   std::to_string(block.second) + "]");
  }
  return ConfiguredFormat{mxfp8 ? WeightFormat::kMXFP8 : WeightFormat::kFP8PerChannel, {}};
}

}  // namespace monolayer
