// Renders templates given as JSON lines: {"template": text, "variables": JSON text} gives
// {"text": text, "untrusted": [[begin, end], ...]} or {"error": message}. With "chat": true the
// variables go through ChatTemplate instead, as messages, tools and further template arguments.
// The peer of tools/jinja_compare.py.
#include <cstdio>
#include <ctime>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "text/chat.h"
#include "text/jinja/json.h"
#include "text/jinja/template.h"

namespace {

using monolayer::jinja::Value;
using nlohmann::ordered_json;

// 2026-07-04 05:06:07, a Saturday.
std::tm fixed_clock() {
  std::tm now{};
  now.tm_year = 126;
  now.tm_mon = 6;
  now.tm_mday = 4;
  now.tm_hour = 5;
  now.tm_min = 6;
  now.tm_sec = 7;
  now.tm_wday = 6;
  now.tm_yday = 184;
  return now;
}

ordered_json error(const monolayer::Status& status) {
  return {{"error", status.to_string()}, {"code", std::string(code_name(status.code()))}};
}

ordered_json run_chat(const std::string& source, const Value& variables) {
  auto parsed = monolayer::ChatTemplate::from_source(source, "template");
  if (!parsed.ok()) return error(parsed.status());
  monolayer::ChatInput input;
  input.add_generation_prompt = false;
  input.now = fixed_clock();
  monolayer::jinja::DictBuilder rest(nullptr);
  for (const auto& [name, value] : variables.dict().entries) {
    if (name.str().bytes == "messages") {
      input.messages = value;
    } else if (name.str().bytes == "tools") {
      input.tools = value;
    } else if (name.str().bytes == "add_generation_prompt") {
      input.add_generation_prompt = value.as_bool();
    } else {
      rest.add(name, value);
    }
  }
  input.kwargs = rest.finish();
  const auto text = parsed->render(input);
  if (!text.ok()) return error(text.status());
  return {{"text", *text}};
}

ordered_json run(const std::string& line) {
  const ordered_json job = ordered_json::parse(line);
  const std::string source = job.at("template");
  auto variables = monolayer::jinja::parse_json(std::string(job.at("variables")), "variables");
  if (!variables.ok()) return error(variables.status());
  if (job.value("chat", false)) return run_chat(source, *variables);
  auto parsed = monolayer::jinja::Template::parse(source, "template");
  if (!parsed.ok()) return error(parsed.status());
  auto rendered = parsed->render(*variables, {fixed_clock()});
  if (!rendered.ok()) return error(rendered.status());
  ordered_json marks = ordered_json::array();
  for (const auto& mark : rendered->untrusted) marks.push_back({mark.begin, mark.end});
  return {{"text", rendered->text}, {"untrusted", marks}};
}

}  // namespace

int main() {
  try {
    std::string line;
    while (std::getline(std::cin, line)) std::cout << run(line).dump() << '\n' << std::flush;
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "jinja_compare_runner: %s\n", problem.what());
    return 1;
  }
  return 0;
}
