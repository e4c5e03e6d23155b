// Tool calls in generated text, taken apart as the text arrives.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace monolayer::server {

// The mark before every tag of a call.
inline constexpr std::string_view kToolMark = "]<]minimax[>[";

// Parameter types by tool and parameter; from the `parameters` schemas of a request's tools.
struct ToolSchemas {
  // A tool without properties has no entry.
  std::map<std::string, std::map<std::string, nlohmann::json>> tools;
  // `tools`: the request's list of {"type": "function", "function": {...}}.
  static ToolSchemas from(const nlohmann::ordered_json& tools);
};

struct ToolEvent {
  enum class Kind : std::uint8_t {
    kContent,    // text for the reader
    kStart,      // a call begins: `text` is its name
    kArguments,  // the next piece of its arguments; all pieces together are one JSON object
  };
  Kind kind = Kind::kContent;
  std::int64_t call = 0;  // counts calls from 0
  std::string text;
  bool operator==(const ToolEvent&) const = default;
};

// The joined events of all calls are the same however the text was cut, and the work is linear in
// the text. Pieces are whole characters. Arguments are valid JSON even when the text ends inside a
// call: a string parameter is closed where it ends, another one that is incomplete is left out.
//
// Text outside calls is content without the mark. White space before and after a block is dropped.
// A value ends at the mark and its own closing tag and nowhere else; what looks like a tag inside
// it is its text. A string parameter is passed on as it comes, others once they are complete.
class ToolParser {
 public:
  // `calls` false: nothing is a call, only marks are dropped. `only_first`: further calls of an
  // answer are dropped.
  ToolParser(ToolSchemas schemas, bool calls, bool only_first);

  std::vector<ToolEvent> push(std::string_view text);
  // The text is over.
  std::vector<ToolEvent> finish();
  std::int64_t calls() const { return calls_; }

 private:
  enum class State : std::uint8_t { kText, kBlock, kInvoke, kStray, kStringValue, kValue };
  bool step(bool last);
  bool text(bool last);
  bool block(bool last);
  bool invoke(bool last);
  bool stray(bool last);
  bool string_value(bool last);
  bool value(bool last);
  void start_call(std::string_view name);
  void end_call();
  void begin_parameter(std::string_view name);
  void add_value(const std::string& json);
  void content(std::string_view text);
  void drop_white();
  void arguments(std::string text);
  void consume(std::size_t bytes);

  ToolSchemas schemas_;
  bool enabled_, only_first_;
  State state_ = State::kText;
  std::string held_;
  std::size_t at_ = 0;       // consumed bytes of held_
  std::size_t scanned_ = 0;  // bytes after at_ known not to hold what is looked for
  std::string between_;      // text between parameters of the open call
  std::string white_;        // white space that is content only if text follows
  bool after_block_ = false;
  std::int64_t calls_ = 0;
  bool open_ = false, muted_ = false;
  std::string tool_, parameter_, closer_;
  std::set<std::string> seen_;  // parameters of the open call
  std::int64_t depth_ = 0;      // openings of the parameter's own tag inside its value
  bool nested_ = false;
  std::vector<ToolEvent> events_;
};

// A parameter's text as JSON, by its schema (null: none is known).
std::string parameter_json(std::string_view text, const nlohmann::json* schema,
                           bool tool_has_schema);

}  // namespace monolayer::server
