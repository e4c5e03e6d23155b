// What a written checkpoint's config.json says about its formats, and the small files beside it.
#include <array>
#include <filesystem>
#include <system_error>

#include <nlohmann/json.hpp>

#include "m3/synth_plan.h"

namespace monolayer::m3 {
namespace {

using Json = nlohmann::json;

// Quark's description of a matrix format, for weights or (dynamic) for the activations meeting it.
Json quark_tensor(WeightFormat format, bool dynamic) {
  Json json = {{"is_dynamic", dynamic}, {"scale_type", "float"}, {"round_method", "half_even"}};
  if (format == WeightFormat::kFP8PerChannel) {
    json.update({{"dtype", "fp8_e4m3"},
                 {"qscheme", "per_channel"},
                 {"group_size", nullptr},
                 {"ch_axis", dynamic ? 1 : 0},
                 {"scale_format", nullptr},
                 {"symmetric", true},
                 {"observer_cls", "PerChannelMinMaxObserver"}});
  } else {
    json.update({{"dtype", format == WeightFormat::kMXFP4 ? "fp4" : "fp8_e4m3"},
                 {"qscheme", "per_group"},
                 {"group_size", 32},
                 {"ch_axis", -1},
                 {"scale_format", "e8m0"},
                 {"symmetric", nullptr},
                 {"observer_cls", "PerBlockMXObserver"}});
  }
  return json;
}

Json quark_entry(WeightFormat format) {
  return {{"weight", quark_tensor(format, false)},
          {"input_tensors", quark_tensor(format, true)},
          {"output_tensors", nullptr},
          {"bias", nullptr}};
}

struct PartPatterns {
  WeightFormat format;
  std::vector<const char*> patterns;
};

}  // namespace

Json quantization_config(const PartFormats& formats) {
  const auto value = [](const std::optional<WeightFormat>& format) {
    return format.value_or(WeightFormat::kPlain);
  };
  const std::array<PartPatterns, 3> parts{{
      {value(formats.experts), {"*block_sparse_moe.experts*", "*block_sparse_moe.shared_experts*"}},
      {value(formats.attention), {"*self_attn*"}},
      {value(formats.dense), {"*mlp.gate_proj", "*mlp.up_proj", "*mlp.down_proj"}},
  }};
  constexpr std::array<const char*, 7> kNever{
      "*lm_head",       "*embed_tokens*",          "*block_sparse_moe.gate", "*norm*",
      "*vision_tower*", "*multi_modal_projector*", "*patch_merge_mlp*"};

  bool all_plain = true;
  bool all_mxfp8 = true;
  for (const PartPatterns& part : parts) {
    all_plain = all_plain && part.format == WeightFormat::kPlain;
    all_mxfp8 = all_mxfp8 && part.format == WeightFormat::kMXFP8;
  }
  if (all_plain) return nullptr;
  if (all_mxfp8) {
    return {{"quant_method", "mxfp8"},
            {"activation_scheme", "dynamic"},
            {"fmt", "e4m3"},
            {"scale_fmt", "ue8m0"},
            {"weight_block_size", {1, 32}},
            {"ignored_layers",
             {"lm_head", "embed_tokens", "re:.*block_sparse_moe\\.gate$", "re:.*norm.*",
              "re:.*vision_tower.*", "re:.*multi_modal_projector.*", "re:.*patch_merge_mlp.*"}}};
  }

  // The first quantised part (the experts, if they are) is the global format.
  WeightFormat global = WeightFormat::kPlain;
  Json layers = Json::object();
  Json exclude = Json::array();
  for (const char* pattern : kNever) exclude.push_back(pattern);
  for (const PartPatterns& part : parts) {
    if (part.format == WeightFormat::kPlain) {
      for (const char* pattern : part.patterns) exclude.push_back(pattern);
    } else if (global == WeightFormat::kPlain) {
      global = part.format;
    } else if (part.format != global) {
      for (const char* pattern : part.patterns) layers[pattern] = quark_entry(part.format);
    }
  }
  Json json = {{"quant_method", "quark"},
               {"global_quant_config", quark_entry(global)},
               {"exclude", exclude},
               {"export",
                {{"kv_cache_group", Json::array()},
                 {"pack_method", "reorder"},
                 {"weight_format", "real_quantized"},
                 {"weight_merge_groups", nullptr}}}};
  if (!layers.empty()) json["layer_quant_config"] = layers;
  return json;
}

Status copy_text_files(const std::string& from, const std::string& to) {
  namespace fs = std::filesystem;
  for (const char* name :
       {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
        "vocab.json", "merges.txt", "chat_template.jinja", "generation_config.json", "LICENSE"}) {
    std::error_code error;
    const fs::path source = fs::path(from) / name;
    if (!fs::exists(source, error)) continue;
    fs::copy_file(source, fs::path(to) / name, fs::copy_options::overwrite_existing, error);
    if (error)
      return {error == std::errc::no_space_on_device ? Code::kResourceExhausted : Code::kIoError,
              (fs::path(to) / name).string(), "not copied: " + error.message()};
  }
  return ok_status();
}

}  // namespace monolayer::m3
