#include <algorithm>
#include <cstring>
#include <new>
#include <string>

#include "backend/cpu/step_shape.h"
#include "backend/cuda/chain.h"
#include "backend/cuda/exchange.h"
#include "core/dtype.h"

namespace monolayer::cuda {
namespace {

// Whether one launch may hold both.
bool alike(const Layer& a, const Layer& b) { return a.sparse == b.sparse && a.moe == b.moe; }

}  // namespace

void Chain::fill_step(std::int64_t first, std::int64_t rows, bool all_logits) {
  Step& s = *host_step_;
  std::memset(&s, 0, sizeof s);
  s.rows = static_cast<std::int32_t>(rows);
  std::vector<std::int32_t> table_of;  // sequence ids in the order of their tables
  std::int64_t deepest = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    const cpu::PlannedRow& row = plan_.row(first + r);
    const auto i = static_cast<std::size_t>(r);
    s.token[i] = row.token;
    s.position[i] = static_cast<std::int32_t>(row.position);
    deepest = std::max(deepest, row.position);
    s.max_chunks[0] =
        std::max(s.max_chunks[0], dense_partials(static_cast<int>(row.position / kPageTokens + 1)));
    if (table_of.empty() || table_of.back() != row.sequence) {
      const auto& pages = plan_.sequences()[static_cast<std::size_t>(row.sequence)].pages;
      const auto at = static_cast<std::ptrdiff_t>(table_of.size()) * params().table_stride;
      const auto end = std::copy(pages.begin(), pages.end(), host_pages_.begin() + at);
      std::fill(end, host_pages_.begin() + at + params().table_stride, 0);
      table_of.push_back(row.sequence);
    }
    s.table[i] = static_cast<std::int32_t>(table_of.size()) - 1;
    rope_.angles(row.position, s.rope[i], s.rope[i] + rope_.pairs());
  }
  s.max_groups = static_cast<std::int32_t>(deepest / 16 + 1);
  if (config_.any_sparse()) {
    const std::int64_t blocks = deepest / config_.block_size + 1;
    s.max_chunks[1] = static_cast<std::int32_t>(std::min(blocks, config_.topk_blocks));
    s.score = blocks > config_.topk_blocks ? 1 : 0;
  }
  fill_results(first, rows, all_logits);
}

Status Chain::upload_step(std::int64_t first, std::int64_t rows, bool all_logits) {
  host_pages_.resize(static_cast<std::size_t>(kMaxRows) *
                     static_cast<std::size_t>(params().table_stride));
  fill_step(first, rows, all_logits);
  const auto tables = static_cast<std::size_t>(host_step_->table[rows - 1]) + 1;
  ML_CUDA(cudaMemcpyAsync(device_pages_, host_pages_.data(),
                          tables * static_cast<std::size_t>(params().table_stride) * 4,
                          cudaMemcpyHostToDevice, stream_));
  ML_CUDA(cudaMemcpyAsync(device_step_, host_step_, sizeof(Step), cudaMemcpyHostToDevice, stream_));
  return {};
}

Status Chain::launch_layer(Params p, int layer) {
  p.first_layer = layer;
  p.last_layer = layer + 1;
  const Layer& l = layers()[static_cast<std::size_t>(layer)];
  for (int stage = kQkv; stage <= kDown; ++stage) {
    if (stage == kShared || (stage == kRouter && l.moe == 0)) continue;
    ML_CUDA(launch_stage(static_cast<Stage>(stage), p, kernels_for(l), blocks_, stream_));
  }
  return {};
}

Status Chain::launch_fused_run(Params p, int first, int last) {
  p.first_layer = first;
  p.last_layer = last;
  const Kernels kernels = kernels_for(layers()[static_cast<std::size_t>(first)]);
  const bool all = std::all_of(layers().begin() + first, layers().begin() + last,
                               [&](const Layer& l) { return kernels_for(l) == kernels; });
  ML_CUDA(launch_fused(p, all ? kernels : Kernels::kAny, blocks_, stream_));
  return {};
}

