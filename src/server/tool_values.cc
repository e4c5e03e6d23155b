// The values of tool parameters: plain text or nested elements, typed by a JSON schema.
#include <algorithm>
#include <string>

#include <nlohmann/json.hpp>

#include "core/json_text.h"
#include "server/tool_parser.h"

namespace monolayer::server {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int kDeepest = 32;

std::set<std::string> types_of(const json* schema) {
  std::set<std::string> types;
  if (schema == nullptr || !schema->is_object()) return types;
  if (const auto type = schema->find("type"); type != schema->end()) {
    if (type->is_string()) types.insert(type->get<std::string>());
    if (type->is_array())
      for (const json& each : *type)
        if (each.is_string()) types.insert(each.get<std::string>());
  }
  for (const char* key : {"anyOf", "oneOf"}) {
    const auto options = schema->find(key);
    if (options == schema->end() || !options->is_array()) continue;
    for (const json& option : *options) types.merge(types_of(&option));
  }
  return types;
}

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

std::string quoted(std::string_view text) {
  return ordered_json(std::string(text))
      .dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

// The JSON of `text` if it is JSON of one of these types, else "".
std::string typed(std::string_view text, const std::set<std::string>& types) {
  const std::string_view plain = trimmed(text);
  if (plain.empty()) return {};
  const bool could = plain.front() != '"' || types.count("string") == 0;
  if (!could) return {};
  // Python's spellings are common.
  if (types.count("boolean") > 0 && (plain == "True" || plain == "False"))
    return plain == "True" ? "true" : "false";
  if (types.count("null") > 0 && plain == "None") return "null";
  if (!nul_in_json(plain).empty()) return {};
  const auto parsed = ordered_json::parse(plain, nullptr, false);
  if (parsed.is_discarded()) return {};
  const bool integer = parsed.is_number_integer() || parsed.is_number_unsigned();
  const bool fits = (integer && (types.count("integer") > 0 || types.count("number") > 0)) ||
                    (parsed.is_number_float() && types.count("number") > 0) ||
                    (parsed.is_boolean() && types.count("boolean") > 0) ||
                    (parsed.is_null() && types.count("null") > 0) ||
                    (parsed.is_object() && types.count("object") > 0) ||
                    (parsed.is_array() && types.count("array") > 0);
  // Numbers keep their digits; the rest is written anew, so that it is JSON whatever came.
  if (!fits) return {};
  if (parsed.is_number()) return std::string(plain);
  return parsed.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

struct Element {
  std::string_view name, body;
};

// The next element of `text` from `at` on: mark, <name>, body, mark, </name>.
bool next_element(std::string_view text, std::size_t& at, std::string& stray, Element& element) {
  const std::string open = std::string(kToolMark) + "<";
  const std::size_t begin = text.find(open, at);
  if (begin == std::string_view::npos) return false;
  const std::size_t name_at = begin + open.size();
  const std::size_t name_end = text.find('>', name_at);
  if (name_end == std::string_view::npos || name_end == name_at || text[name_at] == '/')
    return false;
  element.name = text.substr(name_at, name_end - name_at);
  const std::string again = open + std::string(element.name) + ">";
  const std::string closer = std::string(kToolMark) + "</" + std::string(element.name) + ">";
  std::size_t scan = name_end + 1;
  for (int depth = 1; depth > 0;) {
    const std::size_t close = text.find(closer, scan);
    if (close == std::string_view::npos) return false;
    const std::size_t inner = text.substr(0, close).find(again, scan);
    if (inner != std::string_view::npos) {
      ++depth;
      scan = inner + again.size();
    } else {
      --depth;
      scan = close + closer.size();
    }
  }
  stray += text.substr(at, begin - at);
  element.body = text.substr(name_end + 1, scan - closer.size() - name_end - 1);
  at = scan;
  return true;
}

const json* child_schema(const json* schema, std::string_view name, bool item) {
  if (schema == nullptr || !schema->is_object()) return nullptr;
  if (item) {
    const auto items = schema->find("items");
    return items != schema->end() ? &*items : nullptr;
  }
  const auto properties = schema->find("properties");
  if (properties == schema->end() || !properties->is_object()) return nullptr;
  const auto child = properties->find(name);
  return child != properties->end() ? &*child : nullptr;
}

ordered_json convert(std::string_view text, const json* schema, bool try_json, int depth);

ordered_json leaf(std::string_view text, const json* schema, bool try_json) {
  std::set<std::string> types = types_of(schema);
  if (types.empty() && try_json)
    types = {"integer", "number", "boolean", "null", "object", "array"};
  const std::string value = typed(text, types);
  if (value.empty()) return std::string(text);
  return ordered_json::parse(value, nullptr, false);
}

// Elements become an object, or an array if all are called "item" (or the schema says so).
ordered_json convert(std::string_view text, const json* schema, bool try_json, int depth) {
  const std::set<std::string> types = types_of(schema);
  const bool only_string = types.size() == 1 && types.count("string") > 0;
  std::string stray;
  std::vector<Element> elements;
  std::size_t at = 0;
  Element element;
  if (!only_string && depth < kDeepest)
    while (next_element(text, at, stray, element)) elements.push_back(element);
  if (elements.empty()) return leaf(text, schema, try_json);
  stray += text.substr(at);
  const bool items = std::all_of(elements.begin(), elements.end(),
                                 [](const Element& e) { return e.name == "item"; });
  const bool array = items && (types.empty() || types.count("array") > 0 || elements.size() > 1);
  if (array) {
    ordered_json list = ordered_json::array();
    for (const Element& e : elements)
      list.push_back(convert(e.body, child_schema(schema, "", true), try_json, depth + 1));
    return list;
  }
  ordered_json object = ordered_json::object();
  std::set<std::string> lists;
  for (const Element& e : elements) {
    const std::string name(e.name);
    const json* child = child_schema(schema, name, false);
    ordered_json made = convert(e.body, child, try_json, depth + 1);
    if (!object.contains(name)) {
      object[name] = std::move(made);
      continue;
    }
    // A repeated tag is a list; the second one makes it so.
    ordered_json& there = object[name];
    if (lists.insert(name).second) there = ordered_json::array({std::move(there)});
    there.push_back(std::move(made));
  }
  if (!trimmed(stray).empty())
    object[object.contains("$text") ? "$$text" : "$text"] = std::string(trimmed(stray));
  return object;
}

}  // namespace

ToolSchemas ToolSchemas::from(const ordered_json& tools) {
  ToolSchemas schemas;
  if (!tools.is_array()) return schemas;
  for (const ordered_json& tool : tools) {
    const ordered_json& function = tool.contains("function") ? tool.at("function") : tool;
    if (!function.is_object() || !function.contains("name")) continue;
    const auto parameters = function.find("parameters");
    if (parameters == function.end() || !parameters->is_object()) continue;
    const auto properties = parameters->find("properties");
    if (properties == parameters->end() || !properties->is_object()) continue;
    auto& entry = schemas.tools[function.at("name").get<std::string>()];
    for (const auto& [name, schema] : properties->items()) entry[name] = json(schema);
  }
  return schemas;
}

std::string parameter_json(std::string_view text, const json* schema, bool tool_has_schema) {
  const std::set<std::string> types = types_of(schema);
  if (types.size() == 1 && types.count("string") > 0) return quoted(text);
  if (schema == nullptr && tool_has_schema) return quoted(text);
  const bool nested = trimmed(text).substr(0, kToolMark.size()) == kToolMark;
  if (!nested && !types.empty()) {
    const std::string value = typed(text, types);
    return value.empty() ? quoted(text) : value;
  }
  return convert(text, schema, true, 0)
      .dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace monolayer::server
