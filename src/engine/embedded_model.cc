#include "engine/embedded_model.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

namespace monolayer::engine {

namespace fs = std::filesystem;

Result<std::string> embedded_model_folder() {
  std::vector<fs::path> places;
  if (const char* assets = std::getenv("MONOLAYER_ASSETS"); assets != nullptr && *assets != '\0') {
    places.push_back(fs::path(assets) / "nano");
  } else {
    std::error_code error;
    const fs::path program = fs::read_symlink("/proc/self/exe", error);
    const fs::path bin = program.parent_path();
    places.push_back(bin.parent_path() / "share" / "monolayer" / "nano");
    places.push_back(bin.parent_path().parent_path().parent_path() / "assets" / "nano");
  }
  std::string looked;
  for (const fs::path& place : places) {
    std::error_code error;
    if (fs::exists(place / "config.json", error)) return place.string();
    looked += (looked.empty() ? "" : ", ") + place.string();
  }
  return Status(Code::kNotFound, "embedded model",
                "not found in " + looked + "; name a model with --model or set MONOLAYER_ASSETS");
}

Result<std::string> embedded_draft_folder() {
  ML_ASSIGN_OR_RETURN(const std::string model, embedded_model_folder());
  const fs::path draft = fs::path(model).parent_path() / "nano_eagle3";
  std::error_code error;
  if (fs::exists(draft / "config.json", error)) return draft.string();
  return Status(Code::kNotFound, draft.string(), "there is no draft for the embedded model");
}

}  // namespace monolayer::engine
