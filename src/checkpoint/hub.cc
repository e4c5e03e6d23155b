#include "checkpoint/hub.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "checkpoint/text_io.h"

namespace monolayer {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool is_folder(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

bool exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

std::string expand_home(const std::string& path) {
  if (path == "~" || path.rfind("~/", 0) == 0) return variable("HOME") + path.substr(1);
  return path;
}

// A part of a name that becomes a part of a path.
bool is_safe_part(std::string_view part) {
  return !part.empty() && part != "." && part != ".." &&
         std::all_of(part.begin(), part.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '-' || c == '_' || c == '.';
         });
}

bool is_safe_revision(std::string_view revision) {
  // Branches may hold slashes ("refs/pr/3").
  std::size_t begin = 0;
  for (;;) {
    const std::size_t end = revision.find('/', begin);
    if (!is_safe_part(revision.substr(begin, end - begin))) return false;
    if (end == std::string_view::npos) return true;
    begin = end + 1;
  }
}

struct HubName {
  std::string org, name, revision;
};

// False when `model` does not have the form org/name[@revision].
bool parse_hub_name(std::string_view model, HubName& parsed) {
  const std::size_t at = model.find('@');
  const std::string_view repository = model.substr(0, at);
  const std::size_t slash = repository.find('/');
  if (slash == std::string_view::npos) return false;
  parsed.org = repository.substr(0, slash);
  parsed.name = repository.substr(slash + 1);
  parsed.revision = at == std::string_view::npos ? "main" : std::string(model.substr(at + 1));
  return is_safe_part(parsed.org) && is_safe_part(parsed.name) && is_safe_revision(parsed.revision);
}

std::string trimmed(std::string text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; };
  while (!text.empty() && is_space(text.back())) text.pop_back();
  return text;
}

}  // namespace

std::string hub_cache_folder() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const std::string value = variable(name); !value.empty()) return expand_home(value);
  }
  if (const std::string home = variable("HF_HOME"); !home.empty())
    return expand_home(home) + "/hub";
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty())
    return expand_home(cache) + "/huggingface/hub";
  return variable("HOME") + "/.cache/huggingface/hub";
}

Result<std::string> resolve_model(const std::string& model, const std::string& cache_folder) {
  if (model.empty() || model.find('\0') != std::string::npos)
    return Status(Code::kInvalidArgument, quote_name(model), "names no model");
  if (is_folder(model)) return model;
  if (exists(model)) {
    return Status(Code::kInvalidFile, model,
                  "is a file, expected a model folder or a name like org/name");
  }
  HubName hub;
  if (!parse_hub_name(model, hub)) {
    return Status(Code::kNotFound, model,
                  "no such folder, and not a hub name of the form org/name or org/name@revision");
  }
  const std::string base = cache_folder + "/models--" + hub.org + "--" + hub.name;
  const auto not_found = [&](const std::string& places) {
    return Status(Code::kNotFound, model, "no such model; looked at " + places);
  };
  if (!is_folder(base)) return not_found("folder " + model + " and cache " + base);
  const std::string ref = base + "/refs/" + hub.revision;
  std::string commit = hub.revision;
  if (exists(ref)) {
    ML_ASSIGN_OR_RETURN(const std::string text, read_text_file(ref, 4096));
    commit = trimmed(text);
    if (!is_safe_part(commit)) return Status(Code::kInvalidFile, ref, "names no commit");
  }
  const std::string snapshot = base + "/snapshots/" + commit;
  if (is_folder(snapshot)) return snapshot;
  return not_found("folder " + model + ", ref " + ref + " and snapshot " + snapshot);
}

}  // namespace monolayer
