#include "text/jinja/text.h"

#include <algorithm>
#include <cstring>

#include "text/jinja/utf8.h"

namespace monolayer::jinja {

namespace {

// Adds [begin, end), merging it with the last mark where they touch.
void add_mark(Marks& marks, std::size_t begin, std::size_t end) {
  if (begin >= end) return;
  if (!marks.empty() && marks.back().end == begin) {
    marks.back().end = end;
  } else {
    marks.push_back({begin, end});
  }
}

bool contains_point(std::string_view set, char32_t code) {
  for (std::size_t i = 0; i < set.size();) {
    const utf8::Point point = utf8::decode(set, i);
    if (point.code == code) return true;
    i += point.size;
  }
  return false;
}

std::size_t line_end_size(std::string_view text, std::size_t at, const utf8::Point& point) {
  switch (point.code) {
    case '\r':
      return at + 1 < text.size() && text[at + 1] == '\n' ? 2 : 1;
    case '\n':
    case 0x0b:
    case 0x0c:
    case 0x1c:
    case 0x1d:
    case 0x1e:
    case 0x85:
    case 0x2028:
    case 0x2029:
      return point.size;
    default:
      return 0;
  }
}

void split_space(Runtime& rt, const Value& string, std::int64_t limit, ListBuilder& out) {
  const std::string_view text = string.str().bytes;
  std::size_t at = utf8::skip_space(text);
  while (at < text.size()) {
    if (limit == 0) {
      out.add(substring(rt, string, at, text.size()));
      return;
    }
    if (limit > 0) --limit;
    std::size_t end = at;
    while (end < text.size()) {
      const utf8::Point point = utf8::decode(text, end);
      if (utf8::is_space(point.code)) break;
      end += point.size;
    }
    out.add(substring(rt, string, at, end));
    at = utf8::skip_space(text, end);
  }
}

void rsplit_space(Runtime& rt, const Value& string, std::int64_t limit, ListBuilder& out) {
  const std::string_view text = string.str().bytes;
  std::size_t end = utf8::trim_end(text);
  while (end > 0) {
    if (limit == 0) {
      out.add(substring(rt, string, 0, end));
      break;
    }
    if (limit > 0) --limit;
    std::size_t begin = end;
    while (begin > 0) {
      std::size_t last = begin - 1;
      while (last > 0 && (static_cast<unsigned char>(text[last]) & 0xc0) == 0x80) --last;
      if (utf8::is_space(utf8::decode(text, last).code)) break;
      begin = last;
    }
    out.add(substring(rt, string, begin, end));
    end = utf8::trim_end(text.substr(0, begin));
  }
  std::reverse(out.items().begin(), out.items().end());
}

}  // namespace

void append_marks(Marks& out, const Marks& marks, std::size_t begin, std::size_t end,
                  std::size_t base) {
  auto mark = std::partition_point(marks.begin(), marks.end(),
                                   [&](const Mark& m) { return m.end <= begin; });
  for (; mark != marks.end() && mark->begin < end; ++mark) {
    add_mark(out, base + std::max(mark->begin, begin) - begin,
             base + std::min(mark->end, end) - begin);
  }
}

void TextBuilder::grow(std::size_t bytes) {
  rt_.text(bytes);
  rt_.meter.charge(bytes);
  charged_ += bytes;
}

void TextBuilder::append(std::string_view text, bool untrusted) {
  grow(text.size());
  if (untrusted || untrusted_) add_mark(marks_, bytes_.size(), bytes_.size() + text.size());
  bytes_.append(text);
}

void TextBuilder::append(const StringData& text, std::size_t begin, std::size_t end) {
  if (text.marks.empty() || untrusted_) {
    append(std::string_view(text.bytes).substr(begin, end - begin));
    return;
  }
  const std::size_t before = marks_.size();
  append_marks(marks_, text.marks, begin, end, bytes_.size());
  grow(end - begin + (marks_.size() - before) * sizeof(Mark));
  bytes_.append(text.bytes, begin, end - begin);
}

Value TextBuilder::finish(bool markup) {
  rt_.meter.charge(sizeof(StringData));
  charged_ += sizeof(StringData);
  auto data = std::make_shared<StringData>();
  data->bytes = std::move(bytes_);
  data->marks = std::move(marks_);
  data->code_points = utf8::count(data->bytes);
  data->markup = markup;
  data->meter = &rt_.meter;
  data->charged = charged_;
  charged_ = 0;
  bytes_.clear();
  marks_.clear();
  return Value::string(std::move(data));
}

Value make_string(Runtime& rt, std::string_view bytes, bool untrusted, bool markup) {
  TextBuilder out(rt);
  out.append(bytes, untrusted);
  return out.finish(markup);
}

Value substring(Runtime& rt, const Value& string, std::size_t begin, std::size_t end) {
  const StringData& data = string.str();
  if (begin == 0 && end == data.bytes.size()) return string;
  TextBuilder out(rt);
  if (begin < end) out.append(data, begin, end);
  return out.finish(data.markup);
}

Value slice_string(Runtime& rt, const Value& string, std::int64_t start, std::int64_t stop,
                   std::int64_t step) {
  const StringData& data = string.str();
  if (step == 1) {
    if (start >= stop) return make_string(rt, "");
    const auto first = static_cast<std::size_t>(start);
    const auto last = static_cast<std::size_t>(stop);
    if (data.ascii()) return substring(rt, string, first, last);
    rt.text(data.bytes.size());
    const std::size_t begin = utf8::offset(data.bytes, first);
    const std::size_t length =
        utf8::offset(std::string_view(data.bytes).substr(begin), last - first);
    return substring(rt, string, begin, begin + length);
  }
  // Byte offsets of every code point: a stride other than one is rare.
  std::vector<std::uint32_t> offsets;
  rt.step(data.code_points);
  offsets.reserve(data.code_points + 1);
  for (std::size_t at = 0; at < data.bytes.size(); at += utf8::decode(data.bytes, at).size) {
    offsets.push_back(static_cast<std::uint32_t>(at));
  }
  offsets.push_back(static_cast<std::uint32_t>(data.bytes.size()));
  TextBuilder out(rt);
  for (std::int64_t i = start; step > 0 ? i < stop : i > stop; i += step) {
    const auto at = static_cast<std::size_t>(i);
    out.append(data, offsets[at], offsets[at + 1]);
    if (step > 0 ? step >= stop - i : step <= stop - i) break;  // i += step may overflow
  }
  return out.finish(data.markup);
}

std::size_t find(Runtime& rt, std::string_view text, std::string_view needle, std::size_t from) {
  if (from > text.size()) return std::string_view::npos;
  // memmem is linear in the text, unlike std::string_view::find.
  const void* place =
      needle.empty() ? text.data() + from
                     : memmem(text.data() + from, text.size() - from, needle.data(), needle.size());
  const std::size_t at =
      place == nullptr ? std::string_view::npos
                       : static_cast<std::size_t>(static_cast<const char*>(place) - text.data());
  rt.text((place == nullptr ? text.size() : at) - from + needle.size());
  return at;
}

std::size_t rfind(Runtime& rt, std::string_view text, std::string_view needle, std::size_t end) {
  if (needle.size() > end) return std::string_view::npos;
  for (std::size_t at = end - needle.size();; --at) {
    if (needle.empty() || text[at] == needle[0]) {
      rt.step(1 + needle.size() / 64);
      if (text.compare(at, needle.size(), needle) == 0) return at;
    } else if (at % 16 == 0) {
      rt.step();
    }
    if (at == 0) return std::string_view::npos;
  }
}

Value strip(Runtime& rt, const Value& string, const StringData* chars, Side side) {
  const std::string_view text = string.str().bytes;
  std::size_t begin = 0;
  std::size_t end = text.size();
  rt.text(text.size());
  if (chars == nullptr) {
    if (side != Side::kRight) begin = utf8::skip_space(text);
    if (side != Side::kLeft) end = utf8::trim_end(text, begin);
    return substring(rt, string, begin, end);
  }
  while (side != Side::kRight && begin < end) {
    rt.text(64 + chars->bytes.size());
    const utf8::Point point = utf8::decode(text, begin);
    if (!contains_point(chars->bytes, point.code)) break;
    begin += point.size;
  }
  while (side != Side::kLeft && begin < end) {
    rt.text(64 + chars->bytes.size());
    std::size_t last = end - 1;
    while (last > begin && (static_cast<unsigned char>(text[last]) & 0xc0) == 0x80) --last;
    if (!contains_point(chars->bytes, utf8::decode(text, last).code)) break;
    end = last;
  }
  return substring(rt, string, begin, end);
}

Value split(Runtime& rt, const Value& string, const StringData* separator, std::int64_t limit,
            bool from_right) {
  const std::string_view text = string.str().bytes;
  rt.text(text.size());
  ListBuilder out(&rt);
  if (separator == nullptr) {
    if (from_right) {
      rsplit_space(rt, string, limit, out);
    } else {
      split_space(rt, string, limit, out);
    }
    return out.finish();
  }
  const std::string_view mark = separator->bytes;
  if (mark.empty()) fail("empty separator");
  if (from_right) {
    std::size_t end = text.size();
    while (limit != 0) {
      const std::size_t found = rfind(rt, text, mark, end);
      if (found == std::string_view::npos) break;
      out.add(substring(rt, string, found + mark.size(), end));
      end = found;
      if (limit > 0) --limit;
    }
    out.add(substring(rt, string, 0, end));
    std::reverse(out.items().begin(), out.items().end());
    return out.finish();
  }
  std::size_t begin = 0;
  while (limit != 0) {
    const std::size_t found = find(rt, text, mark, begin);
    if (found == std::string_view::npos) break;
    out.add(substring(rt, string, begin, found));
    begin = found + mark.size();
    if (limit > 0) --limit;
  }
  out.add(substring(rt, string, begin, text.size()));
  return out.finish();
}

Value split_lines(Runtime& rt, const Value& string, bool keep_ends) {
  const std::string_view text = string.str().bytes;
  rt.text(text.size());
  ListBuilder out(&rt);
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const utf8::Point point = utf8::decode(text, at);
    const std::size_t size = line_end_size(text, at, point);
    if (size == 0) {
      at += point.size;
      continue;
    }
    out.add(substring(rt, string, begin, keep_ends ? at + size : at));
    at += size;
    begin = at;
  }
  if (begin < text.size()) out.add(substring(rt, string, begin, text.size()));
  return out.finish();
}

