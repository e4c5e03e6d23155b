#include "server/fields.h"

#include <cmath>
#include <cstdio>
#include <limits>
#include <optional>

#include "core/json_text.h"
#include "text/chat_check.h"

namespace monolayer::server {
namespace {

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.6g", value);
  return text;
}

// The number if it is whole and fits, 1.0 like 1: compared as it is, as doubles round near 2^63.
std::optional<std::int64_t> whole_number(const Json& value) {
  if (value.is_number_float()) {
    const auto real = value.get<double>();
    // -2^63 itself too may be rounded: written as an integer it is none of these.
    if (!(real > -0x1p63 && real < 0x1p63) || std::floor(real) != real) return std::nullopt;
    return static_cast<std::int64_t>(real);
  }
  if (value.is_number_unsigned() &&
      value.get<std::uint64_t>() > std::uint64_t{std::numeric_limits<std::int64_t>::max()})
    return std::nullopt;
  return value.get<std::int64_t>();
}

}  // namespace

std::string kind_of(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "a list";
    case Json::value_t::string:
      return "a string";
    case Json::value_t::boolean:
      return "true or false";
    default:
      return "a number";
  }
}

ApiResult<Json> parse_body(std::string_view text, int most_nested) {
  if (const int depth = json_nesting(text); depth > most_nested)
    return bad_field("body", "is nested " + std::to_string(depth) + " levels deep, at most " +
                                 std::to_string(most_nested));
  if (const std::string nul = nul_in_json(text); !nul.empty())
    return bad_field("body", "is not JSON: " + nul);
  try {
    Json body = Json::parse(text);
    if (!body.is_object()) return bad_field("body", "must be a JSON object, is " + kind_of(body));
    return body;
  } catch (const Json::parse_error& error) {
    return bad_field("body", "is not JSON at byte " + std::to_string(error.byte));
  } catch (const Json::exception& error) {
    // Such as a number that no double holds; without the library's own code for it.
    const std::string_view what = error.what();
    const std::size_t prefix = what.find("] ");
    return bad_field("body", "is not usable JSON: " +
                                 std::string(what.substr(prefix == what.npos ? 0 : prefix + 2)));
  }
}

const Json* Fields::find(const char* name) const {
  const auto at = object_.find(name);
  return at == object_.end() || at->is_null() ? nullptr : &*at;
}

bool Fields::has(const char* name) const { return find(name) != nullptr; }

void Fields::fail(const std::string& field_path, const std::string& what) {
  if (!error_) error_ = bad_field(field_path, what);
}

void Fields::wrong(const char* name, const char* expected, const Json& got) {
  fail(path(name), std::string("must be ") + expected + ", is " + kind_of(got));
}

bool Fields::boolean(const char* name, bool otherwise) {
  const Json* value = find(name);
  if (value == nullptr || error_) return otherwise;
  if (value->is_boolean()) return value->get<bool>();
  wrong(name, "true or false", *value);
  return otherwise;
}

std::int64_t Fields::integer(const char* name, std::int64_t otherwise, std::int64_t low,
                             std::int64_t high) {
  const Json* value = find(name);
  if (value == nullptr || error_) return otherwise;
  if (!value->is_number()) {
    wrong(name, "an integer", *value);
    return otherwise;
  }
  const std::optional<std::int64_t> whole = whole_number(*value);
  if (!whole || *whole < low || *whole > high) {
    fail(path(name), "is " + value->dump() + ", must be an integer from " + std::to_string(low) +
                         " to " + std::to_string(high));
    return otherwise;
  }
  return *whole;
}

double Fields::real(const char* name, double otherwise, double low, double high, bool low_open) {
  const Json* value = find(name);
  if (value == nullptr || error_) return otherwise;
  if (!value->is_number()) {
    wrong(name, "a number", *value);
    return otherwise;
  }
  const double got = value->get<double>();
  if ((low_open ? got > low : got >= low) && got <= high) return got;
  fail(path(name), "is " + value->dump() + ", must be in " + (low_open ? "(" : "[") + number(low) +
                       ", " + number(high) + "]");
  return otherwise;
}

std::string Fields::text(const char* name, std::string otherwise) {
  const Json* value = find(name);
  if (value == nullptr || error_) return otherwise;
  if (value->is_string()) return value->get<std::string>();
  wrong(name, "a string", *value);
  return otherwise;
}

std::string Fields::one_of(const char* name, std::string otherwise,
                           std::initializer_list<const char*> allowed) {
  std::string got = text(name, std::move(otherwise));
  std::string list;
  for (const char* each : allowed) {
    if (got == each) return got;
    list += (list.empty() ? "" : ", ") + std::string(each);
  }
  fail(path(name), "is '" + got + "', must be one of " + list);
  return got;
}

const Json* Fields::list(const char* name, std::size_t most) {
  const Json* value = find(name);
  if (value == nullptr || error_) return nullptr;
  if (!value->is_array()) {
    wrong(name, "a list", *value);
    return nullptr;
  }
  if (value->size() > most) {
    fail(path(name),
         "has " + std::to_string(value->size()) + " entries, at most " + std::to_string(most));
    return nullptr;
  }
  return value;
}

const Json* Fields::object(const char* name) {
  const Json* value = find(name);
  if (value == nullptr || error_) return nullptr;
  if (value->is_object()) return value;
  wrong(name, "an object", *value);
  return nullptr;
}

}  // namespace monolayer::server
