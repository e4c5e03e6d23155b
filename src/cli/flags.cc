#include "cli/flags.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

namespace monolayer::cli {
namespace {

template <typename T>
bool parse_whole(const std::string& text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

// A path typed as "" is mostly a shell variable that is not set, and must not mean the default.
std::string not_empty(const std::string& text) { return text.empty() ? "is empty" : ""; }

std::string join(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text;
}

}  // namespace

CLI::Option* Flags::remember(CLI::Option* option, Completion completion) {
  completions_[option] = std::move(completion);
  return option;
}

CLI::Option* Flags::integer(CLI::App& app, const std::string& name, std::int64_t& value,
                            std::int64_t low, std::int64_t high, const std::string& help) {
  CLI::Option* option = app.add_option_function<std::string>(
      name,
      [&value, name, low, high](const std::string& text) {
        std::int64_t parsed = 0;
        if (!parse_whole(text, parsed) || parsed < low || parsed > high) {
          const std::string bound =
              high == std::numeric_limits<std::int64_t>::max()
                  ? "a whole number of at least " + std::to_string(low)
                  : "a whole number from " + std::to_string(low) + " to " + std::to_string(high);
          throw CLI::ValidationError(name, "'" + text + "' is not " + bound);
        }
        value = parsed;
      },
      help);
  return remember(option->type_name("N"), {});
}

CLI::Option* Flags::one_of(CLI::App& app, const std::string& name, std::int64_t& value,
                           const std::vector<std::int64_t>& values, const std::string& help) {
  std::vector<std::string> words;
  words.reserve(values.size());
  for (const std::int64_t each : values) words.push_back(std::to_string(each));
  CLI::Option* option = app.add_option_function<std::string>(
      name,
      [&value, name, words](const std::string& text) {
        if (std::find(words.begin(), words.end(), text) == words.end())
          throw CLI::ValidationError(name, "'" + text + "' is not one of " + join(words));
        parse_whole(text, value);
      },
      help + " (" + join(words) + ")");
  return remember(option->type_name("N"), {Completion::Kind::kChoice, words});
}

CLI::Option* Flags::seed(CLI::App& app, const std::string& name, std::uint64_t& value,
                         const std::string& help) {
  CLI::Option* option = app.add_option_function<std::string>(
      name,
      [&value, name](const std::string& text) {
        if (!parse_whole(text, value))
          throw CLI::ValidationError(
              name, "'" + text + "' is not a whole number from 0 to 18446744073709551615");
      },
      help);
  return remember(option->type_name("N"), {});
}

CLI::Option* Flags::real(CLI::App& app, const std::string& name, double& value, double low,
                         double high, bool low_open, const std::string& help) {
  CLI::Option* option = app.add_option_function<std::string>(
      name,
      [&value, name, low, high, low_open](const std::string& text) {
        double parsed = 0;
        const bool inside = parse_whole(text, parsed) && std::isfinite(parsed) && parsed <= high &&
                            (low_open ? parsed > low : parsed >= low);
        if (!inside)
          throw CLI::ValidationError(
              name, "'" + text + "' is not a number " + (low_open ? "above " : "from ") +
                        number(low) + (low_open ? " and at most " : " to ") + number(high));
        value = parsed;
      },
      help);
  return remember(option->type_name("X"), {});
}

CLI::Option* Flags::choice(CLI::App& app, const std::string& name, std::string& value,
                           std::vector<std::string> choices, const std::string& help) {
  CLI::Option* option = app.add_option_function<std::string>(
      name,
      [&value, name, choices](const std::string& text) {
        for (const std::string& choice : choices) {
          if (text == choice) {
            value = text;
            return;
          }
        }
        throw CLI::ValidationError(name, "'" + text + "' is not one of " + join(choices));
      },
      help + " (" + join(choices) + ")");
  return remember(option->type_name("WORD"), {Completion::Kind::kChoice, std::move(choices)});
}

CLI::Option* Flags::text(CLI::App& app, const std::string& name, std::string& value,
                         const std::string& help) {
  return remember(app.add_option(name, value, help)->type_name("TEXT"), {});
}

CLI::Option* Flags::file(CLI::App& app, const std::string& name, std::string& value,
                         const std::string& help) {
  return remember(app.add_option(name, value, help)->type_name("FILE")->check(not_empty),
                  {Completion::Kind::kFile, {}});
}

CLI::Option* Flags::folder(CLI::App& app, const std::string& name, std::string& value,
                           const std::string& help) {
  return remember(app.add_option(name, value, help)->type_name("DIR")->check(not_empty),
                  {Completion::Kind::kFolder, {}});
}

CLI::Option* Flags::toggle(CLI::App& app, const std::string& name, bool& value,
                           const std::string& help) {
  return remember(app.add_flag(name, value, help), {});
}

Completion Flags::completion_of(const CLI::Option* option) const {
  const auto found = completions_.find(option);
  return found == completions_.end() ? Completion{} : found->second;
}

}  // namespace monolayer::cli
