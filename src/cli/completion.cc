#include "cli/completion.h"

#include <vector>

namespace monolayer::cli {
namespace {

struct FlagEntry {
  std::string name;  // "--max-tokens"
  std::string help;
  bool takes_value = false;
  Completion completion;
};

std::vector<FlagEntry> flags_of(const CLI::App& app, const Flags& flags) {
  std::vector<FlagEntry> entries;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames())
      entries.push_back({"--" + name, option->get_description(), option->get_type_size() > 0,
                         flags.completion_of(option)});
  }
  return entries;
}

// Choices of the positional argument, if it has some.
Completion positional_of(const CLI::App& app, const Flags& flags) {
  for (const CLI::Option* option : app.get_options())
    if (option->get_positional()) return flags.completion_of(option);
  return {};
}

std::string words(const std::vector<std::string>& list) {
  std::string text;
  for (const std::string& word : list) text += (text.empty() ? "" : " ") + word;
  return text;
}

// For text inside single quotes.
std::string escape(const std::string& text, const char* special) {
  std::string out;
  for (const char c : text) {
    if (std::string(special).find(c) != std::string::npos) out += '\\';
    out += c == '\'' ? '`' : c;
  }
  return out;
}

std::string bash_values(const Completion& completion) {
  switch (completion.kind) {
    case Completion::Kind::kFile:
      return "COMPREPLY=($(compgen -f -- \"$cur\"))";
    case Completion::Kind::kFolder:
      return "COMPREPLY=($(compgen -d -- \"$cur\"))";
    case Completion::Kind::kChoice:
      return "COMPREPLY=($(compgen -W '" + words(completion.choices) + "' -- \"$cur\"))";
    default:
      return "COMPREPLY=()";
  }
}

std::string zsh_action(const Completion& completion) {
  switch (completion.kind) {
    case Completion::Kind::kFile:
      return "_files";
    case Completion::Kind::kFolder:
      return "_files -/";
    case Completion::Kind::kChoice:
      return "(" + words(completion.choices) + ")";
    default:
      return " ";
  }
}

}  // namespace

std::string bash_completion(const CLI::App& app, const Flags& flags) {
  std::string names;
  std::string cases;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    names += (names.empty() ? "" : " ") + sub->get_name();
    std::string all;
    cases += "    " + sub->get_name() + ")\n      case \"$prev\" in\n";
    for (const FlagEntry& flag : flags_of(*sub, flags)) {
      all += (all.empty() ? "" : " ") + flag.name;
      if (flag.takes_value)
        cases += "        " + flag.name + ") " + bash_values(flag.completion) + "; return ;;\n";
    }
    cases += "      esac\n      if [[ \"$cur\" == -* ]]; then\n        COMPREPLY=($(compgen -W '" +
             all + "' -- \"$cur\"))\n      else\n        " +
             bash_values(positional_of(*sub, flags)) + "\n      fi ;;\n";
  }
  return "# bash completion of monolayer\n_monolayer() {\n"
         "  local cur=\"${COMP_WORDS[COMP_CWORD]}\" prev=\"${COMP_WORDS[COMP_CWORD-1]}\"\n"
         "  COMPREPLY=()\n  if (( COMP_CWORD == 1 )); then\n    COMPREPLY=($(compgen -W '" +
         names +
         " --help --version' -- \"$cur\"))\n    return\n  fi\n"
         "  case \"${COMP_WORDS[1]}\" in\n" +
         cases + "  esac\n}\ncomplete -F _monolayer monolayer\n";
}

std::string zsh_completion(const CLI::App& app, const Flags& flags) {
  std::string names;
  std::string cases;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    names += "    '" + sub->get_name() + ":" + escape(sub->get_description(), ":\\") + "'\n";
    cases += "    " + sub->get_name() + ")\n      _arguments";
    for (const FlagEntry& flag : flags_of(*sub, flags)) {
      cases += " \\\n        '" + flag.name + "[" + escape(flag.help, "[]:\\") + "]";
      if (flag.takes_value) cases += ":value:" + zsh_action(flag.completion);
      cases += "'";
    }
    const Completion positional = positional_of(*sub, flags);
    if (positional.kind != Completion::Kind::kNone)
      cases += " \\\n        '1:argument:" + zsh_action(positional) + "'";
    cases += " ;;\n";
  }
  return "#compdef monolayer\n_monolayer() {\n  local -a commands\n  commands=(\n" + names +
         "  )\n  if (( CURRENT == 2 )); then\n    _describe command commands\n    return\n  fi\n"
         "  local command=\"${words[2]}\"\n  shift words\n  (( CURRENT-- ))\n"
         "  case \"$command\" in\n" +
         cases +
         "  esac\n}\nif [[ \"$funcstack[1]\" == _monolayer ]]; then\n  _monolayer \"$@\"\nelse\n"
         "  compdef _monolayer monolayer\nfi\n";
}

std::string fish_completion(const CLI::App& app, const Flags& flags) {
  std::string text = "# fish completion of monolayer\ncomplete -c monolayer -f\n";
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    text += "complete -c monolayer -n __fish_use_subcommand -a " + sub->get_name() + " -d '" +
            escape(sub->get_description(), "\\") + "'\n";
    const std::string here =
        "complete -c monolayer -n '__fish_seen_subcommand_from " + sub->get_name() + "'";
    const auto values = [](const Completion& completion) -> std::string {
      switch (completion.kind) {
        case Completion::Kind::kFile:
          return " -F";
        case Completion::Kind::kFolder:
          return " -a '(__fish_complete_directories)'";
        case Completion::Kind::kChoice:
          return " -a '" + words(completion.choices) + "'";
        default:
          return "";
      }
    };
    for (const FlagEntry& flag : flags_of(*sub, flags)) {
      text += here + " -l " + flag.name.substr(2) + " -d '" + escape(flag.help, "\\") + "'";
      if (flag.takes_value) text += " -r" + values(flag.completion);
      text += "\n";
    }
    const Completion positional = positional_of(*sub, flags);
    if (positional.kind != Completion::Kind::kNone) text += here + values(positional) + "\n";
  }
  return text;
}

}  // namespace monolayer::cli
