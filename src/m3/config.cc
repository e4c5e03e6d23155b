#include "m3/config.h"

#include <algorithm>
#include <cmath>

#include "m3/config_policy.h"
#include "m3/config_sections.h"
#include "m3/field_reader.h"

namespace monolayer::m3 {
namespace {

constexpr std::string_view kArchitectures[] = {
    "MiniMaxM3SparseForConditionalGeneration", "MiniMaxM3SparseForCausalLM",
    "MiniMaxM3VLForConditionalGeneration", "MiniMaxM3VLForCausalLM", "MiniMaxM3ForCausalLM"};
constexpr std::string_view kModelTypes[] = {"minimax_m3_vl", "minimax_m3", "minimax_m3_vl_text",
                                            "minimax_m3_text"};

template <std::size_t N>
bool among(const std::string_view (&list)[N], std::string_view name) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

// The root's architecture decides, else its model type; nested types vary between copies.
void read_identity(FieldReader& root) {
  const Json* architectures = root.find("architectures");
  if (architectures != nullptr && !architectures->is_array()) {
    root.invalid("architectures", "must be a list, is " + brief(*architectures));
    return;
  }
  if (architectures != nullptr && !architectures->empty()) {
    for (const Json& entry : *architectures) {
      const std::string* name = entry.get_ptr<const std::string*>();
      if (name != nullptr && among(kArchitectures, *name)) return;
    }
    root.unsupported("architectures", "must hold a MiniMax-M3 architecture such as " +
                                          std::string(kArchitectures[0]) + ", holds " +
                                          brief(architectures->front()));
    return;
  }
  const std::string type = root.text("model_type", "");
  if (!among(kModelTypes, type)) {
    root.unsupported("model_type",
                     "must be a MiniMax-M3 type such as minimax_m3_vl, is " +
                         (type.empty() ? "absent, as are architectures" : brief(Json(type))));
  }
}

void read_shape(FieldReader& text, ModelConfig& config) {
  config.hidden_size = text.integer("hidden_size", 1, 1 << 17);
  config.num_layers = text.integer("num_hidden_layers", 1, 1024);
  config.num_heads = text.integer("num_attention_heads", 1, 1024);
  config.num_kv_heads = text.integer("num_key_value_heads", 1, 1024);
  config.head_dim = text.integer("head_dim", 2, 1024);
  config.vocab_size = text.integer("vocab_size", 1, 1 << 24);
  // Positions stay exact in float32, as the rotary angles need.
  config.max_positions = text.integer("max_position_embeddings", 1, 1 << 24);
  config.rms_eps = static_cast<float>(text.number("rms_norm_eps", 0, 1));
  if (config.num_heads % config.num_kv_heads != 0) {
    text.invalid("num_attention_heads", std::to_string(config.num_heads) +
                                            " is not a multiple of num_key_value_heads, " +
                                            std::to_string(config.num_kv_heads));
  }
  text.only("use_gemma_norm", true);
  text.only("use_qk_norm", true);
  text.only_text("qk_norm_type", "per_head");
  text.only("attention_output_gate", false);
}

// The clamped SwiGLU is the model's only activation. transformers saves it as "silu" beside
// swiglu_alpha and swiglu_limit, so both names mean the same.
void read_activation(FieldReader& text, ModelConfig& config) {
  constexpr double kAlpha = 1.702;
  constexpr double kLimit = 7.0;
  const std::string name = text.text("hidden_act", "swigluoai");
  if (name != "swigluoai" && name != "silu") {
    text.unsupported("hidden_act",
                     "must be \"swigluoai\" (or \"silu\", as transformers writes "
                     "it), is " +
                         brief(Json(name)));
  }
  if (name == "silu") text.note("hidden_act", "silu is read as the model's clamped SwiGLU");
  if (!text.given("swiglu_alpha")) text.note("swiglu_alpha", "missing, 1.702 is used");
  if (!text.given("swiglu_limit")) text.note("swiglu_limit", "missing, 7 is used");
  config.swiglu_alpha = static_cast<float>(text.number("swiglu_alpha", 0, 1e6, kAlpha));
  config.swiglu_limit = static_cast<float>(text.number("swiglu_limit", 0, 1e6, kLimit));
  config.swiglu_beta = static_cast<float>(text.number("swiglu_beta", -1e6, 1e6, 1.0));
}

void read_tokens(FieldReader& root, FieldReader& text, ModelConfig& config) {
  FieldReader& owner = text.given("eos_token_id") ? text : root;
  const Json* eos = owner.find("eos_token_id");
  const auto add = [&](const Json& id) {
    if (!id.is_number_integer()) {
      owner.invalid("eos_token_id", "must be a token id or a list of them, is " + brief(id));
    } else if (id < Json(0) || id >= Json(config.vocab_size)) {
      owner.note("eos_token_id", brief(id) + " is outside the vocabulary, ignored");
    } else {
      config.eos_token_ids.push_back(id.get<std::int32_t>());
    }
  };
  if (eos != nullptr && eos->is_array()) {
    for (const Json& id : *eos) add(id);
  } else if (eos != nullptr) {
    add(*eos);
  }
  FieldReader& bos_owner = text.given("bos_token_id") ? text : root;
  const std::int64_t bos = bos_owner.integer("bos_token_id", -1, INT32_MAX, -1);
  if (bos >= config.vocab_size) {
    bos_owner.note("bos_token_id", std::to_string(bos) + " is outside the vocabulary, ignored");
  } else {
    config.bos_token_id = static_cast<std::int32_t>(bos);
  }
}

// Nested configs may declare it in either place; transformers ties if one of them says so.
void read_tying(FieldReader& root, FieldReader& text, ModelConfig& config) {
  const bool outer = root.boolean("tie_word_embeddings", false);
  const bool inner = text.boolean("tie_word_embeddings", false);
  config.tie_word_embeddings = outer || inner;
  if (outer != inner && root.given("tie_word_embeddings") && text.given("tie_word_embeddings")) {
    text.note("tie_word_embeddings", "differs from the root's; read as true");
  }
}

// The release declares multi-token-prediction modules but holds no weights for them.
void read_prediction_modules(FieldReader& text) {
  for (const char* field : {"num_mtp_modules", "num_nextn_predict_layers", "use_mtp"}) {
    const Json* value = text.find(field);
    if (value != nullptr && *value != Json(0) && *value != Json(false)) {
      text.note(field, "multi-token prediction is not used");
    }
  }
  text.know({"mtp_transformer_layers"});
}

// Copies repeat text fields at the root; they must say the same.
void read_repeated(FieldReader& root, const Json& nested) {
  root.know({"eos_token_id", "bos_token_id"});
  for (const std::string& name : root.unknown()) {
    const auto it = nested.find(name);
    if (it == nested.end()) continue;
    root.know({name});
    if (*it != root.json().at(name)) {
      root.unsupported(name, "contradicts text_config." + name + ": " +
                                 brief(root.json().at(name)) + " and " + brief(*it));
    }
  }
}

Result<ModelConfig> parse(const Json& json, const std::string& name) {
  ReadLog log;
  log.file = name;
  ML_ASSIGN_OR_RETURN(ConfigReaders readers, open_config(json, log));
  auto& [root, inner, nested] = readers;

  ModelConfig config;
  read_identity(root);
  read_shape(inner, config);
  ML_RETURN_IF_ERROR(log.error);  // the sections below divide by what was read
  read_activation(inner, config);
  read_rotary(inner, config);
  read_layers(inner, config);
  ML_RETURN_IF_ERROR(log.error);
  read_moe(inner, config);
  read_sparse_attention(inner, config);
  read_tokens(root, inner, config);
  read_tying(root, inner, config);
  read_prediction_modules(inner);
  if (nested != nullptr) refuse_index_sharing(root);
  refuse_index_sharing(inner);

  know_harmless_fields(inner);
  judge_unknown_fields(inner);
  if (nested != nullptr) {
    know_harmless_fields(root);
    read_repeated(root, *nested);
    judge_unknown_fields(root);
  }
  ML_RETURN_IF_ERROR(log.error);
  config.notes = std::move(log.notes);
  return config;
}

}  // namespace

bool ModelConfig::any_sparse() const {
  return std::any_of(layers.begin(), layers.end(),
                     [](const LayerPattern& layer) { return layer.sparse_attention; });
}

float ModelConfig::attention_scale() const {
  return softmax_scale != 0 ? softmax_scale : 1.0F / std::sqrt(static_cast<float>(head_dim));
}

bool ModelConfig::any_moe() const {
  return std::any_of(layers.begin(), layers.end(),
                     [](const LayerPattern& layer) { return layer.moe; });
}

Result<ModelConfig> parse_config(const nlohmann::json& root, const std::string& name) {
  try {
    return parse(root, name);
  } catch (const std::exception& e) {
    return Status(Code::kInternal, name, std::string("configuration parser failed: ") + e.what());
  }
}

}  // namespace monolayer::m3
