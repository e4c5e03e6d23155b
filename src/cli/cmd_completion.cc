// `monolayer completion bash|zsh|fish`.
#include <cstdio>
#include <memory>

#include "cli/command.h"
#include "cli/completion.h"

namespace monolayer::cli {

void add_completion(Program& program) {
  auto shell = std::make_shared<std::string>();
  CLI::App& app = program.add("completion", "Print a completion script", [&program, shell] {
    const std::string script = *shell == "bash"  ? bash_completion(program.app, program.flags)
                               : *shell == "zsh" ? zsh_completion(program.app, program.flags)
                                                 : fish_completion(program.app, program.flags);
    std::fputs(script.c_str(), stdout);
    return ok_status();
  });
  program.flags.choice(app, "shell", *shell, {"bash", "zsh", "fish"}, "Shell")->required();
}

}  // namespace monolayer::cli
