// Configurations: both styles give the same model, and every bad value is refused by name.
#include "m3/config.h"

#include <fstream>
#include <limits>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace monolayer::m3 {
namespace {

using Json = nlohmann::json;

Json load_case(const std::string& name) {
  std::ifstream file(std::string(MONOLAYER_SOURCE_DIR) + "/tests/data/oracle/" + name +
                     "/config.json");
  return Json::parse(file);
}

// The released model's fields, nested as on the hub.
Json released() {
  Json freq = Json::array({0, 0, 0});
  for (int i = 3; i < 60; ++i) freq.push_back(1);
  return {{"architectures", {"MiniMaxM3SparseForConditionalGeneration"}},
          {"model_type", "minimax_m3_vl"},
          {"image_token_index", 200025},
          {"video_token_index", 200026},
          {"projector_hidden_size", 6144},
          {"vision_feature_layer", -1},
          {"vision_feature_select_strategy", "full"},
          {"img_token_compression_config", {{"spatial_merge_size", 2}}},
          {"tie_word_embeddings", false},
          {"vision_config", {{"hidden_size", 1280}}},
          {"text_config",
           {{"model_type", "minimax_m2"},
            {"hidden_size", 6144},
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
            {"rope_theta", 5000000},
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
            {"moe_layer_freq", freq},
            {"scoring_func", "sigmoid"},
            {"use_routing_bias", true},
            {"routed_scaling_factor", 2.0},
            {"num_mtp_modules", 7},
            {"num_nextn_predict_layers", 1},
            {"bos_token_id", 200019},
            {"eos_token_id", 200020},
            {"sparse_attention_config",
             {{"use_sparse_attention", true},
              {"sparse_attention_freq", freq},
              {"sparse_num_index_heads", 4},
              {"sparse_index_dim", 128},
              {"sparse_topk_blocks", 16},
              {"sparse_block_size", 128},
              {"sparse_score_type", "max"},
              {"sparse_init_block", 0},
              {"sparse_local_block", 1},
              {"sparse_disable_index_value", freq}}}}}};
}

TEST(Config, Released) {
  const auto config = parse_config(released(), "config.json");
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(config->num_layers, 60);
  EXPECT_EQ(config->q_width(), 8192);
  EXPECT_EQ(config->kv_width(), 512);
  EXPECT_EQ(config->index_width(), 512);
  EXPECT_EQ(config->group_size(), 16);
  EXPECT_EQ(config->rotary_dim, 64);
  EXPECT_EQ(config->rope_theta, 5e6);
  EXPECT_EQ(config->max_positions, 1048576);
  EXPECT_EQ(config->rms_eps, 1e-6F);
  EXPECT_EQ(config->dense_width, 12288);
  EXPECT_EQ(config->expert_width, 3072);
  EXPECT_EQ(config->shared_width, 3072);
  EXPECT_EQ(config->num_experts, 128);
  EXPECT_EQ(config->experts_per_token, 4);
  EXPECT_TRUE(config->routing_bias);
  EXPECT_EQ(config->routed_scale, 2.0F);
  EXPECT_EQ(config->swiglu_alpha, 1.702F);
  EXPECT_EQ(config->swiglu_limit, 7.0F);
  EXPECT_EQ(config->swiglu_beta, 1.0F);
  EXPECT_EQ(config->block_size, 128);
  EXPECT_EQ(config->topk_blocks, 16);
  EXPECT_EQ(config->init_blocks, 0);
  EXPECT_EQ(config->local_blocks, 1);
  EXPECT_EQ(config->eos_token_ids, std::vector<std::int32_t>{200020});
  EXPECT_EQ(config->bos_token_id, 200019);
  ASSERT_EQ(config->layers.size(), 60U);
  for (std::size_t i = 0; i < 60; ++i) {
    EXPECT_EQ(config->layers[i].moe, i >= 3);
    EXPECT_EQ(config->layers[i].sparse_attention, i >= 3);
  }
  EXPECT_EQ(config->notes.size(), 2U) << "only the two prediction-module fields are worth a note";
}

// The same model as transformers writes it: lists of names, index_* fields, rope_parameters.
TEST(Config, FlatEqualsNested) {
  Json flat = released()["text_config"];
  Json types = Json::array();
  Json mlps = Json::array();
  for (int i = 0; i < 60; ++i) {
    types.push_back(i < 3 ? "full_attention" : "minimax_m3_sparse");
    mlps.push_back(i < 3 ? "dense" : "sparse");
  }
  for (const char* gone : {"sparse_attention_config", "moe_layer_freq", "rope_theta",
                           "partial_rotary_factor", "use_gemma_norm", "qk_norm_type"}) {
    flat.erase(gone);
  }
  flat["architectures"] = {"MiniMaxM3VLForCausalLM"};
  flat["model_type"] = "minimax_m3_vl_text";
  flat["hidden_act"] = "silu";
  flat["layer_types"] = types;
  flat["mlp_layer_types"] = mlps;
  flat["rope_parameters"] = {
      {"rope_type", "default"}, {"rope_theta", 5e6}, {"partial_rotary_factor", 0.5}};
  flat["index_n_heads"] = 4;
  flat["index_head_dim"] = 128;
  flat["index_block_size"] = 128;
  flat["index_topk_blocks"] = 16;
  flat["index_local_blocks"] = 1;
  const auto a = parse_config(flat, "config.json");
  const auto b = parse_config(released(), "config.json");
  ASSERT_TRUE(a.ok()) << a.status().to_string();
  ASSERT_TRUE(b.ok());
  EXPECT_EQ(a->hidden_size, b->hidden_size);
  EXPECT_EQ(a->rotary_dim, b->rotary_dim);
  EXPECT_EQ(a->rope_theta, b->rope_theta);
  EXPECT_EQ(a->index_heads, b->index_heads);
  EXPECT_EQ(a->index_dim, b->index_dim);
  EXPECT_EQ(a->block_size, b->block_size);
  EXPECT_EQ(a->topk_blocks, b->topk_blocks);
  EXPECT_EQ(a->init_blocks, b->init_blocks);
  EXPECT_EQ(a->local_blocks, b->local_blocks);
  EXPECT_EQ(a->swiglu_alpha, b->swiglu_alpha);
  for (std::size_t i = 0; i < 60; ++i) {
    EXPECT_EQ(a->layers[i].moe, b->layers[i].moe);
    EXPECT_EQ(a->layers[i].sparse_attention, b->layers[i].sparse_attention);
  }
}

TEST(Config, OracleCases) {
  const auto tiny = parse_config(load_case("tiny"), "tiny");
  ASSERT_TRUE(tiny.ok()) << tiny.status().to_string();
  EXPECT_EQ(tiny->block_size, 16);
  EXPECT_EQ(tiny->rotary_dim, 16);
  EXPECT_EQ(tiny->notes.size(), 1U);  // silu
  for (const char* name : {"m3shape", "onekv", "mxfp4"}) {
    const auto config = parse_config(load_case(name), name);
    ASSERT_TRUE(config.ok()) << config.status().to_string();
    EXPECT_TRUE(config->notes.empty()) << config->notes.front();
    EXPECT_EQ(config->index_heads, config->num_kv_heads);
  }
}

// Fault 2: a missing alpha or limit means the documented default.
TEST(Config, ActivationDefaults) {
  for (const char* act : {"swigluoai", "silu"}) {
    Json json = released();
    json["text_config"]["hidden_act"] = act;
    json["text_config"].erase("swiglu_alpha");
    json["text_config"].erase("swiglu_limit");
    const auto config = parse_config(json, "config.json");
    ASSERT_TRUE(config.ok());
    EXPECT_EQ(config->swiglu_alpha, 1.702F);
    EXPECT_EQ(config->swiglu_limit, 7.0F);
    EXPECT_EQ(config->swiglu_beta, 1.0F);
  }
}

TEST(Config, TokenCountsOfTheOlderForm) {
  Json json = released();
  Json& sparse = json["text_config"]["sparse_attention_config"];
  sparse.erase("sparse_init_block");
  sparse.erase("sparse_local_block");
  sparse["sparse_init_tokens"] = 129;
  sparse["sparse_local_tokens"] = 128;
  auto config = parse_config(json, "config.json");
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(config->init_blocks, 2);
  EXPECT_EQ(config->local_blocks, 2);
  sparse["sparse_init_tokens"] = 0;
  sparse["sparse_local_tokens"] = 0;
  config = parse_config(json, "config.json");
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->init_blocks, 0);
  EXPECT_EQ(config->local_blocks, 1);
  sparse["sparse_local_block"] = 2;
  EXPECT_FALSE(parse_config(json, "config.json").ok());
}

