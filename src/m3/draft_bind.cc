#include <set>
#include <string>
#include <vector>

#include "checkpoint/quantized_tensor.h"
#include "m3/draft.h"

namespace monolayer::m3 {
namespace {

// Looks the draft's tensors up under any of its name layouts and keeps account.
class DraftFinder {
 public:
  explicit DraftFinder(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  TensorView optional(const std::string& name, const Shape& shape) {
    const TensorView* found = stored(name);
    return found == nullptr ? TensorView{} : checked(*found, shape);
  }
  TensorView required(const std::string& name, const Shape& shape) {
    const TensorView* found = stored(name);
    if (found == nullptr) missing_.push_back(name);
    return found == nullptr ? TensorView{} : checked(*found, shape);
  }
  // Of the one decoder layer.
  TensorView layer(const std::string& name, const Shape& shape) {
    const std::string other = "midlayer." + name;
    if (stored(other) != nullptr) return required(other, shape);
    return required("layers.0." + name, shape);
  }
  const TensorView* stored(const std::string& name) {
    const TensorView* found = checkpoint_.find(name);
    if (found == nullptr) found = checkpoint_.find("model." + name);
    if (found != nullptr) used_.emplace(found->name);
    return found;
  }
  void fail(const Status& status) {
    if (error_.ok()) error_ = status;
  }
  Status finish() const {
    if (!error_.ok()) return error_;
    std::vector<std::string> unexpected;
    for (const TensorView& tensor : checkpoint_.tensors()) {
      if (used_.find(tensor.name) == used_.end()) unexpected.emplace_back(tensor.name);
    }
    std::string message;
    describe(missing_, "missing", message);
    describe(unexpected, "unexpected", message);
    if (message.empty()) return {};
    return {Code::kInvalidFile, checkpoint_.path(), message};
  }

 private:
  static void describe(const std::vector<std::string>& names, const char* what,
                       std::string& message) {
    if (names.empty()) return;
    message += (message.empty() ? "" : "; ") + std::to_string(names.size()) +
               " draft tensors are " + what + " (";
    for (std::size_t i = 0; i < names.size() && i < 5; ++i) {
      message += (i == 0 ? "" : ", ") + names[i];
    }
    message += names.size() > 5 ? ", ...)" : ")";
  }
  TensorView checked(const TensorView& found, const Shape& shape) {
    Status status = expect_dtype(found, DType::kBF16);
    if (status.ok()) status = expect_shape(found, shape);
    if (status.ok()) {
      QuantizedMatrix matrix{WeightFormat::kPlain,
                             shape.rank() == 2 ? shape[0] : 1,
                             shape.rank() == 2 ? shape[1] : shape[0],
                             found,
                             {}};
      matrix.weight.shape = {matrix.rows, matrix.cols};
      status = check_values(matrix, ValueCheck::kAll);
    }
    if (!status.ok()) fail(status);
    return status.ok() ? found : TensorView{};
  }

  const Checkpoint& checkpoint_;
  std::set<std::string, std::less<>> used_;
  std::vector<std::string> missing_;
  Status error_;
};

// d2t holds offsets: target id = draft id + d2t[draft id].
void read_id_map(DraftFinder& find, const DraftConfig& config, std::vector<std::int32_t>& ids) {
  const TensorView* map = find.stored("d2t");
  find.stored("t2d");
  if (map == nullptr) {
    if (config.draft_vocab_size == config.vocab_size) return;
    find.fail({Code::kInvalidFile, "draft_vocab_size",
               "is " + std::to_string(config.draft_vocab_size) + " of " +
                   std::to_string(config.vocab_size) + " tokens, and there is no tensor d2t"});
    return;
  }
  Status status = expect_dtype(*map, DType::kI64);
  if (status.ok()) status = expect_shape(*map, {config.draft_vocab_size});
  if (!status.ok()) return find.fail(status);
  for (std::int64_t id = 0; id < config.draft_vocab_size; ++id) {
    const std::int64_t offset = map->as<std::int64_t>()[id];
    if (offset < -id || offset >= config.vocab_size - id) {
      return find.fail({Code::kInvalidFile, std::string(map->name),
                        "sends draft id " + std::to_string(id) + " by " + std::to_string(offset) +
                            ", outside the target's " + std::to_string(config.vocab_size) +
                            " tokens"});
    }
    ids.push_back(static_cast<std::int32_t>(id + offset));
  }
}

}  // namespace

Result<DraftWeights> bind_draft_weights(const DraftConfig& config, const Checkpoint& checkpoint) {
  DraftFinder find(checkpoint);
  const std::int64_t h = config.hidden_size, width = config.intermediate_size;
  DraftWeights w;
  w.embed = find.optional("embed_tokens.weight", {config.vocab_size, h});
  w.fc = find.required("fc.weight", {h, static_cast<std::int64_t>(kAuxLayers) * h});
  for (std::size_t i = 0; i < kAuxLayers; ++i) {
    w.fc_norms[i] = find.required("fc_norm." + std::to_string(i) + ".weight", {h});
  }
  w.input_norm = find.layer("input_layernorm.weight", {h});
  w.hidden_norm = find.layer("hidden_norm.weight", {h});
  w.post_norm = find.layer("post_attention_layernorm.weight", {h});
  w.q = find.layer("self_attn.q_proj.weight", {config.q_width(), 2 * h});
  w.k = find.layer("self_attn.k_proj.weight", {config.kv_width(), 2 * h});
  w.v = find.layer("self_attn.v_proj.weight", {config.kv_width(), 2 * h});
  w.o = find.layer("self_attn.o_proj.weight", {h, config.q_width()});
  w.gate = find.layer("mlp.gate_proj.weight", {width, h});
  w.up = find.layer("mlp.up_proj.weight", {width, h});
  w.down = find.layer("mlp.down_proj.weight", {h, width});
  w.final_norm = find.required("norm.weight", {h});
  w.lm_head = config.draft_vocab_size == config.vocab_size
                  ? find.optional("lm_head.weight", {config.vocab_size, h})
                  : find.required("lm_head.weight", {config.draft_vocab_size, h});
  read_id_map(find, config, w.target_ids);
  ML_RETURN_IF_ERROR(find.finish());
  return w;
}

}  // namespace monolayer::m3
