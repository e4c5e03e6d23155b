// Which layers the kernels compiled for MiniMax-M3 take: the model's, on a rank of up to four, and
// nothing whose packed matrices differ from the constants of those kernels.
#include "backend/cuda/m3_shape.h"

#include <cmath>

#include <gtest/gtest.h>

#include "backend/cuda/pack.h"

namespace monolayer::cuda {
namespace {

struct Sizes {
  std::int64_t heads = 64, kv_heads = 4, width = 3072, shared_width = 3072, hidden = 6144;
  int ranks = 1;
};

Shape shape_of(const Sizes& sizes) {
  Shape s{};
  s.hidden = static_cast<std::int32_t>(sizes.hidden);
  s.head_dim = s.index_dim = s.block_size = s.experts = 128;
  s.rotary = 64;
  s.group = static_cast<std::int32_t>(sizes.heads / sizes.kv_heads);
  s.topk = 16;
  s.chosen = 4;
  s.kv_fp8 = s.index_fp8 = 1;
  s.projected = 9216;
  return s;
}

Layer layer_of(const Sizes& z) {
  const int parts = 8 / z.ranks;
  Layer l;
  l.sparse = l.moe = l.shared = 1;
  l.qkv = describe(Format::kE4M3Half, (z.heads + 4 * z.kv_heads) / z.ranks * 128, z.hidden, 8);
  l.index_q_scale = half_scale(std::sqrt(128.0F));
  l.o = describe(Format::kE4M3Half, z.hidden, z.heads / z.ranks * 128, parts);
  l.router = describe(Format::kBF16, 128, z.hidden, 16);
  l.gate_up = describe(Format::kMXFP4, 2 * z.width / z.ranks, z.hidden, 8);
  l.down = describe(Format::kMXFP4, z.hidden, z.width / z.ranks, parts);
  l.shared_gate_up = describe(Format::kMXFP4, 2 * z.shared_width / z.ranks, z.hidden, 8);
  l.shared_down = describe(Format::kMXFP4, z.hidden, z.shared_width / z.ranks, parts);
  return l;
}

bool taken(const Sizes& sizes) { return m3_layer(shape_of(sizes), layer_of(sizes)); }

TEST(M3Shape, TheModelOnOneToFourRanks) {
  for (const int ranks : {1, 2, 4}) {
    const Layer layer = layer_of({.ranks = ranks});
    Shape shape = shape_of({});
    EXPECT_TRUE(m3_layer(shape, layer)) << ranks;
    EXPECT_EQ(m3_refusal(shape, layer), "") << ranks;
    shape.index_fp8 = 0;
    EXPECT_FALSE(m3_layer(shape, layer)) << ranks;
    EXPECT_EQ(m3_refusal(shape, layer), "index keys are cached in BF16, not E4M3");
    shape.kv_fp8 = 0;
    EXPECT_FALSE(m3_layer(shape, layer)) << ranks;
    EXPECT_EQ(m3_refusal(shape, layer), "keys and values are cached in BF16, not E4M3");
  }
}

// A rank of eight has one KV head, copied, with half of its query heads.
TEST(M3Shape, EightRanksAreForTheOtherKernels) {
  const Sizes sizes{.kv_heads = 8, .ranks = 8};
  EXPECT_EQ(m3_refusal(shape_of(sizes), layer_of(sizes)), "query heads to a KV head: 8, not 16");
}

TEST(M3Shape, OtherSizesAreForTheOtherKernels) {
  EXPECT_TRUE(taken({}));
  EXPECT_FALSE(taken({.heads = 32, .kv_heads = 2}));
  EXPECT_FALSE(taken({.width = 1536}));
  EXPECT_FALSE(taken({.width = 2048}));
  EXPECT_FALSE(taken({.shared_width = 1536}));
  EXPECT_FALSE(taken({.shared_width = 6144}));
  EXPECT_FALSE(taken({.hidden = 3072}));
}

TEST(M3Shape, EverySizeIsCompared) {
  const Layer layer = layer_of({});
  for (std::int32_t Shape::*size :
       {&Shape::hidden, &Shape::head_dim, &Shape::index_dim, &Shape::rotary, &Shape::group,
        &Shape::block_size, &Shape::topk, &Shape::chosen, &Shape::experts}) {
    Shape shape = shape_of({});
    shape.*size += 16;
    const std::string why = m3_refusal(shape, layer);
    EXPECT_NE(why.find(std::to_string(shape.*size) + ", not " + std::to_string(shape.*size - 16)),
              std::string::npos)
        << why;
  }
}

TEST(M3Shape, IndexQueriesTooLargeForFP16AreForTheOtherKernels) {
  Layer layer = layer_of({});
  layer.index_q_scale = half_scale(1e12F);
  EXPECT_EQ(m3_refusal(shape_of({}), layer), "the norm of index queries is too large for FP16");
}

// Blocks add to the columns of the stream that are theirs in both stages.
TEST(M3Shape, OtherNumbersOfRowsAreForTheOtherKernels) {
  for (Matrix Layer::*matrix : {&Layer::o, &Layer::down, &Layer::shared_down}) {
    Layer layer = layer_of({});
    const Matrix& m = layer.*matrix;
    layer.*matrix = describe(m.format, std::int64_t{16} * m.row_groups + 16, m.cols, m.parts);
    EXPECT_EQ(m3_refusal(shape_of({}), layer), "o or down does not have hidden_size rows");
  }
}

TEST(M3Shape, OtherFormatsAreForTheOtherKernels) {
  const Shape shape = shape_of({});
  for (Matrix Layer::*matrix : {&Layer::qkv, &Layer::o, &Layer::router, &Layer::gate_up,
                                &Layer::down, &Layer::shared_gate_up, &Layer::shared_down}) {
    Layer layer = layer_of({});
    const Matrix& m = layer.*matrix;
    const Format other = m.format == Format::kBF16 ? Format::kE4M3 : Format::kBF16;
    if (matrix == &Layer::router) {  // as released checkpoints have it
      layer.*matrix = describe(Format::kF32, std::int64_t{16} * m.row_groups, m.cols, m.parts);
      EXPECT_EQ(m3_refusal(shape, layer), "");
      layer.*matrix = layer_of({}).*matrix;
    }
    layer.*matrix = describe(other, std::int64_t{16} * m.row_groups, m.cols, m.parts);
    EXPECT_FALSE(m3_layer(shape, layer));
    EXPECT_NE(m3_refusal(shape, layer).find("of M3's shape"), std::string::npos);
    if (m.format == Format::kE4M3Half) {
      layer.*matrix = m;
      (layer.*matrix).format = Format::kE4M3;
      EXPECT_FALSE(m3_layer(shape, layer));
    }
    layer.*matrix = {};
    EXPECT_FALSE(m3_layer(shape, layer));
  }
}

Layer dense_layer_of(int ranks, std::int64_t width = 12288) {
  Layer l = layer_of({.ranks = ranks});
  l.sparse = l.moe = 0;
  l.qkv = describe(Format::kE4M3Half, (64 + 2 * 4) / ranks * 128, 6144, 8);
  l.router = l.gate_up = l.down = {};
  l.shared_gate_up = describe(Format::kE4M3Half, 2 * width / ranks, 6144, 8);
  l.shared_down = describe(Format::kE4M3Half, 6144, width / ranks, 8 / ranks);
  return l;
}

TEST(M3Shape, DenseLayersHaveKernelsOfTheirOwn) {
  const Shape shape = shape_of({});
  for (const int ranks : {1, 2, 4}) {
    const Layer layer = dense_layer_of(ranks);
    EXPECT_EQ(m3_dense_refusal(shape, layer), "") << ranks;
    EXPECT_EQ(kernels_of(shape, layer), Kernels::kDenseM3);
    EXPECT_EQ(m3_refusal(shape, layer), "a layer is not sparse in attention and experts");
    EXPECT_EQ(kernels_of(shape, layer_of({.ranks = ranks})), Kernels::kSparseM3);
    EXPECT_EQ(m3_dense_refusal(shape, layer_of({.ranks = ranks})),
              "a layer is not dense in attention and MLP");
  }
}

TEST(M3Shape, OtherDenseLayersAreForTheOtherKernels) {
  for (std::int32_t Shape::*size :
       {&Shape::hidden, &Shape::head_dim, &Shape::rotary, &Shape::group}) {
    Shape shape = shape_of({});
    shape.*size += 16;
    EXPECT_NE(m3_dense_refusal(shape, dense_layer_of(4)).find(", not "), std::string::npos);
  }
  // What only sparse layers have does not count.
  Shape other_experts = shape_of({});
  other_experts.experts = 64;
  other_experts.index_fp8 = 0;
  EXPECT_EQ(m3_dense_refusal(other_experts, dense_layer_of(4)), "");
  Shape other_cache = shape_of({});
  other_cache.kv_fp8 = 0;
  EXPECT_EQ(m3_dense_refusal(other_cache, dense_layer_of(4)),
            "keys and values are cached in BF16, not E4M3");
  Shape narrow = shape_of({});
  narrow.projected = 700;
  EXPECT_EQ(m3_dense_refusal(narrow, dense_layer_of(4)),
            "the MLP is 6144 rows, more than 8 times the 700 of the projections");
  EXPECT_EQ(m3_dense_refusal(shape_of({}), dense_layer_of(4, 6144)),
            "the MLP's weights are not FP8 of M3's shape");
  for (Matrix Layer::*matrix :
       {&Layer::qkv, &Layer::o, &Layer::shared_gate_up, &Layer::shared_down}) {
    Layer layer = dense_layer_of(4);
    const Matrix m = layer.*matrix;
    (layer.*matrix).format = Format::kE4M3;
    EXPECT_EQ(kernels_of(shape_of({}), layer), Kernels::kAny);
    layer.*matrix = describe(Format::kBF16, std::int64_t{16} * m.row_groups, m.cols, m.parts);
    EXPECT_EQ(kernels_of(shape_of({}), layer), Kernels::kAny);
    layer.*matrix = {};
    EXPECT_EQ(kernels_of(shape_of({}), layer), Kernels::kAny);
  }
}

TEST(M3Shape, TheHead) {
  const Shape shape = shape_of({});
  EXPECT_TRUE(m3_head(shape, describe(Format::kBF16, 50016, 6144, 8)));
  EXPECT_FALSE(m3_head(shape, describe(Format::kE4M3, 50016, 6144, 8)));
  EXPECT_FALSE(m3_head(shape, describe(Format::kBF16, 50016, 3072, 8)));
  Shape other = shape;
  other.hidden = 3072;
  EXPECT_FALSE(m3_head(other, describe(Format::kBF16, 50016, 3072, 8)));
}

}  // namespace
}  // namespace monolayer::cuda
