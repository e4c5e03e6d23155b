// Typed, bounded reads of one JSON object's fields, with the first error kept.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/status.h"

namespace monolayer::m3 {

using Json = nlohmann::json;

// A short printable form of a value for messages: scalars as they are, containers by kind only.
std::string brief(const Json& value);

// What reading several objects of one file shares.
struct ReadLog {
  std::string file;
  Status error;  // the first one; later ones are dropped
  std::vector<std::string> notes;

  void fail(Code code, const std::string& field, std::string message);
};

// A field that is absent and one that is null are the same: not given. Every name asked for counts
// as known afterwards. Reads after an error return their fallback.
class FieldReader {
 public:
  // `object` must be a JSON object and outlive the reader; `path` ("text_config.") prefixes names.
  FieldReader(const Json& object, std::string path, ReadLog& log)
      : object_(object), path_(std::move(path)), log_(log) {}

  // The value, or null when it is not given.
  const Json* find(std::string_view field);
  bool given(std::string_view field) { return find(field) != nullptr; }

  // Wrong type: kInvalidFile. Outside [low, high]: kInvalidFile with the bound. Not given: the
  // fallback, or kInvalidFile if there is none.
  std::int64_t integer(std::string_view field, std::int64_t low, std::int64_t high,
                       std::optional<std::int64_t> fallback = {});
  // Finite, in (low, high].
  double number(std::string_view field, double low, double high,
                std::optional<double> fallback = {});
  bool boolean(std::string_view field, bool fallback);
  std::string text(std::string_view field, const std::string& fallback);
  // A nested object, or null when not given.
  const Json* object(std::string_view field);
  // Exactly `length` entries of 0 or 1 (false and true too); empty when not given.
  std::vector<bool> flags(std::string_view field, std::int64_t length);
  // Exactly `length` entries, each `off` or `on`; empty when not given.
  std::vector<bool> names(std::string_view field, std::int64_t length, std::string_view off,
                          std::string_view on);

  // Refuses (kUnsupported) any given value but the listed one; not given is fine.
  void only(std::string_view field, bool supported);
  void only_text(std::string_view field, std::string_view supported);

  void invalid(std::string_view field, std::string message);
  void unsupported(std::string_view field, std::string message);
  void note(std::string_view field, const std::string& message);
  ReadLog& log() { return log_; }
  std::string path(std::string_view field) const { return path_ + std::string(field); }

  // Marks fields as known without reading them.
  void know(std::initializer_list<std::string_view> fields);
  // Every field nobody asked for, in file order of the parsed object.
  std::vector<std::string> unknown() const;
  const Json& json() const { return object_; }

 private:
  const Json* array(std::string_view field, std::int64_t length);

  const Json& object_;
  std::string path_;
  ReadLog& log_;
  std::set<std::string, std::less<>> known_;
};

// The two objects that a config.json spreads its fields over: the file's own, and its text_config,
// in whose place is the file's own where it has none.
struct ConfigReaders {
  FieldReader root, text;
  const Json* nested = nullptr;  // the text_config, if there is one
};
// kInvalidFile for what is no object. The readers borrow from `json` and `log`, whose file is
// named.
Result<ConfigReaders> open_config(const Json& json, ReadLog& log);

}  // namespace monolayer::m3
