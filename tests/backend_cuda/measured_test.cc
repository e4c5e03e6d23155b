// Whose figures a model's steps are judged by.
#include "backend/cuda/measured.h"

#include <gtest/gtest.h>

namespace monolayer::test {
namespace {

// What tells the kernels: sizes of MiniMax-M3, formats of the first sparse layer.
struct Model {
  m3::ModelConfig config;
  m3::ModelWeights weights;
  Model() {
    config.hidden_size = 6144;
    config.vocab_size = 200064;
    config.num_heads = 64;
    config.num_kv_heads = 4;
    config.head_dim = 128;
    config.index_heads = 4;
    config.index_dim = 128;
    config.num_experts = 128;
    config.dense_width = 12288;
    config.expert_width = config.shared_width = 3072;
    config.layers = {{.sparse_attention = true, .moe = true}};
    weights.layers.resize(1);
    weights.layers[0].q.format = WeightFormat::kFP8PerChannel;
    weights.layers[0].experts.resize(1);
    weights.layers[0].experts[0].gate.format = WeightFormat::kMXFP4;
  }
  // Rows of the largest step that is fused, 0 for none.
  std::int64_t fused_rows(int ranks, DType index = DType::kE4M3) const {
    cpu::CacheOptions caches;
    caches.kv = DType::kE4M3;
    caches.index = index;
    std::int64_t rows = 0;
    for (const cpu::FusedSpan& span : cuda::fused_spans(config, weights, caches, ranks))
      if (span.groups > 0) rows = span.rows;
    return rows;
  }
};

TEST(Measured, FiguresAreOfTheKernelsThatRun) {
  const Model model;
  for (const int ranks : {1, 2, 4}) EXPECT_EQ(model.fused_rows(ranks), 16) << ranks;
  EXPECT_EQ(model.fused_rows(8), 0);  // half of the query heads to a KV head
  EXPECT_EQ(model.fused_rows(3), 0);  // no such group
  EXPECT_EQ(model.fused_rows(4, DType::kBF16), 0);
}

}  // namespace
}  // namespace monolayer::test
