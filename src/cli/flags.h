// Flags with checked values, remembered with what completes them for the shell scripts.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <CLI/App.hpp>

namespace monolayer::cli {

// What a shell may offer after a flag or positional argument.
struct Completion {
  enum class Kind : std::uint8_t { kNone, kFile, kFolder, kChoice };
  Kind kind = Kind::kNone;
  std::vector<std::string> choices;
};

// Adds options to an App. Values are parsed strictly: whole, decimal, in range, no NaN. A refusal
// names the flag, the value and the bound.
class Flags {
 public:
  CLI::Option* integer(CLI::App& app, const std::string& name, std::int64_t& value,
                       std::int64_t low, std::int64_t high, const std::string& help);
  CLI::Option* one_of(CLI::App& app, const std::string& name, std::int64_t& value,
                      const std::vector<std::int64_t>& values, const std::string& help);
  CLI::Option* seed(CLI::App& app, const std::string& name, std::uint64_t& value,
                    const std::string& help);
  CLI::Option* real(CLI::App& app, const std::string& name, double& value, double low, double high,
                    bool low_open, const std::string& help);
  CLI::Option* choice(CLI::App& app, const std::string& name, std::string& value,
                      std::vector<std::string> choices, const std::string& help);
  CLI::Option* text(CLI::App& app, const std::string& name, std::string& value,
                    const std::string& help);
  CLI::Option* file(CLI::App& app, const std::string& name, std::string& value,
                    const std::string& help);
  CLI::Option* folder(CLI::App& app, const std::string& name, std::string& value,
                      const std::string& help);
  CLI::Option* toggle(CLI::App& app, const std::string& name, bool& value, const std::string& help);

  Completion completion_of(const CLI::Option* option) const;

 private:
  CLI::Option* remember(CLI::Option* option, Completion completion);
  std::map<const CLI::Option*, Completion> completions_;
};

}  // namespace monolayer::cli
