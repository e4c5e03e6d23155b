#include "mono/library_fixture.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace monolayer::mono::test {
namespace {

constexpr std::int32_t kRowLayouts[] = {ML_LAYOUT_ROWS};
constexpr std::int32_t kPageLayouts[] = {ML_LAYOUT_PAGES};
constexpr std::string_view kStages[kFakeStages] = {"local allocation", "peer allocation",
                                                   "handle exchange",  "peer mapping",
                                                   "mailbox state",    "warm-up"};

ml_model small_model() {
  ml_model model{};
  model.size = sizeof model;
  model.num_layers = 6;
  model.hidden_size = 64;
  model.num_heads = 8;
  model.num_kv_heads = 4;
  model.head_dim = 32;
  model.rotary_dim = 16;
  model.index_heads = 4;
  model.index_dim = 32;
  model.block_size = 128;
  model.topk_blocks = 4;
  model.local_blocks = 1;
  model.num_experts = 4;
  model.experts_per_token = 2;
  model.expert_width = 256;
  model.shared_width = 256;
  model.max_positions = 1 << 20;
  model.rope_theta = 10000;
  model.rms_eps = 1e-6F;
  model.routed_scale = 1;
  model.swiglu_alpha = 1.702F;
  model.swiglu_limit = 7;
  model.swiglu_beta = 1;
  return model;
}

class FakeExecutor : public Executor {
 public:
  FakeExecutor(ExecutorConfig config, FakeLog& log, Status failure)
      : config_(std::move(config)), log_(log), failure_(std::move(failure)) {
    ++log_.live_executors;
    ++log_.local_allocations;
  }
  ~FakeExecutor() override {
    --log_.live_executors;
    --log_.local_allocations;
  }
  Status prepare(std::span<const StepRow> rows) override {
    rows_ = rows.size();
    return {};
  }
  Status prepare_checked(std::span<const StepRow> rows) override { return prepare(rows); }
  Status run_layers(std::int64_t first, std::int64_t count, const bf16_t* hidden,
                    const bf16_t* residual, bf16_t* hidden_out, bf16_t* residual_out) override {
    ++log_.runs;
    if (!failure_.ok()) return failure_;
    const std::size_t n = rows_ * static_cast<std::size_t>(config_.shape.hidden_size);
    for (std::size_t i = 0; i < n; ++i) {
      hidden_out[i] = static_cast<bf16_t>(hidden[i] + first + count);
      residual_out[i] = residual[i];
    }
    return {};
  }
  std::span<const std::int32_t> selections() const override { return {}; }
  const ExecutorStatistics& statistics() const override { return statistics_; }
  Status close() override {
    ++log_.closes;
    return config_.group != nullptr ? config_.group->barrier() : Status{};
  }

 private:
  ExecutorConfig config_;
  FakeLog& log_;
  Status failure_;
  std::size_t rows_ = 0;
  ExecutorStatistics statistics_;
};

class FakeConstruction : public Construction {
 public:
  FakeConstruction(ExecutorConfig config, FakeBackend& backend)
      : config_(std::move(config)), backend_(backend) {
    ++backend_.log().constructions;
  }
  ~FakeConstruction() override { backend_.log().local_allocations -= held_; }
  std::span<const std::string_view> stages() const override { return kStages; }
  Status run(std::size_t stage) override {
    if (static_cast<int>(stage) == backend_.fail_stage) return backend_.stage_failure;
    ++held_;
    ++backend_.log().local_allocations;
    return {};
  }
  std::unique_ptr<Executor> finish() override {
    return std::make_unique<FakeExecutor>(std::move(config_), backend_.log(), backend_.run_failure);
  }

 private:
  ExecutorConfig config_;
  FakeBackend& backend_;
  int held_ = 0;
};

}  // namespace

const DeviceTraits& FakeBackend::cpu_traits() {
  static const DeviceTraits traits = [] {
    DeviceTraits t;
    t.weight_layouts = kRowLayouts;
    t.cache_layouts = kPageLayouts;
    t.activation_layouts = kRowLayouts;
    return t;
  }();
  return traits;
}

std::unique_ptr<Construction> FakeBackend::construct(ExecutorConfig config, const BuildOptions&) {
  return std::make_unique<FakeConstruction>(std::move(config), *this);
}

