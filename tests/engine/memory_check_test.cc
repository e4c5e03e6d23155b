#include "engine/memory_check.h"

#include <gtest/gtest.h>

namespace monolayer::engine {
namespace {

TEST(CheckMemory, FitsExactly) {
  const MemoryNeed need{
      .weight_bytes = 1000, .page_bytes = 10, .context_tokens = 129, .constant_bytes = 100};
  EXPECT_TRUE(check_memory(need, {1120, "x"}, "m").ok());
  const Status status = check_memory(need, {1119, "x"}, "m");
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_NE(status.message().find("longest context that fits is 128 tokens"), std::string::npos)
      << status.message();
}

TEST(CheckMemory, WeightsAloneDoNotFit) {
  const MemoryNeed need{.weight_bytes = 1000, .page_bytes = 10, .context_tokens = 1};
  const Status status = check_memory(need, {900, "x"}, "m");
  EXPECT_NE(status.message().find("no context fits"), std::string::npos) << status.message();
}

TEST(CheckMemory, HugeContextDoesNotOverflow) {
  const MemoryNeed need{.weight_bytes = 1,
                        .page_bytes = std::int64_t{1} << 40,
                        .context_tokens = std::int64_t{1} << 60,
                        .constant_bytes = 1};
  EXPECT_FALSE(check_memory(need, {std::int64_t{1} << 41, "x"}, "m").ok());
}

TEST(FormatBytes, ThreeDigits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(999), "999 B");
  EXPECT_EQ(format_bytes(1500), "1.50 kB");
  EXPECT_EQ(format_bytes(23456789), "23.5 MB");
  EXPECT_EQ(format_bytes(242659360768), "243 GB");
}

}  // namespace
}  // namespace monolayer::engine
