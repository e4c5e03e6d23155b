// Fields of a quantization config, read with their path for messages. Internal to this room.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "checkpoint/quantization.h"
#include "core/status.h"

namespace monolayer {

// A place in a JSON document: a value (null when absent) and how to say where it is.
class JsonField {
 public:
  JsonField(const nlohmann::json* json, std::string path, const std::string* file)
      : json_(json), path_(std::move(path)), file_(file) {}

  const nlohmann::json& json() const { return *json_; }
  const std::string& path() const { return path_; }
  bool is_null() const;  // absent or null

  JsonField get(const std::string& key) const;  // null unless this is an object holding `key`
  JsonField at(std::size_t index) const;        // of an array

  Status wrong_type(std::string_view expected) const;  // kInvalidFile
  Status unsupported(std::string_view what) const;     // kUnsupported
  // The string, valid while the document lives; kInvalidFile if it is something else.
  Result<std::string_view> string_or(std::string_view absent) const;
  Result<std::int64_t> integer_or(std::int64_t absent) const;
  Result<bool> bool_or(bool absent) const;
  // False when absent, null, or an empty list or object; kInvalidFile when anything but an object.
  Result<bool> is_filled_object() const;

 private:
  const nlohmann::json* json_;
  std::string path_;
  const std::string* file_;
};

// A format, or why it is not supported: the refusal waits until a module asks for it.
struct ConfiguredFormat {
  WeightFormat format = WeightFormat::kPlain;
  std::string unsupported;
};

// The quantization_config of config.json: at the root, or inside text_config. Borrows both.
Result<JsonField> find_quantization_config(const nlohmann::json& root, const std::string& file);

// One entry of quark's global, layer or layer type config: the format its `weight` describes.
Result<ConfiguredFormat> quark_format(const JsonField& entry);

// The one format of the methods that quantise every linear layer alike: mxfp8, fp8, ptpc_fp8, ...
// Others are refused by name.
Result<ConfiguredFormat> uniform_format(const std::string& method, const JsonField& config);

}  // namespace monolayer