Deployment::Deployment(const Options& options) : options_(options) {
  input.model = small_model();
  m3::ModelConfig config = check_model(input.model).value();
  shape_ = m3::rank_shape(config, options.rank, options.ranks).value();
  input.context.size = sizeof(ml_tp_context);
  input.context.rank = options.rank;
  input.context.tp_size = options.ranks;
  input.context.device_type = ML_DEVICE_CPU;
  for (std::int64_t id = 3; id < 6; ++id) {
    input.layers.push_back(layer(id));
    input.caches.push_back(cache(id));
  }
}

ml_tensor Deployment::tensor(std::int32_t dtype, std::initializer_list<std::int64_t> shape,
                             std::int32_t layout) {
  ml_tensor t = ML_TENSOR_INIT;
  t.dtype = dtype;
  t.layout = layout;
  t.device_type = ML_DEVICE_CPU;
  std::int64_t elements = 1;
  for (const std::int64_t dim : shape) t.shape[t.rank++] = dim;
  for (int axis = t.rank - 1; axis >= 0; --axis) {
    t.strides[axis] = elements;
    elements *= t.shape[axis];
  }
  const auto bytes = static_cast<std::size_t>(elements * abi_dtype_size(dtype));
  memory_.push_back(std::make_unique<std::byte[]>(bytes + 64));
  auto at = reinterpret_cast<std::uintptr_t>(memory_.back().get());
  t.data = reinterpret_cast<void*>((at + 63) / 64 * 64);
  return t;
}

ml_matrix Deployment::matrix(std::int64_t rows, std::int64_t cols, std::int32_t dtype,
                             std::int32_t scale, std::int64_t count) {
  ml_matrix m{};
  m.size = sizeof m;
  m.weight.size = m.scale.size = sizeof(ml_tensor);
  const std::int64_t stored = dtype == ML_E2M1X2 ? cols / 2 : cols;
  m.weight = count > 0 ? tensor(dtype, {count, rows, stored}) : tensor(dtype, {rows, stored});
  if (scale == ML_F32) m.scale = count > 0 ? tensor(scale, {count, rows}) : tensor(scale, {rows});
  if (scale == ML_E8M0) {
    m.scale =
        count > 0 ? tensor(scale, {count, rows, cols / 32}) : tensor(scale, {rows, cols / 32});
  }
  return m;
}

ml_mlp Deployment::mlp(std::int64_t width, std::int32_t dtype, std::int32_t scale,
                       std::int64_t count) {
  ml_mlp m{};
  m.size = sizeof m;
  m.gate = matrix(width, input.model.hidden_size, dtype, scale, count);
  m.up = matrix(width, input.model.hidden_size, dtype, scale, count);
  m.down = matrix(input.model.hidden_size, width, dtype, scale, count);
  return m;
}

LayerInput Deployment::layer(std::int64_t id) {
  const ml_model& model = input.model;
  LayerInput out{};
  ml_layer_spec& spec = out.spec;
  spec.size = sizeof spec;
  spec.layer_id = static_cast<std::int32_t>(id);
  for (ml_tensor* t : {&spec.input_norm, &spec.post_norm})
    *t = tensor(ML_BF16, {model.hidden_size});
  for (ml_tensor* t : {&spec.q_norm, &spec.k_norm}) *t = tensor(ML_BF16, {model.head_dim});
  for (ml_tensor* t : {&spec.index_q_norm, &spec.index_k_norm}) {
    *t = tensor(ML_BF16, {model.index_dim});
  }
  const std::int64_t q = shape_.heads * model.head_dim, kv = shape_.kv_heads * model.head_dim;
  spec.q = matrix(q, model.hidden_size, ML_E4M3, ML_F32);
  spec.k = matrix(kv, model.hidden_size, ML_E4M3, ML_F32);
  spec.v = matrix(kv, model.hidden_size, ML_E4M3, ML_F32);
  spec.index_q = matrix(shape_.kv_heads * model.index_dim, model.hidden_size, ML_BF16, 0);
  spec.index_k = matrix(model.index_dim, model.hidden_size, ML_BF16, 0);
  spec.o = matrix(model.hidden_size, q, ML_E4M3, ML_F32);
  spec.router = matrix(model.num_experts, model.hidden_size, ML_F32, 0);
  spec.router_bias = tensor(ML_F32, {model.num_experts});
  const std::int64_t count = model.num_experts + (options_.fused_shared ? 1 : 0);
  if (options_.stacked) {
    spec.stacked = mlp(shape_.expert_width, ML_E2M1X2, ML_E8M0, count);
  } else {
    for (std::int64_t e = 0; e < count; ++e) {
      out.experts.push_back(mlp(shape_.expert_width, ML_E2M1X2, ML_E8M0));
    }
  }
  if (!options_.fused_shared) spec.shared = mlp(shape_.shared_width, ML_E4M3, ML_E8M0);
  return out;
}

