#include "backend/cpu/cache.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "backend/cpu/cache_insert.h"
#include "backend_cpu/random_model.h"

namespace monolayer::test {
namespace {

TEST(Cache, PageBytes) {
  m3::ModelConfig c = nano_config();
  c.layers = {{false, false}, {true, true}};
  c.num_layers = 2;
  // K and V: 2 layers x 2 x 4 heads x 128 x 128 values; index keys: 128 x 128 on the sparse one.
  EXPECT_EQ(cpu::CachePool::page_bytes(c, {}), (2 * 2 * 4 + 1) * 128 * 128 * 2);
  EXPECT_EQ(cpu::CachePool::page_bytes(c, {.kv = DType::kE4M3}), (2 * 2 * 4 + 2) * 128 * 128);
}

TEST(Cache, EntriesDoNotOverlapAndFillThePool) {
  const m3::ModelConfig c = tiny_config();
  for (const DType dtype : {DType::kBF16, DType::kE4M3}) {
    auto pool = cpu::CachePool::create(c, {.kv = dtype, .index = dtype}, 3);
    ASSERT_TRUE(pool.ok());
    std::vector<int> seen((*pool)->bytes());
    const auto mark = [&](const cpu::Matrix& page) {
      const auto* begin = static_cast<const std::byte*>(page.data);
      for (std::int64_t i = 0; i < page.rows * page.row_bytes; ++i) {
        const auto at = begin + i - (*pool)->memory();
        ASSERT_GE(at, 0);
        ASSERT_LT(at, static_cast<std::ptrdiff_t>(seen.size()));
        ++seen[static_cast<std::size_t>(at)];
      }
    };
    for (std::int64_t layer = 0; layer < c.num_layers; ++layer) {
      for (std::int32_t page = 0; page < 3; ++page) {
        for (std::int64_t g = 0; g < c.num_kv_heads; ++g) {
          mark((*pool)->k_page(layer, page, g));
          mark((*pool)->v_page(layer, page, g));
        }
        if (c.layers[static_cast<std::size_t>(layer)].sparse_attention) {
          mark((*pool)->index_page(layer, page));
        }
      }
    }
    EXPECT_EQ(seen, std::vector<int>(seen.size(), 1));
  }
}

TEST(Cache, RefusesMoreMemoryThanThereIs) {
  const m3::ModelConfig c = nano_config();
  const auto pool = cpu::CachePool::create(c, {}, 1 << 30);
  ASSERT_FALSE(pool.ok());
  EXPECT_EQ(pool.status().code(), Code::kResourceExhausted);
  const std::string text = pool.status().to_string();
  EXPECT_NE(text.find(std::to_string(cpu::CachePool::page_bytes(c, {}))), std::string::npos)
      << text;
  EXPECT_NE(text.find("the longest context that fits is"), std::string::npos) << text;
  EXPECT_EQ(cpu::CachePool::create(c, {}, 0).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(cpu::CachePool::create(c, {}, std::int64_t{1} << 40).status().code(),
            Code::kInvalidArgument);
}

TEST(Cache, RefusesOtherTypesAndScales) {
  const m3::ModelConfig c = tiny_config();
  EXPECT_EQ(cpu::CachePool::create(c, {.kv = DType::kF16}, 1).status().code(), Code::kUnsupported);
  for (const float scale : {0.0F, -1.0F, std::numeric_limits<float>::infinity(), NAN}) {
    EXPECT_EQ(cpu::CachePool::create(c, {.v_scale = scale}, 1).status().code(),
              Code::kInvalidArgument);
  }
}

TEST(Cache, StoredEntries) {
  const float values[] = {0, 1, -3.25F, 0.013F, 1000, -1000, 0.0001F, 448};
  std::byte bf16[16];
  cpu::store_entry(DType::kBF16, 1, values, 8, bf16);
  std::byte e4m3[8];
  cpu::store_entry(DType::kE4M3, 0.5F, values, 8, e4m3);
  for (int i = 0; i < 8; ++i) {
    bf16_t bits = 0;
    std::memcpy(&bits, bf16 + i * 2, 2);
    EXPECT_EQ(bits, f32_to_bf16(values[i]));
    EXPECT_EQ(static_cast<std::uint8_t>(e4m3[i]), f32_to_e4m3(values[i] / 0.5F));
  }
  EXPECT_EQ(e4m3_to_f32(static_cast<std::uint8_t>(e4m3[4])), 448);  // saturated
}

}  // namespace
}  // namespace monolayer::test
