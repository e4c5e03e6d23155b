#include "m3/reference.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <string>

#include "m3/reference_math.h"
#include "m3/rope.h"
#include "m3/select.h"

namespace monolayer::m3 {

namespace {

struct Mlp {
  FloatMatrix gate, up, down;

  explicit Mlp(const MlpWeights& weights)
      : gate(decode(weights.gate)), up(decode(weights.up)), down(decode(weights.down)) {}

  // out[i] += factor * mlp(x)[i]
  void accumulate(const ModelConfig& config, const float* x, float factor,
                  std::vector<float>& out) const {
    std::vector<float> g(static_cast<std::size_t>(gate.rows)), u(g.size()), y(out.size());
    project(gate, x, g.data());
    project(up, x, u.data());
    for (std::size_t i = 0; i < g.size(); ++i) g[i] = clamped_swiglu(config, g[i], u[i]);
    project(down, g.data(), y.data());
    for (std::size_t i = 0; i < out.size(); ++i) out[i] += factor * y[i];
  }
};

// One layer decoded to float32.
struct Layer {
  std::vector<float> input_norm, post_norm, q_norm, k_norm, index_q_norm, index_k_norm, router_bias;
  FloatMatrix q, k, v, o, index_q, index_k, router;
  std::vector<Mlp> mlps;  // dense: one; MoE: the experts, then the shared one if there is one

  Layer(const LayerWeights& w, const LayerPattern& pattern)
      : input_norm(decode(w.input_norm)),
        post_norm(decode(w.post_norm)),
        q_norm(decode(w.q_norm)),
        k_norm(decode(w.k_norm)),
        q(decode(w.q)),
        k(decode(w.k)),
        v(decode(w.v)),
        o(decode(w.o)) {
    if (pattern.sparse_attention) {
      index_q_norm = decode(w.index_q_norm);
      index_k_norm = decode(w.index_k_norm);
      index_q = decode(w.index_q);
      index_k = decode(w.index_k);
    }
    if (!pattern.moe) {
      mlps.emplace_back(w.dense);
      return;
    }
    router = decode(w.router);
    if (!w.router_bias.empty()) router_bias = decode(w.router_bias);
    for (const MlpWeights& expert : w.experts) mlps.emplace_back(expert);
    if (!w.shared.gate.empty()) mlps.emplace_back(w.shared);
  }
};

// Decoded weights are kept up to this size; a larger model is decoded anew in every forward, so
// that memory holds one layer at a time.
constexpr std::int64_t kKeptBytes = std::int64_t{1} << 30;

std::int64_t decoded_bytes(const ModelWeights& weights) {
  std::int64_t values = 0;
  const auto add = [&](const QuantizedMatrix& m) { values += m.rows * m.cols; };
  const auto add_mlp = [&](const MlpWeights& mlp) {
    add(mlp.gate);
    add(mlp.up);
    add(mlp.down);
  };
  add(weights.lm_head);
  for (const LayerWeights& layer : weights.layers) {
    for (const auto* m :
         {&layer.q, &layer.k, &layer.v, &layer.o, &layer.index_q, &layer.index_k, &layer.router}) {
      add(*m);
    }
    add_mlp(layer.dense);
    add_mlp(layer.shared);
    for (const MlpWeights& expert : layer.experts) add_mlp(expert);
  }
  return values * static_cast<std::int64_t>(sizeof(float));
}

}  // namespace

struct Reference::State {
  const ModelConfig& config;
  const ModelWeights& weights;
  Rope rope;
  std::int64_t position = 0;
  // Per layer: keys and values [position, kv_width], index keys [position, index_dim].
  std::vector<std::vector<float>> keys, values, index_keys;
  bool keep = false;
  std::vector<std::unique_ptr<Layer>> layers;  // the last one used, or every one used so far
  std::unique_ptr<FloatMatrix> head_matrix;

