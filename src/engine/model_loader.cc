#include "engine/model_loader.h"

#include <cmath>
#include <filesystem>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include "checkpoint/hub.h"
#include "checkpoint/text_io.h"

namespace monolayer::engine {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// One number of generation_config.json, inside [low, high].
Status read_number(const Json& root, const char* field, const std::string& file, double low,
                   double high, double& value) {
  const auto found = root.find(field);
  if (found == root.end() || found->is_null()) return ok_status();
  const double number = found->is_number() ? found->get<double>() : std::nan("");
  if (!(number >= low && number <= high))
    return {Code::kInvalidFile, file,
            std::string(field) + " is no number from " + std::to_string(low) + " to " +
                std::to_string(high)};
  value = number;
  return ok_status();
}

Status read_ids(const Json& root, const std::string& file, std::int64_t vocab,
                std::vector<std::int32_t>& ids) {
  const auto found = root.find("eos_token_id");
  if (found == root.end() || found->is_null()) return ok_status();
  const Json list = found->is_array() ? *found : Json::array({*found});
  ids.clear();
  for (const Json& id : list) {
    if (!id.is_number_integer() || id.get<std::int64_t>() < 0 || id.get<std::int64_t>() >= vocab)
      return {Code::kInvalidFile, file,
              "eos_token_id holds something other than token ids below " + std::to_string(vocab)};
    ids.push_back(id.get<std::int32_t>());
  }
  return ok_status();
}

}  // namespace

Result<OpenCheckpoint> open_checkpoint(const std::string& name) {
  ML_ASSIGN_OR_RETURN(std::string folder, resolve_model(name));
  ML_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::open(folder));
  return OpenCheckpoint{std::move(folder), std::move(checkpoint)};
}

Result<std::unique_ptr<OpenModel>> open_model(const std::string& model) {
  ML_ASSIGN_OR_RETURN(OpenCheckpoint opened, open_checkpoint(model));
  auto& [folder, checkpoint] = opened;
  ML_ASSIGN_OR_RETURN(m3::ModelConfig config,
                      m3::parse_config(checkpoint.config(), checkpoint.config_name()));
  return std::unique_ptr<OpenModel>(
      new OpenModel{std::move(folder), std::move(checkpoint), std::move(config)});
}

Result<m3::ModelWeights> load_weights(const OpenModel& model,
                                      const ReadProgressCallback& progress) {
  ML_RETURN_IF_ERROR(model.checkpoint.touch_all(progress));
  ML_ASSIGN_OR_RETURN(m3::ModelWeights weights, m3::bind_weights(model.config, model.checkpoint));
  ML_RETURN_IF_ERROR(model.checkpoint.verify_unchanged());
  return weights;
}

Result<GenerationDefaults> generation_defaults(const std::string& folder,
                                               const m3::ModelConfig& config) {
  GenerationDefaults defaults;
  defaults.eos_token_ids = config.eos_token_ids;
  const std::string file = (fs::path(folder) / "generation_config.json").string();
  std::error_code error;
  if (!fs::exists(file, error)) return defaults;
  ML_ASSIGN_OR_RETURN(const std::string text, read_text_file(file, std::size_t{1} << 20));
  ML_ASSIGN_OR_RETURN(const Json root, parse_json(text, file));
  if (!root.is_object()) return Status(Code::kInvalidFile, file, "is no JSON object");
  double top_k = 0;
  ML_RETURN_IF_ERROR(read_number(root, "temperature", file, 0, 100, defaults.temperature));
  ML_RETURN_IF_ERROR(read_number(root, "top_p", file, 1e-6, 1, defaults.top_p));
  ML_RETURN_IF_ERROR(read_number(root, "top_k", file, 0, 1e9, top_k));
  defaults.top_k = static_cast<std::int64_t>(top_k);
  const auto sample = root.find("do_sample");
  if (sample != root.end() && sample->is_boolean() && !sample->get<bool>())
    defaults.temperature = 0;
  ML_RETURN_IF_ERROR(read_ids(root, file, config.vocab_size, defaults.eos_token_ids));
  return defaults;
}

}  // namespace monolayer::engine
