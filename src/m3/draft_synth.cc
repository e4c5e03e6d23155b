#include "m3/draft_synth.h"

#include <array>
#include <cmath>
#include <exception>
#include <vector>

#include <nlohmann/json.hpp>

#include "checkpoint/safetensors_writer.h"
#include "core/dtype.h"
#include "m3/draft.h"
#include "m3/synth_values.h"

namespace monolayer::m3 {
namespace {

struct Drawn {
  TensorPlan plan;
  double spread = 0, mean = 0;  // uniform around the mean with this standard deviation
};

std::vector<Drawn> tensors(const ModelConfig& target, std::int64_t q, std::int64_t kv,
                           std::int64_t width) {
  const std::int64_t h = target.hidden_size;
  std::vector<Drawn> all;
  const auto matrix = [&](const std::string& name, std::int64_t rows, std::int64_t cols) {
    all.push_back({{name + ".weight", DType::kBF16, {rows, cols}},
                   1 / std::sqrt(static_cast<double>(cols)),
                   0});
  };
  const auto norm = [&](const std::string& name) {
    all.push_back({{name + ".weight", DType::kBF16, {h}}, 0.1, 1});
  };
  const std::string layer = "layers.0.";
  matrix("embed_tokens", target.vocab_size, h);
  matrix("fc", h, static_cast<std::int64_t>(kAuxLayers) * h);
  for (std::size_t i = 0; i < kAuxLayers; ++i) norm("fc_norm." + std::to_string(i));
  for (const char* name : {"input_layernorm", "hidden_norm", "post_attention_layernorm"}) {
    norm(layer + name);
  }
  matrix(layer + "self_attn.q_proj", q, 2 * h);
  matrix(layer + "self_attn.k_proj", kv, 2 * h);
  matrix(layer + "self_attn.v_proj", kv, 2 * h);
  matrix(layer + "self_attn.o_proj", h, q);
  matrix(layer + "mlp.gate_proj", width, h);
  matrix(layer + "mlp.up_proj", width, h);
  matrix(layer + "mlp.down_proj", h, width);
  norm("norm");
  matrix("lm_head", target.vocab_size, h);
  return all;
}

std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// The default layers where they ascend; shallow targets give their first, middle and last one.
Result<std::array<std::int64_t, kAuxLayers>> aux_layers(std::int64_t layers) {
  static_assert(kAuxLayers == 3);
  if (layers < 3)
    return Status(Code::kInvalidArgument, "num_layers",
                  "is " + std::to_string(layers) + "; a draft reads the states of 3 layers");
  const auto usual = default_aux_layers(layers);
  if (usual[0] < usual[1] && usual[1] < usual[2]) return usual;
  return std::array<std::int64_t, kAuxLayers>{0, layers / 2, layers - 1};
}

Result<WriteReport> write(const ModelConfig& target, const DraftSynthOptions& options) {
  const std::int64_t heads = options.heads > 0 ? options.heads : target.num_heads;
  const std::int64_t kv_heads = options.kv_heads > 0 ? options.kv_heads : target.num_kv_heads;
  const std::int64_t dim = options.head_dim > 0 ? options.head_dim : target.head_dim;
  const std::int64_t width = options.width > 0 ? options.width : 2 * target.hidden_size;
  if (heads % kv_heads != 0)
    return Status(
        Code::kInvalidArgument, "draft heads",
        std::to_string(heads) + " are not a multiple of " + std::to_string(kv_heads) + " KV heads");
  ML_ASSIGN_OR_RETURN(const auto aux, aux_layers(target.num_layers));
  const std::vector<Drawn> all = tensors(target, heads * dim, kv_heads * dim, width);
  std::vector<TensorPlan> plans;
  WriteReport report{all.size(), 0, 1};
  for (const Drawn& each : all) {
    plans.push_back(each.plan);
    report.tensor_bytes += static_cast<std::uint64_t>(each.plan.shape.elements().value_or(0)) * 2;
  }
  ML_RETURN_IF_ERROR(prepare_folder(options.out, report.tensor_bytes, options.force));
  ML_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                      SafetensorsWriter::create(options.out + "/model.safetensors", plans));
  for (const Drawn& each : all) {
    const std::uint64_t key = synth_key(options.seed, each.plan.name);
    std::vector<bf16_t> values(static_cast<std::size_t>(each.plan.shape.elements().value_or(0)));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::uint64_t bits = mix(key + (i + 1) * 0x9e3779b97f4a7c15ULL);
      const double uniform = static_cast<double>(bits >> 11) * 0x1p-53 * 2 - 1;
      values[i] =
          f32_to_bf16(static_cast<float>(each.mean + uniform * each.spread * std::sqrt(3.0)));
    }
    ML_RETURN_IF_ERROR(writer.write(each.plan.name, std::as_bytes(std::span(values))));
  }
  ML_RETURN_IF_ERROR(writer.finish());
  const nlohmann::json config = {{"architectures", {"LlamaForCausalLMEagle3"}},
                                 {"model_type", "llama"},
                                 {"hidden_size", target.hidden_size},
                                 {"num_hidden_layers", 1},
                                 {"num_attention_heads", heads},
                                 {"num_key_value_heads", kv_heads},
                                 {"head_dim", dim},
                                 {"intermediate_size", width},
                                 {"vocab_size", target.vocab_size},
                                 {"draft_vocab_size", target.vocab_size},
                                 {"rms_norm_eps", 1e-6},
                                 {"rope_theta", target.rope_theta},
                                 {"hidden_act", "silu"},
                                 {"fc_norm", true},
                                 {"norm_output", true},
                                 {"attention_bias", false},
                                 {"tie_word_embeddings", false},
                                 {"torch_dtype", "bfloat16"},
                                 {"eagle_aux_hidden_state_layer_ids", aux}};
  ML_RETURN_IF_ERROR(write_text_file(options.out + "/config.json", config.dump(2) + "\n"));
  return report;
}

}  // namespace

Result<WriteReport> synthesize_draft(const ModelConfig& target, const DraftSynthOptions& options) {
  try {
    return write(target, options);
  } catch (const std::exception& e) {
    return Status(Code::kInternal, options.out, std::string("draft not written: ") + e.what());
  }
}

}  // namespace monolayer::m3
