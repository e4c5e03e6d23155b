#include "m3/field_reader.h"

#include <cmath>
#include <limits>

namespace monolayer::m3 {
namespace {

constexpr std::size_t kBriefLength = 60;

std::string shown(double value) { return Json(value).dump(); }

}  // namespace

std::string brief(const Json& value) {
  if (value.is_structured()) return value.is_array() ? "a list" : "an object";
  if (value.is_number_float() && !std::isfinite(value.get<double>())) return "not finite";
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kBriefLength) text = text.substr(0, kBriefLength) + "...";
  return text;
}

void ReadLog::fail(Code code, const std::string& field, std::string message) {
  if (!error.ok()) return;
  error = Status(code, file + ": " + field, std::move(message));
}

const Json* FieldReader::find(std::string_view field) {
  known_.emplace(field);
  const auto it = object_.find(std::string(field));
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

std::int64_t FieldReader::integer(std::string_view field, std::int64_t low, std::int64_t high,
                                  std::optional<std::int64_t> fallback) {
  const Json* value = find(field);
  if (value == nullptr) {
    if (!fallback) invalid(field, "is required and missing");
    return fallback.value_or(low);
  }
  if (!value->is_number_integer()) {
    invalid(field, "must be an integer, is " + brief(*value));
    return low;
  }
  // Unsigned values beyond int64 would wrap in get<int64_t>.
  const bool too_big = value->is_number_unsigned() &&
                       value->get<std::uint64_t>() >
                           static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  const std::int64_t number = too_big ? 0 : value->get<std::int64_t>();
  if (too_big || number < low || number > high) {
    invalid(field, "must be in [" + std::to_string(low) + ", " + std::to_string(high) + "], is " +
                       brief(*value));
    return low;
  }
  return number;
}

double FieldReader::number(std::string_view field, double low, double high,
                           std::optional<double> fallback) {
  const Json* value = find(field);
  if (value == nullptr) {
    if (!fallback) invalid(field, "is required and missing");
    return fallback.value_or(high);
  }
  if (!value->is_number()) {
    invalid(field, "must be a number, is " + brief(*value));
    return high;
  }
  const double number = value->get<double>();
  if (!std::isfinite(number) || number <= low || number > high) {
    invalid(field, "must be in (" + shown(low) + ", " + shown(high) + "], is " + brief(*value));
    return high;
  }
  return number;
}

bool FieldReader::boolean(std::string_view field, bool fallback) {
  const Json* value = find(field);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) {
    invalid(field, "must be true or false, is " + brief(*value));
    return fallback;
  }
  return value->get<bool>();
}

std::string FieldReader::text(std::string_view field, const std::string& fallback) {
  const Json* value = find(field);
  if (value == nullptr) return fallback;
  if (!value->is_string()) {
    invalid(field, "must be a string, is " + brief(*value));
    return fallback;
  }
  return value->get<std::string>();
}

const Json* FieldReader::object(std::string_view field) {
  const Json* value = find(field);
  if (value == nullptr || value->is_object()) return value;
  invalid(field, "must be an object, is " + brief(*value));
  return nullptr;
}

const Json* FieldReader::array(std::string_view field, std::int64_t length) {
  const Json* value = find(field);
  if (value == nullptr) return nullptr;
  if (!value->is_array()) {
    invalid(field, "must be a list with one entry per layer, is " + brief(*value));
    return nullptr;
  }
  if (value->size() != static_cast<std::size_t>(length)) {
    invalid(field, "has " + std::to_string(value->size()) + " entries for " +
                       std::to_string(length) + " layers");
    return nullptr;
  }
  return value;
}

std::vector<bool> FieldReader::flags(std::string_view field, std::int64_t length) {
  std::vector<bool> result;
  const Json* list = array(field, length);
  if (list == nullptr) return result;
  for (const Json& entry : *list) {
    const bool zero = entry == Json(0) || entry == Json(false);
    const bool one = entry == Json(1) || entry == Json(true);
    if (!zero && !one) {
      invalid(field,
              "entry " + std::to_string(result.size()) + " must be 0 or 1, is " + brief(entry));
      return {};
    }
    result.push_back(one);
  }
  return result;
}

std::vector<bool> FieldReader::names(std::string_view field, std::int64_t length,
                                     std::string_view off, std::string_view on) {
  std::vector<bool> result;
  const Json* list = array(field, length);
  if (list == nullptr) return result;
  for (const Json& entry : *list) {
    const std::string* name = entry.get_ptr<const std::string*>();
    if (name == nullptr || (*name != off && *name != on)) {
      unsupported(field, "entry " + std::to_string(result.size()) + " must be \"" +
                             std::string(off) + "\" or \"" + std::string(on) + "\", is " +
                             brief(entry));
      return {};
    }
    result.push_back(*name == on);
  }
  return result;
}

void FieldReader::only(std::string_view field, bool supported) {
  if (boolean(field, supported) != supported) {
    unsupported(field, supported ? "must be true" : "must be false");
  }
}

void FieldReader::only_text(std::string_view field, std::string_view supported) {
  const std::string value = text(field, std::string(supported));
  if (value != supported) {
    unsupported(field, "must be \"" + std::string(supported) + "\", is " + brief(Json(value)));
  }
}

void FieldReader::invalid(std::string_view field, std::string message) {
  log_.fail(Code::kInvalidFile, path(field), std::move(message));
}

void FieldReader::unsupported(std::string_view field, std::string message) {
  log_.fail(Code::kUnsupported, path(field), std::move(message));
}

void FieldReader::note(std::string_view field, const std::string& message) {
  log_.notes.push_back(path(field) + ": " + message);
}

void FieldReader::know(std::initializer_list<std::string_view> fields) {
  for (const std::string_view field : fields) known_.emplace(field);
}

std::vector<std::string> FieldReader::unknown() const {
  std::vector<std::string> result;
  for (auto it = object_.begin(); it != object_.end(); ++it) {
    if (known_.find(it.key()) == known_.end()) result.push_back(it.key());
  }
  return result;
}

Result<ConfigReaders> open_config(const Json& json, ReadLog& log) {
  if (!json.is_object())
    return Status(Code::kInvalidFile, log.file, "must hold a JSON object, holds " + brief(json));
  FieldReader root(json, "", log);
  const Json* nested = root.object("text_config");
  ML_RETURN_IF_ERROR(log.error);
  FieldReader text(nested != nullptr ? *nested : json, nested != nullptr ? "text_config." : "",
                   log);
  return ConfigReaders{root, text, nested};
}

}  // namespace monolayer::m3
