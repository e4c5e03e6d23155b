// Shapes of one rank against published figures, and the rules that refuse a size.
#include <string>

#include <gtest/gtest.h>

#include "m3/config.h"

namespace monolayer::m3 {
namespace {

ModelConfig released() {
  ModelConfig c;
  c.hidden_size = 6144;
  c.num_layers = 60;
  c.num_heads = 64;
  c.num_kv_heads = c.index_heads = 4;
  c.head_dim = c.index_dim = 128;
  c.vocab_size = 200064;
  c.dense_width = 12288;
  c.expert_width = c.shared_width = 3072;
  return c;
}

TEST(RankShape, PublishedTable) {
  struct Row {
    std::int64_t size, heads, kv, dense_qkv, sparse_qkv, expert, dense, vocab;
  };
  for (const Row& row :
       {Row{1, 64, 4, 9216, 9856, 3072, 12288, 200064},
        Row{2, 32, 2, 4608, 4992, 1536, 6144, 100032}, Row{4, 16, 1, 2304, 2560, 768, 3072, 50016},
        Row{8, 8, 1, 1280, 1536, 384, 1536, 25008}}) {
    for (std::int64_t rank = 0; rank < row.size; ++rank) {
      const auto shape = rank_shape(released(), rank, row.size);
      ASSERT_TRUE(shape.ok()) << shape.status().to_string();
      EXPECT_EQ(shape->heads, row.heads);
      EXPECT_EQ(shape->first_head, rank * row.heads);
      EXPECT_EQ(shape->kv_heads, row.kv);
      EXPECT_EQ(shape->first_kv_head, row.size == 8 ? rank / 2 : rank * row.kv);
      EXPECT_EQ(shape->qkv_rows, row.dense_qkv);
      EXPECT_EQ(shape->qkv_index_rows, row.sparse_qkv);
      EXPECT_EQ(shape->expert_width, row.expert);
      EXPECT_EQ(shape->shared_width, row.expert);
      EXPECT_EQ(shape->dense_width, row.dense);
      EXPECT_EQ(shape->vocab_rows, row.vocab);
    }
  }
}

void expect_refused(const ModelConfig& config, std::int64_t rank, std::int64_t size,
                    const std::string& dimension, const std::string& divisor) {
  const auto shape = rank_shape(config, rank, size);
  ASSERT_FALSE(shape.ok());
  const std::string text = shape.status().to_string();
  EXPECT_NE(text.find(dimension), std::string::npos) << text;
  EXPECT_NE(text.find(divisor), std::string::npos) << text;
}

// Fault 13: sizes and widths that would need padding are refused with the rule they break.
TEST(RankShape, RefusesWhatDoesNotDivide) {
  expect_refused(released(), 0, 3, "num_attention_heads of 64", "3");
  ModelConfig odd = released();
  odd.expert_width = 100;
  EXPECT_TRUE(rank_shape(odd, 0, 1).ok());
  expect_refused(odd, 0, 2, "intermediate_size of 100", "64");
  odd = released();
  odd.shared_width = 96;
  expect_refused(odd, 0, 4, "shared_intermediate_size of 96", "128");
  odd = released();
  odd.vocab_size = 200065;
  expect_refused(odd, 0, 2, "vocab_size of 200065", "2");
  odd = released();
  odd.dense_width = 12288 + 32;
  expect_refused(odd, 0, 8, "dense_intermediate_size", "256");
  odd = released();
  odd.num_heads = 48;
  odd.num_kv_heads = odd.index_heads = 3;
  expect_refused(odd, 0, 8, "num_key_value_heads of 3", "8");
  expect_refused(released(), 0, 16, "must be 1, 2, 4 or 8", "16");
  expect_refused(released(), 0, 0, "tensor-parallel size", "0");
  expect_refused(released(), 2, 2, "tensor-parallel rank", "2");
  expect_refused(released(), -1, 2, "tensor-parallel rank", "-1");
}

}  // namespace
}  // namespace monolayer::m3
