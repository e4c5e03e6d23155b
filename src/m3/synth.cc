#include "m3/synth.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <thread>
#include <vector>

#include "checkpoint/safetensors_writer.h"
#include "checkpoint/shard_index.h"
#include "m3/synth_plan.h"
#include "m3/synth_values.h"

namespace monolayer::m3 {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::int64_t kBlockBytes = std::int64_t{32} << 20;

// Rows [begin, end) split over the machine's threads; small ranges stay on this one.
void fill_rows(const PlannedTensor& tensor, std::uint64_t key, double spread, std::int64_t begin,
               std::int64_t end, std::span<std::byte> weight, std::span<std::byte> scale) {
  const std::int64_t rows = end - begin;
  const std::int64_t bytes = rows * tensor.row_bytes();
  const auto threads = std::clamp<std::int64_t>(
      std::min<std::int64_t>(std::thread::hardware_concurrency(), bytes >> 20), 1, 16);
  std::vector<std::thread> team;
  for (std::int64_t t = 0; t < threads; ++t) {
    const std::int64_t first = begin + rows * t / threads;
    const std::int64_t last = begin + rows * (t + 1) / threads;
    const auto part = [=, &tensor] {
      const auto from = static_cast<std::size_t>(first - begin);
      synth_rows(tensor, key, spread, first, last,
                 weight.subspan(from * static_cast<std::size_t>(tensor.row_bytes())),
                 scale.subspan(from * static_cast<std::size_t>(tensor.scale_row_bytes())));
    };
    if (t + 1 < threads) {
      team.emplace_back(part);
    } else {
      part();
    }
  }
  for (std::thread& member : team) member.join();
}

// A list with one entry per layer gets as many entries as there are layers now.
void resize_layer_lists(Json& object, std::int64_t old_layers, std::int64_t layers) {
  for (auto& [name, value] : object.items()) {
    if (value.is_object()) resize_layer_lists(value, old_layers, layers);
    if (!value.is_array() || value.empty() || value.size() != static_cast<std::size_t>(old_layers))
      continue;
    Json resized = Json::array();
    for (std::int64_t i = 0; i < layers; ++i)
      resized.push_back(value[static_cast<std::size_t>(std::min(i, old_layers - 1))]);
    value = resized;
  }
}

Status set_layers(Json& root, std::int64_t layers, const std::string& name) {
  Json& text = root.contains("text_config") ? root["text_config"] : root;
  const auto old = text.find("num_hidden_layers");
  if (old == text.end() || !old->is_number_integer() || old->get<std::int64_t>() < 1)
    return {Code::kInvalidFile, name, "num_hidden_layers is no positive whole number"};
  const auto old_layers = old->get<std::int64_t>();
  text["num_hidden_layers"] = layers;
  for (auto& [field, value] : text.items())
    if (value.is_array() || field == "sparse_attention_config") {
      Json holder = {{field, value}};
      resize_layer_lists(holder, old_layers, layers);
      value = holder[field];
    }
  return ok_status();
}

}  // namespace

Status prepare_folder(const std::string& folder, std::uint64_t bytes, bool force) {
  std::error_code error;
  if (fs::exists(folder, error) && !fs::is_directory(folder, error))
    return {Code::kInvalidArgument, folder, "is not a folder"};
  std::vector<fs::path> ours;
  std::uint64_t freed = 0;
  if (fs::exists(folder, error)) {
    bool empty = true;
    for (const auto& entry : fs::directory_iterator(folder, error)) {
      empty = false;
      const std::string name = entry.path().filename().string();
      if (name != "model.safetensors" && name != "model.safetensors.index.json" &&
          name != "config.json" && !looks_like_shard(name))
        continue;
      ours.push_back(entry.path());
      std::error_code ignored;
      const auto size = fs::file_size(entry.path(), ignored);
      if (!ignored) freed += size;
    }
    if (error) return {Code::kIoError, folder, "not listed: " + error.message()};
    if (!empty && !force)
      return {Code::kInvalidArgument, folder, "is not empty (--force replaces the model in it)"};
  }
  fs::path existing = fs::absolute(folder, error);
  while (!fs::exists(existing, error) && existing.has_relative_path())
    existing = existing.parent_path();
  const fs::space_info space = fs::space(existing, error);
  if (!error && bytes > space.available + freed)
    return {Code::kResourceExhausted, folder,
            "needs " + std::to_string(bytes) + " bytes, the disk has " +
                std::to_string(space.available) + " free"};
  fs::create_directories(folder, error);
  if (error) return {Code::kIoError, folder, "not created: " + error.message()};
  for (const fs::path& path : ours) {
    fs::remove(path, error);
    if (error) return {Code::kIoError, path.string(), "not removed: " + error.message()};
  }
  return ok_status();
}

