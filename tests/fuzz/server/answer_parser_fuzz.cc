// Any text as an answer, whole and in pieces: the same result, and arguments that are JSON. The
// first byte chooses mode and tools, the second the lengths of the pieces.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "../fuzz_check.h"
#include "server/answer_parser.h"

namespace {

using monolayer::ThinkingMode;
using monolayer::server::AnswerDelta;
using monolayer::server::AnswerParser;
using monolayer::server::ToolEvent;
using monolayer::server::ToolParser;
using monolayer::server::ToolSchemas;

struct Outcome {
  std::string reasoning, content;
  std::vector<std::string> names, arguments;
  bool operator==(const Outcome&) const = default;
};

void take(Outcome& outcome, const AnswerDelta& delta) {
  outcome.reasoning += delta.reasoning;
  for (const ToolEvent& event : delta.events) {
    if (event.kind == ToolEvent::Kind::kContent) {
      outcome.content += event.text;
    } else if (event.kind == ToolEvent::Kind::kStart) {
      FUZZ_CHECK(event.call == static_cast<std::int64_t>(outcome.names.size()));
      outcome.names.push_back(event.text);
      outcome.arguments.emplace_back();
    } else {
      FUZZ_CHECK(event.call + 1 == static_cast<std::int64_t>(outcome.names.size()));
      outcome.arguments.back() += event.text;
    }
  }
}

AnswerParser parser(std::uint8_t choice) {
  static const auto schemas = ToolSchemas::from(nlohmann::ordered_json::parse(
      R"([{"function": {"name": "f", "parameters": {"properties": {"s": {"type": "string"},
          "i": {"type": "integer"}, "o": {"type": "object"}, "a": {"type": "array"}}}}}])"));
  const ThinkingMode modes[] = {ThinkingMode::kEnabled, ThinkingMode::kDisabled,
                                ThinkingMode::kAdaptive};
  return {modes[choice % 3], ToolParser(schemas, (choice & 64) == 0, (choice & 128) != 0)};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  std::string text(reinterpret_cast<const char*>(data) + 2, size - 2);
  // Pieces are whole characters; with ASCII alone every cut is one.
  for (char& c : text) c = static_cast<char>(static_cast<unsigned char>(c) & 0x7fU);
  Outcome whole, pieces;
  AnswerParser once = parser(data[0]);
  take(whole, once.push(text));
  take(whole, once.finish());
  AnswerParser cut = parser(data[0]);
  std::size_t step = data[1];
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t n = 1 + step % 7;
    step = step * 5 + 3;
    take(pieces, cut.push(text.substr(at, n)));
    at += n;
  }
  take(pieces, cut.finish());
  FUZZ_CHECK(whole == pieces);
  for (const std::string& each : whole.arguments) FUZZ_CHECK(nlohmann::ordered_json::accept(each));
  return 0;
}