Status Chain::launch_begin(const Params& p) {
  if (peers_ != nullptr) ML_CUDA(launch_begin_step(p, stream_));
  ML_CUDA(launch_stage(kEmbed, p, Kernels::kAny, blocks_, stream_));
  return {};
}

Status Chain::launch_layers(const Params& p, int first, int last) {
  for (int i = first; i < last;) {
    ML_RETURN_IF_ERROR(keep_rows(i));
    if (!fused_) {
      ML_RETURN_IF_ERROR(launch_layer(p, i++));
      continue;
    }
    const Layer& l = layers()[static_cast<std::size_t>(i)];
    int end = i + 1;
    while (end < last && alike(l, layers()[static_cast<std::size_t>(end)]) && !is_kept(end)) ++end;
    ML_RETURN_IF_ERROR(launch_fused_run(p, i, end));
    i = end;
  }
  return {};
}

// Everything between the upload of the step and its results, for the first `count` layers.
Status Chain::launch(const Params& p, int count) {
  ML_RETURN_IF_ERROR(launch_begin(p));
  ML_RETURN_IF_ERROR(launch_layers(p, 0, count));
  return launch_head(p, p.most_rows);
}

// What a layer has chosen: every KV head by the first rank that has it, experts by rank 0.
Status Chain::trace_layer(std::int64_t layer, m3::TraceSink& sink) {
  const Step& s = *host_step_;
  const Layer& l = layers()[static_cast<std::size_t>(layer)];
  for (const auto& rank : ranks_) {
    const m3::RankShape& shape = rank->shape();
    const std::int64_t heads = rank->config().index_heads;
    // Ranks that share a KV head follow each other.
    const bool tells = shape.first_head == shape.first_kv_head * config_.group_size();
    if (l.sparse != 0 && tells) {
      const std::int64_t per_row = heads * config_.topk_blocks;
      ML_ASSIGN_OR_RETURN(const auto ids, download(rank->params().block_ids, s.rows * per_row));
      for (std::int64_t r = 0; r < s.rows; ++r) {
        const std::int64_t count =
            std::min(config_.topk_blocks, s.position[r] / config_.block_size + 1);
        for (std::int64_t head = 0; head < heads; ++head) {
          sink.blocks(layer, s.position[r], shape.first_kv_head + head,
                      {ids.data() + r * per_row + head * config_.topk_blocks,
                       static_cast<std::size_t>(count)},
                      {});
        }
      }
    }
    if (l.moe == 0 || shape.rank != 0) continue;
    ML_ASSIGN_OR_RETURN(const auto table, download(rank->params().table, 1));
    for (std::int64_t r = 0; r < s.rows; ++r) {
      sink.experts(layer, s.position[r],
                   {table[0].chosen[r], static_cast<std::size_t>(config_.experts_per_token)}, {});
    }
  }
  return {};
}

Status Chain::trace(const Params& p, m3::TraceSink& sink) {
  const Step& s = *host_step_;
  const std::int64_t hidden = config_.hidden_size;
  std::vector<float> row(static_cast<std::size_t>(hidden));
  const auto show = [&](std::int64_t layer, const std::vector<std::uint16_t>& values) {
    for (std::int64_t r = 0; r < s.rows && ranks_.front()->shape().rank == 0; ++r) {
      for (std::int64_t i = 0; i < hidden; ++i) {
        row[static_cast<std::size_t>(i)] =
            bf16_to_f32(values[static_cast<std::size_t>(r * hidden + i)]);
      }
      sink.hidden(layer, s.position[r], row);
    }
  };
  ML_RETURN_IF_ERROR(launch_begin(p));
  for (std::int64_t layer = 0; layer < config_.num_layers; ++layer) {
    ML_RETURN_IF_ERROR(keep_rows(layer));
    ML_ASSIGN_OR_RETURN(const auto entering, download(p.hidden, s.rows * hidden));
    show(layer, entering);
    if (fused_) {
      ML_RETURN_IF_ERROR(launch_fused_run(p, static_cast<int>(layer), static_cast<int>(layer) + 1));
    } else {
      ML_RETURN_IF_ERROR(launch_layer(p, static_cast<int>(layer)));
    }
    ML_RETURN_IF_ERROR(trace_layer(layer, sink));
  }
  ML_RETURN_IF_ERROR(launch_head(p, s.logit_rows));
  ML_ASSIGN_OR_RETURN(const auto normed, download(p.normed, s.rows * hidden));
  show(config_.num_layers, normed);
  return {};
}