Result<WriteReport> synthesize(const SynthOptions& options) {
  ML_ASSIGN_OR_RETURN(PartFormats formats, parse_formats(options.format));
  for (auto* part : {&formats.attention, &formats.dense, &formats.experts})
    if (!part->has_value()) *part = WeightFormat::kPlain;

  Json root = options.config;
  if (!root.is_object())
    return Status(Code::kInvalidFile, options.config_name, "is no JSON object");
  if (root.contains("text_config") && !root["text_config"].is_object())
    return Status(Code::kInvalidFile, options.config_name, "text_config is no object");
  if (options.layers > 0) ML_RETURN_IF_ERROR(set_layers(root, options.layers, options.config_name));
  const bool flat = !root.contains("text_config");
  root.erase("quantization_config");
  if (!flat) root["text_config"].erase("quantization_config");
  Json quantization = quantization_config(formats);
  if (!quantization.is_null()) root["quantization_config"] = std::move(quantization);
  ML_ASSIGN_OR_RETURN(const ModelConfig config, parse_config(root, options.config_name));
  ML_ASSIGN_OR_RETURN(const auto plan, plan_checkpoint(config, formats, flat));

  std::vector<TensorPlan> tensors;
  std::uint64_t total = 0;
  for (const PlannedTensor& tensor : plan) {
    tensor.announce(tensors);
    total += static_cast<std::uint64_t>(tensor.rows) *
             static_cast<std::uint64_t>(tensor.row_bytes() + tensor.scale_row_bytes());
  }
  ML_RETURN_IF_ERROR(prepare_folder(options.out, total, options.force));
  ML_ASSIGN_OR_RETURN(
      ShardedWriter writer,
      ShardedWriter::create(options.out, tensors, options.max_shard_bytes, {{"format", "pt"}}));

  std::vector<std::byte> weight;
  std::vector<std::byte> scale;
  std::uint64_t done = 0;
  for (const PlannedTensor& tensor : plan) {
    const std::uint64_t key = synth_key(options.seed, tensor.weight);
    const double spread = synth_spread(config, tensor);
    const std::int64_t block =
        std::max<std::int64_t>(1, kBlockBytes / std::max<std::int64_t>(1, tensor.row_bytes()));
    for (std::int64_t begin = 0; begin < tensor.rows; begin += block) {
      const std::int64_t end = std::min(tensor.rows, begin + block);
      weight.resize(static_cast<std::size_t>((end - begin) * tensor.row_bytes()));
      scale.resize(static_cast<std::size_t>((end - begin) * tensor.scale_row_bytes()));
      fill_rows(tensor, key, spread, begin, end, weight, scale);
      ML_RETURN_IF_ERROR(writer.write(tensor.weight, weight));
      if (!scale.empty()) ML_RETURN_IF_ERROR(writer.write(tensor.scale, scale));
      done += weight.size() + scale.size();
      if (options.progress) options.progress(done, total);
    }
  }
  ML_RETURN_IF_ERROR(writer.finish());
  ML_RETURN_IF_ERROR(write_text_file(options.out + "/config.json", root.dump(2) + "\n"));
  if (!options.text_from.empty())
    ML_RETURN_IF_ERROR(copy_text_files(options.text_from, options.out));
  return WriteReport{tensors.size(), total, writer.shards()};
}

nlohmann::json m3_shape() {
  Json layers = Json::array();
  for (int i = 0; i < 60; ++i) layers.push_back(i < 3 ? 0 : 1);
  return {{"architectures", {"MiniMaxM3SparseForConditionalGeneration"}},
          {"model_type", "minimax_m3_vl"},
          {"tie_word_embeddings", false},
          {"torch_dtype", "bfloat16"},
          {"text_config",
           {{"hidden_size", 6144},
            {"num_hidden_layers", 60},
            {"num_attention_heads", 64},
            {"num_key_value_heads", 4},
            {"head_dim", 128},
            {"vocab_size", 200064},
            {"max_position_embeddings", 1048576},
            {"rms_norm_eps", 1e-6},
            {"use_gemma_norm", true},
            {"use_qk_norm", true},
            {"qk_norm_type", "per_head"},
            {"attention_output_gate", false},
            {"rope_theta", 5000000.0},
            {"rotary_dim", 64},
            {"partial_rotary_factor", 0.5},
            {"hidden_act", "swigluoai"},
            {"swiglu_alpha", 1.702},
            {"swiglu_limit", 7.0},
            {"intermediate_size", 3072},
            {"dense_intermediate_size", 12288},
            {"shared_intermediate_size", 3072},
            {"num_local_experts", 128},
            {"num_experts_per_tok", 4},
            {"n_shared_experts", 1},
            {"moe_layer_freq", layers},
            {"scoring_func", "sigmoid"},
            {"use_routing_bias", true},
            {"routed_scaling_factor", 2.0},
            {"tie_word_embeddings", false},
            {"bos_token_id", 200034},
            {"eos_token_id", 200020},
            {"sparse_attention_config",
             {{"use_sparse_attention", true},
              {"sparse_attention_freq", layers},
              {"sparse_num_index_heads", 4},
              {"sparse_index_dim", 128},
              {"sparse_topk_blocks", 16},
              {"sparse_block_size", 128},
              {"sparse_score_type", "max"},
              {"sparse_init_block", 0},
              {"sparse_local_block", 1},
              {"sparse_disable_index_value", layers}}},
            {"torch_dtype", "bfloat16"}}}};
}

}  // namespace monolayer::m3
