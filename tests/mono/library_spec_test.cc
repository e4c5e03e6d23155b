// T-C6: every wrong dtype, shape, stride, alignment, device or layout tag is refused by name, and
// nothing is replaced or allocated.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "mono/library_fixture.h"

namespace monolayer::mono {
namespace {

using test::Deployment;
using test::FakeBackend;

Result<ExecutorConfig> check(const LibraryInput& input) {
  return check_input(input, FakeBackend::cpu_traits());
}

TEST(LibrarySpec, GoodDeploymentsAreTaken) {
  for (const bool fused : {true, false}) {
    for (const bool stacked : {true, false}) {
      for (const std::int32_t cache : {ML_BF16, ML_E4M3}) {
        for (const int ranks : {1, 2, 4, 8}) {
          Deployment d({ranks - 1, ranks, fused, stacked, cache});
          const auto config = check(d.input);
          ASSERT_TRUE(config.ok()) << config.status().to_string();
          EXPECT_EQ(config->layers.size(), 3U);
          EXPECT_EQ(config->shape.num_heads, 8 / ranks);
          EXPECT_EQ(config->shape.num_kv_heads, ranks >= 4 ? 1 : 4 / ranks);
          EXPECT_EQ(config->shape.expert_width, 256 / ranks);
          EXPECT_EQ(config->layers[0].experts.size(), 4U);
          EXPECT_FALSE(config->layers[0].shared.gate.empty());
          EXPECT_EQ(config->caches[0].kv, cache == ML_BF16 ? DType::kBF16 : DType::kE4M3);
        }
      }
    }
  }
}

TEST(LibrarySpec, ViewsPointIntoTheCallersMemory) {
  Deployment d;
  const auto config = check(d.input);
  ASSERT_TRUE(config.ok());
  const ml_layer_spec& spec = d.input.layers[1].spec;
  EXPECT_EQ(config->layers[1].q.data, spec.q.weight.data);
  EXPECT_EQ(config->layers[1].q.scales, spec.q.scale.data);
  const auto* table = static_cast<const std::byte*>(spec.stacked.down.weight.data);
  EXPECT_EQ(config->layers[1].experts[3].down.data, table + 3 * 64 * 128);
  EXPECT_EQ(config->layers[1].shared.down.data, table + 4 * 64 * 128);
  EXPECT_EQ(config->caches[2].v, d.input.caches[2].v.data);
}

// Fused [gate | up] tables and column slices of a whole matrix are views with strides.
TEST(LibrarySpec, StridedViewsAreTaken) {
  Deployment d;
  ml_layer_spec& spec = d.input.layers[0].spec;
  const ml_tensor table = d.tensor(ML_E2M1X2, {5, 512, 32});
  for (ml_matrix* m : {&spec.stacked.gate, &spec.stacked.up}) {
    m->weight = table;
    m->weight.shape[1] = 256;
  }
  spec.stacked.up.weight.data = static_cast<std::byte*>(table.data) + 256 * 32;
  spec.o.weight.strides[0] = 512;
  const auto config = check(d.input);
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(config->layers[0].o.row_bytes, 512);
  const auto* at = static_cast<const std::byte*>(config->layers[0].experts[1].up.data);
  EXPECT_EQ(at - static_cast<const std::byte*>(table.data), 512 * 32 + 256 * 32);
}

ml_tensor angles(const LibraryInput& in, std::int32_t dtype, std::int64_t positions) {
  static std::vector<double> memory(4096 * 16);
  ml_tensor t = ML_TENSOR_INIT;
  t.data = memory.data();
  t.dtype = dtype;
  t.layout = ML_LAYOUT_ROWS;
  t.device_type = ML_DEVICE_CPU;
  t.rank = 2;
  t.shape[0] = positions;
  t.shape[1] = t.strides[0] = in.model.rotary_dim;
  t.strides[1] = 1;
  return t;
}

TEST(LibrarySpec, WhatIsLeftOutHasItsDefault) {
  Deployment d;
  d.input.model.shared_weight = 0;
  d.input.model.softmax_scale = 0;
  const auto plain = check(d.input);
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->shape.shared_weight, 1);
  EXPECT_EQ(plain->shape.attention_scale(), 1 / std::sqrt(32.0F));
  EXPECT_EQ(plain->rotary.data, nullptr);
  d.input.model.shared_weight = 0.5F;
  d.input.model.softmax_scale = 0.25F;
  d.input.model.cos_sin = angles(d.input, ML_F32, 4096);
  const auto config = check(d.input);
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(config->shape.shared_weight, 0.5F);
  EXPECT_EQ(config->shape.attention_scale(), 0.25F);
  EXPECT_EQ(config->rotary.data, d.input.model.cos_sin.data);
  EXPECT_EQ(config->rotary.positions, 4096);
  EXPECT_EQ(config->rotary.row_bytes, 64);
}

struct BadSpec {
  const char* name;
  std::function<void(LibraryInput&)> change;
  const char* said;
  Code code = Code::kInvalidArgument;
};

class LibrarySpecRefusals : public testing::TestWithParam<BadSpec> {};

TEST_P(LibrarySpecRefusals, NameLayerTensorValueAndBound) {
  Deployment d;
  GetParam().change(d.input);
  const auto config = check(d.input);
  ASSERT_FALSE(config.ok());
  EXPECT_EQ(config.status().code(), GetParam().code) << config.status().to_string();
  EXPECT_NE(config.status().to_string().find(GetParam().said), std::string::npos)
      << config.status().to_string();
}

ml_layer_spec& spec(LibraryInput& in) { return in.layers[1].spec; }  // layer 4
ml_cache_spec& cache(LibraryInput& in) { return in.caches[1]; }
void shift(ml_tensor& t, std::int64_t bytes) { t.data = static_cast<std::byte*>(t.data) + bytes; }

const BadSpec kBad[] = {
    {"model_hidden", [](auto& in) { in.model.hidden_size = 0; }, "model.hidden_size: is 0"},
    {"model_heads", [](auto& in) { in.model.num_kv_heads = 3; }, "num_kv_heads: is 3, must divide"},
    {"model_block", [](auto& in) { in.model.block_size = 100; }, "block_size: is 100, must divide"},
    {"model_topk", [](auto& in) { in.model.experts_per_token = 5; },
     "experts_per_token: is 5, must be in [1, 4]"},
    {"model_eps", [](auto& in) { in.model.rms_eps = 0; }, "rms_eps"},
    {"model_nan", [](auto& in) { in.model.rope_theta = std::numeric_limits<double>::quiet_NaN(); },
     "rope_theta: is nan"},
    {"model_shared_weight",
     [](auto& in) { in.model.shared_weight = std::numeric_limits<float>::infinity(); },
     "model.shared_weight: is inf, must be finite"},
    {"model_softmax_scale", [](auto& in) { in.model.softmax_scale = -0.5F; },
     "model.softmax_scale: is -0.500000, must be finite and positive"},
    {"cos_sin_type", [](auto& in) { in.model.cos_sin = angles(in, ML_I64, 4096); },
     "model.cos_sin: dtype I64"},
    {"cos_sin_width",
     [](auto& in) {
       in.model.cos_sin = angles(in, ML_BF16, 4096);
       in.model.cos_sin.shape[1] -= 2;
     },
     "model.cos_sin: shape"},
    {"cos_sin_short", [](auto& in) { in.model.cos_sin = angles(in, ML_F32, 100); },
     "model.cos_sin: shape [100, "},
    {"model_index_heads", [](auto& in) { in.model.index_heads = 1; }, "index_heads: is 1",
     Code::kUnsupported},
    {"tp_3", [](auto& in) { in.context.tp_size = 3; },
     "num_attention_heads of 8 is not a multiple of 3", Code::kUnsupported},
    {"tp_16",
     [](auto& in) {
       in.context.tp_size = 16;
       in.model.num_heads = 16;
       in.model.num_kv_heads = 16;
       in.model.index_heads = 16;
       in.model.expert_width = in.model.shared_width = 512;
     },
     "must be 1, 2, 4 or 8, is 16", Code::kUnsupported},
    {"tp_rank", [](auto& in) { in.context.rank = 1; }, "rank"},
    {"tp_device", [](auto& in) { in.context.device_type = ML_DEVICE_CUDA; }, "context.device_type",
     Code::kUnsupported},
    {"ids_order", [](auto& in) { in.layers[1].spec.layer_id = 2; },
     "layers[1].layer_id: is 2, must be above 3"},
    {"ids_duplicate", [](auto& in) { in.layers[1].spec.layer_id = 3; },
     "layers[1].layer_id: is 3, a duplicate"},
    {"ids_range", [](auto& in) { in.layers[2].spec.layer_id = 6; }, "must be in [0, 6)"},
    {"ids_negative", [](auto& in) { in.layers[0].spec.layer_id = -1; }, "is -1"},
    {"ids_unpaired", [](auto& in) { in.caches[1].layer_id = 5; },
     "caches[1].layer_id: is 5, the layer there is 4"},
    {"cache_missing", [](auto& in) { in.caches.pop_back(); }, "2 cache specs for 3 layers"},
    {"tensor_missing", [](auto& in) { spec(in).k_norm.data = nullptr; },
     "layer 4, k_norm: missing"},
    {"tensor_size", [](auto& in) { spec(in).q.weight.size = 8; },
     "layer 4, q.weight: size field is 8"},
    {"tensor_dtype", [](auto& in) { spec(in).input_norm.dtype = ML_F32; },
     "layer 4, input_norm: dtype F32 (1), accepted: BF16"},
    {"weight_dtype", [](auto& in) { spec(in).q.weight.dtype = ML_F32; },
     "layer 4, q.weight: dtype F32 (1), accepted: BF16, E4M3 or E2M1x2"},
    {"router_dtype", [](auto& in) { spec(in).router.weight.dtype = ML_E4M3; },
     "layer 4, router.weight: dtype E4M3"},
    {"fp8_alone", [](auto& in) { spec(in).o.scale.data = nullptr; }, "layer 4, o.scale: missing"},
    {"scale_dtype", [](auto& in) { spec(in).o.scale.dtype = ML_BF16; },
     "layer 4, o.scale: dtype BF16"},
    {"scale_extra", [](auto& in) { spec(in).index_q.scale = spec(in).q.scale; },
     "layer 4, index_q.scale: present"},
    {"shape_rank", [](auto& in) { spec(in).q.weight.rank = 1; },
     "layer 4, q.weight: rank 1, expected shape [256, 64]"},
    {"shape_rank_9", [](auto& in) { spec(in).q.weight.rank = 9; }, "layer 4, q.weight: rank 9"},
    {"shape", [](auto& in) { spec(in).v.weight.shape[0] = 64; },
     "layer 4, v.weight: shape [64, 64], expected [128, 64]"},
    {"stride_inner", [](auto& in) { spec(in).o.weight.strides[1] = 2; },
     "layer 4, o.weight: stride 2 of axis 1, must be 1"},
    {"stride_overlap", [](auto& in) { spec(in).o.weight.strides[0] = 255; },
     "layer 4, o.weight: stride 255 of axis 0, must be at least 256"},
    {"stride_negative", [](auto& in) { spec(in).o.weight.strides[0] = -256; }, "stride -256"},
    {"stride_huge", [](auto& in) { spec(in).o.weight.strides[0] = std::int64_t{1} << 62; },
     "exceeds 2^63 bytes"},
    {"alignment", [](auto& in) { shift(spec(in).post_norm, 1); },
     "layer 4, post_norm: data is not aligned to 2 bytes"},
    {"bias_alignment", [](auto& in) { shift(spec(in).router_bias, 2); },
     "layer 4, router_bias: data is not aligned to 4"},
    {"device", [](auto& in) { spec(in).k.weight.device_type = ML_DEVICE_CUDA; },
     "layer 4, k.weight: on device 2:0, the rank's device is 1:0"},
    {"device_index", [](auto& in) { spec(in).k.weight.device_index = 1; },
     "layer 4, k.weight: on device 1:1"},
    {"layout", [](auto& in) { spec(in).k.weight.layout = 77; },
     "layer 4, k.weight: layout tag 77, cpu accepts rows"},
    {"expert_shape", [](auto& in) { spec(in).stacked.up.weight.shape[1] = 128; },
     "layer 4, experts.up.weight: shape [5, 128, 32]"},
    {"expert_count", [](auto& in) { spec(in).stacked.gate.weight.shape[0] = 7; },
     "layer 4, experts: 7 experts, must be 4, or 5"},
    {"expert_none", [](auto& in) { spec(in).stacked = {}; }, "layer 4, experts: missing"},
    {"shared_twice", [](auto& in) { spec(in).shared = spec(in).stacked; },
     "layer 4, shared: given although"},
    {"shared_missing",
     [](auto& in) {
       auto& s = spec(in).stacked;
       for (ml_tensor* t : {&s.gate.weight, &s.up.weight, &s.down.weight, &s.gate.scale,
                            &s.up.scale, &s.down.scale})
         t->shape[0] = 4;
     },
     "layer 4, shared: missing"},
    {"shared_width", [](auto& in) { in.model.shared_width = 128; },
     "layer 3, experts: the table of 5 holds a shared expert of width 256"},
    {"cache_dtype", [](auto& in) { cache(in).k.dtype = ML_F32; },
     "layer 4, k cache: dtype F32 (1), accepted: BF16 or E4M3"},
    {"cache_shape", [](auto& in) { cache(in).k.shape[2] = 16; },
     "layer 4, k cache: shape [8, 4, 16, 32], expected [any, 4, 128, 32]"},
    {"cache_blocks", [](auto& in) { cache(in).index.shape[0] = 0; },
     "layer 4, index cache: shape [0, 128, 32]"},
    {"cache_too_many",
     [](auto& in) {
       auto& c = cache(in);
       c.k.shape[0] = c.v.shape[0] = (1 << 24) + 1;
     },
     "layer 4, k cache: 16777217 blocks of 128 slots, slots must stay below 2^31"},
    {"cache_align", [](auto& in) { shift(cache(in).k, 8); },
     "layer 4, k cache: data is not aligned to 16"},
    {"cache_kv_differ", [](auto& in) { cache(in).v.shape[0] = 7; },
     "layer 4, v cache: E4M3 [7, 4, 128, 32]"},
    {"cache_layout", [](auto& in) { cache(in).v.layout = ML_LAYOUT_ROWS; },
     "layer 4, v cache: layout rows, cpu accepts pages"},
    {"cache_scale_zero", [](auto& in) { cache(in).k_scale = 0; }, "layer 4, k_scale: is 0.0"},
    {"cache_scale_nan",
     [](auto& in) { cache(in).index_scale = std::numeric_limits<float>::infinity(); },
     "layer 4, index_scale: is inf"},
    {"cache_context", [](auto& in) { cache(in).max_context = (1 << 20) + 1; },
     "layer 4, max_context: is 1048577, must be in [1, 1048576]"},
    {"cache_context_differs", [](auto& in) { cache(in).max_context = 5; },
     "layer 4, max_context: is 5, layer 3 has 1024"},
    {"cache_capacity", [](auto& in) { cache(in).index.shape[0] = 4; },
     "layer 4, index cache blocks: is 4, layer 3 has 8"},
    {"cache_shared", [](auto& in) { cache(in).v.data = in.caches[0].k.data; },
     "layer 4, v cache: same memory as layer 3, k cache"},
};

INSTANTIATE_TEST_SUITE_P(All, LibrarySpecRefusals, testing::ValuesIn(kBad),
                         [](const auto& c) { return std::string(c.param.name); });

TEST(LibrarySpec, ReadsArraysBySizeField) {
  Deployment d;
  std::vector<ml_layer_spec> layers;
  for (const LayerInput& l : d.input.layers) layers.push_back(l.spec);
  const auto read = [&](std::int64_t count) {
    return read_input(&d.input.model, layers.data(), count, d.input.caches.data(), 3,
                      &d.input.context);
  };
  ASSERT_TRUE(read(3).ok());
  EXPECT_EQ(read(0).status().code(), Code::kInvalidArgument);
  layers[1].size = 16;
  EXPECT_NE(read(3).status().to_string().find("layers[1]: size field is 16"), std::string::npos);
  layers[0].size = sizeof(ml_layer_spec) + 8;
  EXPECT_NE(read(3).status().to_string().find("layers[0]: size field is"), std::string::npos);
  layers[0].size = sizeof(ml_layer_spec) - 3;
  EXPECT_NE(read(3).status().to_string().find("must be a multiple of 8"), std::string::npos);
  EXPECT_FALSE(read_input(nullptr, nullptr, 0, nullptr, 0, nullptr).ok());
}

TEST(LibrarySpec, StorageListNamesEveryPointer) {
  Deployment d({0, 1, false, false, ML_BF16});
  const auto pointers = storage_pointers(d.input);
  std::size_t named = 0;
  for (std::size_t i = 0; i < pointers.size(); ++i) {
    named += storage_name(d.input, static_cast<std::int64_t>(i)).empty() ? 0 : 1;
  }
  EXPECT_EQ(named, pointers.size());
  EXPECT_TRUE(storage_name(d.input, static_cast<std::int64_t>(pointers.size())).empty());
  EXPECT_EQ(storage_name(d.input, 0), "layer 3, input_norm");
  EXPECT_EQ(storage_name(d.input, static_cast<std::int64_t>(pointers.size()) - 1),
            "layer 5, index cache");
}

}  // namespace
}  // namespace monolayer::mono