// Captured at the first use of a path and plan; the same launches afterwards.
Status Chain::replay(std::size_t plan) {
  Params p = params();
  divide_memory(kColumnPlans[plan], p);
  const auto all = static_cast<int>(layers().size());
  if (++steps_ == options_.abandon_step) return launch(p, options_.abandon_layer);
  if (!options_.graphs) return launch(p, all);
  cudaGraphExec_t& exec = graphs_[fused_ ? 1 : 0][plan];
  if (exec == nullptr) {
    ML_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    const Status status = launch(p, all);
    cudaGraph_t graph = nullptr;
    const cudaError_t error = cudaStreamEndCapture(stream_, &graph);
    if (!status.ok() || error != cudaSuccess) {
      if (graph != nullptr) cudaGraphDestroy(graph);
      ML_RETURN_IF_ERROR(status);
      return cuda_status(error, "graph capture");
    }
    const cudaError_t made = cudaGraphInstantiate(&exec, graph, 0);
    cudaGraphDestroy(graph);
    ML_RETURN_IF_ERROR(cuda_status(made, "graph"));
  }
  ML_CUDA(cudaGraphLaunch(exec, stream_));
  return {};
}

Status Chain::check_record() {
  Record r{};
  if (peers_ != nullptr) {
    ML_ASSIGN_OR_RETURN(r, peers_->read_record(0));
  } else {
    if (!fused_) return {};
    ML_ASSIGN_OR_RETURN(const auto record, download(params().record, 1));
    r = record[0];
  }
  if (r.set == 0) return {};
  // On one device nobody waits any more and the next step may work; a group has failed for good.
  if (peers_ == nullptr) ML_CUDA(cudaMemsetAsync(params().record, 0, sizeof(Record), stream_));
  if (peers_ != nullptr && options_.group == nullptr) ML_RETURN_IF_ERROR(peers_->clear_records());
  return {Code::kInternal, peers_ != nullptr ? "CUDA ranks" : "fused kernel", describe_record(r)};
}

Status Chain::run_rows(std::int64_t first, std::int64_t rows, std::vector<float>& logits,
                       m3::TraceSink* sink) {
  ML_RETURN_IF_ERROR(upload_step(first, rows, sink != nullptr));
  if (sink != nullptr) {
    Params p = params();
    divide_memory(kMaxRows, p);
    ML_RETURN_IF_ERROR(trace(p, *sink));
  } else {
    ML_RETURN_IF_ERROR(replay(column_plan(rows)));
  }
  ML_RETURN_IF_ERROR(gather_results(wanted_rows_));
  ML_RETURN_IF_ERROR(fetch_kept(first, rows));
  take_results(logits);
  return {};
}

Status Chain::step(std::span<const cpu::StepSequence> sequences, cpu::CachePool& cache,
                   std::vector<float>& logits, m3::TraceSink* sink) {
  if (!cache.fits(config_))
    return {Code::kInvalidArgument, "cache", "the pool was made for another model"};
  if (options_.group != nullptr) ML_RETURN_IF_ERROR(options_.group->status());
  // A step that no rank can run is refused by all of them alike, and nobody waits for anybody.
  Status planned = plan_step(sequences, cache);
  if (planned.code() == Code::kInvalidArgument) return planned;
  if (planned.ok()) choose_path(cache);
  const Status status = planned.ok() ? run_step(cache, logits, sink) : planned;
  // Peers must not wait for what this rank will not do any more.
  if (!status.ok() && options_.group != nullptr) options_.group->fail(status);
  ML_RETURN_IF_ERROR(status);
  ML_RETURN_IF_ERROR(check_results());
  ++(fused_ ? paths_.mono : paths_.native);
  if (!fused_) paths_.why_native = why_native_;
  return {};
}

