// Methods of strings.
#include <algorithm>

#include "text/jinja/builtins.h"
#include "text/jinja/format.h"
#include "text/jinja/methods.h"
#include "text/jinja/operators.h"
#include "text/jinja/utf8.h"

namespace monolayer::jinja {

namespace {

Value rewritten(Evaluator& e, const Value& self, CallArgs& args, std::string_view name,
                std::string (*change)(std::string_view)) {
  const Bound bound(name, args, {});
  e.rt.text(16 * self.str().bytes.size());
  return make_string(e.rt, change(self.str().bytes), !self.str().marks.empty(), self.str().markup);
}

Value method_upper(Evaluator& e, const Value& self, CallArgs& args) {
  return rewritten(e, self, args, "upper", utf8::upper);
}
Value method_lower(Evaluator& e, const Value& self, CallArgs& args) {
  return rewritten(e, self, args, "lower", utf8::lower);
}
Value method_title(Evaluator& e, const Value& self, CallArgs& args) {
  return rewritten(e, self, args, "title", utf8::title);
}
Value method_capitalize(Evaluator& e, const Value& self, CallArgs& args) {
  return rewritten(e, self, args, "capitalize", utf8::capitalize);
}

Value stripped(Evaluator& e, const Value& self, CallArgs& args, Side side) {
  if (!args.named.empty()) fail("strip takes no keyword arguments");
  const Bound bound("strip", args, {"chars"});
  return strip(e.rt, self, bound.text(0), side);
}
Value method_strip(Evaluator& e, const Value& self, CallArgs& args) {
  return stripped(e, self, args, Side::kBoth);
}
Value method_lstrip(Evaluator& e, const Value& self, CallArgs& args) {
  return stripped(e, self, args, Side::kLeft);
}
Value method_rstrip(Evaluator& e, const Value& self, CallArgs& args) {
  return stripped(e, self, args, Side::kRight);
}

Value method_split(Evaluator& e, const Value& self, CallArgs& args) {
  const Bound bound("split", args, {"sep", "maxsplit"});
  return split(e.rt, self, bound.text(0), bound.integer(1, -1), false);
}
Value method_rsplit(Evaluator& e, const Value& self, CallArgs& args) {
  const Bound bound("rsplit", args, {"sep", "maxsplit"});
  return split(e.rt, self, bound.text(0), bound.integer(1, -1), true);
}
Value method_splitlines(Evaluator& e, const Value& self, CallArgs& args) {
  const Bound bound("splitlines", args, {"keepends"});
  return split_lines(e.rt, self, bound.truth(0, false));
}

bool affix(std::string_view text, std::string_view part, bool at_start) {
  return part.size() <= text.size() &&
         text.compare(at_start ? 0 : text.size() - part.size(), part.size(), part) == 0;
}

Value has_affix(Evaluator& e, const Value& self, CallArgs& args, const char* name, bool at_start) {
  if (args.positional.size() > 1) fail_unsupported(cat({name, " with positions"}));
  if (!args.named.empty()) fail(cat({name, " takes no keyword arguments"}));
  const Bound bound(name, args, {"part"}, 1);
  const std::string_view text = self.str().bytes;
  if (bound[0].is(Kind::kList) && bound[0].list().flavor == Flavor::kTuple) {
    for (const Value& part : bound[0].list().items) {
      e.rt.step();
      if (!part.is(Kind::kString)) fail(cat({name, " takes a str or a tuple of str"}));
      if (affix(text, part.str().bytes, at_start)) return Value::boolean(true);
    }
    return Value::boolean(false);
  }
  if (!bound[0].is(Kind::kString)) {
    require_defined(bound[0]);
    fail(cat({name, " first arg must be str or a tuple of str, not ", type_name(bound[0])}));
  }
  e.rt.text(bound[0].str().bytes.size());
  return Value::boolean(affix(text, bound[0].str().bytes, at_start));
}
Value method_startswith(Evaluator& e, const Value& self, CallArgs& args) {
  return has_affix(e, self, args, "startswith", true);
}
Value method_endswith(Evaluator& e, const Value& self, CallArgs& args) {
  return has_affix(e, self, args, "endswith", false);
}

Value without_affix(Evaluator& e, const Value& self, CallArgs& args, const char* name,
                    bool at_start) {
  const Bound bound(name, args, {"part"}, 1);
  const StringData* part = bound.text(0);
  if (part == nullptr) fail(cat({name, " takes a string"}));
  const std::size_t size = self.str().bytes.size();
  if (!affix(self.str().bytes, part->bytes, at_start)) return self;
  return at_start ? substring(e.rt, self, part->bytes.size(), size)
                  : substring(e.rt, self, 0, size - part->bytes.size());
}
Value method_removeprefix(Evaluator& e, const Value& self, CallArgs& args) {
  return without_affix(e, self, args, "removeprefix", true);
}
Value method_removesuffix(Evaluator& e, const Value& self, CallArgs& args) {
  return without_affix(e, self, args, "removesuffix", false);
}

Value method_replace(Evaluator& e, const Value& self, CallArgs& args) {
  if (!args.named.empty()) fail("replace takes no keyword arguments");
  const Bound bound("replace", args, {"old", "new", "count"}, 2);
  const StringData* from = bound.text(0);
  const StringData* to = bound.text(1);
  if (from == nullptr || to == nullptr) fail("replace takes two strings");
  if (bound.has(2) && bound[2].is(Kind::kNone)) fail("replace takes an integer count");
  return replace(e.rt, self, *from, *to, bound.integer(2, -1));
}

Value method_join(Evaluator& e, const Value& self, CallArgs& args) {
  const Bound bound("join", args, {"iterable"}, 1);
  TextBuilder out(e.rt);
  Cursor cursor(e.rt, bound[0]);
  Value item;
  for (std::size_t i = 0; cursor.next(&item); ++i) {
    if (!item.is(Kind::kString)) {
      fail(cat({"sequence item ", std::to_string(i), ": expected str instance, ", type_name(item),
                " found"}));
    }
    if (i > 0) out.append(self.str());
    out.append(item.str());
  }
  return out.finish(self.str().markup);
}

// The bytes [begin, end) that optional code point bounds `first` and `first + 1` select, as slices
// do. `start` is the clamped start in code points; false if it lies behind the end.
bool byte_range(const Value& self, const Bound& bound, std::size_t first, std::int64_t* start,
                std::size_t* begin, std::size_t* end) {
  const StringData& data = self.str();
  const auto length = static_cast<std::int64_t>(data.code_points);
  const auto clamp = [&](std::int64_t at) {
    if (at < 0) at = at < -length ? 0 : at + length;
    return at;
  };
  *start = clamp(bound.integer(first, 0));
  const std::int64_t stop = std::min(clamp(bound.integer(first + 1, length)), length);
  if (*start > stop) return false;
  *begin = utf8::offset(data.bytes, static_cast<std::size_t>(*start));
  *end = utf8::offset(data.bytes, static_cast<std::size_t>(stop));
  return true;
}

std::int64_t find_index(Evaluator& e, const Value& self, CallArgs& args, const char* name,
                        bool from_right) {
  const Bound bound(name, args, {"sub", "start", "end"}, 1);
  const StringData* sub = bound.text(0);
  if (sub == nullptr) fail(cat({name, " takes a string"}));
  std::int64_t start = 0;
  std::size_t begin = 0;
  std::size_t end = 0;
  e.rt.text(self.str().bytes.size());
  if (!byte_range(self, bound, 1, &start, &begin, &end)) return -1;
  const std::string_view text = std::string_view(self.str().bytes).substr(begin, end - begin);
  const std::size_t at =
      from_right ? rfind(e.rt, text, sub->bytes, text.size()) : find(e.rt, text, sub->bytes, 0);
  if (at == std::string_view::npos) return -1;
  return start + static_cast<std::int64_t>(utf8::count(text.substr(0, at)));
}

Value method_find(Evaluator& e, const Value& self, CallArgs& args) {
  return Value::integer(find_index(e, self, args, "find", false));
}
Value method_rfind(Evaluator& e, const Value& self, CallArgs& args) {
  return Value::integer(find_index(e, self, args, "rfind", true));
}
Value method_index(Evaluator& e, const Value& self, CallArgs& args) {
  const std::int64_t index = find_index(e, self, args, "index", false);
  if (index < 0) fail("substring not found");
  return Value::integer(index);
}
Value method_rindex(Evaluator& e, const Value& self, CallArgs& args) {
  const std::int64_t index = find_index(e, self, args, "rindex", true);
  if (index < 0) fail("substring not found");
  return Value::integer(index);
}

Value method_count(Evaluator& e, const Value& self, CallArgs& args) {
  const Bound bound("count", args, {"sub", "start", "end"}, 1);
  const StringData* sub = bound.text(0);
  if (sub == nullptr) fail("count takes a string");
  std::int64_t start = 0;
  std::size_t begin = 0;
  std::size_t end = 0;
  e.rt.text(self.str().bytes.size());
  if (!byte_range(self, bound, 1, &start, &begin, &end)) return Value::integer(0);
  const std::string_view text = std::string_view(self.str().bytes).substr(begin, end - begin);
  if (sub->bytes.empty()) return Value::integer(static_cast<std::int64_t>(utf8::count(text)) + 1);
  std::int64_t count = 0;
  for (std::size_t at = 0; (at = find(e.rt, text, sub->bytes, at)) != std::string_view::npos;
       at += sub->bytes.size()) {
    e.rt.step();
    ++count;
  }
  return Value::integer(count);
}

Value method_partition(Evaluator& e, const Value& self, CallArgs& args) {
  const Bound bound("partition", args, {"sep"}, 1);
  const StringData* separator = bound.text(0);
  if (separator == nullptr || separator->bytes.empty()) fail("empty separator");
  const std::size_t size = self.str().bytes.size();
  const std::size_t at = find(e.rt, self.str().bytes, separator->bytes, 0);
  ListBuilder out(&e.rt);
  if (at == std::string_view::npos) {
    out.add(self);
    out.add(make_string(e.rt, ""));
    out.add(make_string(e.rt, ""));
  } else {
    out.add(substring(e.rt, self, 0, at));
    out.add(substring(e.rt, self, at, at + separator->bytes.size()));
    out.add(substring(e.rt, self, at + separator->bytes.size(), size));
  }
  return out.finish(Flavor::kTuple);
}

Value all_points(Evaluator& e, const Value& self, CallArgs& args, const char* name,
                 bool (*holds)(char32_t)) {
  const Bound bound(name, args, {});
  const std::string& text = self.str().bytes;
  e.rt.text(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const utf8::Point point = utf8::decode(text, at);
    if (!holds(point.code)) return Value::boolean(false);
    at += point.size;
  }
  return Value::boolean(!text.empty());
}
Value method_isspace(Evaluator& e, const Value& self, CallArgs& args) {
  return all_points(e, self, args, "isspace", utf8::is_space);
}
Value method_isalpha(Evaluator& e, const Value& self, CallArgs& args) {
  return all_points(e, self, args, "isalpha", utf8::is_alpha);
}
// Superscripts and other digits that are not decimal count for Python; not here.
Value method_isdigit(Evaluator& e, const Value& self, CallArgs& args) {
  return all_points(e, self, args, "isdigit", utf8::is_digit);
}
Value method_isalnum(Evaluator& e, const Value& self, CallArgs& args) {
  return all_points(e, self, args, "isalnum",
                    [](char32_t c) { return utf8::is_alpha(c) || utf8::is_digit(c); });
}
Value method_isupper(Evaluator& e, const Value& self, CallArgs& args) {
  return Value::boolean(e.apply_test("upper", self, args));
}
Value method_islower(Evaluator& e, const Value& self, CallArgs& args) {
  return Value::boolean(e.apply_test("lower", self, args));
}

constexpr MethodEntry kMethods[] = {
    {"upper", method_upper},
    {"lower", method_lower},
    {"title", method_title},
    {"capitalize", method_capitalize},
    {"strip", method_strip},
    {"lstrip", method_lstrip},
    {"rstrip", method_rstrip},
    {"split", method_split},
    {"rsplit", method_rsplit},
    {"splitlines", method_splitlines},
    {"startswith", method_startswith},
    {"endswith", method_endswith},
    {"removeprefix", method_removeprefix},
    {"removesuffix", method_removesuffix},
    {"replace", method_replace},
    {"join", method_join},
    {"find", method_find},
    {"rfind", method_rfind},
    {"index", method_index},
    {"rindex", method_rindex},
    {"count", method_count},
    {"partition", method_partition},
    {"isspace", method_isspace},
    {"isalpha", method_isalpha},
    {"isdigit", method_isdigit},
    {"isalnum", method_isalnum},
    {"isupper", method_isupper},
    {"islower", method_islower},
    {"casefold", nullptr},
    {"center", nullptr},
    {"encode", nullptr},
    {"expandtabs", nullptr},
    {"format", nullptr},
    {"format_map", nullptr},
    {"isascii", nullptr},
    {"isdecimal", nullptr},
    {"isidentifier", nullptr},
    {"isnumeric", nullptr},
    {"isprintable", nullptr},
    {"istitle", nullptr},
    {"ljust", nullptr},
    {"maketrans", nullptr},
    {"rjust", nullptr},
    {"rpartition", nullptr},
    {"swapcase", nullptr},
    {"translate", nullptr},
    {"zfill", nullptr},
};

}  // namespace

std::span<const MethodEntry> string_methods() { return kMethods; }

}  // namespace monolayer::jinja
