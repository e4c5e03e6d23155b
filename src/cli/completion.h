// Shell completion scripts, made from the flags themselves.
#pragma once

#include <string>

#include <CLI/App.hpp>

#include "cli/flags.h"

namespace monolayer::cli {

std::string bash_completion(const CLI::App& app, const Flags& flags);
std::string zsh_completion(const CLI::App& app, const Flags& flags);
std::string fish_completion(const CLI::App& app, const Flags& flags);

}  // namespace monolayer::cli
