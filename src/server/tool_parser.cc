#include "server/tool_parser.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

namespace monolayer::server {
namespace {

constexpr std::string_view kWhite = " \t\r\n";
constexpr std::string_view kBlockOpen = "<tool_call>", kBlockClose = "</tool_call>";
constexpr std::string_view kInvokeOpen = "<invoke name=\"", kInvokeClose = "</invoke>";
constexpr std::size_t kLongestName = 256;

bool starts_with(std::string_view text, std::string_view mark) {
  return text.substr(0, mark.size()) == mark;
}

bool may_become(std::string_view text, std::string_view mark) {
  return text.size() < mark.size() && starts_with(mark, text);
}

// The length of the longest end of `text` that could grow into `mark`.
std::size_t open_end(std::string_view text, std::string_view mark) {
  for (std::size_t n = std::min(text.size(), mark.size() - 1); n > 0; --n)
    if (text.substr(text.size() - n) == mark.substr(0, n)) return n;
  return 0;
}

std::string escaped(std::string_view text) {
  std::string json = nlohmann::json(std::string(text))
                         .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return json.substr(1, json.size() - 2);
}

}  // namespace

ToolParser::ToolParser(ToolSchemas schemas, bool calls, bool only_first)
    : schemas_(std::move(schemas)), enabled_(calls), only_first_(only_first) {}

std::vector<ToolEvent> ToolParser::push(std::string_view more) {
  held_.append(more);
  while (step(false)) {
  }
  // What was consumed goes in one piece, not byte by byte.
  held_.erase(0, at_);
  at_ = 0;
  return std::exchange(events_, {});
}

std::vector<ToolEvent> ToolParser::finish() {
  while (step(true)) {
  }
  if (open_) {
    if (state_ == State::kStringValue) arguments("\"");
    end_call();
  }
  if (calls_ == 0 && !white_.empty()) events_.push_back({ToolEvent::Kind::kContent, 0, white_});
  white_.clear();
  return std::exchange(events_, {});
}

bool ToolParser::step(bool last) {
  if (at_ == held_.size()) return false;
  switch (state_) {
    case State::kText:
      return text(last);
    case State::kBlock:
      return block(last);
    case State::kInvoke:
      return invoke(last);
    case State::kStray:
      return stray(last);
    case State::kStringValue:
      return string_value(last);
    case State::kValue:
      return value(last);
  }
  return false;
}

void ToolParser::consume(std::size_t bytes) {
  at_ += bytes;
  scanned_ = 0;
}

// White space is held until something follows, so that none is left around a call.
void ToolParser::content(std::string_view more) {
  if (more.empty()) return;
  const std::size_t end = more.find_last_not_of(kWhite);
  if (end == std::string_view::npos) {
    white_ += more;
    return;
  }
  std::string out;
  if (after_block_) {
    more.remove_prefix(more.find_first_not_of(kWhite));
  } else {
    out = std::move(white_);
  }
  after_block_ = false;
  white_.clear();
  const std::size_t visible = more.find_last_not_of(kWhite) + 1;
  out += more.substr(0, visible);
  white_ = more.substr(visible);
  if (!events_.empty() && events_.back().kind == ToolEvent::Kind::kContent) {
    events_.back().text += out;
  } else {
    events_.push_back({ToolEvent::Kind::kContent, 0, std::move(out)});
  }
}

// What surrounds a tag is no text.
void ToolParser::drop_white() {
  white_.clear();
  after_block_ = true;
}

void ToolParser::arguments(std::string more) {
  if (muted_ || more.empty()) return;
  if (!events_.empty() && events_.back().kind == ToolEvent::Kind::kArguments &&
      events_.back().call == calls_ - 1) {
    events_.back().text += more;
  } else {
    events_.push_back({ToolEvent::Kind::kArguments, calls_ - 1, std::move(more)});
  }
}

bool ToolParser::text(bool last) {
  const std::string_view rest = std::string_view(held_).substr(at_);
  const std::size_t mark = rest.find(kToolMark);
  if (mark == std::string_view::npos) {
    const std::size_t ready = rest.size() - (last ? 0 : open_end(rest, kToolMark));
    if (ready == 0) return false;
    content(rest.substr(0, ready));
    consume(ready);
    return true;
  }
  if (mark > 0) {
    content(rest.substr(0, mark));
    consume(mark);
    return true;
  }
  const std::string_view tag = rest.substr(kToolMark.size());
  if (enabled_) {
    if (starts_with(tag, kBlockOpen)) {
      drop_white();
      consume(kToolMark.size() + kBlockOpen.size());
      state_ = State::kBlock;
      return true;
    }
    if (starts_with(tag, kInvokeOpen)) {
      drop_white();
      state_ = State::kBlock;
      return true;
    }
    if (!last && (may_become(tag, kBlockOpen) || may_become(tag, kInvokeOpen))) return false;
  }
  consume(kToolMark.size());
  return true;
}

// Between calls: tags with or without their mark, white space, and stray text, which is content.
bool ToolParser::block(bool last) {
  const std::string_view rest = std::string_view(held_).substr(at_);
  const std::size_t marked = starts_with(rest, kToolMark) ? kToolMark.size() : 0;
  const std::string_view tag = rest.substr(marked);
  if (starts_with(tag, kBlockClose)) {
    consume(marked + kBlockClose.size());
    drop_white();
    state_ = State::kText;
    return true;
  }
  if (starts_with(tag, kInvokeOpen)) {
    const std::string_view named = tag.substr(kInvokeOpen.size());
    const std::size_t end = named.find_first_of("\"<\n");
    const bool too_long = std::min(end, named.size()) > kLongestName;
    if (end == std::string_view::npos && !last && !too_long) return false;
    if (end != std::string_view::npos && !too_long && end > 0 && named[end] == '"') {
      const std::string_view close = named.substr(end);
      if (close == "\"" && !last) return false;
      if (starts_with(close, "\">")) {
        const std::string name(named.substr(0, end));
        consume(marked + kInvokeOpen.size() + end + 2);
        drop_white();
        start_call(name);
        state_ = State::kInvoke;
        return true;
      }
    }
  }
  if (!last &&
      (may_become(rest, kToolMark) || may_become(tag, kBlockClose) || may_become(tag, kInvokeOpen)))
    return false;
  if (marked > 0) {
    // A mark before anything else means nothing; what follows is text.
    consume(marked);
    return true;
  }
  const std::size_t next = std::min(rest.find_first_of("]<", 1), rest.size());
  content(rest.substr(0, next));
  consume(next);
  return true;
}

void ToolParser::start_call(std::string_view name) {
  muted_ = only_first_ && calls_ > 0;
  open_ = true;
  seen_.clear();
  tool_ = name;
  if (muted_) return;
  ++calls_;
  events_.push_back({ToolEvent::Kind::kStart, calls_ - 1, tool_});
}

void ToolParser::end_call() {
  arguments(seen_.empty() ? "{}" : "}");
  open_ = false;
  muted_ = false;
  content(std::exchange(between_, {}));
}

// Inside a call, between parameters.
bool ToolParser::invoke(bool last) {
  const std::string_view rest = std::string_view(held_).substr(at_);
  const std::size_t white = std::min(rest.find_first_not_of(kWhite), rest.size());
  if (white > 0) {
    consume(white);
    return true;
  }
  const std::size_t marked = starts_with(rest, kToolMark) ? kToolMark.size() : 0;
  const std::string_view tag = rest.substr(marked);
  if (starts_with(tag, kInvokeClose)) {
    consume(marked + kInvokeClose.size());
    end_call();
    state_ = State::kBlock;
    return true;
  }
  if (starts_with(tag, kBlockClose) || starts_with(tag, kInvokeOpen)) {
    end_call();
    state_ = State::kBlock;
    return true;
  }
  if (!last && (may_become(rest, kToolMark) || may_become(tag, kInvokeClose) ||
                may_become(tag, kBlockClose) || may_become(tag, kInvokeOpen)))
    return false;
  if (marked > 0 && !tag.empty() && tag.front() == '<' && !starts_with(tag, "</")) {
    const std::size_t end = tag.find_first_of(">\n", 1);
    const bool too_long = std::min(end, tag.size()) > kLongestName;
    if (end == std::string_view::npos && !last && !too_long) return false;
    if (end != std::string_view::npos && !too_long && tag[end] == '>' && end > 1) {
      const std::string name(tag.substr(1, end - 1));
      consume(marked + end + 1);
      begin_parameter(name);
      return true;
    }
  }
  if (marked > 0) consume(marked);
  state_ = State::kStray;
  return true;
}

// Text where a parameter should begin: a value whose opening tag is missing, if the next tag
// closes a parameter of this tool; else content.
bool ToolParser::stray(bool last) {
  const std::string_view rest = std::string_view(held_).substr(at_);
  const std::string closing = std::string(kToolMark) + "</";
  const std::size_t mark = rest.find(kToolMark, scanned_);
  if (mark == std::string_view::npos && !last) {
    scanned_ = rest.size() - open_end(rest, kToolMark);
    return false;
  }
  const std::size_t length = std::min(mark, rest.size());
  const std::string_view tag = rest.substr(length);
  if (starts_with(tag, closing)) {
    const std::size_t end = tag.find_first_of(">\n", closing.size());
    const bool too_long = std::min(end, tag.size()) > kLongestName;
    if (end == std::string_view::npos && !last && !too_long) {
      scanned_ = length;
      return false;
    }
    if (end != std::string_view::npos && !too_long && tag[end] == '>') {
      const std::string name(tag.substr(closing.size(), end - closing.size()));
      const auto tool = schemas_.tools.find(tool_);
      const bool known = tool != schemas_.tools.end() && tool->second.count(name) > 0;
      if (known && seen_.count(name) == 0) {
        const std::string text(rest.substr(0, length));
        const std::size_t used = length + end + 1;
        parameter_ = name;
        add_value(parameter_json(text, &tool->second.at(name), true));
        consume(used);
        state_ = State::kInvoke;
        return true;
      }
    }
  } else if (!last && may_become(tag, closing)) {
    scanned_ = length;
    return false;
  }
  const std::string text(rest.substr(0, length));
  // A closing tag of nothing that is open is no text either.
  std::size_t used = length;
  if (length == 0) {
    const std::string_view head = tag.substr(0, kLongestName);
    const std::size_t end = head.find('>', kToolMark.size());
    // The next byte tells a tag's end from the middle of another mark.
    const bool open =
        end == std::string_view::npos ? tag.size() < kLongestName : tag.size() == end + 1;
    if (open && !last) return false;
    const std::size_t next = tag.substr(0, end + 2).find(kToolMark, 1);
    const bool whole = end != std::string_view::npos && next == std::string_view::npos;
    used = whole ? end + 1 : kToolMark.size();
  }
  // Kept until the call is over: no client wants text in the middle of arguments.
  if (!muted_) between_ += text;
  consume(used);
  state_ = State::kInvoke;
  return true;
}

void ToolParser::begin_parameter(std::string_view name) {
  parameter_ = name;
  closer_ = std::string(kToolMark) + "</" + parameter_ + ">";
  depth_ = 0;
  const auto tool = schemas_.tools.find(tool_);
  const nlohmann::json* schema = nullptr;
  if (tool != schemas_.tools.end()) {
    const auto found = tool->second.find(parameter_);
    if (found != tool->second.end()) schema = &found->second;
  }
  const bool has_schema = tool != schemas_.tools.end();
  const bool string = (schema == nullptr && has_schema) ||
                      (schema != nullptr && schema->is_object() && schema->contains("type") &&
                       schema->at("type") == "string");
  const bool fresh = seen_.count(parameter_) == 0;
  state_ = string && fresh ? State::kStringValue : State::kValue;
  if (state_ == State::kStringValue) {
    arguments((seen_.empty() ? "{\"" : ", \"") + escaped(parameter_) + "\": \"");
    seen_.insert(parameter_);
  }
}

bool ToolParser::string_value(bool last) {
  const std::string_view rest = std::string_view(held_).substr(at_);
  const std::size_t close = rest.find(closer_);
  if (close != std::string_view::npos) {
    arguments(escaped(rest.substr(0, close)) + "\"");
    consume(close + closer_.size());
    state_ = State::kInvoke;
    return true;
  }
  const std::size_t ready = rest.size() - (last ? 0 : open_end(rest, closer_));
  if (ready > 0) {
    arguments(escaped(rest.substr(0, ready)));
    consume(ready);
  }
  if (!last) return false;
  return ready > 0;
}

// A value that is passed on whole. Elements of the parameter's own name may be nested in it.
bool ToolParser::value(bool last) {
  const std::string_view rest = std::string_view(held_).substr(at_);
  const std::string opener = std::string(kToolMark) + "<" + parameter_ + ">";
  const std::size_t white = rest.find_first_not_of(kWhite);
  if (white == std::string_view::npos && !last) return false;
  const std::string_view start = rest.substr(std::min(white, rest.size()));
  if (!last && start.size() < kToolMark.size() + 2 &&
      (may_become(start, kToolMark) || starts_with(start, kToolMark)))
    return false;
  nested_ = starts_with(start, kToolMark) && !starts_with(start.substr(kToolMark.size()), "</");
  while (true) {
    const std::size_t mark = rest.find(kToolMark, scanned_);
    if (mark == std::string_view::npos) {
      scanned_ = rest.size() - open_end(rest, kToolMark);
      break;
    }
    const std::string_view tag = rest.substr(mark);
    if (starts_with(tag, closer_)) {
      if (nested_ && depth_ > 0) {
        --depth_;
        scanned_ = mark + closer_.size();
        continue;
      }
      const auto tool = schemas_.tools.find(tool_);
      const bool has_schema = tool != schemas_.tools.end();
      const nlohmann::json* schema = nullptr;
      if (has_schema) {
        const auto found = tool->second.find(parameter_);
        if (found != tool->second.end()) schema = &found->second;
      }
      add_value(parameter_json(rest.substr(0, mark), schema, has_schema));
      consume(mark + closer_.size());
      state_ = State::kInvoke;
      return true;
    }
    if (nested_ && starts_with(tag, opener)) {
      ++depth_;
      scanned_ = mark + opener.size();
      continue;
    }
    if (!last && (may_become(tag, closer_) || may_become(tag, opener))) {
      scanned_ = mark;
      break;
    }
    scanned_ = mark + kToolMark.size();
  }
  if (!last) return false;
  // Incomplete, and what it would have become is unknown.
  consume(rest.size());
  return false;
}

void ToolParser::add_value(const std::string& json) {
  // The first value of a parameter was passed on already; a repeated one cannot replace it.
  if (!seen_.insert(parameter_).second) return;
  arguments((seen_.size() == 1 ? "{\"" : ", \"") + escaped(parameter_) + "\": " + json);
}

}  // namespace monolayer::server
