#include "backend/cpu/layer_views.h"

#include <string>

#include "backend/cpu/split.h"

namespace monolayer::cpu {
namespace {

using std::to_string;

// The two enums list the same layouts in the same order.
static_assert(static_cast<int>(Format::kF32) == static_cast<int>(mono::WeightLayout::kF32));
static_assert(static_cast<int>(Format::kMXFP4) == static_cast<int>(mono::WeightLayout::kMXFP4));

Matrix matrix(const mono::WeightView& w) {
  return {.format = static_cast<Format>(w.layout),
          .rows = w.rows,
          .cols = w.cols,
          .data = w.data,
          .row_bytes = w.row_bytes,
          .scales = w.scales,
          .scale_row_bytes = w.scale_row_bytes};
}

mono::WeightView weight(const Matrix& w) {
  return {.layout = static_cast<mono::WeightLayout>(w.format),
          .rows = w.rows,
          .cols = w.cols,
          .data = w.data,
          .row_bytes = w.row_bytes,
          .scales = w.scales,
          .scale_row_bytes = w.scale_row_bytes};
}

MlpView mlp(const mono::MlpWeightView& w) {
  return {.gate = matrix(w.gate), .up = matrix(w.up), .down = matrix(w.down)};
}
mono::MlpWeightView mlp(const MlpView& w) {
  return {.gate = weight(w.gate), .up = weight(w.up), .down = weight(w.down)};
}

Status expect(std::int64_t layer, const char* name, const mono::WeightView& w, std::int64_t rows,
              std::int64_t cols) {
  if (w.rows == rows && w.cols == cols && (w.data != nullptr || rows == 0)) return {};
  return {Code::kInvalidArgument, "layer " + to_string(layer),
          std::string(name) + " is [" + to_string(w.rows) + ", " + to_string(w.cols) +
              "], the configuration says [" + to_string(rows) + ", " + to_string(cols) + "]"};
}

Status expect_mlp(std::int64_t layer, const char* name, const mono::MlpWeightView& w,
                  std::int64_t width, std::int64_t hidden) {
  ML_RETURN_IF_ERROR(expect(layer, name, w.gate, width, hidden));
  ML_RETURN_IF_ERROR(expect(layer, name, w.up, width, hidden));
  return expect(layer, name, w.down, hidden, width);
}

Status check_layer(const m3::ModelConfig& c, std::int64_t i, const mono::LayerView& w) {
  ML_RETURN_IF_ERROR(expect(i, "q", w.q, c.q_width(), c.hidden_size));
  ML_RETURN_IF_ERROR(expect(i, "k", w.k, c.kv_width(), c.hidden_size));
  ML_RETURN_IF_ERROR(expect(i, "v", w.v, c.kv_width(), c.hidden_size));
  ML_RETURN_IF_ERROR(expect(i, "o", w.o, c.hidden_size, c.q_width()));
  if (w.sparse) {
    ML_RETURN_IF_ERROR(expect(i, "index q", w.index_q, c.index_width(), c.hidden_size));
    ML_RETURN_IF_ERROR(expect(i, "index k", w.index_k, c.index_dim, c.hidden_size));
  }
  if (!w.moe) return expect_mlp(i, "dense MLP", w.dense, c.dense_width, c.hidden_size);
  ML_RETURN_IF_ERROR(expect(i, "router", w.router, c.num_experts, c.hidden_size));
  if (static_cast<std::int64_t>(w.experts.size()) != c.num_experts) {
    return {Code::kInvalidArgument, "layer " + to_string(i),
            to_string(w.experts.size()) + " experts, the configuration says " +
                to_string(c.num_experts)};
  }
  for (const mono::MlpWeightView& expert : w.experts) {
    ML_RETURN_IF_ERROR(expect_mlp(i, "expert", expert, c.expert_width, c.hidden_size));
  }
  if (c.shared_width == 0) return {};
  return expect_mlp(i, "shared expert", w.shared, c.shared_width, c.hidden_size);
}

// What both views of a layer hold in the same form.
template <typename From, typename To>
void copy_plain(const From& in, To& out) {
  out.sparse = in.sparse;
  out.moe = in.moe;
  out.input_norm = in.input_norm;
  out.post_norm = in.post_norm;
  out.q_norm = in.q_norm;
  out.k_norm = in.k_norm;
  out.index_q_norm = in.index_q_norm;
  out.index_k_norm = in.index_k_norm;
  out.router_bias = in.router_bias;
}

}  // namespace

LayerView view_layer(const mono::LayerView& in) {
  LayerView out;
  copy_plain(in, out);
  out.q = matrix(in.q);
  out.k = matrix(in.k);
  out.v = matrix(in.v);
  out.o = matrix(in.o);
  out.index_q = matrix(in.index_q);
  out.index_k = matrix(in.index_k);
  out.dense = mlp(in.dense);
  out.router = matrix(in.router);
  for (const mono::MlpWeightView& expert : in.experts) out.experts.push_back(mlp(expert));
  out.shared = mlp(in.shared);
  return out;
}

Caches view_caches(const m3::ModelConfig& config, const std::vector<mono::CacheView>& caches) {
  Caches out;
  out.head_dim = config.head_dim;
  out.index_dim = config.index_dim;
  for (const mono::CacheView& c : caches) {
    LayerCache& layer = out.layers.emplace_back();
    layer.options = {c.kv, c.index, c.k_scale, c.v_scale, c.index_scale};
    layer.k = c.k;
    layer.v = c.v;
    layer.index = c.index_keys;
    layer.page_bytes = c.block_bytes;
    layer.head_bytes = c.head_bytes;
    layer.token_bytes = c.token_bytes;
    layer.index_page_bytes = c.index_block_bytes;
    layer.index_token_bytes = c.index_token_bytes;
    layer.pages = c.blocks;
    layer.index_pages = c.index_blocks;
  }
  return out;
}

mono::ExecutorConfig executor_config(const m3::ModelConfig& config, const ModelView& view,
                                     const Caches& caches) {
  mono::ExecutorConfig out;
  out.shape = config;
  out.max_context = config.max_positions;
  for (const LayerView& in : view.layers) {
    mono::LayerView& layer = out.layers.emplace_back();
    copy_plain(in, layer);
    layer.q = weight(in.q);
    layer.k = weight(in.k);
    layer.v = weight(in.v);
    layer.o = weight(in.o);
    layer.index_q = weight(in.index_q);
    layer.index_k = weight(in.index_k);
    layer.dense = mlp(in.dense);
    layer.router = weight(in.router);
    for (const MlpView& expert : in.experts) layer.experts.push_back(mlp(expert));
    layer.shared = mlp(in.shared);
  }
  for (const LayerCache& c : caches.layers) {
    out.caches.push_back({.kv = c.options.kv,
                          .index = c.options.index,
                          .k_scale = c.options.k_scale,
                          .v_scale = c.options.v_scale,
                          .index_scale = c.options.index_scale,
                          .k = c.k,
                          .v = c.v,
                          .index_keys = c.index,
                          .block_bytes = c.page_bytes,
                          .head_bytes = c.head_bytes,
                          .token_bytes = c.token_bytes,
                          .index_block_bytes = c.index_page_bytes,
                          .index_token_bytes = c.index_token_bytes,
                          .blocks = c.pages,
                          .index_blocks = c.index_pages});
  }
  return out;
}

Status check_executor_config(const mono::ExecutorConfig& config) {
  const m3::ModelConfig& c = config.shape;
  ML_RETURN_IF_ERROR(check_shapes(c));
  const auto layers = static_cast<std::size_t>(c.num_layers);
  if (layers == 0 || config.layers.size() != layers || config.caches.size() != layers ||
      c.layers.size() != layers) {
    return {Code::kInvalidArgument, "layers",
            to_string(config.layers.size()) + " layers, " + to_string(config.caches.size()) +
                " caches, the configuration says " + to_string(layers)};
  }
  if (config.max_context < 1 || config.max_context > mono::kMaxContext) {
    return {Code::kInvalidArgument, "max_context",
            to_string(config.max_context) + ", from 1 to " + to_string(mono::kMaxContext)};
  }
  const m3::RotaryTable& rotary = config.rotary;
  if (rotary.data != nullptr && rotary.positions < config.max_context) {
    return {Code::kInvalidArgument, "rotary table",
            to_string(rotary.positions) + " positions, max_context is " +
                to_string(config.max_context)};
  }
  for (std::size_t i = 0; i < layers; ++i) {
    ML_RETURN_IF_ERROR(check_layer(c, static_cast<std::int64_t>(i), config.layers[i]));
    const mono::CacheView& cache = config.caches[i];
    const std::string name = "layer " + to_string(i);
    for (const DType dtype : {cache.kv, cache.index}) {
      if (dtype != DType::kBF16 && dtype != DType::kE4M3) {
        return {Code::kUnsupported, name, "cache of type " + std::string(dtype_name(dtype))};
      }
    }
    if (cache.kv != config.caches[0].kv || cache.index != config.caches[0].index) {
      return {Code::kUnsupported, name, "cache types differ from those of layer 0"};
    }
    if (cache.k == nullptr || cache.v == nullptr ||
        (config.layers[i].sparse && cache.index_keys == nullptr)) {
      return {Code::kInvalidArgument, name, "a cache is missing"};
    }
  }
  return {};
}

}  // namespace monolayer::cpu
