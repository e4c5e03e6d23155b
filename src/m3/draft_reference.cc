#include "m3/draft_reference.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "m3/reference_math.h"
#include "m3/rope.h"

namespace monolayer::m3 {
namespace {

FloatMatrix matrix(const TensorView& tensor) {
  return {tensor.shape[0], tensor.shape[1], decode(tensor)};
}

void plain_norm(const float* x, const std::vector<float>& weight, float eps, float* out) {
  const auto n = static_cast<std::int64_t>(weight.size());
  const float scale = 1.0F / std::sqrt(dot(x, x, n) / static_cast<float>(n) + eps);
  for (std::size_t i = 0; i < weight.size(); ++i) out[i] = x[i] * scale * weight[i];
}

}  // namespace

struct DraftReference::State {
  const DraftConfig& config;
  Rope rope;
  FloatMatrix embed, head, fc, q, k, v, o, gate, up, down;
  std::vector<float> fc_norms[kAuxLayers];
  std::vector<float> input_norm, hidden_norm, post_norm, final_norm;
  std::vector<float> keys, values;

  State(const DraftConfig& c, const DraftWeights& w, const ModelWeights& target)
      : config(c),
        rope(c.rope_theta, c.head_dim),
        embed(w.embed.empty() ? decode(target.embed) : matrix(w.embed)),
        head(w.lm_head.empty() ? decode(target.lm_head) : matrix(w.lm_head)),
        fc(matrix(w.fc)),
        q(matrix(w.q)),
        k(matrix(w.k)),
        v(matrix(w.v)),
        o(matrix(w.o)),
        gate(matrix(w.gate)),
        up(matrix(w.up)),
        down(matrix(w.down)),
        input_norm(decode(w.input_norm)),
        hidden_norm(decode(w.hidden_norm)),
        post_norm(decode(w.post_norm)),
        final_norm(decode(w.final_norm)) {
    for (std::size_t i = 0; i < kAuxLayers; ++i) fc_norms[i] = decode(w.fc_norms[i]);
  }

  std::vector<float> rotated(const FloatMatrix& w, const float* x, std::int64_t position) const {
    std::vector<float> out(static_cast<std::size_t>(w.rows));
    std::vector<float> cosines(static_cast<std::size_t>(rope.pairs())), sines(cosines.size());
    project(w, x, out.data());
    rope.angles(position, cosines.data(), sines.data());
    for (std::int64_t at = 0; at < w.rows; at += config.head_dim) {
      rotate(out.data() + at, cosines.data(), sines.data(), rope.pairs());
    }
    return out;
  }
};

DraftReference::DraftReference(const DraftConfig& config, const DraftWeights& weights,
                               const ModelWeights& target)
    : state_(std::make_unique<State>(config, weights, target)) {}
DraftReference::~DraftReference() = default;

std::vector<float> DraftReference::combine(std::span<const float> aux) const {
  const State& s = *state_;
  const auto n = static_cast<std::size_t>(s.config.hidden_size);
  std::vector<float> x(kAuxLayers * n), out(n);
  for (std::size_t i = 0; i < kAuxLayers; ++i) {
    plain_norm(aux.data() + i * n, s.fc_norms[i], s.config.rms_eps, x.data() + i * n);
  }
  project(s.fc, x.data(), out.data());
  return out;
}

DraftReference::Output DraftReference::step(std::int32_t token, std::span<const float> hidden,
                                            std::int64_t position) {
  State& s = *state_;
  const DraftConfig& c = s.config;
  const auto n = static_cast<std::size_t>(c.hidden_size);
  const float* e = s.embed.values.data() + static_cast<std::size_t>(token) * n;
  std::vector<float> x(2 * n);
  plain_norm(e, s.input_norm, c.rms_eps, x.data());
  plain_norm(hidden.data(), s.hidden_norm, c.rms_eps, x.data() + n);

  const auto kept = static_cast<std::size_t>(position * c.kv_width());
  s.keys.resize(kept);
  s.values.resize(kept);
  const std::vector<float> query = s.rotated(s.q, x.data(), position);
  const std::vector<float> key = s.rotated(s.k, x.data(), position);
  std::vector<float> value(static_cast<std::size_t>(c.kv_width()));
  project(s.v, x.data(), value.data());
  s.keys.insert(s.keys.end(), key.begin(), key.end());
  s.values.insert(s.values.end(), value.begin(), value.end());

  std::vector<std::int64_t> positions(static_cast<std::size_t>(position + 1));
  std::iota(positions.begin(), positions.end(), std::int64_t{0});
  std::vector<float> attended(static_cast<std::size_t>(c.q_width()));
  const std::int64_t group = c.num_heads / c.num_kv_heads;
  for (std::int64_t head = 0; head < c.num_heads; ++head) {
    attend(query.data() + head * c.head_dim, s.keys, s.values, c.kv_width(),
           head / group * c.head_dim, positions, c.head_dim,
           1.0F / std::sqrt(static_cast<float>(c.head_dim)), attended.data() + head * c.head_dim);
  }
  std::vector<float> r(n), normed(n), y(n);
  project(s.o, attended.data(), r.data());
  for (std::size_t i = 0; i < n; ++i) r[i] += hidden[i];
  plain_norm(r.data(), s.post_norm, c.rms_eps, normed.data());
  std::vector<float> g(static_cast<std::size_t>(c.intermediate_size)), u(g.size());
  project(s.gate, normed.data(), g.data());
  project(s.up, normed.data(), u.data());
  for (std::size_t i = 0; i < g.size(); ++i) g[i] = g[i] / (1.0F + std::exp(-g[i])) * u[i];
  project(s.down, g.data(), y.data());
  for (std::size_t i = 0; i < n; ++i) r[i] += y[i];

  Output out;
  out.hidden.resize(n);
  plain_norm(r.data(), s.final_norm, c.rms_eps, out.hidden.data());
  out.logits.resize(static_cast<std::size_t>(s.head.rows));
  project(s.head, out.hidden.data(), out.logits.data());
  return out;
}

}  // namespace monolayer::m3
