#include "backend/cpu/draft.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <numeric>
#include <string>
#include <utility>

#include "backend/cpu/activations.h"
#include "backend/cpu/attention.h"
#include "backend/cpu/cache_insert.h"
#include "backend/cpu/head.h"
#include "backend/cpu/matmul_rows.h"
#include "backend/cpu/mlp.h"
#include "backend/cpu/row_stages.h"
#include "backend/cpu/split_sum.h"
#include "core/dtype.h"
#include "m3/rope.h"

namespace monolayer::cpu {
namespace {

constexpr std::int64_t kRowTile = 64;
constexpr int kBF16 = activation_kind(Format::kBF16);

Matrix view(const TensorView& tensor) {
  return {.format = Format::kBF16,
          .rows = tensor.shape[0],
          .cols = tensor.shape[1],
          .data = tensor.data,
          .row_bytes = tensor.shape[1] * 2};
}

std::vector<float> floats(const TensorView& tensor) {
  std::vector<float> out(tensor.bytes / 2);
  for (std::size_t i = 0; i < out.size(); ++i) {
    bf16_t bits = 0;
    std::memcpy(&bits, tensor.data + i * 2, sizeof bits);
    out[i] = bf16_to_f32(bits);
  }
  return out;
}

class CpuDraft final : public Draft {
 public:
  CpuDraft(const m3::DraftConfig& config, const m3::DraftWeights& w,
           const m3::ModelConfig& target_config, const Matrix& embed, const Matrix& head,
           ThreadTeam& team, const Tiles& tiles)
      : target_ids_(w.target_ids),
        shape_(cache_shape(config, target_config)),
        rope_(config.rope_theta, config.head_dim),
        team_(team),
        tiles_(tiles),
        embed_(embed),
        head_(head),
        fc_(view(w.fc)),
        input_norm_(floats(w.input_norm)),
        hidden_norm_(floats(w.hidden_norm)),
        post_norm_(floats(w.post_norm)),
        final_norm_(floats(w.final_norm)),
        scratch_(static_cast<std::size_t>(team.size())) {
    for (std::size_t i = 0; i < m3::kAuxLayers; ++i) fc_norms_[i] = floats(w.fc_norms[i]);
    layer_.q = view(w.q);
    layer_.k = view(w.k);
    layer_.v = view(w.v);
    layer_.o = view(w.o);
    layer_.dense = {view(w.gate), view(w.up), view(w.down)};
  }

  Status combine(std::span<const float> kept, float* out) override {
    const std::int64_t n = shape_.hidden_size, wide = fc_.cols;
    const std::int64_t rows = static_cast<std::int64_t>(kept.size()) / wide;
    const std::int64_t padded = padded_columns(Format::kBF16, wide);
    try {
      wide_.reserve(rows * padded);
      for (WorkerScratch& scratch : scratch_) scratch.floats.reserve(wide);
      clear_traffic();
      each_share(rows, [&](Range mine, WorkerScratch& scratch) {
        for (std::int64_t r = mine.begin; r < mine.end; ++r) {
          float* x = scratch.floats.data();
          for (std::size_t i = 0; i < m3::kAuxLayers; ++i) {
            const auto at = static_cast<std::int64_t>(i) * n;
            norm(kept.data() + r * wide + at, fc_norms_[i], x + at);
          }
          tiles_.permute(Format::kBF16, x, wide, wide_.data() + r * padded);
        }
      });
      each_work(fc_, [&](Range columns, WorkerScratch& scratch) {
        matmul_rows(tiles_, fc_, columns, wide_.data(), padded, rows, kRowTile, out + columns.begin,
                    n, scratch.traffic);
      });
      each_share(rows * n, [&](Range mine, WorkerScratch&) {
        for (std::int64_t i = mine.begin; i < mine.end; ++i) out[i] = round_bf16(out[i]);
      });
    } catch (const std::bad_alloc&) {
      return {Code::kResourceExhausted, "draft", "no memory for its activations"};
    }
    add_traffic();
    return {};
  }

