#include "checkpoint/quantization.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint.h"
#include "checkpoint/expect_refused.h"
#include "checkpoint/module_pattern.h"
#include "checkpoint/temp_files.h"

namespace monolayer {
namespace {

using nlohmann::json;

const json kFp4 = {{"weight",
                    {{"dtype", "fp4"},
                     {"qscheme", "per_group"},
                     {"group_size", 32},
                     {"ch_axis", -1},
                     {"is_dynamic", false},
                     {"scale_format", "e8m0"},
                     {"symmetric", nullptr}}}};
const json kFp8 = {{"weight",
                    {{"dtype", "fp8_e4m3"},
                     {"qscheme", "per_channel"},
                     {"ch_axis", 0},
                     {"is_dynamic", false},
                     {"symmetric", true}}}};

json quark(const json& changes) {
  json config = {{"quant_method", "quark"}, {"global_quant_config", kFp4}};
  config.update(changes);
  return {{"quantization_config", config}};
}

Result<QuantizationConfig> parse(const json& root) {
  return QuantizationConfig::parse(root, "config.json");
}

std::string format(const QuantizationConfig& config, const std::string& module) {
  const Result<WeightFormat> result = config.format_for(module);
  return result.ok() ? std::string(format_name(*result)) : result.status().to_string();
}

// Formats of the modules a layer of the hub's layout has.
const std::string kLayer = "language_model.model.layers.3.";

TEST(Quantization, NoneMeansPlain) {
  for (const json& root : {json::object(), json{{"quantization_config", nullptr}}}) {
    Result<QuantizationConfig> config = parse(root);
    ASSERT_TRUE(config.ok());
    EXPECT_EQ(format(*config, "anything"), "plain");
    EXPECT_TRUE(config->method().empty());
  }
}

TEST(Quantization, OracleConfigQuantisesExpertsOnly) {
  Result<Checkpoint> checkpoint =
      Checkpoint::open(std::string(MONOLAYER_SOURCE_DIR) + "/tests/data/oracle/mxfp4");
  ASSERT_TRUE(checkpoint.ok());
  Result<QuantizationConfig> config = QuantizationConfig::of(*checkpoint);
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  std::size_t packed = 0;
  for (const TensorView& tensor : checkpoint->tensors()) {
    const std::string name(tensor.name);
    if (tensor.shape.rank() != 2 || !name.ends_with(".weight")) continue;
    const std::string module = name.substr(0, name.size() - 7);
    const bool is_packed = tensor.dtype == DType::kU8;
    packed += is_packed;
    EXPECT_EQ(format(*config, module), is_packed ? "mxfp4" : "plain") << module;
  }
  EXPECT_EQ(packed, 2U * 13U * 3U);  // 12 experts and the shared one in two layers
}

TEST(Quantization, PublishedExcludeListOfTheMxfp4Release) {
  Result<QuantizationConfig> config =
      parse(quark({{"exclude",
                    {"*lm_head", "*vision_tower*", "*multi_modal_projector*", "*patch_merge_mlp*",
                     "*block_sparse_moe.gate", "*self_attn*", "*mlp.gate_proj", "*mlp.up_proj",
                     "*mlp.down_proj"}}}));
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(format(*config, "language_model.lm_head"), "plain");
  EXPECT_EQ(format(*config, kLayer + "self_attn.q_proj"), "plain");
  EXPECT_EQ(format(*config, kLayer + "self_attn.index_k_proj"), "plain");
  EXPECT_EQ(format(*config, kLayer + "mlp.gate_proj"), "plain");
  EXPECT_EQ(format(*config, kLayer + "block_sparse_moe.gate"), "plain");
  EXPECT_EQ(format(*config, kLayer + "block_sparse_moe.experts.127.w2"), "mxfp4");
  EXPECT_EQ(format(*config, kLayer + "block_sparse_moe.shared_experts.gate_proj"), "mxfp4");
}

TEST(Quantization, LayerEntriesWinOverExcludeWinOverGlobal) {
  Result<QuantizationConfig> config =
      parse(quark({{"exclude", {"*self_attn*", "lm_head"}},
                   {"layer_quant_config", {{"*self_attn*_proj", kFp8}}},
                   {"layer_type_quant_config", json::object()}}));
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(format(*config, kLayer + "self_attn.q_proj"), "fp8-per-channel");
  EXPECT_EQ(format(*config, kLayer + "self_attn.q_norm"), "plain");
  EXPECT_EQ(format(*config, kLayer + "block_sparse_moe.experts.0.w1"), "mxfp4");
  // Where the two contradict each other, both storages agree with the config; elsewhere only one.
  EXPECT_TRUE(*config->allows(kLayer + "self_attn.q_proj", WeightFormat::kPlain));
  EXPECT_TRUE(*config->allows(kLayer + "self_attn.q_proj", WeightFormat::kFP8PerChannel));
  EXPECT_FALSE(*config->allows(kLayer + "self_attn.q_proj", WeightFormat::kMXFP4));
  EXPECT_FALSE(*config->allows("lm_head", WeightFormat::kMXFP4));
  EXPECT_FALSE(*config->allows(kLayer + "block_sparse_moe.experts.0.w1", WeightFormat::kPlain));
}

TEST(Quantization, FirstLayerEntryInFileOrderWins) {
  const testing_files::TempDir dir;
  testing_files::write_file(dir.at("model.safetensors"),
                            testing_files::safetensors({{"a", "U8", "[1]", "a"}}));
  const std::string fp4 = kFp4.dump(), fp8 = kFp8.dump();
  const auto config = [&](const std::string& first, const std::string& second) {
    testing_files::write_file(
        dir.at("config.json"),
        R"({"quantization_config":{"quant_method":"quark","layer_quant_config":{)" + first + "," +
            second + "}}}");
    return QuantizationConfig::of(*Checkpoint::open(dir.path()));
  };
  const std::string all = R"("z*":)" + fp4, some = R"("*q":)" + fp8;
  EXPECT_EQ(format(*config(all, some), "z.q"), "mxfp4");
  EXPECT_EQ(format(*config(some, all), "z.q"), "fp8-per-channel");
}

TEST(Quantization, LayerTypesReplaceTheGlobalFormatOfLinearLayers) {
  for (const std::string type :
       {"Linear", "nn.Linear", "<class 'torch.nn.modules.linear.Linear'>"}) {
    Result<QuantizationConfig> config =
        parse(quark({{"layer_type_quant_config", {{type, kFp8}, {"nn.Conv2d", kFp4}}},
                     {"exclude", {"lm_head"}}}));
    ASSERT_TRUE(config.ok()) << config.status().to_string();
    EXPECT_EQ(format(*config, "x"), "fp8-per-channel");
    EXPECT_EQ(format(*config, "lm_head"), "plain");
    EXPECT_EQ(config->notes().size(), 1U);
  }
}

TEST(Quantization, NamesMatchUnderEveryWrapperPrefix) {
  for (const std::string stored : {"layers.3.mlp.down_proj", "model.layers.3.mlp.down_proj",
                                   "language_model.model.layers.3.mlp.down_proj",
                                   "model.language_model.layers.3.mlp.down_proj"}) {
    for (const std::string listed :
         {"layers.3.mlp.down_proj", "model.layers.3.mlp.down_proj",
          "language_model.model.layers.3.mlp.down_proj",
          "model.language_model.layers.3.mlp.down_proj", "language_model.layers.3.mlp.*",
          "re:model\\.layers\\.3\\.mlp", "model.layers.[0-3].mlp.down_proj",
          "language_model.model.layers.3.mlp.down_proj.weight"}) {
      Result<QuantizationConfig> config = parse(quark({{"exclude", {listed}}}));
      ASSERT_TRUE(config.ok());
      EXPECT_EQ(format(*config, stored), "plain") << listed << " for " << stored;
      EXPECT_EQ(format(*config, "model.layers.4.mlp.down_proj"), "mxfp4") << listed;
    }
  }
}

TEST(Quantization, PlainNamesMatchWholeComponentsOnly) {
  Result<QuantizationConfig> config =
      parse(quark({{"exclude", {"gate", "layers.1", "lm_head", "mlp.up_proj"}}}));
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(format(*config, kLayer + "block_sparse_moe.gate"), "plain");
  EXPECT_EQ(format(*config, kLayer + "mlp.gate_proj"), "mxfp4");
  EXPECT_EQ(format(*config, "model.layers.1.mlp.down_proj"), "plain");
  EXPECT_EQ(format(*config, "model.layers.11.mlp.down_proj"), "mxfp4");
  EXPECT_EQ(format(*config, "language_model.lm_head"), "plain");
  EXPECT_EQ(format(*config, kLayer + "mlp.up_proj"), "plain");
  EXPECT_EQ(format(*config, kLayer + "shared.up_proj"), "mxfp4");
}

TEST(Quantization, OverBroadPatternMeansWhatItSays) {
  // One published conversion excluded *gate* and so left gate_proj unquantised, too.
  Result<QuantizationConfig> config = parse(quark({{"exclude", {"*gate*"}}}));
  EXPECT_EQ(format(*config, kLayer + "mlp.gate_proj"), "plain");
  EXPECT_EQ(format(*config, kLayer + "mlp.up_proj"), "mxfp4");
}

TEST(Quantization, RegularExpressionsAreAnchoredAtTheStartOnly) {
  Result<QuantizationConfig> config =
      parse(quark({{"exclude", {"re:.*self_attn.*", "re:layers\\.7"}}}));
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(format(*config, kLayer + "self_attn.k_proj"), "plain");
  EXPECT_EQ(format(*config, "model.layers.70.x"), "plain");
  EXPECT_EQ(format(*config, "model.mtp.layers.7.x"), "mxfp4");
  expect_refused(parse(quark({{"exclude", {"ok", "re:("}}})).status(), Code::kInvalidFile,
                 {"config.json", "exclude[1]", "re:("});
}

TEST(Quantization, ExplodingRegularExpressionIsStopped) {
  Result<QuantizationConfig> config = parse(quark({{"exclude", {"re:(a+)+$"}}}));
  ASSERT_TRUE(config.ok());
  expect_refused(config->format_for(std::string(64, 'a') + "b").status(), Code::kResourceExhausted,
                 {"re:(a+)+$"});
}

TEST(Quantization, Mxfp8WithEveryIgnoreListName) {
  for (const char* list : {"ignored_layers", "modules_to_not_convert", "ignore", "exclude_modules",
                           "exclude", "ignore_layers", "exclude_layers"}) {
    Result<QuantizationConfig> config = parse({{"quantization_config",
                                                {{"quant_method", "mxfp8"},
                                                 {"activation_scheme", "dynamic"},
                                                 {"weight_block_size", {1, 32}},
                                                 {"fmt", "e4m3"},
                                                 {"scale_fmt", "ue8m0"},
                                                 {list, {"lm_head", "gate", "vision_tower"}}}}});
    ASSERT_TRUE(config.ok()) << config.status().to_string();
    EXPECT_EQ(config->method(), "mxfp8");
    EXPECT_EQ(format(*config, "language_model.lm_head"), "plain") << list;
    EXPECT_EQ(format(*config, kLayer + "block_sparse_moe.gate"), "plain");
    EXPECT_EQ(format(*config, "vision_tower.layers.0.mlp.fc1"), "plain");
    EXPECT_EQ(format(*config, kLayer + "self_attn.q_proj"), "mxfp8");
  }
}

TEST(Quantization, UniformMethods) {
  const auto method_format = [](const json& config) {
    Result<QuantizationConfig> parsed = parse({{"quantization_config", config}});
    return parsed.ok() ? format(*parsed, "x") : std::string(code_name(parsed.status().code()));
  };
  EXPECT_EQ(method_format({{"quant_method", "ptpc_fp8"}}), "fp8-per-channel");
  EXPECT_EQ(method_format({{"quant_method", "fp8"}}), "fp8-per-channel");
  EXPECT_EQ(method_format({{"quant_method", "fp8"}, {"weight_block_size", {1, 32}}}), "mxfp8");
  EXPECT_EQ(method_format({{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}}),
            "unsupported");
  EXPECT_EQ(method_format({{"quant_method", "mxfp8"}, {"group_size", 16}}), "unsupported");
  EXPECT_EQ(method_format({{"quant_method", "mxfp8"}, {"fmt", "e5m2"}}), "unsupported");
  EXPECT_EQ(method_format({{"quant_method", "modelopt"}, {"quant_algo", "MXFP8"}}), "mxfp8");
}

TEST(Quantization, UnreadMethodsAreRefusedByName) {
  for (const std::string method : {"compressed-tensors", "gptq", "awq", "mxfp4", "bitsandbytes"}) {
    expect_refused(parse({{"quantization_config", {{"quant_method", method}}}}).status(),
                   Code::kUnsupported, {"config.json", "quant_method", "'" + method + "'"});
  }
  expect_refused(
      parse({{"quantization_config", {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}}}})
          .status(),
      Code::kUnsupported, {"quant_algo", "NVFP4"});
}

TEST(Quantization, UnreadQuarkSchemesAreRefusedWhenAModuleUsesThem) {
  const auto changed = [](json entry, const char* field, const json& value) {
    entry["weight"][field] = value;
    return entry;
  };
  for (const auto& [entry, named] : std::vector<std::pair<json, std::string>>{
           {changed(kFp4, "dtype", "int4"), "'int4'"},
           {changed(kFp4, "group_size", 16), "group_size: 16"},
           {changed(kFp4, "scale_format", "e4m3"), "'e4m3'"},
           {changed(kFp4, "ch_axis", 0), "ch_axis"},
           {changed(kFp4, "qscheme", "per_tensor"), "'per_tensor'"},
           {changed(kFp8, "qscheme", "per_tensor"), "'per_tensor'"},
           {changed(kFp8, "is_dynamic", true), "is_dynamic"},
           {changed(kFp8, "symmetric", false), "symmetric"},
           {{{"weight", {kFp4["weight"], kFp8["weight"]}}}, "NVFP4"}}) {
    Result<QuantizationConfig> config =
        parse(quark({{"layer_quant_config", {{"*self_attn*", entry}}}}));
    ASSERT_TRUE(config.ok()) << config.status().to_string();
    EXPECT_EQ(format(*config, "mlp.x"), "mxfp4");
    expect_refused(config->format_for("self_attn.x").status(), Code::kUnsupported,
                   {"config.json", "layer_quant_config.*self_attn*.weight", named, "self_attn.x"});
  }
  expect_refused(parse(quark({{"export", {{"weight_format", "fake_quantized"}}}})).status(),
                 Code::kUnsupported, {"export.weight_format", "fake_quantized"});
}

TEST(Quantization, OlderQuarkSpellingOfMx) {
  json mx = {{"weight", {{"dtype", "mx"}, {"mx_element_dtype", "fp4"}, {"group_size", 32}}}};
  EXPECT_EQ(format(*parse(quark({{"global_quant_config", mx}})), "x"), "mxfp4");
  mx["weight"]["mx_element_dtype"] = "fp8_e4m3";
  EXPECT_EQ(format(*parse(quark({{"global_quant_config", mx}})), "x"), "mxfp8");
  EXPECT_EQ(format(*parse(quark({{"global_quant_config", {{"weight", nullptr}}}})), "x"), "plain");
  EXPECT_EQ(format(*parse(quark({{"global_quant_config", nullptr}})), "x"), "plain");
}

TEST(Quantization, NestedConfigCounts) {
  const json config = quark(json::object())["quantization_config"];
  EXPECT_EQ(format(*parse({{"text_config", {{"quantization_config", config}}}}), "x"), "mxfp4");
  json other = config;
  other["exclude"] = {"y"};
  expect_refused(
      parse({{"quantization_config", config}, {"text_config", {{"quantization_config", other}}}})
          .status(),
      Code::kInvalidFile, {"text_config.quantization_config"});
}

TEST(Faults_QuantizationConfig, WrongTypesNameTheField) {
  const auto refused = [](const json& root, const std::string& field) {
    expect_refused(parse(root).status(), Code::kInvalidFile,
                   {"config.json", "quantization_config" + field});
  };
  refused({{"quantization_config", {1}}}, "");
  refused({{"quantization_config", "mxfp8"}}, "");
  refused({{"quantization_config", json::object()}}, "");
  refused({{"quantization_config", {{"quant_method", 1}}}}, ".quant_method");
  refused(quark({{"exclude", "lm_head"}}), ".exclude");
  refused(quark({{"exclude", {"a", 1}}}), ".exclude[1]");
  refused(quark({{"layer_quant_config", {"a"}}}), ".layer_quant_config");
  refused(quark({{"layer_quant_config", {{"a", 1}}}}), ".layer_quant_config.a");
  refused(quark({{"layer_type_quant_config", 5}}), ".layer_type_quant_config");
  refused(quark({{"global_quant_config", "fp4"}}), ".global_quant_config");
  refused(quark({{"global_quant_config", {{"weight", 4}}}}), ".global_quant_config.weight");
  refused(quark({{"global_quant_config", {{"weight", {{"dtype", 4}}}}}}),
          ".global_quant_config.weight.dtype");
  refused(quark({{"global_quant_config", {{"weight", json::object()}}}}),
          ".global_quant_config.weight.dtype");
  json entry = kFp4;
  entry["weight"]["group_size"] = "32";
  refused(quark({{"global_quant_config", entry}}), ".global_quant_config.weight.group_size");
  entry["weight"]["group_size"] = UINT64_MAX;
  refused(quark({{"global_quant_config", entry}}), ".global_quant_config.weight.group_size");
  entry = kFp4;
  entry["weight"]["is_dynamic"] = 0;
  refused(quark({{"global_quant_config", entry}}), ".global_quant_config.weight.is_dynamic");
  refused({{"quantization_config", {{"quant_method", "mxfp8"}, {"ignore", {{"a", 1}}}}}},
          ".ignore");
  refused({{"quantization_config", {{"quant_method", "mxfp8"}, {"weight_block_size", {1}}}}},
          ".weight_block_size");
  refused({{"quantization_config", {{"quant_method", "mxfp8"}, {"weight_block_size", {1, "32"}}}}},
          ".weight_block_size[1]");
}

// The definition of shell patterns, by recursion.
bool glob_by_definition(std::string_view p, std::string_view t) {
  if (p.empty()) return t.empty();
  if (p[0] == '*') {
    for (std::size_t skip = 0; skip <= t.size(); ++skip) {
      if (glob_by_definition(p.substr(1), t.substr(skip))) return true;
    }
    return false;
  }
  return !t.empty() && (p[0] == '?' || p[0] == t[0]) &&
         glob_by_definition(p.substr(1), t.substr(1));
}

TEST(ModulePattern, GlobEqualsItsDefinitionOnAllShortPatterns) {
  const std::string alphabet = "a.*?";
  std::vector<std::string> patterns{""}, texts{""};
  for (std::size_t i = 0; i < patterns.size() && patterns[i].size() < 5; ++i) {
    for (const char c : alphabet) patterns.push_back(patterns[i] + c);
  }
  for (std::size_t i = 0; i < texts.size() && texts[i].size() < 5; ++i) {
    for (const char c : {'a', '.'}) texts.push_back(texts[i] + c);
  }
  for (const std::string& pattern : patterns) {
    for (const std::string& text : texts) {
      ASSERT_EQ(glob_matches(pattern, text), glob_by_definition(pattern, text))
          << pattern << " on " << text;
    }
  }
}

TEST(ModulePattern, GlobSets) {
  EXPECT_TRUE(glob_matches("l[0-2]", "l1"));
  EXPECT_FALSE(glob_matches("l[0-2]", "l3"));
  EXPECT_TRUE(glob_matches("l[!0-2]", "l3"));
  EXPECT_FALSE(glob_matches("l[!0-2]", "l"));
  EXPECT_TRUE(glob_matches("[]]", "]"));
  EXPECT_TRUE(glob_matches("[a-]", "-"));
  EXPECT_TRUE(glob_matches("a[", "a["));
  EXPECT_TRUE(glob_matches("*[ab]*", "xxbxx"));
  EXPECT_FALSE(glob_matches("[", ""));
}

TEST(ModulePattern, GlobIsNotExponential) {
  std::string pattern;
  for (int i = 0; i < 200; ++i) pattern += "*a";
  EXPECT_FALSE(glob_matches(pattern + "b", std::string(5000, 'a')));
}

}  // namespace
}  // namespace monolayer
