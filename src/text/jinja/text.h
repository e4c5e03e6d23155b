// Building and cutting strings so that the marks of untrusted bytes travel with them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace monolayer::jinja {

// Copies the part of `marks` inside [begin, end), moved so that `begin` becomes `base`.
void append_marks(Marks& out, const Marks& marks, std::size_t begin, std::size_t end,
                  std::size_t base);

// A growing string. Charges the runtime for every byte, before it is written.
class TextBuilder {
 public:
  explicit TextBuilder(Runtime& rt) : rt_(rt) {}
  ~TextBuilder() { rt_.meter.release(charged_); }
  TextBuilder(const TextBuilder&) = delete;
  TextBuilder& operator=(const TextBuilder&) = delete;

  void append(std::string_view text, bool untrusted = false);
  void append(const StringData& text) { append(text, 0, text.bytes.size()); }
  void append(const StringData& text, std::size_t begin, std::size_t end);

  // While set, everything appended is untrusted.
  void set_untrusted(bool on) { untrusted_ = on; }
  bool untrusted() const { return untrusted_; }
  std::size_t size() const { return bytes_.size(); }
  const std::string& bytes() const { return bytes_; }
  const Marks& marks() const { return marks_; }

  // The string built so far; the builder is empty afterwards.
  Value finish(bool markup = false);

 private:
  void grow(std::size_t bytes);
  Runtime& rt_;
  std::string bytes_;
  Marks marks_;
  std::size_t charged_ = 0;
  bool untrusted_ = false;
};

// A string of this render: all of `bytes` trusted, or all untrusted.
Value make_string(Runtime& rt, std::string_view bytes, bool untrusted = false, bool markup = false);
// Bytes [begin, end) of a string.
Value substring(Runtime& rt, const Value& string, std::size_t begin, std::size_t end);
// s[start:stop:step] in code points; the bounds as Python's slice.indices gives them.
Value slice_string(Runtime& rt, const Value& string, std::int64_t start, std::int64_t stop,
                   std::int64_t step);

// As std::string_view::find and rfind (the last match that ends at or before `end`), with every
// byte compared accounted for, so that no text and needle make a search quadratic.
std::size_t find(Runtime& rt, std::string_view text, std::string_view needle, std::size_t from);
std::size_t rfind(Runtime& rt, std::string_view text, std::string_view needle, std::size_t end);

// str.strip and friends: `chars` null strips white space.
enum class Side : std::uint8_t { kBoth, kLeft, kRight };
Value strip(Runtime& rt, const Value& string, const StringData* chars, Side side);
// str.split / str.rsplit: `separator` null splits at runs of white space; -1: no limit.
Value split(Runtime& rt, const Value& string, const StringData* separator, std::int64_t limit,
            bool from_right);
Value split_lines(Runtime& rt, const Value& string, bool keep_ends);
// str.replace; count -1: all.
Value replace(Runtime& rt, const Value& string, const StringData& from, const StringData& to,
              std::int64_t count);
// HTML escaping, once.
Value escape(Runtime& rt, const Value& string);

}  // namespace monolayer::jinja