ml_cache_spec Deployment::cache(std::int64_t layer_id) {
  ml_cache_spec spec{};
  spec.size = sizeof spec;
  spec.layer_id = static_cast<std::int32_t>(layer_id);
  const ml_model& m = input.model;
  spec.k = tensor(options_.cache, {kBlocks, shape_.kv_heads, ML_BLOCK_TOKENS, m.head_dim},
                  ML_LAYOUT_PAGES);
  spec.v = tensor(options_.cache, {kBlocks, shape_.kv_heads, ML_BLOCK_TOKENS, m.head_dim},
                  ML_LAYOUT_PAGES);
  spec.index = tensor(options_.cache, {kBlocks, ML_BLOCK_TOKENS, m.index_dim}, ML_LAYOUT_PAGES);
  spec.k_scale = spec.v_scale = spec.index_scale = 1;
  spec.max_context = kBlocks * ML_BLOCK_TOKENS;
  return spec;
}

void on_ranks(int ranks, const std::function<void(int, tp::Group&)>& f) {
  auto groups = tp::make_thread_group(ranks);
  ASSERT_TRUE(groups.ok()) << groups.status().to_string();
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      tp::Group& group = *(*groups)[static_cast<std::size_t>(rank)];
      f(rank, group);
      static_cast<void>(group.close());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

Step::Step(std::vector<std::int32_t> lengths, std::int32_t query, std::int32_t padded_rows)
    : md{}, seq_lens(std::move(lengths)) {
  md.size = sizeof md;
  md.query_len = query;
  md.requests = static_cast<std::int32_t>(seq_lens.size());
  md.token_count = md.requests * query + padded_rows;
  md.table_width = md.index_table_width = static_cast<std::int32_t>(kBlocks);
  main_table.assign(static_cast<std::size_t>(md.requests) * kBlocks, 0);
  index_table = main_table;
  std::int32_t next = 0;
  for (std::size_t r = 0; r < seq_lens.size(); ++r) {
    const std::int64_t used = (seq_lens[r] + ML_BLOCK_TOKENS - 1) / ML_BLOCK_TOKENS;
    for (std::int64_t i = 0; i < used; ++i, ++next) {
      const auto at = r * kBlocks + static_cast<std::size_t>(i);
      main_table[at] = next;
      index_table[at] = static_cast<std::int32_t>(kBlocks) - 1 - next;
    }
    for (std::int32_t j = 0; j < query; ++j) {
      const std::int64_t position = seq_lens[r] - query + j;
      positions.push_back(std::max<std::int64_t>(position, 0));
      const bool live = seq_lens[r] >= query;
      const auto slot = [&](const std::vector<std::int32_t>& table) -> std::int64_t {
        if (!live) return -1;
        return std::int64_t{table[r * kBlocks + static_cast<std::size_t>(position / 128)]} * 128 +
               position % 128;
      };
      main_slots.push_back(slot(main_table));
      index_slots.push_back(slot(index_table));
    }
  }
  for (std::int32_t i = 0; i < padded_rows; ++i) {
    main_slots.push_back(-1);
    index_slots.push_back(-1);
    positions.push_back(0);
  }
  refresh();
}

void Step::refresh() {
  md.main_table = main_table.data();
  md.index_table = index_table.data();
  md.seq_lens = seq_lens.data();
  md.main_slots = main_slots.data();
  md.index_slots = index_slots.data();
}

ml_tensor activation(void* data, std::int64_t rows, std::int64_t hidden) {
  ml_tensor t = ML_TENSOR_INIT;
  t.dtype = ML_BF16;
  t.layout = ML_LAYOUT_ROWS;
  t.device_type = ML_DEVICE_CPU;
  t.rank = 2;
  t.data = data;
  t.shape[0] = rows;
  t.shape[1] = hidden;
  t.strides[0] = hidden;
  t.strides[1] = 1;
  return t;
}

ml_tensor position_tensor(std::vector<std::int64_t>& positions) {
  ml_tensor t = ML_TENSOR_INIT;
  t.dtype = ML_I64;
  t.layout = ML_LAYOUT_ROWS;
  t.device_type = ML_DEVICE_CPU;
  t.rank = 1;
  t.data = positions.data();
  t.shape[0] = static_cast<std::int64_t>(positions.size());
  t.strides[0] = 1;
  return t;
}

}  // namespace monolayer::mono::test
