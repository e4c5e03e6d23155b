// The program: parses the command line, runs one subcommand, and turns whatever went wrong into one
// line and an exit code.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <string>

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "cli/command.h"

namespace monolayer::cli {
namespace {

// One line whatever a message carries: file names and library texts may hold control characters.
int fail(const std::string& message) {
  std::string line;
  for (const char c : message) line += (static_cast<unsigned char>(c) < 0x20) ? ' ' : c;
  while (!line.empty() && line.back() == ' ') line.pop_back();
  std::fflush(stdout);
  std::fprintf(stderr, "monolayer: error: %s\n", line.c_str());
  return 2;
}

// Unknown words come first: a missing flag is often a misspelt one.
std::string describe(const CLI::ParseError& error, const CLI::App& app) {
  for (const CLI::App* sub : app.get_subcommands()) {
    const auto unknown = sub->remaining();
    if (!unknown.empty() && !sub->get_allow_extras())
      return sub->get_name() + ": unknown flag or argument: " + unknown.front();
  }
  const auto unknown = app.remaining();
  if (!unknown.empty()) return "unknown command or flag: " + unknown.front();
  if (app.get_subcommands().empty()) return "a command is required; see monolayer --help";
  return error.what();
}

int run(int argc, char** argv) {
  Program program;
  program.app.set_version_flag("--version", std::string("monolayer ") + MONOLAYER_VERSION);
  program.app.require_subcommand(1);
  add_generate(program);
  add_trace(program);
  add_inspect(program);
  add_synth(program);
  add_quantize(program);
  add_bench(program);
  add_serve(program);
  add_eval(program);
  add_completion(program);

  try {
    program.app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return program.app.exit(help);
  } catch (const CLI::CallForVersion& version) {
    return program.app.exit(version);
  } catch (const CLI::ParseError& error) {
    return fail(describe(error, program.app));
  }
  for (const Command& command : program.commands) {
    if (!command.app->parsed()) continue;
    const Status status = command.run();
    if (!status.ok()) return fail(status.to_string());
  }
  // Output that did not reach its file (a full disk, a closed pipe) is a failure, not a success.
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
    return fail(std::string("standard output: ") + std::strerror(errno));
  return 0;
}

}  // namespace

int run_guarded(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::bad_alloc&) {
    return fail("out of memory");
  } catch (const std::exception& error) {
    return fail(std::string("internal error: ") + error.what());
  }
}

}  // namespace monolayer::cli

int main(int argc, char** argv) { return monolayer::cli::run_guarded(argc, argv); }
