// int, float, abs and round.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>

#include "text/jinja/builtins.h"
#include "text/jinja/operators.h"
#include "text/jinja/utf8.h"

namespace monolayer::jinja {

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Text without surrounding white space and without underscores between digits; nullopt if an
// underscore stands anywhere else.
std::optional<std::string> number_text(std::string_view text) {
  const std::size_t begin = utf8::skip_space(text);
  text = text.substr(begin, utf8::trim_end(text, begin) - begin);
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out.push_back(text[i]);
      continue;
    }
    const auto alnum = [&](std::size_t k) {
      return k < text.size() &&
             (is_digit(text[k]) || ((text[k] | 0x20) >= 'a' && (text[k] | 0x20) <= 'z'));
    };
    if (i == 0 || !alnum(i - 1) || !alnum(i + 1)) return std::nullopt;
  }
  return out;
}

// int(text, base).
std::optional<Value> parse_integer(std::string_view source, std::int64_t base) {
  const auto text = number_text(source);
  if (!text) return std::nullopt;
  std::string digits = *text;
  bool minus = false;
  if (!digits.empty() && (digits[0] == '-' || digits[0] == '+')) {
    minus = digits[0] == '-';
    digits.erase(0, 1);
  }
  if (digits.size() > 2 && digits[0] == '0') {
    const char mark = static_cast<char>(digits[1] | 0x20);
    const int prefix = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
    if (prefix != 0 && (base == 0 || base == prefix)) {
      base = prefix;
      digits.erase(0, 2);
    }
  }
  if (base == 0) {
    if (digits.size() > 1 && digits[0] == '0' &&
        digits.find_first_not_of('0') != std::string::npos) {
      return std::nullopt;
    }
    base = 10;
  }
  if (base < 2 || base > 36 || digits.empty()) return std::nullopt;
  if (digits[0] == '-' || digits[0] == '+') return std::nullopt;
  if (minus) digits.insert(digits.begin(), '-');
  std::int64_t value = 0;
  const char* end = digits.data() + digits.size();
  const auto parsed = std::from_chars(digits.data(), end, value, static_cast<int>(base));
  if (parsed.ptr != end) return std::nullopt;
  if (parsed.ec == std::errc()) return Value::integer(value);
  if (base != 10) fail_unsupported("integers beyond 64 bits in other bases");
  const std::string_view significant(digits.data() + digits.find_first_not_of("-0"));
  return Value::big_integer(cat({minus ? "-" : "", significant}));
}

// float(text).
std::optional<double> parse_real(std::string_view source) {
  auto text = number_text(source);
  if (!text || text->empty()) return std::nullopt;
  std::string_view body = *text;
  double sign = 1;
  if (body[0] == '+' || body[0] == '-') {
    sign = body[0] == '-' ? -1 : 1;
    body.remove_prefix(1);
  }
  std::string lower(body);
  for (char& c : lower) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c | 0x20 : c);
  if (lower == "inf" || lower == "infinity") return sign * HUGE_VAL;
  if (lower == "nan") return std::copysign(std::nan(""), sign);
  if (lower.empty() || !(is_digit(lower[0]) || lower[0] == '.')) return std::nullopt;
  if (lower.find_first_not_of("0123456789.e+-") != std::string::npos) return std::nullopt;
  if (lower.back() == '.') lower.pop_back();  // from_chars reads "1." too, but not "1.e5"
  double value = 0;
  const char* end = lower.data() + lower.size();
  const auto parsed = std::from_chars(lower.data(), end, value);
  if (parsed.ptr != end) return std::nullopt;
  if (parsed.ec == std::errc::result_out_of_range) {
    const std::size_t exponent = lower.find('e');
    const bool tiny = exponent != std::string::npos && lower.find('-', exponent) < lower.size();
    return sign * (tiny ? 0.0 : HUGE_VAL);
  }
  if (parsed.ec != std::errc()) return std::nullopt;
  return sign * value;
}