  Status step(std::span<const DraftSequence> sequences, CachePool& cache,
              std::vector<Proposal>& proposals) override {
    proposals.clear();
    if (!cache.fits(shape_)) {
      return {Code::kInvalidArgument, "draft cache", "the pool was made for another draft"};
    }
    inputs_.clear();
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const DraftSequence& s = sequences[i];
      if (s.start < 1 || s.hidden == nullptr) {
        return {Code::kInvalidArgument, "draft sequence " + std::to_string(i),
                "begins at place " + std::to_string(s.start) + ", entries begin at 1"};
      }
      inputs_.push_back({s.tokens, s.start, s.pages, s.proposes ? 1 : 0});
    }
    try {
      ML_RETURN_IF_ERROR(plan_.build(inputs_, shape_, cache));
      clear_traffic();
      const StepContext step{shape_, tiles_, plan_, cache.caches(), act_, kRowTile};
      run(step, sequences);
    } catch (const std::bad_alloc&) {
      return {Code::kResourceExhausted, "draft", "no memory for its activations"};
    }
    add_traffic();
    return propose(proposals);
  }

  // Rows of places from 1 on, one after the other; contexts longer than that take no more memory.
  Status prepare_for(std::int64_t rows, std::int64_t proposals, CachePool& cache) override {
    rows = std::min(rows, std::min(cache.pages() * m3::kPageTokens, shape_.max_positions) - 1);
    if (rows < 1) return {};
    proposals = std::min(proposals, rows);
    try {
      const std::vector<std::int32_t> tokens(static_cast<std::size_t>(rows));
      std::vector<std::int32_t> pages(static_cast<std::size_t>(rows / m3::kPageTokens + 1));
      std::iota(pages.begin(), pages.end(), 0);
      const StepSequence largest{tokens, 1, pages, proposals};
      ML_RETURN_IF_ERROR(plan_.build({&largest, 1}, shape_, cache));
      const StepContext step{shape_, tiles_, plan_, cache.caches(), act_, kRowTile};
      reserve(step);
      const AttentionPlan plan = plan_attention(step, false);
      act_.attention_partials.reserve(std::max(kWaveFloats, plan.partial_floats));
      const std::int64_t floats = std::max(attention_scratch(step, plan), fc_.cols);
      for (WorkerScratch& scratch : scratch_) scratch.floats.reserve(floats);
      wide_.reserve(rows * padded_columns(Format::kBF16, fc_.cols));
      plan_dense(step, layer_, mlp_);
      act_.mlp.reserve(mlp_.slots() * mlp_.slot_stride);
      logits_.reserve(static_cast<std::size_t>(proposals * head_.rows));
      inputs_.reserve(static_cast<std::size_t>(proposals));
    } catch (const std::bad_alloc&) {
      return {Code::kResourceExhausted, "draft", "no memory for its activations"};
    }
    return {};
  }

  std::span<const float> logits() const override { return logits_; }
  const Traffic& total_traffic() const override { return total_; }

 private:
  template <typename F>
  void each_share(std::int64_t total, F&& f) {
    team_.each([&](int worker) {
      const Range mine = share(total, worker, team_.size());
      if (!mine.empty()) f(mine, scratch_[static_cast<std::size_t>(worker)]);
    });
  }
  // Output rows of one matrix.
  template <typename F>
  void each_work(const Matrix& w, F&& f) {
    team_.each([&](int worker) {
      const Range mine = share(w.rows, worker, team_.size(), 8);
      if (!mine.empty()) f(mine, scratch_[static_cast<std::size_t>(worker)]);
    });
  }
  void clear_traffic() {
    for (WorkerScratch& scratch : scratch_) scratch.traffic = {};
  }
  void add_traffic() {
    for (const WorkerScratch& scratch : scratch_) total_ += scratch.traffic;
  }

  // The plain norm: x / rms * w, rounded to BF16.
  void norm(const float* x, const std::vector<float>& weight, float* out) const {
    const auto n = static_cast<std::int64_t>(weight.size());
    const float factor = norm_factor(tiles_, x, n, shape_.rms_eps);
    for (std::int64_t i = 0; i < n; ++i) {
      out[i] = round_bf16((x[i] * factor) * weight[static_cast<std::size_t>(i)]);
    }
  }

