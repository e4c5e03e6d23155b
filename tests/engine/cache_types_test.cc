// What --kv-cache-dtype and --index-cache-dtype mean.
#include <gtest/gtest.h>

#include "engine/native_run.h"

namespace monolayer::engine {
namespace {

TEST(CacheTypes, EveryPairOfWords) {
  const DType bf16 = DType::kBF16, fp8 = DType::kE4M3;
  const struct {
    const char *kv, *index;
    DType want_kv, want_index;
  } cases[] = {
      {"auto", "auto", bf16, bf16},   {"auto", "bf16", bf16, bf16},
      {"auto", "fp8", bf16, fp8},     {"auto", "fp8_e4m3", bf16, fp8},
      {"bf16", "auto", bf16, bf16},   {"bf16", "bf16", bf16, bf16},
      {"bf16", "fp8", bf16, fp8},     {"bf16", "fp8_e4m3", bf16, fp8},
      {"fp8", "auto", fp8, fp8},      {"fp8", "bf16", fp8, bf16},
      {"fp8", "fp8", fp8, fp8},       {"fp8", "fp8_e4m3", fp8, fp8},
      {"fp8_e4m3", "auto", fp8, fp8}, {"fp8_e4m3", "bf16", fp8, bf16},
      {"fp8_e4m3", "fp8", fp8, fp8},  {"fp8_e4m3", "fp8_e4m3", fp8, fp8},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(std::string(c.kv) + " " + c.index);
    const auto options = cache_options({c.kv, c.index}, "cuda");
    ASSERT_TRUE(options.ok()) << options.status().to_string();
    EXPECT_EQ(options->kv, c.want_kv);
    EXPECT_EQ(options->index, c.want_index);
    EXPECT_EQ(options->k_scale, 1.0F);
    EXPECT_EQ(options->v_scale, 1.0F);
    EXPECT_EQ(options->index_scale, 1.0F);
    // On the CPU what is not said stays BF16.
    const auto cpu = cache_options({c.kv, c.index}, "cpu");
    ASSERT_TRUE(cpu.ok());
    EXPECT_EQ(cpu->kv, c.want_kv);
    EXPECT_EQ(cpu->index, std::string_view(c.index) == "auto" ? bf16 : c.want_index);
  }
}

TEST(CacheTypes, OtherWordsAreRefusedByTheirFlag) {
  for (const char* word : {"", "fp8_e5m2", "int8", "fp4", "FP8", "Auto"}) {
    const auto kv = cache_options({word, "auto"}, "cuda"),
               index = cache_options({"fp8", word}, "cpu");
    ASSERT_FALSE(kv.ok());
    ASSERT_FALSE(index.ok());
    EXPECT_EQ(kv.status().to_string(), "--kv-cache-dtype: '" + std::string(word) +
                                           "' is not one of auto, bf16, fp8, fp8_e4m3");
    EXPECT_EQ(index.status().to_string(), "--index-cache-dtype: '" + std::string(word) +
                                              "' is not one of auto, bf16, fp8, fp8_e4m3");
  }
}

// Memory and capacity go by what was chosen: 2 x kv_width values and, on sparse layers, index_dim.
TEST(CacheTypes, BytesOfAPage) {
  m3::ModelConfig config;
  config.num_layers = 3;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 128;
  config.index_dim = 128;
  config.layers = {{false, false}, {true, true}, {true, true}};
  const auto bytes = [&](const char* kv, const char* index) {
    return cpu::CachePool::page_bytes(config, *cache_options({kv, index}, "cuda"));
  };
  const std::int64_t main = 3 * 2 * 2 * 128 * 128, keys = 2 * 128 * 128;
  EXPECT_EQ(bytes("auto", "auto"), 2 * main + 2 * keys);
  EXPECT_EQ(bytes("fp8", "auto"), main + keys);
  EXPECT_EQ(bytes("fp8", "bf16"), main + 2 * keys);
  EXPECT_EQ(bytes("bf16", "fp8"), 2 * main + keys);
}

}  // namespace
}  // namespace monolayer::engine
