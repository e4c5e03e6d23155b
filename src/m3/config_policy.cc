#include "m3/config_policy.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace monolayer::m3 {
namespace {

// Name parts of settings that change what a forward pass computes.
constexpr std::array kArithmetic = {
    "bias",  "scal",  "window", "softcap", "soft_cap", "sink",  "norm",    "clip",
    "clamp", "alibi", "rope",   "rotary",  "residual", "group", "multipl", "chunk",
};
// In a factor, 1 changes nothing.
constexpr std::array kFactors = {"scal", "multipl", "alpha", "beta", "factor", "group"};

template <std::size_t N>
bool mentions(const std::string& name, const std::array<const char*, N>& parts) {
  std::string lower = name;
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return std::any_of(parts.begin(), parts.end(),
                     [&](const char* part) { return lower.find(part) != std::string::npos; });
}

bool switched_off(const std::string& name, const Json& value) {
  if (value.is_null() || value == Json(false)) return true;
  if (value.is_number()) {
    return value == Json(0) || (value == Json(1) && mentions(name, kFactors));
  }
  if (value.is_string()) return value.get_ptr<const std::string*>()->empty();
  return value.is_structured() && value.empty();
}

}  // namespace

void know_harmless_fields(FieldReader& fields) {
  // The release's own, without effect on text inference.
  fields.know({"architectures",
               "model_type",
               "auto_map",
               "torch_dtype",
               "dtype",
               "transformers_version",
               "quantization_config",
               "vision_config",
               "image_token_index",
               "video_token_index",
               "image_token_id",
               "video_token_id",
               "projector_hidden_size",
               "projector_hidden_act",
               "multimodal_projector_bias",
               "vision_feature_layer",
               "vision_feature_select_strategy",
               "img_token_compression_config",
               "image_seq_length",
               "image_grid_pinpoints",
               "process_image_mode",
               "merged_hidden_size",
               "initializer_range",
               "use_cache"});
  // Training only.
  fields.know({"attention_dropout", "hidden_dropout", "dropout", "output_router_logits",
               "router_aux_loss_coef", "router_z_loss_coef", "router_jitter_noise"});
  // What saving adds whatever the model.
  fields.know({"_name_or_path",
               "_attn_implementation",
               "_commit_hash",
               "output_hidden_states",
               "output_attentions",
               "return_dict",
               "chunk_size_feed_forward",
               "is_encoder_decoder",
               "is_decoder",
               "id2label",
               "label2id",
               "problem_type",
               "pad_token_id",
               "sep_token_id",
               "decoder_start_token_id",
               "add_cross_attention",
               "cross_attention_hidden_size",
               "finetuning_task",
               "prefix",
               "pruned_heads",
               "task_specific_params",
               "tie_encoder_decoder",
               "tokenizer_class",
               "torchscript",
               "use_bfloat16",
               "tf_legacy_loss",
               "bad_words_ids",
               "begin_suppress_tokens",
               "suppress_tokens",
               "forced_bos_token_id",
               "forced_eos_token_id",
               "max_length",
               "min_length",
               "do_sample",
               "early_stopping",
               "num_beams",
               "num_beam_groups",
               "diversity_penalty",
               "temperature",
               "top_k",
               "top_p",
               "typical_p",
               "repetition_penalty",
               "length_penalty",
               "no_repeat_ngram_size",
               "encoder_no_repeat_ngram_size",
               "num_return_sequences",
               "output_scores",
               "return_dict_in_generate",
               "remove_invalid_values",
               "exponential_decay_length_penalty"});
}

void judge_unknown_fields(FieldReader& fields) {
  for (const std::string& name : fields.unknown()) {
    const Json& value = *fields.json().find(name);
    if (mentions(name, kArithmetic)) {
      if (switched_off(name, value)) continue;
      fields.unsupported(name,
                         "is not a setting of this model and would change its arithmetic; "
                         "must be absent or off, is " +
                             brief(value));
      return;
    }
    fields.note(name, "unknown, ignored (" + brief(value) + ")");
  }
}

}  // namespace monolayer::m3
