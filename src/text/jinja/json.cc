#include "text/jinja/json.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/json_text.h"
#include "text/jinja/utf8.h"

namespace monolayer::jinja {

namespace {

// Builds values from parse events; used for text, and for documents by walking them.
class Builder {
 public:
  using number_integer_t = std::int64_t;
  using number_unsigned_t = std::uint64_t;
  using number_float_t = double;
  using string_t = std::string;
  using binary_t = nlohmann::ordered_json::binary_t;

  explicit Builder(Trust trust) : untrusted_(trust == Trust::kUntrusted) {}

  bool null() { return put(Value()); }
  bool boolean(bool b) { return put(Value::boolean(b)); }
  bool number_integer(number_integer_t i) { return put(Value::integer(i)); }
  bool number_unsigned(number_unsigned_t i) {
    if (i > static_cast<number_unsigned_t>(INT64_MAX)) {
      return put(Value::big_integer(std::to_string(i)));
    }
    return put(Value::integer(static_cast<std::int64_t>(i)));
  }
  // The parser takes integers it has no type for as floats, but passes on their digits.
  bool number_float(number_float_t d, const string_t& digits) {
    if (!digits.empty() && digits.find_first_not_of("-0123456789") == std::string::npos) {
      return put(Value::big_integer(digits));
    }
    return put(Value::real(d));
  }
  bool string(string_t& text) {
    if (!utf8::valid(text)) return refuse("a string is not UTF-8");
    return put(make(std::move(text)));
  }
  bool binary(binary_t&) { return refuse("binary values are not JSON"); }
  bool start_object(std::size_t) { return open(true); }
  bool key(string_t& text) {
    if (!utf8::valid(text)) return refuse("a key is not UTF-8");
    levels_.back().key = make(std::move(text));
    return true;
  }
  bool end_object() {
    Value value = levels_.back().dict->finish(untrusted_);
    levels_.pop_back();
    return put(std::move(value));
  }
  bool start_array(std::size_t) { return open(false); }
  bool end_array() {
    Value value = levels_.back().list->finish(Flavor::kList, untrusted_);
    levels_.pop_back();
    return put(std::move(value));
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) {
    return refuse("malformed JSON at byte " + std::to_string(position));
  }

  const std::string& error() const { return error_; }
  const Value& result() const { return result_; }

  // The events of a document.
  bool walk(const nlohmann::ordered_json& json) {
    using Type = nlohmann::json::value_t;
    switch (json.type()) {
      case Type::null:
        return null();
      case Type::boolean:
        return boolean(json.get<bool>());
      case Type::number_integer:
        return number_integer(json.get<std::int64_t>());
      case Type::number_unsigned:
        return number_unsigned(json.get<std::uint64_t>());
      case Type::number_float:
        return number_float(json.get<double>(), {});
      case Type::string: {
        std::string text = json.get_ref<const std::string&>();
        return string(text);
      }
      case Type::array:
        if (!start_array(0)) return false;
        for (const auto& item : json) {
          if (!walk(item)) return false;
        }
        return end_array();
      case Type::object:
        if (!start_object(0)) return false;
        for (const auto& [name, value] : json.items()) {
          std::string text = name;
          if (!key(text) || !walk(value)) return false;
        }
        return end_object();
      default:
        return refuse("binary values are not JSON");
    }
  }

 private:
  struct Level {
    std::unique_ptr<DictBuilder> dict;
    std::unique_ptr<ListBuilder> list;
    Value key;
  };

  Value make(std::string text) const {
    return untrusted_ ? Value::untrusted(std::move(text)) : Value::literal(std::move(text));
  }

  bool refuse(std::string message) {
    error_ = std::move(message);
    return false;
  }

  bool open(bool object) {
    if (levels_.size() >= static_cast<std::size_t>(kJsonDepth)) {
      return refuse("nests deeper than " + std::to_string(kJsonDepth) + " levels");
    }
    Level level;
    if (object) {
      level.dict = std::make_unique<DictBuilder>(nullptr);
    } else {
      level.list = std::make_unique<ListBuilder>(nullptr);
    }
    levels_.push_back(std::move(level));
    return true;
  }

  bool put(Value value) {
    if (levels_.empty()) {
      result_ = std::move(value);
    } else if (levels_.back().dict) {
      levels_.back().dict->add(std::move(levels_.back().key), std::move(value));
    } else {
      levels_.back().list->add(std::move(value));
    }
    return true;
  }

  bool untrusted_;
  std::vector<Level> levels_;
  Value result_;
  std::string error_;
};

template <typename Feed>
Result<Value> build(std::string_view subject, Trust trust, const Feed& feed) {
  try {
    Builder builder(trust);
    if (!feed(builder)) {
      return Status(Code::kInvalidArgument, std::string(subject), builder.error());
    }
    return builder.result();
  } catch (const Failure& failure) {
    return Status(failure.code, std::string(subject), failure.message);
  } catch (const std::exception& error) {
    return Status(Code::kInvalidArgument, std::string(subject), error.what());
  }
}

}  // namespace

Result<Value> from_json(const nlohmann::ordered_json& json, std::string_view subject, Trust trust) {
  return build(subject, trust, [&](Builder& builder) { return builder.walk(json); });
}

Result<Value> parse_json(std::string_view text, std::string_view subject, Trust trust) {
  if (const std::string nul = nul_in_json(text); !nul.empty())
    return Status(Code::kInvalidArgument, std::string(subject), "is not JSON: " + nul);
  return build(subject, trust,
               [&](Builder& builder) { return nlohmann::ordered_json::sax_parse(text, &builder); });
}

}  // namespace monolayer::jinja