Value replace(Runtime& rt, const Value& string, const StringData& from, const StringData& to,
              std::int64_t count) {
  const StringData& data = string.str();
  const std::string_view text = data.bytes;
  rt.text(text.size());
  TextBuilder out(rt);
  std::size_t at = 0;
  if (from.bytes.empty()) {  // before every code point, and at the end
    while (count != 0) {
      rt.step();
      out.append(to);
      if (count > 0) --count;
      if (at == text.size()) return out.finish();
      const std::size_t size = utf8::decode(text, at).size;
      out.append(data, at, at + size);
      at += size;
    }
  } else {
    while (count != 0) {
      const std::size_t found = find(rt, text, from.bytes, at);
      if (found == std::string_view::npos) break;
      rt.step();
      out.append(data, at, found);
      out.append(to);
      at = found + from.bytes.size();
      if (count > 0) --count;
    }
  }
  out.append(data, at, text.size());
  return out.finish();
}

Value escape(Runtime& rt, const Value& string) {
  const StringData& data = string.str();
  if (data.markup) return string;
  rt.text(8 * data.bytes.size());
  TextBuilder out(rt);
  out.set_untrusted(!data.marks.empty());
  for (const char c : data.bytes) {
    switch (c) {
      case '&':
        out.append("&amp;");
        break;
      case '<':
        out.append("&lt;");
        break;
      case '>':
        out.append("&gt;");
        break;
      case '"':
        out.append("&#34;");
        break;
      case '\'':
        out.append("&#39;");
        break;
      default:
        out.append(std::string_view(&c, 1));
    }
  }
  return out.finish(true);
}

}  // namespace monolayer::jinja
