#include <algorithm>
#include <exception>

#include "m3/config_policy.h"
#include "m3/draft.h"
#include "m3/field_reader.h"

namespace monolayer::m3 {
namespace {

using std::to_string;

void read_architecture(FieldReader& root) {
  constexpr std::string_view kName = "LlamaForCausalLMEagle3";
  const Json* list = root.find("architectures");
  if (list == nullptr || !list->is_array() ||
      std::none_of(list->begin(), list->end(), [&](const Json& each) { return each == kName; })) {
    root.unsupported("architectures",
                     "must hold " + std::string(kName) + ", is " +
                         (list == nullptr    ? "absent"
                          : list->is_array() ? brief(list->empty() ? Json() : list->front())
                                             : brief(*list)));
  }
  root.only_text("model_type", "llama");
}

// A figure that must be the target's.
void same_as_target(FieldReader& text, const char* field, std::int64_t mine, std::int64_t target) {
  if (mine == target) return;
  text.unsupported(field, "is " + to_string(mine) + ", the target's is " + to_string(target));
}

void read_rotary(FieldReader& text, DraftConfig& config) {
  static const Json kNone = Json::object();
  if (const Json* scaling = text.object("rope_scaling"); scaling != nullptr) {
    text.unsupported("rope_scaling", "must be absent or null");
  }
  const Json* moved = text.object("rope_parameters");
  FieldReader inner(moved != nullptr ? *moved : kNone, text.path("rope_parameters."), text.log());
  inner.only_text("rope_type", "default");
  FieldReader& owner = inner.given("rope_theta") ? inner : text;
  config.rope_theta = owner.number("rope_theta", 1, 1e12);
  if (&owner == &inner && text.given("rope_theta") &&
      text.number("rope_theta", 1, 1e12) != config.rope_theta) {
    text.invalid("rope_theta", "contradicts rope_parameters.rope_theta");
  }
  judge_unknown_fields(inner);
}

void read_aux_layers(FieldReader& text, const ModelConfig& target, DraftConfig& config) {
  constexpr const char* kField = "eagle_aux_hidden_state_layer_ids";
  const Json* list = text.find(kField);
  std::string where = text.path(kField);
  if (const Json* nested = text.object("eagle_config"); nested != nullptr) {
    const auto it = nested->find(kField);
    if (list == nullptr && it != nested->end()) list = &*it;
  }
  if (list == nullptr) {
    config.aux_layers = default_aux_layers(target.num_layers);
    where += " (default)";
  } else {
    if (!list->is_array() || list->size() != kAuxLayers) {
      text.invalid(kField, "must list " + to_string(kAuxLayers) + " layers");
      return;
    }
    for (std::size_t i = 0; i < kAuxLayers; ++i) {
      if (!(*list)[i].is_number_integer()) {
        text.invalid(kField, "holds something other than layer numbers");
        return;
      }
      config.aux_layers[i] = (*list)[i].get<std::int64_t>();
    }
  }
  for (std::size_t i = 0; i < kAuxLayers; ++i) {
    const std::int64_t layer = config.aux_layers[i];
    if (layer >= 0 && layer < target.num_layers && (i == 0 || layer > config.aux_layers[i - 1])) {
      continue;
    }
    text.unsupported(kField, (list == nullptr ? "by default names layer " : "names layer ") +
                                 to_string(layer) + "; must ascend within the target's " +
                                 to_string(target.num_layers) + " layers");
    return;
  }
}

Result<DraftConfig> parse(const Json& json, const std::string& name, const ModelConfig& target) {
  ReadLog log;
  log.file = name;
  ML_ASSIGN_OR_RETURN(ConfigReaders readers, open_config(json, log));
  FieldReader& root = readers.root;
  FieldReader& text = readers.text;
  DraftConfig config;
  read_architecture(root);
  const std::int64_t layers = text.integer("num_hidden_layers", 1, 1024);
  if (layers > 1) {
    text.unsupported("num_hidden_layers", "must be 1, is " + to_string(layers));
  }
  config.hidden_size = text.integer("hidden_size", 1, 1 << 17);
  config.vocab_size = text.integer("vocab_size", 1, 1 << 24);
  ML_RETURN_IF_ERROR(log.error);
  same_as_target(text, "hidden_size", config.hidden_size, target.hidden_size);
  same_as_target(text, "vocab_size", config.vocab_size, target.vocab_size);
  if (text.given("target_hidden_size")) {
    same_as_target(text, "target_hidden_size", text.integer("target_hidden_size", 1, 1 << 17),
                   target.hidden_size);
  }
  config.draft_vocab_size =
      text.integer("draft_vocab_size", 1, config.vocab_size, config.vocab_size);
  config.num_heads = text.integer("num_attention_heads", 1, 1024);
  config.num_kv_heads = text.integer("num_key_value_heads", 1, 1024, config.num_heads);
  ML_RETURN_IF_ERROR(log.error);
  if (config.num_heads % config.num_kv_heads != 0) {
    text.invalid("num_attention_heads", to_string(config.num_heads) +
                                            " is not a multiple of num_key_value_heads, " +
                                            to_string(config.num_kv_heads));
  }
  const bool divides = config.hidden_size % config.num_heads == 0;
  config.head_dim = text.integer(
      "head_dim", 2, 1024,
      divides ? std::optional<std::int64_t>(config.hidden_size / config.num_heads) : std::nullopt);
  if (config.head_dim % 2 != 0) {
    text.unsupported("head_dim", "must be even, is " + to_string(config.head_dim));
  }
  config.intermediate_size = text.integer("intermediate_size", 1, 1 << 20);
  config.rms_eps = static_cast<float>(text.number("rms_norm_eps", 0, 1));
  config.max_positions = text.integer("max_position_embeddings", 1, 1 << 24, target.max_positions);
  read_rotary(text, config);
  ML_RETURN_IF_ERROR(log.error);
  read_aux_layers(text, target, config);
  text.only_text("hidden_act", "silu");
  for (const char* field : {"fc_norm", "norm_output", "use_aux_hidden_state"}) {
    text.only(field, true);
  }
  for (const char* field : {"attention_bias", "mlp_bias", "norm_before_residual", "sliding_window",
                            "use_sliding_window"}) {
    text.only(field, false);
  }
  text.boolean("tie_word_embeddings", false);
  text.know({"eagle_config", "bos_token_id", "eos_token_id", "pretraining_tp", "text_config",
             "target_model_type", "num_lookahead_tokens", "parallel_drafting"});
  know_harmless_fields(text);
  judge_unknown_fields(text);
  ML_RETURN_IF_ERROR(log.error);
  config.notes = std::move(log.notes);
  return config;
}

}  // namespace

std::array<std::int64_t, kAuxLayers> default_aux_layers(std::int64_t layers) {
  return {2, layers / 2, layers - 3};
}

Result<DraftConfig> parse_draft_config(const nlohmann::json& root, const std::string& name,
                                       const ModelConfig& target) {
  try {
    return parse(root, name, target);
  } catch (const std::exception& e) {
    return Status(Code::kInternal, name, std::string("configuration parser failed: ") + e.what());
  }
}

}  // namespace monolayer::m3