  void reserve(const StepContext& step) {
    const m3::ModelConfig& c = shape_;
    const std::int64_t rows = plan_.rows();
    wide_.reserve(rows * padded_columns(Format::kBF16, 2 * c.hidden_size));
    act_.hidden.reserve(rows * c.hidden_size);
    act_.normed.reserve(rows * c.hidden_size);
    act_.rows[kBF16].reserve(rows * permuted_size(kBF16, c.hidden_size));
    act_.gathered[kBF16].reserve(rows * permuted_size(kBF16, c.hidden_size));
    act_.rope.reserve(rows * c.head_dim);
    act_.projected.reserve(rows * (c.q_width() + 2 * c.kv_width()));
    act_.q.reserve(rows * c.num_heads * padded_columns(Format::kBF16, c.head_dim));
    act_.attended.reserve(rows * SplitLayout(Format::kBF16, c.q_width()).size());
    act_.attention_state.reserve(rows * c.num_heads * (c.head_dim + 2));
    const std::int64_t floats =
        std::max({2 * c.hidden_size, c.head_dim, split_scratch(step), gate_up_scratch(step)});
    for (WorkerScratch& scratch : scratch_) scratch.floats.reserve(floats);
  }

  void run(const StepContext& step, std::span<const DraftSequence> sequences) {
    reserve(step);
    input(sequences);
    project();
    each_share(plan_.rows(), [&](Range rows, WorkerScratch& scratch) {
      for (std::int64_t r = rows.begin; r < rows.end; ++r) finish_row(step, r, scratch);
    });
    attend(step);
    mlp(step);
    each_share(plan_.rows(), [&](Range rows, WorkerScratch&) { norm_rows(final_norm_, rows); });
    if (plan_.logit_rows() == 0) return;
    each_share(plan_.logit_rows(),
               [&](Range rows, WorkerScratch&) { gather_logit_rows(step, head_, rows); });
    logits_.resize(static_cast<std::size_t>(plan_.logit_rows() * head_.rows));
    each_work(head_, [&](Range out, WorkerScratch& scratch) {
      head_logits(step, head_, out, logits_.data(), scratch.traffic);
    });
  }

  // hidden = the states handed in; wide = embedding and state, normed apart, side by side.
  void input(std::span<const DraftSequence> sequences) {
    const std::int64_t n = shape_.hidden_size;
    const std::int64_t padded = padded_columns(Format::kBF16, 2 * n);
    each_share(plan_.rows(), [&](Range rows, WorkerScratch& scratch) {
      float* x = scratch.floats.data();
      for (std::int64_t r = rows.begin; r < rows.end; ++r) {
        const PlannedRow& row = plan_.row(r);
        const auto s = static_cast<std::size_t>(row.sequence);
        const float* given = sequences[s].hidden + (r - plan_.sequences()[s].first_row) * n;
        float* hidden = act_.hidden.data() + r * n;
        std::copy_n(given, n, hidden);
        const auto* embedded =
            static_cast<const std::byte*>(embed_.data) + row.token * embed_.row_bytes;
        for (std::int64_t i = 0; i < n; ++i) {
          bf16_t bits = 0;
          std::memcpy(&bits, embedded + i * 2, sizeof bits);
          x[n + i] = bf16_to_f32(bits);
        }
        norm(x + n, input_norm_, x);
        norm(hidden, hidden_norm_, x + n);
        tiles_.permute(Format::kBF16, x, 2 * n, wide_.data() + r * padded);
        const std::int64_t half = shape_.head_dim / 2;
        float* cosine = act_.rope.data() + r * 2 * half;
        rope_.angles(row.position - 1, cosine, cosine + half);
      }
    });
  }

  void project() {
    const std::int64_t stride = shape_.q_width() + 2 * shape_.kv_width();
    const std::int64_t padded = padded_columns(Format::kBF16, 2 * shape_.hidden_size);
    std::int64_t at = 0;
    for (const Matrix* w : {&layer_.q, &layer_.k, &layer_.v}) {
      each_work(*w, [&](Range out, WorkerScratch& scratch) {
        matmul_rows(tiles_, *w, out, wide_.data(), padded, plan_.rows(), kRowTile,
                    act_.projected.data() + at + out.begin, stride, scratch.traffic);
      });
      at += w->rows;
    }
  }