  State(const ModelConfig& c, const ModelWeights& w, const RotaryTable& rotary)
      : config(c),
        weights(w),
        rope(c.rope_theta, c.rotary_dim, rotary),
        keep(decoded_bytes(w) <= kKeptBytes),
        layers(w.layers.size()) {
    clear();
  }
  void forget() {
    head_matrix.reset();
    for (auto& decoded : layers) decoded.reset();
  }
  const Layer& layer(std::size_t i) {
    if (!keep) forget();
    if (layers[i] == nullptr) {
      layers[i] = std::make_unique<Layer>(weights.layers[i], config.layers[i]);
    }
    return *layers[i];
  }
  const FloatMatrix& lm_head() {
    if (head_matrix != nullptr) return *head_matrix;
    if (!keep) forget();
    head_matrix = std::make_unique<FloatMatrix>(decode(weights.lm_head));
    return *head_matrix;
  }
  void clear() {
    position = 0;
    keys.assign(layers.size(), {});
    values.assign(layers.size(), {});
    index_keys.assign(layers.size(), {});
  }
  // Drops what a forward that did not finish has appended.
  void drop_unfinished() {
    const auto shorten = [this](std::vector<float>& cache, std::int64_t width) {
      cache.resize(std::min(cache.size(), static_cast<std::size_t>(position * width)));
    };
    for (std::vector<float>& cache : keys) shorten(cache, config.kv_width());
    for (std::vector<float>& cache : values) shorten(cache, config.kv_width());
    for (std::vector<float>& cache : index_keys) shorten(cache, config.index_dim);
  }

  // Projects one row to `heads` vectors of `dim`, norms each with `norm` and rotates it.
  std::vector<float> project_heads(const FloatMatrix& w, std::span<const float> norm,
                                   const float* x, std::int64_t at, std::int64_t dim) const {
    std::vector<float> out(static_cast<std::size_t>(w.rows));
    std::vector<float> cosines(static_cast<std::size_t>(rope.pairs())), sines(cosines.size());
    project(w, x, out.data());
    rope.angles(at, cosines.data(), sines.data());
    for (float* head = out.data(); head != out.data() + w.rows; head += dim) {
      gemma_norm(head, norm, config.rms_eps, head);
      rotate(head, cosines.data(), sines.data(), rope.pairs());
    }
    return out;
  }

  // Positions the KV head `g` of the row at `at` attends to.
  std::vector<std::int64_t> attended(std::int64_t layer, std::int64_t at, std::int64_t g,
                                     const std::vector<float>& index_query, TraceSink* sink) const {
    std::vector<std::int64_t> positions;
    if (!config.layers[static_cast<std::size_t>(layer)].sparse_attention) {
      for (std::int64_t p = 0; p <= at; ++p) positions.push_back(p);
      return positions;
    }
    const std::vector<float>& cached = index_keys[static_cast<std::size_t>(layer)];
    std::vector<float> scores;  // of each block
    for (std::int64_t p = 0; p <= at; ++p) {
      const float product =
          dot(&index_query[static_cast<std::size_t>(g * config.index_dim)],
              &cached[static_cast<std::size_t>(p * config.index_dim)], config.index_dim);
      // A NaN must not poison the maximum, wherever in the block it stands.
      const float score = std::isnan(product) ? kNanScore : product;
      if (p % config.block_size == 0) scores.push_back(score);
      scores.back() = std::max(scores.back(), score);
    }
    std::vector<std::int32_t> ids;
    select_blocks({config.topk_blocks, config.init_blocks, config.local_blocks}, scores, ids);
    if (sink != nullptr) sink->blocks(layer, at, g, ids, scores);
    for (const std::int32_t block : ids) {
      const std::int64_t begin = block * config.block_size;
      for (std::int64_t p = begin; p < std::min(begin + config.block_size, at + 1); ++p)
        positions.push_back(p);
    }
    return positions;
  }