struct Bad {
  const char* pointer;  // JSON pointer to set
  Json value;           // discarded: erase instead
  Code code;
  const char* names;  // must appear in the message
};

const Json kErase = Json(Json::value_t::discarded);
constexpr auto kFile = Code::kInvalidFile;
constexpr auto kUn = Code::kUnsupported;
const double kNan = std::numeric_limits<double>::quiet_NaN();

const std::vector<Bad>& bad_values() {
  static const std::vector<Bad> list = {
      {"/architectures", Json::array({"LlamaForCausalLM"}), kUn, "architectures"},
      {"/architectures", "MiniMaxM3SparseForCausalLM", kFile, "architectures"},
      {"/text_config", 3, kFile, "text_config"},
      {"/text_config", Json::array(), kFile, "text_config"},
      {"/text_config", Json::object(), kFile, "hidden_size"},
      {"/text_config/hidden_size", kErase, kFile, "hidden_size"},
      {"/text_config/hidden_size", "6144", kFile, "hidden_size"},
      {"/text_config/hidden_size", 6144.0, kFile, "hidden_size"},
      {"/text_config/hidden_size", true, kFile, "hidden_size"},
      {"/text_config/hidden_size", 0, kFile, "[1, "},
      {"/text_config/hidden_size", -6144, kFile, "[1, "},
      {"/text_config/hidden_size", 1 << 20, kFile, "131072]"},
      {"/text_config/hidden_size", std::numeric_limits<std::uint64_t>::max(), kFile, "131072]"},
      {"/text_config/hidden_size", 1e300, kFile, "hidden_size"},
      {"/text_config/num_hidden_layers", 59, kFile, "60 entries for 59 layers"},
      {"/text_config/num_hidden_layers", 1'000'000, kFile, "num_hidden_layers"},
      {"/text_config/num_attention_heads", 63, kFile, "num_key_value_heads"},
      {"/text_config/num_key_value_heads", 0, kFile, "num_key_value_heads"},
      {"/text_config/num_key_value_heads", 2, kUn, "sparse_num_index_heads"},
      {"/text_config/head_dim", kErase, kFile, "head_dim"},
      {"/text_config/vocab_size", Json::object(), kFile, "vocab_size"},
      {"/text_config/max_position_embeddings", 1LL << 40, kFile, "max_position_embeddings"},
      {"/text_config/rms_norm_eps", kNan, kFile, "rms_norm_eps"},
      {"/text_config/rms_norm_eps", 0, kFile, "rms_norm_eps"},
      {"/text_config/rms_norm_eps", -1e-6, kFile, "rms_norm_eps"},
      {"/text_config/rms_norm_eps", "1e-6", kFile, "rms_norm_eps"},
      {"/text_config/use_gemma_norm", false, kUn, "use_gemma_norm"},
      {"/text_config/use_gemma_norm", 1, kFile, "use_gemma_norm"},
      {"/text_config/use_qk_norm", false, kUn, "use_qk_norm"},
      {"/text_config/qk_norm_type", "per_layer", kUn, "qk_norm_type"},
      {"/text_config/attention_output_gate", true, kUn, "attention_output_gate"},
      {"/text_config/attention_bias", true, kUn, "attention_bias"},
      {"/text_config/mlp_bias", true, kUn, "mlp_bias"},
      {"/text_config/sliding_window", 4096, kUn, "sliding_window"},
      {"/text_config/final_logit_softcapping", 30.0, kUn, "final_logit_softcapping"},
      {"/text_config/attention_sinks", 4, kUn, "attention_sinks"},
      {"/text_config/logits_scaling", 0.5, kUn, "logits_scaling"},
      {"/text_config/n_group", 8, kUn, "n_group"},
      {"/text_config/hidden_act", "silu_and_mul", kUn, "hidden_act"},
      {"/text_config/hidden_act", 3, kFile, "hidden_act"},
      {"/text_config/swiglu_alpha", 0, kFile, "swiglu_alpha"},
      {"/text_config/swiglu_limit", -7.0, kFile, "swiglu_limit"},
      {"/text_config/swiglu_limit", kNan, kFile, "swiglu_limit"},
      {"/text_config/rope_theta", kErase, kFile, "rope_theta"},
      {"/text_config/rope_theta", 1e30, kFile, "rope_theta"},
      {"/text_config/rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}}, kUn, "rope_scaling"},
      {"/text_config/rope_scaling", "yarn", kFile, "rope_scaling"},
      {"/text_config/rope_parameters", {{"rope_type", "llama3"}}, kUn, "rope_parameters.rope_type"},
      {"/text_config/rope_parameters", {{"rope_theta", 1e4}}, kFile, "rope_theta"},
      {"/text_config/rotary_dim", 63, kFile, "rotary"},
      {"/text_config/rotary_dim", 32, kFile, "rotary"},
      {"/text_config/rotary_dim", 256, kFile, "rotary_dim"},
      {"/text_config/partial_rotary_factor", 1.5, kFile, "partial_rotary_factor"},
      {"/text_config/intermediate_size", kErase, kFile, "intermediate_size"},
      {"/text_config/dense_intermediate_size", 0, kFile, "dense_intermediate_size"},
      {"/text_config/shared_intermediate_size", kErase, kFile, "shared_intermediate_size"},
      {"/text_config/num_local_experts", 0, kFile, "num_local_experts"},
      {"/text_config/num_local_experts", 1 << 20, kFile, "num_local_experts"},
      {"/text_config/num_experts", 64, kFile, "num_local_experts"},
      {"/text_config/num_experts_per_tok", 129, kFile, "[1, 128]"},
      {"/text_config/n_shared_experts", 2, kUn, "n_shared_experts"},
      {"/text_config/moe_layer_freq", kErase, kFile, "moe_layer_freq"},
      {"/text_config/moe_layer_freq", 1, kFile, "moe_layer_freq"},
      {"/text_config/moe_layer_freq/5", 2, kFile, "entry 5"},
      {"/text_config/mlp_layer_types", Json::array({"dense"}), kFile, "1 entries"},
      {"/text_config/scoring_func", "softmax", kUn, "scoring_func"},
      {"/text_config/norm_topk_prob", false, kUn, "norm_topk_prob"},
      {"/text_config/routed_scaling_factor", kErase, kFile, "routed_scaling_factor"},
      {"/text_config/routed_scaling_factor", "2", kFile, "routed_scaling_factor"},
      {"/text_config/eos_token_id", "end", kFile, "eos_token_id"},
      {"/text_config/eos_token_id", 1.5, kFile, "eos_token_id"},
      {"/text_config/sparse_attention_config", kErase, kFile, "layer_types"},
      {"/text_config/sparse_attention_config", true, kFile, "sparse_attention_config"},
      {"/text_config/sparse_attention_config/sparse_topk_blocks", 0, kFile, "sparse_topk_blocks"},
      {"/text_config/sparse_attention_config/sparse_local_block", 17, kUn, "sparse_topk_blocks"},
      {"/text_config/sparse_attention_config/sparse_block_size", 96, kUn, "sparse_block_size"},
      {"/text_config/sparse_attention_config/sparse_block_size", 256, kFile, "sparse_block_size"},
      {"/text_config/sparse_attention_config/sparse_index_dim", 32, kUn, "sparse_index_dim"},
      {"/text_config/sparse_attention_config/sparse_score_type", "mean", kUn, "sparse_score_type"},
      {"/text_config/sparse_attention_config/sparse_disable_index_value", false, kUn, "layer 3"},
      {"/text_config/sparse_attention_config/sparse_init_block", -1, kFile, "sparse_init_block"},
      {"/text_config/sparse_attention_config/sparse_score_bias", 1, kUn, "sparse_score_bias"},
      {"/text_config/layer_types", Json::array({1}), kFile, "layer_types"},
      {"/text_config/index_topk_blocks", 8, kFile, "index_topk_blocks"},
      {"/text_config/use_index_cache", true, kUn, "use_index_cache"},
      {"/use_index_cache", true, kUn, "use_index_cache"},
      {"/text_config/index_topk_freq", 4, kUn, "index_topk_freq"},
      {"/text_config/index_topk_pattern", "CSSS", kUn, "index_topk_pattern"},
      {"/text_config/tie_word_embeddings", "no", kFile, "tie_word_embeddings"},
      {"/head_dim", 96, kUn, "head_dim"},
  };
  return list;
}

TEST(Config, BadValuesAreRefusedByName) {
  for (const Bad& bad : bad_values()) {
    Json json = released();
    const Json::json_pointer pointer(bad.pointer);
    if (bad.value.is_discarded()) {
      json.at(pointer.parent_pointer()).erase(pointer.back());
    } else {
      json[pointer] = bad.value;
    }
    const auto config = parse_config(json, "config.json");
    ASSERT_FALSE(config.ok()) << bad.pointer;
    const std::string text = config.status().to_string();
    EXPECT_EQ(config.status().code(), bad.code) << bad.pointer << ": " << text;
    EXPECT_NE(text.find(bad.names), std::string::npos) << bad.pointer << ": " << text;
    EXPECT_EQ(text.rfind("config.json: ", 0), 0U) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos);
  }
}