// kInvalidArgument for what is wrong with the step itself, which every rank finds.
Status Chain::plan_step(std::span<const cpu::StepSequence> sequences, const cpu::CachePool& cache) {
  try {
    ML_RETURN_IF_ERROR(plan_.build(sequences, config_, cache));
    // Tables, scores and partial sums have room for as many pages as the pool; pages that are only
    // read may repeat, so that a table of valid pages can be longer.
    for (std::size_t s = 0; s < plan_.sequences().size(); ++s) {
      const auto pages = static_cast<std::int64_t>(plan_.sequences()[s].pages.size());
      if (pages > cache.pages())
        return {Code::kInvalidArgument, "sequence " + std::to_string(s),
                "uses " + std::to_string(pages) + " pages, at most the pool's " +
                    std::to_string(cache.pages()) + " fit a table on the device"};
    }
  } catch (const std::bad_alloc&) {
    return {Code::kResourceExhausted, "step", "no host memory for the step"};
  }
  return {};
}

// What a step's path is decided by: the hardest of its passes, whose rows each stand for
// themselves.
cpu::StepShape Chain::judged_shape(const cpu::CachePool& cache) const {
  cpu::StepShape shape =
      cpu::shape_of(plan_, std::min(config_.max_positions, cache.pages() * kPageTokens));
  shape.requests = shape.rows;
  shape.shortest_query = shape.longest_query = 1;
  if (shape.rows <= kMaxRows) return shape;
  shape.rows = shape.requests = kMaxRows;
  shape.key_groups = 0;
  for (std::int64_t first = 0; first < plan_.rows(); first += kMaxRows) {
    std::int64_t groups = 0;
    for (std::int64_t r = first; r < std::min(first + kMaxRows, plan_.rows()); ++r)
      groups += plan_.row(r).position / 16 + 1;
    shape.key_groups = std::max(shape.key_groups, groups);
  }
  return shape;
}

// The same on every rank: the policy's answer depends on the step alone.
void Chain::choose_path(const cpu::CachePool& cache) {
  if (!fuses_) {
    fused_ = false;
    why_native_ = "no layer can be fused";
    return;
  }
  if (options_.policy == nullptr) {
    fused_ = options_.path == Path::kMono;
    why_native_ = "native was chosen";
    return;
  }
  const cpu::StepShape shape = judged_shape(cache);
  fused_ = options_.policy->fused(shape, options_.group == nullptr ? 0 : options_.group->rank());
  if (!fused_) why_native_ = options_.policy->reason(shape);
}

Status Chain::ensure_bound(const cpu::CachePool& cache) {
  ML_CUDA(cudaSetDevice(options_.device));
  // Another pool may lie where the last one was.
  if (bound_ == &cache && bound_pages_ == cache.pages() && bound_options_ == cache.options())
    return {};
  Status bound = bind(cache);
  if (options_.group != nullptr) ML_RETURN_IF_ERROR(options_.group->agree(bound).status);
  return bound;
}

Status Chain::prepare(cpu::CachePool& cache) {
  if (!cache.fits(config_))
    return {Code::kInvalidArgument, "cache", "the pool was made for another model"};
  try {
    return ensure_bound(cache);
  } catch (const std::bad_alloc&) {
    Status status(Code::kResourceExhausted, "CUDA caches", "no host memory for them");
    if (options_.group != nullptr) options_.group->fail(status);
    return status;
  }
}

Status Chain::run_step(cpu::CachePool& cache, std::vector<float>& logits, m3::TraceSink* sink) {
  try {
    ML_RETURN_IF_ERROR(ensure_bound(cache));
    logits.resize(static_cast<std::size_t>(plan_.full_rows() * config_.vocab_size));
    likeliest_.assign(static_cast<std::size_t>(plan_.logit_rows()), 0);
    greedy_ids_.resize(static_cast<std::size_t>(plan_.greedy_rows()));
    for (std::int64_t first = 0; first < plan_.rows(); first += kMaxRows) {
      ML_RETURN_IF_ERROR(
          run_rows(first, std::min<std::int64_t>(kMaxRows, plan_.rows() - first), logits, sink));
    }
  } catch (const std::bad_alloc&) {
    return {Code::kResourceExhausted, "step", "no host memory for the step"};
  }
  return {};
}

}  // namespace monolayer::cuda