  // residual += attention(norm(residual)) for rows at [position, position + rows).
  void attention(std::int64_t l, const Layer& layer, std::vector<std::vector<float>>& residual,
                 TraceSink* sink) {
    const auto i = static_cast<std::size_t>(l);
    for (std::size_t r = 0; r < residual.size(); ++r) {
      const std::int64_t at = position + static_cast<std::int64_t>(r);
      std::vector<float> x(residual[r].size());
      gemma_norm(residual[r].data(), layer.input_norm, config.rms_eps, x.data());

      const auto q = project_heads(layer.q, layer.q_norm, x.data(), at, config.head_dim);
      const auto k = project_heads(layer.k, layer.k_norm, x.data(), at, config.head_dim);
      std::vector<float> v(static_cast<std::size_t>(config.kv_width()));
      project(layer.v, x.data(), v.data());
      keys[i].insert(keys[i].end(), k.begin(), k.end());
      values[i].insert(values[i].end(), v.begin(), v.end());
      std::vector<float> iq;
      if (config.layers[i].sparse_attention) {
        iq = project_heads(layer.index_q, layer.index_q_norm, x.data(), at, config.index_dim);
        const auto ik =
            project_heads(layer.index_k, layer.index_k_norm, x.data(), at, config.index_dim);
        index_keys[i].insert(index_keys[i].end(), ik.begin(), ik.end());
      }

      std::vector<float> heads(static_cast<std::size_t>(config.q_width()));
      for (std::int64_t g = 0; g < config.num_kv_heads; ++g) {
        const auto positions = attended(l, at, g, iq, sink);
        for (std::int64_t h = g * config.group_size(); h < (g + 1) * config.group_size(); ++h) {
          attend(&q[static_cast<std::size_t>(h * config.head_dim)], keys[i], values[i],
                 config.kv_width(), g * config.head_dim, positions, config.head_dim,
                 config.attention_scale(), &heads[static_cast<std::size_t>(h * config.head_dim)]);
        }
      }
      std::vector<float> out(residual[r].size());
      project(layer.o, heads.data(), out.data());
      for (std::size_t c = 0; c < out.size(); ++c) residual[r][c] += out[c];
    }
  }

  // residual += mlp(norm(residual)), dense or routed.
  void feed_forward(std::int64_t l, const Layer& layer, std::vector<std::vector<float>>& residual,
                    TraceSink* sink) const {
    const bool moe = config.layers[static_cast<std::size_t>(l)].moe;
    for (std::size_t r = 0; r < residual.size(); ++r) {
      std::vector<float>& row = residual[r];
      std::vector<float> x(row.size()), out(row.size());
      gemma_norm(row.data(), layer.post_norm, config.rms_eps, x.data());
      if (moe) {
        std::vector<float> logits(static_cast<std::size_t>(config.num_experts));
        project(layer.router, x.data(), logits.data());
        const std::vector<RoutedExpert> chosen = route(config, logits, layer.router_bias);
        report_experts(l, position + static_cast<std::int64_t>(r), chosen, logits,
                       layer.router_bias, sink);
        for (const RoutedExpert& expert : chosen) {
          layer.mlps[static_cast<std::size_t>(expert.id)].accumulate(config, x.data(),
                                                                     expert.weight, out);
        }
        for (std::size_t e = static_cast<std::size_t>(config.num_experts); e < layer.mlps.size();
             ++e) {
          layer.mlps[e].accumulate(config, x.data(), config.shared_weight, out);
        }
      } else {
        layer.mlps[0].accumulate(config, x.data(), 1.0F, out);
      }
      for (std::size_t c = 0; c < out.size(); ++c) row[c] += out[c];
    }
  }

  static void report_experts(std::int64_t layer, std::int64_t row,
                             const std::vector<RoutedExpert>& chosen,
                             const std::vector<float>& logits, std::span<const float> bias,
                             TraceSink* sink) {
    if (sink == nullptr) return;
    std::vector<std::int32_t> ids;
    ids.reserve(chosen.size());
    for (const RoutedExpert& expert : chosen) ids.push_back(static_cast<std::int32_t>(expert.id));
    std::vector<float> scores = logits;
    for (std::size_t e = 0; e < scores.size(); ++e) {
      scores[e] = 1.0F / (1.0F + std::exp(-logits[e])) + (bias.empty() ? 0.0F : bias[e]);
    }
    sink->experts(layer, row, ids, scores);
  }

