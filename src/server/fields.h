// Reads the fields of a JSON body; the first that is out of its bounds is the error.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "server/api_error.h"

namespace monolayer::server {

using Json = nlohmann::ordered_json;

// The text as JSON; 400 naming the byte, 400 when nested deeper than `most_nested`.
ApiResult<Json> parse_body(std::string_view text, int most_nested);

// Absent and null are the same: the default. After the first error nothing is read any more.
class Fields {
 public:
  Fields(const Json& object, std::string path = "") : object_(object), path_(std::move(path)) {}

  bool has(const char* name) const;
  const Json& at(const char* name) const { return object_.at(name); }
  std::string path(const char* name) const { return path_.empty() ? name : path_ + "." + name; }

  bool boolean(const char* name, bool otherwise);
  std::int64_t integer(const char* name, std::int64_t otherwise, std::int64_t low,
                       std::int64_t high);
  double real(const char* name, double otherwise, double low, double high, bool low_open = false);
  std::string text(const char* name, std::string otherwise = "");
  std::string one_of(const char* name, std::string otherwise,
                     std::initializer_list<const char*> allowed);
  const Json* list(const char* name, std::size_t most);
  const Json* object(const char* name);

  void fail(const std::string& field_path, const std::string& what);
  bool ok() const { return !error_; }
  const std::optional<ApiError>& error() const { return error_; }

 private:
  const Json* find(const char* name) const;
  void wrong(const char* name, const char* expected, const Json& got);

  const Json& object_;
  std::string path_;
  std::optional<ApiError> error_;
};

// "a string", "a list", ... for messages.
std::string kind_of(const Json& value);

}  // namespace monolayer::server