  // Rotation and the one rounding; queries permuted, keys and values into the cache.
  void finish_row(const StepContext& step, std::int64_t r, WorkerScratch& scratch) {
    const m3::ModelConfig& c = shape_;
    const std::int64_t dim = c.head_dim, half = dim / 2, group = c.group_size();
    const float* rope = act_.rope.data() + r * dim;
    const float* x = act_.projected.data() + r * (c.q_width() + 2 * c.kv_width());
    float* out = scratch.floats.data();
    const CacheSlot slot = plan_.main_slot(r);
    const auto finish = [&](bool turns) {
      std::copy_n(x, dim, out);
      if (turns) m3::rotate(out, rope, rope + half, half);
      for (std::int64_t i = 0; i < dim; ++i) out[i] = round_bf16(out[i]);
      x += dim;
    };
    const auto store = [&](const Matrix& page) {
      auto* base = static_cast<std::byte*>(const_cast<void*>(page.data));
      store_entry(DType::kBF16, 1, out, dim, base + slot.token * page.row_bytes);
      scratch.traffic.cache_written += dim * 2;
    };
    const std::int64_t size = padded_columns(Format::kBF16, dim);
    for (std::int64_t head = 0; head < c.num_heads; ++head) {
      finish(true);
      const std::int64_t place = (head / group * plan_.rows() + r) * group + head % group;
      tiles_.permute(Format::kBF16, out, dim, act_.q.data() + place * size);
    }
    for (std::int64_t head = 0; head < c.num_kv_heads; ++head) {
      finish(true);
      store(step.cache.k_page(0, slot.page, head));
    }
    for (std::int64_t head = 0; head < c.num_kv_heads; ++head) {
      finish(false);
      store(step.cache.v_page(0, slot.page, head));
    }
  }

  void attend(const StepContext& step) {
    AttentionPlan plan = plan_attention(step, false);
    plan.first_key = 1;
    const SplitLayout layout(Format::kBF16, layer_.o.cols, step.parts);
    act_.attention_partials.reserve(plan.wave * plan.partial_floats);
    for (WorkerScratch& scratch : scratch_) {
      scratch.floats.reserve(attention_scratch(step, plan));
    }
    for (std::int64_t begin = 0; begin < plan.units; begin += plan.wave) {
      const Range wave{begin, std::min(plan.units, begin + plan.wave)};
      each_share(wave.size(), [&](Range units, WorkerScratch& scratch) {
        attend_units(step, plan, 0, begin, {begin + units.begin, begin + units.end},
                     scratch.floats.data(), scratch.traffic);
      });
      each_share(merge_pairs(step, plan, wave), [&](Range pairs, WorkerScratch& scratch) {
        merge_units(step, plan, 0, layout, wave, pairs, scratch.floats.data());
      });
    }
    SplitTerm term;
    term.w = &layer_.o;
    term.layout = &layout;
    term.x = act_.attended.data();
    term.count = plan_.rows();
    add_products(step, {&term, 1});
  }

  void mlp(const StepContext& step) {
    each_share(plan_.rows(), [&](Range rows, WorkerScratch&) { norm_rows(post_norm_, rows); });
    plan_dense(step, layer_, mlp_);
    act_.mlp.reserve(mlp_.slots() * mlp_.slot_stride);
    each_work(layer_.dense.gate, [&](Range out, WorkerScratch& scratch) {
      gate_up(step, mlp_, mlp_.groups[0], out, scratch.floats.data(), scratch.traffic);
    });
    add_products(step, down_terms(step, mlp_));
  }

  void norm_rows(const std::vector<float>& weight, Range rows) {
    const std::int64_t n = shape_.hidden_size;
    for (std::int64_t r = rows.begin; r < rows.end; ++r) {
      float* out = act_.normed.data() + r * n;
      norm(act_.hidden.data() + r * n, weight, out);
      tiles_.permute(Format::kBF16, out, n, act_.rows[kBF16].data() + r * permuted_size(kBF16, n));
    }
  }

  void add_products(const StepContext& step, std::span<const SplitTerm> terms) {
    team_.each([&](int worker) {
      WorkerScratch& scratch = scratch_[static_cast<std::size_t>(worker)];
      add_split_products(step, terms, share(shape_.hidden_size, worker, team_.size(), 8),
                         scratch.floats.data(), scratch.traffic);
    });
  }