  Status check(std::span<const std::int32_t> tokens, std::int64_t logit_rows) const;
  std::vector<float> run(std::span<const std::int32_t> tokens, std::int64_t logit_rows,
                         TraceSink* sink);

  void report(std::int64_t layer, const std::vector<std::vector<float>>& residual,
              TraceSink* sink) const {
    if (sink == nullptr) return;
    for (std::size_t r = 0; r < residual.size(); ++r) {
      sink->hidden(layer, position + static_cast<std::int64_t>(r), residual[r]);
    }
  }
};

Status Reference::State::check(std::span<const std::int32_t> tokens,
                               std::int64_t logit_rows) const {
  const auto count = static_cast<std::int64_t>(tokens.size());
  if (count == 0) return {Code::kInvalidArgument, "tokens", "no tokens given"};
  if (logit_rows < 0 || logit_rows > count) {
    return {Code::kInvalidArgument, "logit_rows",
            std::to_string(logit_rows) + " is outside [0, " + std::to_string(count) + "]"};
  }
  if (count > config.max_positions - position) {
    return {Code::kInvalidArgument, "tokens",
            "position " + std::to_string(position + count - 1) + " is beyond the last one, " +
                std::to_string(config.max_positions - 1)};
  }
  for (const std::int32_t token : tokens) {
    if (token < 0 || token >= config.vocab_size) {
      return {Code::kInvalidArgument, "tokens",
              "id " + std::to_string(token) + " is outside [0, " +
                  std::to_string(config.vocab_size) + ")"};
    }
  }
  return ok_status();
}

std::vector<float> Reference::State::run(std::span<const std::int32_t> tokens,
                                         std::int64_t logit_rows, TraceSink* sink) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  std::vector<std::vector<float>> residual;
  for (const std::int32_t token : tokens) {
    residual.emplace_back(static_cast<std::size_t>(config.hidden_size));
    dequantize(weights.embed, token, token + 1, residual.back().data());
  }
  for (std::int64_t l = 0; l < config.num_layers; ++l) {
    report(l, residual, sink);
    const Layer& decoded = layer(static_cast<std::size_t>(l));
    attention(l, decoded, residual, sink);
    feed_forward(l, decoded, residual, sink);
  }
  const std::vector<float> final_norm = decode(weights.final_norm);
  for (std::vector<float>& row : residual)
    gemma_norm(row.data(), final_norm, config.rms_eps, row.data());
  report(config.num_layers, residual, sink);

  std::vector<float> logits(static_cast<std::size_t>(logit_rows * config.vocab_size));
  for (std::int64_t r = 0; r < logit_rows; ++r) {
    project(lm_head(), residual[static_cast<std::size_t>(count - logit_rows + r)].data(),
            &logits[static_cast<std::size_t>(r * config.vocab_size)]);
  }
  position += count;
  return logits;
}

Reference::Reference(const ModelConfig& config, const ModelWeights& weights,
                     const RotaryTable& rotary)
    : state_(std::make_unique<State>(config, weights, rotary)) {}
Reference::~Reference() = default;

std::int64_t Reference::position() const { return state_->position; }
void Reference::reset() { state_->clear(); }

Result<std::vector<float>> Reference::forward(std::span<const std::int32_t> tokens,
                                              std::int64_t logit_rows, TraceSink* sink) {
  ML_RETURN_IF_ERROR(state_->check(tokens, logit_rows));
  try {
    return state_->run(tokens, logit_rows, sink);
  } catch (const std::bad_alloc&) {
    state_->drop_unfinished();
    return Status(Code::kResourceExhausted, "reference forward",
                  "not enough memory for " + std::to_string(tokens.size()) +
                      " tokens at position " + std::to_string(state_->position));
  }
}

}  // namespace monolayer::m3
