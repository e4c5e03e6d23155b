// tojson: json.dumps over values, with the marks of the strings it writes.
#include <algorithm>
#include <cmath>

#include "text/jinja/format.h"
#include "text/jinja/operators.h"
#include "text/jinja/utf8.h"

namespace monolayer::jinja {

namespace {

class JsonWriter {
 public:
  JsonWriter(Runtime& rt, const JsonStyle& style) : rt_(rt), style_(style), out_(rt) {}

  void write(const Value& value, int level) {
    rt_.step();
    switch (value.kind()) {
      case Kind::kString:
        write_string(value.str());
        return;
      case Kind::kList:
        if (value.list().flavor != Flavor::kList && value.list().flavor != Flavor::kTuple) break;
        write_list(value.list(), level);
        return;
      case Kind::kDict:
        write_dict(value.dict(), level);
        return;
      default:
        if (const std::string text = scalar(value); !text.empty()) {
          out_.append(text);
          return;
        }
    }
    fail(cat({"Object of type ", type_name(value), " is not JSON serializable"}));
  }

  Value finish() { return out_.finish(); }

 private:
  // JSON of null, true, false and numbers; "" for others.
  static std::string scalar(const Value& value) {
    switch (value.kind()) {
      case Kind::kNone:
        return "null";
      case Kind::kBool:
        return value.as_bool() ? "true" : "false";
      case Kind::kInt:
        return std::to_string(value.as_int());
      case Kind::kBigInt:
        return value.digits();
      case Kind::kFloat:
        if (std::isnan(value.as_real())) return "NaN";
        if (std::isinf(value.as_real())) return value.as_real() < 0 ? "-Infinity" : "Infinity";
        return float_repr(value.as_real());
      default:
        return {};
    }
  }

  static void append_u(std::string& text, char32_t unit) {
    constexpr char kDigits[] = "0123456789abcdef";
    text += "\\u";
    for (int shift = 12; shift >= 0; shift -= 4) text.push_back(kDigits[(unit >> shift) & 0xf]);
  }

  // One character as JSON writes it; "" if it stands for itself.
  std::string escaped(char32_t code) const {
    switch (code) {
      case '"':
        return "\\\"";
      case '\\':
        return "\\\\";
      case '\n':
        return "\\n";
      case '\r':
        return "\\r";
      case '\t':
        return "\\t";
      case '\b':
        return "\\b";
      case '\f':
        return "\\f";
      default:
        break;
    }
    std::string text;
    if (code < 0x20) {
      append_u(text, code);
    } else if (style_.ensure_ascii && code >= 0x7f) {
      if (code == 0x7f) return {};
      if (code >= 0x10000) {
        append_u(text, 0xd800 + ((code - 0x10000) >> 10));
        append_u(text, 0xdc00 + ((code - 0x10000) & 0x3ff));
      } else {
        append_u(text, code);
      }
    }
    return text;
  }

  void write_string(const StringData& data) {
    const std::string& bytes = data.bytes;
    rt_.text(8 * bytes.size());
    out_.append("\"");
    std::size_t plain = 0;  // start of the bytes not written yet, which stand for themselves
    auto mark = data.marks.begin();
    for (std::size_t at = 0; at < bytes.size();) {
      const utf8::Point point = utf8::decode(bytes, at);
      if (const std::string text = escaped(point.code); !text.empty()) {
        out_.append(data, plain, at);
        while (mark != data.marks.end() && mark->end <= at) ++mark;
        out_.append(text, mark != data.marks.end() && mark->begin <= at);
        plain = at + point.size;
      }
      at += point.size;
    }
    out_.append(data, plain, bytes.size());
    out_.append("\"");
  }

  void newline(int level) {
    out_.append("\n");
    for (int i = 0; i < level; ++i) out_.append(style_.indent);
  }

  void separate(bool first, int level) {
    if (!first) out_.append(style_.item_separator);
    if (style_.multiline) newline(level + 1);
  }

  void write_list(const ListData& list, int level) {
    const bool before = out_.untrusted();
    out_.set_untrusted(before || list.untrusted);
    out_.append("[");
    bool first = true;
    for (const Value& item : list.items) {
      separate(first, level);
      first = false;
      write(item, level + 1);
    }
    if (!first && style_.multiline) newline(level);
    out_.append("]");
    out_.set_untrusted(before);
  }

  void write_dict(const DictData& dict, int level) {
    const bool before = out_.untrusted();
    out_.set_untrusted(before || dict.untrusted);
    std::vector<const std::pair<Value, Value>*> entries;
    entries.reserve(dict.entries.size());
    for (const auto& entry : dict.entries) entries.push_back(&entry);
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(), [&](const auto* a, const auto* b) {
        return ordered(rt_, CompareOp::kLt, a->first, b->first);
      });
    }
    out_.append("{");
    bool first = true;
    for (const auto* entry : entries) {
      separate(first, level);
      first = false;
      write_key(entry->first);
      out_.append(style_.key_separator);
      write(entry->second, level + 1);
    }
    if (!first && style_.multiline) newline(level);
    out_.append("}");
    out_.set_untrusted(before);
  }

  void write_key(const Value& key) {
    if (key.is(Kind::kString)) {
      write_string(key.str());
      return;
    }
    const std::string text = scalar(key);
    if (text.empty()) {
      fail(cat({"keys must be str, int, float, bool or None, not ", type_name(key)}));
    }
    out_.append("\"" + text + "\"");
  }

  Runtime& rt_;
  const JsonStyle& style_;
  TextBuilder out_;
};

}  // namespace

Value to_json(Runtime& rt, const Value& value, const JsonStyle& style) {
  JsonWriter writer(rt, style);
  writer.write(value, 0);
  return writer.finish();
}

}  // namespace monolayer::jinja