  Status propose(std::vector<Proposal>& proposals) {
    const std::int64_t n = shape_.hidden_size;
    for (std::int64_t i = 0; i < plan_.logit_rows(); ++i) {
      const float* row = logits_.data() + i * head_.rows;
      for (std::int64_t o = 0; o < head_.rows; ++o) {
        if (std::isfinite(row[o])) continue;
        proposals.clear();
        return {Code::kInternal, "draft",
                "logits are not finite at place " +
                    std::to_string(plan_.row(plan_.logit_row(i)).position) + ", token " +
                    std::to_string(o)};
      }
      const auto best = static_cast<std::size_t>(std::max_element(row, row + head_.rows) - row);
      Proposal& proposal = proposals.emplace_back();
      proposal.token = target_ids_.empty() ? static_cast<std::int32_t>(best) : target_ids_[best];
      const float* hidden = act_.normed.data() + plan_.logit_row(i) * n;
      proposal.hidden.assign(hidden, hidden + n);
    }
    return {};
  }

  const std::vector<std::int32_t> target_ids_;
  const m3::ModelConfig shape_;
  const m3::Rope rope_;
  ThreadTeam& team_;
  const Tiles& tiles_;
  const Matrix embed_, head_, fc_;
  std::array<std::vector<float>, m3::kAuxLayers> fc_norms_;
  const std::vector<float> input_norm_, hidden_norm_, post_norm_, final_norm_;
  LayerView layer_;

  std::vector<StepSequence> inputs_;
  StepPlan plan_;
  Activations act_;
  Buffer<float> wide_;  // permuted input of fc or of the projections
  MlpPlan mlp_;
  std::vector<WorkerScratch> scratch_;
  std::vector<float> logits_;
  Traffic total_;
};

// The target's own table, where the draft brings none.
Result<Matrix> shared(const QuantizedMatrix& matrix, const char* what) {
  if (matrix.format == WeightFormat::kPlain && matrix.weight.dtype == DType::kBF16) {
    return view(matrix.weight);
  }
  return Status(Code::kUnsupported, std::string(matrix.weight.name),
                std::string("serves as the draft's ") + what + " and must be BF16 for it");
}

}  // namespace

m3::ModelConfig Draft::cache_shape(const m3::DraftConfig& config,
                                   const m3::ModelConfig& target_config) {
  m3::ModelConfig c;
  c.hidden_size = config.hidden_size;
  c.num_layers = 1;
  c.num_heads = config.num_heads;
  c.num_kv_heads = config.num_kv_heads;
  c.head_dim = c.rotary_dim = config.head_dim;
  c.rope_theta = config.rope_theta;
  c.vocab_size = config.vocab_size;
  c.max_positions = target_config.max_positions;
  c.rms_eps = config.rms_eps;
  c.dense_width = config.intermediate_size;
  // The clamped SwiGLU without clamp, slope and offset is the plain one.
  c.swiglu_alpha = 1;
  c.swiglu_limit = std::numeric_limits<float>::infinity();
  c.swiglu_beta = 0;
  c.layers.resize(1);
  return c;
}

Result<std::unique_ptr<Draft>> Draft::create(const m3::DraftConfig& config,
                                             const m3::DraftWeights& weights,
                                             const m3::ModelConfig& target_config,
                                             const m3::ModelWeights& target, ThreadTeam& team,
                                             const Tiles* tiles) {
  if (tiles == nullptr) tiles = find_tiles("");
  if (tiles == nullptr) return Status(Code::kInternal, "tiles", "no variant runs here");
  try {
    Matrix embed, head;
    if (weights.embed.empty()) {
      ML_ASSIGN_OR_RETURN(embed, shared(target.embed, "embedding"));
    } else {
      embed = view(weights.embed);
    }
    if (weights.lm_head.empty()) {
      ML_ASSIGN_OR_RETURN(head, shared(target.lm_head, "head"));
    } else {
      head = view(weights.lm_head);
    }
    return std::unique_ptr<Draft>(
        std::make_unique<CpuDraft>(config, weights, target_config, embed, head, team, *tiles));
  } catch (const std::bad_alloc&) {
    return Status(Code::kResourceExhausted, "draft", "no memory for its tables");
  }
}

}  // namespace monolayer::cpu
