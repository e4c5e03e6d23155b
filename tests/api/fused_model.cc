#include "api/fused_model.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/layer_views.h"
#include "backend/cpu/rank_slice.h"
#include "backend/cpu/row_stages.h"
#include "mono/library_bind.h"

namespace monolayer::test {
namespace {

Status from_api(const api::Status& status) {
  if (status.ok()) return {};
  return {Code::kInternal, "library", status.message()};
}

ml_tensor page_tensor(void* data, DType dtype, std::initializer_list<std::int64_t> shape) {
  return api::tensor(data, dtype == DType::kE4M3 ? ML_E4M3 : ML_BF16, shape, ML_LAYOUT_PAGES);
}

}  // namespace

std::int32_t greedy(std::span<const float> logits) {
  return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

Result<std::unique_ptr<FusedModel>> FusedModel::create(const m3::ModelConfig& config,
                                                       const m3::ModelWeights& weights,
                                                       cpu::CachePool& pool,
                                                       const Options& options) {
  auto model = std::unique_ptr<FusedModel>(new FusedModel(config));
  model->tiles_ = cpu::available_tiles().front();
  model->pool_ = &pool;
  for (const m3::LayerPattern& layer : config.layers) {
    layer.sparse_attention ? ++model->sparse_ : ++model->first_sparse_;
  }
  ML_ASSIGN_OR_RETURN(const m3::RankShape shape,
                      m3::rank_shape(config, options.rank, options.ranks));
  ML_ASSIGN_OR_RETURN(model->whole_, cpu::view_model(config, weights));
  ML_RETURN_IF_ERROR(model->build_dense(weights, shape, options));
  ML_RETURN_IF_ERROR(model->build_library(weights, options));
  return model;
}

Status FusedModel::build_dense(const m3::ModelWeights&, const m3::RankShape& shape,
                               const Options& options) {
  dense_view_ = cpu::slice_model(whole_, config_, shape);
  dense_view_.layers.resize(static_cast<std::size_t>(first_sparse_));
  dense_config_ = m3::rank_config(config_, shape);
  dense_config_.num_layers = first_sparse_;
  dense_config_.layers.resize(static_cast<std::size_t>(first_sparse_));
  cpu::Caches caches = pool_->caches();
  caches.layers.resize(static_cast<std::size_t>(first_sparse_));
  ML_ASSIGN_OR_RETURN(team_, cpu::ThreadTeam::create({.threads = options.threads, .pin = false}));
  mono::ExecutorConfig config = cpu::executor_config(dense_config_, dense_view_, caches);
  config.group = options.dense_group;
  config.rotary = options.rotary;
  ML_ASSIGN_OR_RETURN(dense_, cpu::MonoExecutor::create(config, team_.get(), {}));
  return {};
}

Status FusedModel::build_library(const m3::ModelWeights& weights, const Options& options) {
  ML_ASSIGN_OR_RETURN(input_, mono::bind_library(config_, weights, options.rank, options.ranks));
  api::Model model;
  static_cast<ml_model&>(model) = input_.model;
  if (const m3::RotaryTable& rotary = options.rotary; rotary.data != nullptr) {
    const bool wide = rotary.dtype == DType::kF32;
    model.cos_sin = api::tensor(const_cast<void*>(rotary.data), wide ? ML_F32 : ML_BF16,
                                {rotary.positions, config_.rotary_dim}, ML_LAYOUT_ROWS,
                                {rotary.row_bytes / (wide ? 4 : 2), 1});
  }
  std::vector<api::LayerSpec> layers;
  std::vector<api::CacheSpec> caches;
  for (const mono::LayerInput& layer : input_.layers) {
    layers.emplace_back();
    static_cast<ml_layer_spec&>(layers.back()) = layer.spec;
    layers.back().experts = layer.experts.data();
    layers.back().expert_count = static_cast<std::int64_t>(layer.experts.size());
    const cpu::LayerCache& cache = pool_->layer(layer.spec.layer_id);
    const std::int64_t heads = dense_config_.num_kv_heads, pages = pool_->pages();
    api::CacheSpec spec;
    spec.layer_id = layer.spec.layer_id;
    spec.k = page_tensor(cache.k, pool_->options().kv, {pages, heads, 128, config_.head_dim});
    spec.v = page_tensor(cache.v, pool_->options().kv, {pages, heads, 128, config_.head_dim});
    spec.index = page_tensor(cache.index, pool_->options().index, {pages, 128, config_.index_dim});
    spec.k_scale = pool_->options().k_scale;
    spec.v_scale = pool_->options().v_scale;
    spec.index_scale = pool_->options().index_scale;
    spec.max_context = std::min<std::int64_t>(pages * 128, config_.max_positions);
    caches.push_back(spec);
  }
  api::TpContext context;
  context.rank = options.rank;
  context.tp_size = options.ranks;
  context.worker_threads = options.threads;
  context.group = options.group;
  auto made = api::Mono::create(model, layers, caches, context);
  if (!made.ok()) return from_api(made.status());
  library_ = std::make_unique<api::Mono>(std::move(*made));
  return {};
}

Status FusedModel::run_library(std::span<const cpu::StepSequence> sequences, std::int64_t rows) {
  std::vector<std::int32_t> queries, lengths, table;
  std::vector<std::int64_t> slots, positions;
  std::size_t width = 0;
  for (const cpu::StepSequence& s : sequences) width = std::max(width, s.pages.size());
  for (const cpu::StepSequence& s : sequences) {
    queries.push_back(static_cast<std::int32_t>(s.tokens.size()));
    lengths.push_back(static_cast<std::int32_t>(s.start) + queries.back());
    // Entries past a request's own are never looked at.
    table.insert(table.end(), s.pages.begin(), s.pages.end());
    table.resize(queries.size() * width, 1 << 30);
    for (std::int64_t p = s.start; p < lengths.back(); ++p) {
      positions.push_back(p);
      slots.push_back(std::int64_t{s.pages[static_cast<std::size_t>(p / 128)]} * 128 + p % 128);
    }
  }
  slots.resize(static_cast<std::size_t>(rows), -1);
  positions.resize(static_cast<std::size_t>(rows), -1);
  api::StepMetadata md;
  md.token_count = static_cast<std::int32_t>(rows);
  md.requests = static_cast<std::int32_t>(sequences.size());
  md.query_lens = queries.data();
  md.table_width = md.index_table_width = static_cast<std::int32_t>(width);
  md.main_table = md.index_table = table.data();
  md.seq_lens = lengths.data();
  md.main_slots = md.index_slots = slots.data();
  ML_RETURN_IF_ERROR(from_api(library_->prepare_step(md)));
  api::Activations out;
  ML_RETURN_IF_ERROR(from_api(library_->forward_layers(
      first_sparse_, sparse_, api::tensor(hidden_.data(), ML_BF16, {rows, config_.hidden_size}),
      api::tensor(residual_.data(), ML_BF16, {rows, config_.hidden_size}),
      api::tensor(positions.data(), ML_I64, {rows}), out)));
  const std::size_t n = hidden_.size();
  std::memcpy(hidden_.data(), out.hidden.data, n * 2);
  std::memcpy(residual_.data(), out.residual.data, n * 2);
  return {};
}

Status FusedModel::step(std::span<const cpu::StepSequence> sequences, std::vector<float>& logits,
                        std::int64_t padded_rows) {
  const std::int64_t width = config_.hidden_size;
  std::int64_t live = 0;
  for (const cpu::StepSequence& s : sequences) live += static_cast<std::int64_t>(s.tokens.size());
  const std::int64_t rows = live + padded_rows;
  hidden_.assign(static_cast<std::size_t>(rows * width), 0x7fc0);  // padding: NaN
  residual_ = hidden_;
  std::vector<mono::StepRow> dense_rows(static_cast<std::size_t>(rows));
  std::int64_t at = 0;
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    for (std::size_t i = 0; i < sequences[s].tokens.size(); ++i, ++at) {
      const auto* row = static_cast<const std::byte*>(whole_.embed.data) +
                        sequences[s].tokens[i] * whole_.embed.row_bytes;
      std::memcpy(hidden_.data() + at * width, row, static_cast<std::size_t>(width) * 2);
      mono::StepRow& out = dense_rows[static_cast<std::size_t>(at)];
      const std::int64_t position = sequences[s].start + static_cast<std::int64_t>(i);
      out.live = true;
      out.request = static_cast<std::int32_t>(s);
      out.position = position;
      out.main_table = out.index_table = sequences[s].pages.data();
      out.main_slot = out.index_slot =
          std::int64_t{sequences[s].pages[static_cast<std::size_t>(position / 128)]} * 128 +
          position % 128;
    }
  }
  ML_RETURN_IF_ERROR(dense_->prepare(dense_rows));
  ML_RETURN_IF_ERROR(dense_->run_layers(0, first_sparse_, hidden_.data(), nullptr, hidden_.data(),
                                        residual_.data()));
  ML_RETURN_IF_ERROR(run_library(sequences, rows));
  logits.clear();
  at = 0;
  const cpu::Format format = cpu::kind_format(cpu::activation_kind(whole_.lm_head.format));
  std::vector<float> stream(static_cast<std::size_t>(width)), normed(stream);
  std::vector<float> permuted(static_cast<std::size_t>(cpu::padded_columns(format, width)));
  std::vector<float> row(static_cast<std::size_t>(whole_.lm_head.rows));
  for (const cpu::StepSequence& s : sequences) {
    const auto count = static_cast<std::int64_t>(s.tokens.size());
    for (std::int64_t i = 0; i < count; ++i, ++at) {
      if (i < count - s.logit_rows) continue;
      for (std::int64_t c = 0; c < width; ++c) {
        stream[static_cast<std::size_t>(c)] =
            round_bf16(bf16_to_f32(residual_[static_cast<std::size_t>(at * width + c)]) +
                       bf16_to_f32(hidden_[static_cast<std::size_t>(at * width + c)]));
      }
      tiles_->scale_by_norm(stream.data(),
                            cpu::norm_factor(*tiles_, stream.data(), width, config_.rms_eps),
                            whole_.final_norm, width, normed.data());
      tiles_->permute(format, normed.data(), width, permuted.data());
      tiles_->matmul(whole_.lm_head, 0, whole_.lm_head.rows, 0, width, permuted.data(),
                     static_cast<std::int64_t>(permuted.size()), 1, row.data(),
                     whole_.lm_head.rows);
      logits.insert(logits.end(), row.begin(), row.end());
    }
  }
  return {};
}

Status FusedModel::close() {
  const Status dense = dense_->close();
  const Status library = from_api(library_->close());
  return dense.ok() ? library : dense;
}

void copy_heads(const m3::ModelConfig& config, const m3::RankShape& shape,
                const cpu::CachePool& whole, cpu::CachePool& rank) {
  for (std::int64_t l = 0; l < whole.layers(); ++l) {
    const cpu::LayerCache &from = whole.layer(l), &to = rank.layer(l);
    for (std::int64_t page = 0; page < whole.pages(); ++page) {
      for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
        const auto bytes = static_cast<std::size_t>(from.head_bytes);
        const std::int64_t a =
            page * from.page_bytes + (shape.first_kv_head + head) * from.head_bytes;
        const std::int64_t b = page * to.page_bytes + head * to.head_bytes;
        std::memcpy(to.k + b, from.k + a, bytes);
        std::memcpy(to.v + b, from.v + a, bytes);
      }
      if (from.index == nullptr) continue;
      std::memcpy(
          to.index + page * to.index_page_bytes, from.index + page * from.index_page_bytes,
          static_cast<std::size_t>(config.index_dim * 128) * dtype_size(whole.options().index));
    }
  }
}

}  // namespace monolayer::test