std::optional<Value> truncated(double value) {
  if (!std::isfinite(value)) return std::nullopt;
  const double whole = std::trunc(value);
  if (whole >= 9223372036854775808.0 || whole < -9223372036854775808.0) {
    fail_unsupported("a float beyond 64 bits as an integer");
  }
  return Value::integer(static_cast<std::int64_t>(whole));
}

Value filter_int(Evaluator& e, const Value& input, CallArgs& args) {
  const Bound bound("int", args, {"default", "base"});
  require_defined(input);
  std::optional<Value> result;
  if (input.is(Kind::kString)) {
    e.rt.text(input.str().bytes.size());
    result = parse_integer(input.str().bytes, bound.integer(1, 10));
    if (!result) {
      if (const auto real = parse_real(input.str().bytes)) result = truncated(*real);
    }
  } else if (input.is(Kind::kFloat)) {
    if (std::isinf(input.as_real()) || std::isnan(input.as_real())) {
      if (std::isinf(input.as_real())) fail("cannot convert float infinity to integer");
    } else {
      result = truncated(input.as_real());
    }
  } else if (input.is_integer()) {
    result = Value::integer(input.as_int());
  } else if (input.is(Kind::kBigInt)) {
    result = input;
  }
  if (result) return *result;
  return bound.has(0) ? bound[0] : Value::integer(0);
}

Value filter_float(Evaluator& e, const Value& input, CallArgs& args) {
  const Bound bound("float", args, {"default"});
  require_defined(input);
  if (input.is_number()) return Value::real(input.as_real());
  if (input.is(Kind::kBigInt)) return Value::real(*parse_real(input.digits()));
  if (input.is(Kind::kString)) {
    e.rt.text(input.str().bytes.size());
    if (const auto real = parse_real(input.str().bytes)) return Value::real(*real);
  }
  return bound.has(0) ? bound[0] : Value::real(0);
}

Value filter_abs(Evaluator&, const Value& input, CallArgs& args) {
  const Bound bound("abs", args, {});
  require_defined(input);
  if (!input.is_number()) fail(cat({"bad operand type for abs(): ", type_name(input)}));
  if (input.is(Kind::kFloat)) return Value::real(std::fabs(input.as_real()));
  return input.as_int() < 0 ? negative(input) : positive(input);
}

Value filter_round(Evaluator&, const Value& input, CallArgs& args) {
  const Bound bound("round", args, {"precision", "method"});
  const std::int64_t precision = bound.integer(0, 0);
  const StringData* method = bound.text(1);
  const std::string how = method == nullptr ? "common" : method->bytes;
  if (how != "common" && how != "ceil" && how != "floor") {
    fail("round: method must be common, ceil or floor");
  }
  require_defined(input);
  if (!input.is_number()) fail(cat({"round takes a number, not ", type_name(input)}));
  if (precision < 0 || precision > 300) {
    fail_unsupported(cat({"rounding to ", std::to_string(precision), " digits"}));
  }
  const double value = input.as_real();
  if (how == "common") {
    if (input.is_integer()) return Value::integer(input.as_int());
    if (!std::isfinite(value)) return input;
    // The decimal text of a double is exact in glibc, and rounds half to even as Python does.
    char buffer[800];
    std::snprintf(buffer, sizeof buffer, "%.*f", static_cast<int>(precision), value);
    double rounded = 0;
    std::from_chars(buffer, buffer + std::char_traits<char>::length(buffer), rounded);
    return Value::real(rounded);
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = value * scale;
  if (!std::isfinite(scaled)) fail("cannot round a value that is not finite");
  return Value::real((how == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

constexpr FilterEntry kFilters[] = {
    {"int", filter_int},
    {"float", filter_float},
    {"abs", filter_abs},
    {"round", filter_round},
};

}  // namespace

FilterTable number_filters() { return {std::begin(kFilters), std::end(kFilters)}; }

}  // namespace monolayer::jinja
