// Any bytes as a template: parsing and rendering end in a value or a Status within small budgets.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "text/jinja/json.h"
#include "text/jinja/template.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace monolayer::jinja;
  static const Value variables = *parse_json(
      R"({"messages": [{"role": "user", "content": "hé ]~b]"}, {"role": "assistant",
          "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1, 2.5]}}}]}],
          "tools": [{"function": {"name": "f"}}], "s": "text", "n": 3, "add_generation_prompt": true})",
      "variables");
  Limits limits;
  limits.source_bytes = 1 << 16;
  limits.steps = 100'000;
  limits.output_bytes = 1 << 20;
  limits.memory_bytes = 8 << 20;
  const auto parsed =
      Template::parse(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz", limits);
  if (!parsed.ok()) return 0;
  std::tm now{};
  now.tm_mday = 1;
  const auto rendered = parsed->render(variables, {now});
  if (!rendered.ok()) return 0;
  std::size_t at = 0;
  for (const Mark& mark : rendered->untrusted) {
    if (mark.begin < at || mark.end <= mark.begin || mark.end > rendered->text.size()) std::abort();
    at = mark.end + 1;
  }
  return 0;
}