TEST(Config, RootMustBeAnObject) {
  for (const Json& json : {Json(), Json(3), Json("x"), Json::array({1})}) {
    EXPECT_EQ(parse_config(json, "c").status().code(), Code::kInvalidFile);
  }
  EXPECT_EQ(parse_config(Json::object(), "c").status().code(), Code::kUnsupported);
}

// What is off, neutral or of no consequence passes; what is merely unknown is noted once.
TEST(Config, HarmlessFields) {
  Json json = released();
  Json& text = json["text_config"];
  text["attention_bias"] = false;
  text["sliding_window"] = nullptr;
  text["rope_scaling"] = nullptr;
  text["final_logit_softcapping"] = 0.0;
  text["layernorm_mlp_beta"] = 1.0;
  text["index_topk_freq"] = 1;
  text["index_topk_pattern"] = "";
  text["use_index_cache"] = false;
  text["attention_dropout"] = 0.1;
  text["norm_topk_prob"] = true;
  const auto quiet = parse_config(json, "config.json");
  ASSERT_TRUE(quiet.ok()) << quiet.status().to_string();
  EXPECT_EQ(quiet->notes.size(), 2U);
  text["flavour"] = "plum";
  const auto noted = parse_config(json, "config.json");
  ASSERT_TRUE(noted.ok());
  ASSERT_EQ(noted->notes.size(), 3U);
  EXPECT_NE(noted->notes.back().find("text_config.flavour"), std::string::npos);
}

TEST(Config, EndOfTextTokens) {
  Json json = released();
  json["text_config"]["eos_token_id"] = Json::array({200020, 7, 300000});
  json["text_config"]["bos_token_id"] = 300000;
  const auto config = parse_config(json, "config.json");
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->eos_token_ids, (std::vector<std::int32_t>{200020, 7}));
  EXPECT_EQ(config->bos_token_id, -1);
}

TEST(Config, TyingInEitherPlace) {
  Json json = released();
  json["text_config"]["tie_word_embeddings"] = true;
  const auto config = parse_config(json, "config.json");
  ASSERT_TRUE(config.ok());
  EXPECT_TRUE(config->tie_word_embeddings);
}

}  // namespace
}  // namespace monolayer::m3
