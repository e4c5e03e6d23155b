#include "text/jinja/format.h"

#include <charconv>
#include <cmath>

#include "text/jinja/ast.h"
#include "text/jinja/objects.h"
#include "text/jinja/utf8.h"

namespace monolayer::jinja {

namespace {

void append_hex(std::string& out, char32_t code, int digits) {
  constexpr char kDigits[] = "0123456789abcdef";
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) {
    out.push_back(kDigits[(code >> shift) & 0xf]);
  }
}

// repr(str): single quotes unless only those occur inside.
void append_string_repr(Runtime& rt, TextBuilder& out, const StringData& data) {
  rt.text(8 * data.bytes.size());
  const std::string& bytes = data.bytes;
  const bool untrusted = !data.marks.empty();
  const bool has_single = bytes.find('\'') != std::string::npos;
  const char quote = has_single && bytes.find('"') == std::string::npos ? '"' : '\'';
  std::string text(1, quote);
  for (std::size_t at = 0; at < bytes.size();) {
    const utf8::Point point = utf8::decode(bytes, at);
    const char c = bytes[at];
    if (c == quote || c == '\\') {
      text.push_back('\\');
      text.push_back(c);
    } else if (c == '\n') {
      text += "\\n";
    } else if (c == '\r') {
      text += "\\r";
    } else if (c == '\t') {
      text += "\\t";
    } else if (utf8::is_printable(point.code)) {
      text.append(bytes, at, point.size);
    } else if (point.code < 0x100) {
      text += "\\x";
      append_hex(text, point.code, 2);
    } else if (point.code < 0x10000) {
      text += "\\u";
      append_hex(text, point.code, 4);
    } else {
      text += "\\U";
      append_hex(text, point.code, 8);
    }
    at += point.size;
  }
  text.push_back(quote);
  if (data.markup) out.append("Markup(");
  out.append(text, untrusted);
  if (data.markup) out.append(")");
}

// While it lives, what is appended is untrusted if the container came from the caller: its
// brackets and commas are as much the caller's as its strings.
class UntrustedRegion {
 public:
  UntrustedRegion(TextBuilder& out, bool on) : out_(out), before_(out.untrusted()) {
    out_.set_untrusted(before_ || on);
  }
  ~UntrustedRegion() { out_.set_untrusted(before_); }
  UntrustedRegion(const UntrustedRegion&) = delete;
  UntrustedRegion& operator=(const UntrustedRegion&) = delete;

 private:
  TextBuilder& out_;
  bool before_;
};

void append_list_repr(Runtime& rt, TextBuilder& out, const ListData& list) {
  const UntrustedRegion region(out, list.untrusted);
  std::string_view open = "[";
  std::string_view close = "]";
  switch (list.flavor) {
    case Flavor::kList:
      break;
    case Flavor::kTuple:
      open = "(";
      close = list.items.size() == 1 ? ",)" : ")";
      break;
    case Flavor::kRange:
      out.append("range(" + std::to_string(list.start) + ", " + std::to_string(list.stop));
      if (list.step != 1) out.append(", " + std::to_string(list.step));
      out.append(")");
      return;
    case Flavor::kKeys:
      open = "dict_keys([";
      close = "])";
      break;
    case Flavor::kValues:
      open = "dict_values([";
      close = "])";
      break;
    case Flavor::kItems:
      open = "dict_items([";
      close = "])";
      break;
  }
  out.append(open);
  bool first = true;
  for (const Value& item : list.items) {
    if (!first) out.append(", ");
    first = false;
    append_repr(rt, out, item);
  }
  out.append(close);
}

template <typename Entries>
void append_dict_repr(Runtime& rt, TextBuilder& out, const Entries& entries) {
  out.append("{");
  bool first = true;
  for (const auto& [key, value] : entries) {
    if (!first) out.append(", ");
    first = false;
    append_repr(rt, out, key);
    out.append(": ");
    append_repr(rt, out, value);
  }
  out.append("}");
}

void append_object(Runtime& rt, TextBuilder& out, Object* object) {
  const DepthGuard guard(rt);  // a namespace may hold itself
  if (object->type == ObjectType::kNamespace) {
    out.append("<Namespace ");
    append_dict_repr(rt, out, static_cast<Namespace*>(object)->attributes);
    out.append(">");
    return;
  }
  if (object->type == ObjectType::kMacro) {
    const std::string& name = static_cast<Macro*>(object)->definition->name;
    out.append(name.empty() ? "<Macro anonymous>" : "<Macro '" + name + "'>");
    return;
  }
  fail_unsupported(cat({"printing a ", type_name(Value::object(object))}));
}

}  // namespace

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  std::string text(buffer, end);
  const std::size_t mark = text.find('e');
  const int exponent = std::stoi(text.substr(mark + 1));
  if (exponent < -4 || exponent >= 16) return text;
  std::string digits = text.substr(0, mark);
  const bool minus = digits[0] == '-';
  if (minus) digits.erase(0, 1);
  if (digits.size() > 1) digits.erase(1, 1);  // the point
  std::string out = minus ? "-" : "";
  if (exponent < 0) {
    out += cat({"0.", std::string(static_cast<std::size_t>(-exponent - 1), '0'), digits});
  } else {
    const auto whole = static_cast<std::size_t>(exponent) + 1;
    if (digits.size() < whole) digits.append(whole - digits.size(), '0');
    out += digits.substr(0, whole) + ".";
    out += digits.size() > whole ? digits.substr(whole) : "0";
  }
  return out;
}

void append_repr(Runtime& rt, TextBuilder& out, const Value& value) {
  rt.step();
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
      out.append("Undefined");
      return;
    case Kind::kNone:
      out.append("None");
      return;
    case Kind::kBool:
      out.append(value.as_bool() ? "True" : "False");
      return;
    case Kind::kInt:
      out.append(std::to_string(value.as_int()));
      return;
    case Kind::kBigInt:
      out.append(value.digits());
      return;
    case Kind::kFloat:
      out.append(float_repr(value.as_real()));
      return;
    case Kind::kString:
      append_string_repr(rt, out, value.str());
      return;
    case Kind::kList:
      append_list_repr(rt, out, value.list());
      return;
    case Kind::kDict: {
      const UntrustedRegion region(out, value.dict().untrusted);
      append_dict_repr(rt, out, value.dict().entries);
      return;
    }
    case Kind::kObject:
      append_object(rt, out, value.object());
      return;
  }
}

void append_str(Runtime& rt, TextBuilder& out, const Value& value) {
  if (value.is(Kind::kString)) {
    out.append(value.str());
  } else if (!value.is(Kind::kUndefined)) {
    append_repr(rt, out, value);
  }
}

Value to_string(Runtime& rt, const Value& value) {
  if (value.is(Kind::kString)) return value;
  TextBuilder out(rt);
  append_str(rt, out, value);
  return out.finish();
}

}  // namespace monolayer::jinja
