// mono == native == serial interpreter, bit for bit.
#include <gtest/gtest.h>

#include <string>

#include "backend_cpu/mono_harness.h"

namespace monolayer::test {
namespace {

ModelFormats quantized(bool mxfp8_experts) {
  return {.attention = WeightFormat::kFP8PerChannel,
          .dense = WeightFormat::kMXFP8,
          .experts = mxfp8_experts ? WeightFormat::kMXFP8 : WeightFormat::kMXFP4,
          .shared = WeightFormat::kMXFP8,
          .router = DType::kBF16};
}

const RandomModel& model_of(int formats) {
  static const RandomModel plain(eight_way_config(), {}, 21);
  static const RandomModel fp4(eight_way_config(), quantized(false), 22);
  static const RandomModel fp8(eight_way_config(), quantized(true), 23);
  return formats == 0 ? plain : formats == 1 ? fp4 : fp8;
}

// `rows` rows in requests of `q` rows (the last may be shorter), contexts apart from each other.
std::vector<Request> requests(std::int64_t rows, std::int64_t q, std::int64_t start) {
  std::vector<Request> out;
  for (std::int64_t left = rows; left > 0; left -= q) {
    out.push_back({start, std::min(q, left)});
    start += q + 13;
  }
  return out;
}

TEST(MonoExact, T_K2_EveryRowCount) {
  for (std::int64_t rows = 1; rows <= 16; ++rows) {
    SCOPED_TRACE(std::to_string(rows) + " rows");
    MonoCase c;
    c.requests = requests(rows, 1 + rows % 4, 60 + rows);
    c.threads = 1 + static_cast<int>(rows % 3);
    c.serial = true;
    if (rows % 2 == 0) c.cache = fp8_cache();
    compare_paths(model_of(static_cast<int>(rows % 3)), c);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace monolayer::test
