// Filters that give text. Case changes and the like of text with untrusted parts give text that is
// untrusted throughout.
#include "text/jinja/builtins.h"
#include "text/jinja/format.h"
#include "text/jinja/operators.h"
#include "text/jinja/utf8.h"

namespace monolayer::jinja {

namespace {

Value rewritten(Evaluator& e, const Value& input, CallArgs& args, std::string_view name,
                std::string (*change)(std::string_view)) {
  const Bound bound(name, args, {});
  const Value text = to_string(e.rt, input);
  e.rt.text(16 * text.str().bytes.size());
  return make_string(e.rt, change(text.str().bytes), !text.str().marks.empty(), text.str().markup);
}

// Jinja's own title: words start after white space and opening brackets, not after any non-letter.
std::string title_words(std::string_view text) {
  const auto separates = [](char32_t c) {
    return utf8::is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
  };
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const utf8::Point first = utf8::decode(text, at);
    if (separates(first.code)) {
      out.append(text, at, first.size);
      at += first.size;
      continue;
    }
    std::size_t end = at + first.size;
    while (end < text.size()) {
      const utf8::Point point = utf8::decode(text, end);
      if (separates(point.code)) break;
      end += point.size;
    }
    utf8::append_cased(out, first.code, utf8::Case::kUpper);
    out += utf8::lower(text.substr(at + first.size, end - at - first.size));
    at = end;
  }
  return out;
}

Value filter_upper(Evaluator& e, const Value& input, CallArgs& args) {
  return rewritten(e, input, args, "upper", utf8::upper);
}

Value filter_lower(Evaluator& e, const Value& input, CallArgs& args) {
  return rewritten(e, input, args, "lower", utf8::lower);
}

Value filter_title(Evaluator& e, const Value& input, CallArgs& args) {
  return rewritten(e, input, args, "title", title_words);
}

Value filter_capitalize(Evaluator& e, const Value& input, CallArgs& args) {
  return rewritten(e, input, args, "capitalize", utf8::capitalize);
}

Value filter_trim(Evaluator& e, const Value& input, CallArgs& args) {
  const Bound bound("trim", args, {"chars"});
  return strip(e.rt, to_string(e.rt, input), bound.text(0), Side::kBoth);
}

Value filter_string(Evaluator& e, const Value& input, CallArgs& args) {
  const Bound bound("string", args, {});
  return to_string(e.rt, input);
}

Value filter_replace(Evaluator& e, const Value& input, CallArgs& args) {
  const Bound bound("replace", args, {"old", "new", "count"}, 2);
  const Value from = to_string(e.rt, bound[0]);
  const Value to = to_string(e.rt, bound[1]);
  return replace(e.rt, to_string(e.rt, input), from.str(), to.str(), bound.integer(2, -1));
}

Value filter_join(Evaluator& e, const Value& input, CallArgs& args) {
  const Bound bound("join", args, {"d", "attribute"});
  const Value separator = bound.has(0) ? to_string(e.rt, bound[0]) : make_string(e.rt, "");
  const bool by_attribute = bound.has(1) && !bound[1].is(Kind::kNone);
  std::vector<Value> path;
  if (by_attribute) path = attribute_path(e, bound[1]);
  TextBuilder out(e.rt);
  Cursor cursor(e.rt, input);
  Value item;
  for (bool first = true; cursor.next(&item); first = false) {
    if (!first) out.append(separator.str());
    append_str(e.rt, out, by_attribute ? follow_path(e, item, path) : item);
  }
  return out.finish();
}

Value filter_indent(Evaluator& e, const Value& input, CallArgs& args) {
  const Bound bound("indent", args, {"width", "first", "blank"});
  require_defined(input);
  if (!input.is(Kind::kString)) {
    fail(cat({"indent takes a string, not ", type_name(input)}));
  }
  Value indent;
  if (bound.has(0) && bound[0].is(Kind::kString)) {
    indent = bound[0];
  } else {
    const std::int64_t width = bound.integer(0, 4);
    if (bound.has(0) && bound[0].is(Kind::kNone)) fail("indent takes a width or a string");
    indent = arithmetic(e.rt, ExprKind::kMul, Value::literal(" "), Value::integer(width));
  }
  const bool blank = bound.truth(2, false);
  TextBuilder ended(e.rt);
  ended.append(input.str());
  ended.append("\n");
  const Value lines = split_lines(e.rt, ended.finish(), false);
  TextBuilder out(e.rt);
  if (bound.truth(1, false)) out.append(indent.str());
  bool first = true;
  for (const Value& line : lines.list().items) {
    if (!first) {
      out.append("\n");
      if (blank || !line.str().bytes.empty()) out.append(indent.str());
    }
    first = false;
    out.append(line.str());
  }
  return out.finish(input.str().markup);
}

Value filter_escape(Evaluator& e, const Value& input, CallArgs& args) {
  const Bound bound("escape", args, {});
  return escape(e.rt, to_string(e.rt, input));
}

Value filter_forceescape(Evaluator& e, const Value& input, CallArgs& args) {
  const Bound bound("forceescape", args, {});
  const Value text = to_string(e.rt, input);
  return escape(e.rt, make_string(e.rt, text.str().bytes, !text.str().marks.empty()));
}

Value filter_safe(Evaluator& e, const Value& input, CallArgs& args) {
  const Bound bound("safe", args, {});
  TextBuilder out(e.rt);
  append_str(e.rt, out, input);
  return out.finish(true);
}

Value filter_tojson(Evaluator& e, const Value& input, CallArgs& args) {
  const Bound bound("tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = bound.truth(0, false);
  style.sort_keys = bound.truth(3, false);
  if (bound.has(1) && !bound[1].is(Kind::kNone)) {
    style.multiline = true;
    style.item_separator.resize(1);  // "," where lines end
    if (bound[1].is(Kind::kString)) {
      style.indent = bound[1].str().bytes;
    } else {
      const std::int64_t width = bound.integer(1, 0);
      if (width > 1024) fail_limit("a JSON indent above 1024");
      style.indent.assign(static_cast<std::size_t>(std::max<std::int64_t>(width, 0)), ' ');
    }
  }
  if (bound.has(2) && !bound[2].is(Kind::kNone)) {
    Cursor parts(e.rt, bound[2]);
    Value item, key, extra;
    if (!parts.next(&item) || !parts.next(&key) || parts.next(&extra) || !item.is(Kind::kString) ||
        !key.is(Kind::kString)) {
      fail("tojson: separators must be a pair of strings");
    }
    style.item_separator = item.str().bytes;
    style.key_separator = key.str().bytes;
  }
  return to_json(e.rt, input, style);
}

constexpr FilterEntry kFilters[] = {
    {"upper", filter_upper},     {"lower", filter_lower},
    {"title", filter_title},     {"capitalize", filter_capitalize},
    {"trim", filter_trim},       {"string", filter_string},
    {"replace", filter_replace}, {"join", filter_join},
    {"indent", filter_indent},   {"escape", filter_escape},
    {"e", filter_escape},        {"forceescape", filter_forceescape},
    {"safe", filter_safe},       {"tojson", filter_tojson},
};

}  // namespace

FilterTable text_filters() { return {std::begin(kFilters), std::end(kFilters)}; }

}  // namespace monolayer::jinja
