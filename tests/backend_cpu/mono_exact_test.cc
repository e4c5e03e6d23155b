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

TEST(MonoExact, T_K1_T_K2_EveryRowCount) {
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

// Around page borders and the first key, shorter and longer than the blocks that can be selected.
TEST(MonoExact, T_K2_T_K3_ContextsAroundBorders) {
  for (const bool fp8 : {false, true}) {
    for (const int formats : {0, 1, 2}) {
      MonoCase c;
      if (fp8) c.cache = fp8_cache();
      c.requests = {{0, 1}, {126, 1}, {127, 1}, {128, 2}, {2045, 1}, {2046, 1}, {2047, 4}};
      c.threads = 2;
      c.serial = formats == 1;
      compare_paths(model_of(formats), c);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(MonoExact, T_K2_ModelBlocksOf128) {
  const RandomModel model(nano_config(), quantized(false), 9);
  MonoCase c;
  c.requests = {{1, 1}, {127, 3}, {511, 1}, {512, 2}, {1279, 4}, {2048, 1}};
  c.threads = 2;
  c.serial = true;
  compare_paths(model, c);
  c.cache = fp8_cache();
  compare_paths(model, c);
}

// So long that a dense layer's chunks do not fit in one wave.
TEST(MonoExact, T_K2_SeveralWavesOfChunks) {
  MonoCase c;
  c.requests = {{62100, 2}, {129, 1}};
  c.threads = 3;
  c.serial = true;
  c.cache = fp8_cache();
  compare_paths(model_of(1), c);
}

// Short contexts in small caches: the dense layers' partial results of several requests together
// are larger than those of one request as long as the caches.
TEST(MonoExact, T_K2_ManyShortRequestsInSmallCaches) {
  m3::ModelConfig config = nano_config();
  config.max_positions = 10 * m3::kPageTokens;
  const RandomModel model(config, quantized(false), 9);
  MonoCase c;
  c.requests = {{100, 1}, {110, 1}, {120, 1}, {150, 1}, {200, 1}, {259, 1}};
  c.threads = 2;
  compare_paths(model, c);
}

TEST(MonoExact, T_K2_EveryGroupSize) {
  for (const int ranks : {2, 4, 8}) {
    for (const std::int64_t rows : {1, 5, 16}) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(rows) + " rows");
      MonoCase c;
      c.ranks = ranks;
      c.requests = requests(rows, 1 + rows % 3, 100);
      c.threads = ranks == 8 ? 1 : 2;
      c.serial = ranks == 2;
      c.serial_workers = 2;
      if (rows == 5) c.cache = fp8_cache();
      compare_paths(model_of(static_cast<int>(rows % 3)), c);
      if (HasFatalFailure()) return;
    }
  }
}

// Main and index tables are shuffled apart in every case of this file; here over several deals,
// with rows that see each other's new keys across a page border.
TEST(MonoExact, T_K5_T_K6_TablesApartAndRowsOfOneRequest) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    MonoCase c;
    c.seed = seed;
    c.requests = {{124, 8}, {380, 8}};
    c.threads = 2;
    compare_paths(model_of(1), c);
    if (HasFatalFailure()) return;
  }
}

TEST(MonoExact, T_K7_T_P2_UnusedBytesAreJunk) {
  for (const int junk : {0x00, 0x55, 0x7f, 0xff}) {
    MonoCase c;
    c.junk = junk;
    c.requests = {{77, 1}, {250, 3}};
    c.threads = 2;
    c.cache = fp8_cache();
    compare_paths(model_of(2), c);
    c.cache = {};
    compare_paths(model_of(0), c);
    if (HasFatalFailure()) return;
  }
}

// What the published model leaves at its default: the shared expert's weight, the softmax scale,
// and angles that the caller supplies.
TEST(MonoExact, SharedWeightScaleAndAnglesOfTheCaller) {
  m3::ModelConfig config = eight_way_config();
  config.shared_weight = 1.75F;
  config.softmax_scale = 0.4F;
  const RandomModel model(config, quantized(false), 24);
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    const RotaryBytes rotary(config, dtype, 5);
    for (const int ranks : {1, 2, 4}) {
      MonoCase c;
      c.rotary = rotary.table();
      c.requests = requests(ranks == 1 ? 1 : 7, 3, 100);
      c.ranks = ranks;
      c.threads = 2;
      c.serial = true;
      c.serial_workers = 2;
      compare_paths(model, c);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(MonoExact, T_P3_PaddingRowsFullOfNaN) {
  for (const std::vector<std::int64_t>& padding :
       {std::vector<std::int64_t>{0}, {3}, {0, 1, 4, 6}, {2, 2, 2, 2, 2, 2}}) {
    MonoCase c;
    c.requests = {{90, 2}, {200, 1}};
    c.padding = padding;
    c.threads = 2;
    c.ranks = 2;
    compare_paths(model_of(1), c);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace monolayer::test
