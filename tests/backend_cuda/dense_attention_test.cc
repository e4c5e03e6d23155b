// Attention of dense layers, its two stages alone, against float64: partials of one page and of
// several, of the kernels for any shape and of those for MiniMax-M3, which also give the same bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "backend/cuda/device_memory.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/pack.h"
#include "backend_cuda/device_harness.h"
#include "core/dtype.h"

namespace monolayer::test {
namespace {

using cuda::Kernels;
constexpr int kHeads = 16, kDim = 128, kPage = 128;
constexpr float kKeyScale = 0.75F, kValueScale = 1.5F;

float half_to_f32(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const float mantissa = static_cast<float>(bits & 1023);
  const float magnitude = exponent == 0    ? std::ldexp(mantissa, -24)
                          : exponent == 31 ? std::numeric_limits<float>::quiet_NaN()
                                           : std::ldexp(mantissa + 1024, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

// Where the kernels for M3 keep dim d of a row's head: in pairs of heads eight apart.
std::size_t place_in_pairs(int head, int d) {
  const int four = (d >> 2 & 7) * 4 + (d >> 5);
  const int place = (head & 7) * 2 * kDim + four * 8 + (d >> 1 & 1) * 4 + (head >> 3) * 2 + (d & 1);
  return static_cast<std::size_t>(place);
}

// One layer of one KV head, sequences with pages of their own all over a pool. What no row may read
// is NaN: pages of nobody, and keys and values behind a row's own.
class DenseAttention : public testing::Test {
 protected:
  void SetUp() override {
    if (no_device()) GTEST_SKIP() << "no CUDA device";
  }
  template <typename T>
  T* upload(const std::vector<T>& values) {
    auto buffer = cuda::DeviceBuffer::create(values.size() * sizeof(T), "test");
    EXPECT_TRUE(buffer.ok()) << buffer.status().to_string();
    T* data = buffer.value().template as<T>();
    EXPECT_EQ(cudaSuccess,
              cudaMemcpy(data, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    owned_.push_back(std::move(buffer).value());
    return data;
  }

  void build(const std::vector<int>& contexts) {
    owned_.clear();
    contexts_ = contexts;
    std::mt19937 random(static_cast<unsigned>(contexts.front() + 7 * contexts.size()));
    std::normal_distribution<float> normal;
    int pages = 1;  // the first is nobody's
    stride_ = 0;
    for (const int context : contexts) {
      pages += (context + kPage - 1) / kPage;
      stride_ = std::max(stride_, (context + kPage - 1) / kPage);
    }
    constexpr std::uint8_t kNan = 0x7F;
    keys_.assign(static_cast<std::size_t>(pages) * kPage * kDim, kNan);
    values_ = keys_;
    tables_.assign(contexts.size() * static_cast<std::size_t>(stride_), 0);
    std::vector<std::int32_t> free(static_cast<std::size_t>(pages - 1));
    for (std::size_t i = 0; i < free.size(); ++i) free[i] = static_cast<std::int32_t>(i) + 1;
    std::shuffle(free.begin(), free.end(), random);
    queries_.assign(contexts.size() * kHeads * kDim, 0);
    for (std::size_t r = 0; r < contexts.size(); ++r) {
      for (int t = 0; t < contexts[r]; ++t) {
        auto& page =
            tables_[r * static_cast<std::size_t>(stride_) + static_cast<std::size_t>(t / kPage)];
        if (t % kPage == 0) {
          page = free.back();
          free.pop_back();
        }
        const std::size_t at = entry(page, t);
        for (int d = 0; d < kDim; ++d) {
          keys_[at + static_cast<std::size_t>(d)] = f32_to_e4m3(2 * normal(random));
          values_[at + static_cast<std::size_t>(d)] = f32_to_e4m3(normal(random));
        }
      }
      for (int i = 0; i < kHeads * kDim; ++i)
        queries_[r * kHeads * kDim + static_cast<std::size_t>(i)] = f32_to_bf16(normal(random));
    }
  }
  static std::size_t entry(std::int32_t page, int token) {
    return (static_cast<std::size_t>(page) * kPage + static_cast<std::size_t>(token % kPage)) *
           kDim;
  }

  // FP16 of every row, head and dim, times half_scale() of what values may be.
  std::vector<std::uint16_t> run(Kernels kernels) {
    const auto rows = contexts_.size();
    cuda::Params p{};
    auto& s = p.shape;
    s.hidden = 6144;
    s.heads = s.group = kHeads;
    s.kv_heads = 1;
    s.head_dim = s.index_dim = kDim;
    s.rotary = 64;
    s.kv_fp8 = s.index_fp8 = 1;
    s.eps = 1e-6F;
    s.k_scale = kKeyScale;
    s.v_scale = kValueScale;
    s.score_scale = kKeyScale / std::sqrt(static_cast<float>(kDim));
    cuda::Layer layer;
    layer.o = cuda::describe(cuda::Format::kE4M3Half, 6144, kHeads * kDim, 2);
    layer.o.x_scale = scale();
    layer.k_cache = upload(keys_);
    layer.v_cache = upload(values_);
    p.layers = upload(std::vector<cuda::Layer>{layer});
    std::vector<cuda::Step> step(1);
    std::memset(step.data(), 0, sizeof(cuda::Step));
    step[0].rows = static_cast<std::int32_t>(rows);
    for (std::size_t r = 0; r < rows; ++r) {
      step[0].position[r] = contexts_[r] - 1;
      step[0].table[r] = static_cast<std::int32_t>(r);
      step[0].max_chunks[0] =
          std::max(step[0].max_chunks[0], cuda::dense_partials((contexts_[r] - 1) / kPage + 1));
    }
    p.step = upload(step);
    p.pages = upload(tables_);
    p.table_stride = stride_;
    std::vector<std::uint16_t> queries(queries_.size());
    for (std::size_t r = 0; r < rows; ++r) {
      for (int h = 0; h < kHeads; ++h) {
        for (int d = 0; d < kDim; ++d) {
          const std::size_t plain =
              static_cast<std::size_t>(h) * kDim + static_cast<std::size_t>(d);
          // BF16 times 2^64.
          queries[r * kHeads * kDim + (kernels == Kernels::kAny ? plain : place_in_pairs(h, d))] =
              f32_to_bf16(bf16_to_f32(queries_[r * kHeads * kDim + plain]) * 0x1p64F);
        }
      }
    }
    p.q = upload(queries);
    p.max_chunks = cuda::kMostPartials;
    p.partials = upload(std::vector<float>(
        rows * cuda::kMostPartials * static_cast<std::size_t>(cuda::partial_floats(kHeads, kDim)),
        std::numeric_limits<float>::quiet_NaN()));
    p.attended = upload(std::vector<std::uint16_t>(rows * kHeads * kDim, 0x7E00));
    p.barrier = upload(std::vector<std::uint32_t>(cuda::kHandOffWords));
    p.record = upload(std::vector<cuda::Record>(1));
    p.stall_block = p.stall_stage = p.stall_step = -1;
    p.last_layer = 1;
    int limit = 0, blocks = 0;
    EXPECT_EQ(cudaSuccess,
              cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    EXPECT_EQ(cudaSuccess, cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, 0));
    EXPECT_EQ(cudaSuccess, cuda::prepare_kernels(limit));
    EXPECT_TRUE(cuda::plan_shared_memory(static_cast<int>(rows), 12352, 0, limit, p));
    for (const cuda::Stage stage : {cuda::kAttend, cuda::kMerge})
      EXPECT_EQ(cudaSuccess, cuda::launch_stage(stage, p, kernels, blocks, nullptr));
    EXPECT_EQ(cudaSuccess, cudaDeviceSynchronize());
    std::vector<std::uint16_t> out(rows * kHeads * kDim);
    EXPECT_EQ(cudaSuccess,
              cudaMemcpy(out.data(), p.attended, out.size() * 2, cudaMemcpyDeviceToHost));
    return out;
  }
  static float scale() { return cuda::half_scale(448.0F * kValueScale); }

  // Relative L2 of row r's error.
  double error(std::size_t r, const std::vector<std::uint16_t>& got) const {
    double square = 0, difference = 0;
    std::vector<double> weights(static_cast<std::size_t>(contexts_[r]));
    const auto at = [&](int t) {
      return entry(
          tables_[r * static_cast<std::size_t>(stride_) + static_cast<std::size_t>(t / kPage)], t);
    };
    for (int h = 0; h < kHeads; h += 5) {
      const std::uint16_t* q = queries_.data() + (r * kHeads + static_cast<std::size_t>(h)) * kDim;
      double most = -std::numeric_limits<double>::infinity();
      for (int t = 0; t < contexts_[r]; ++t) {
        double dot = 0;
        for (std::size_t d = 0; d < kDim; ++d)
          dot += static_cast<double>(bf16_to_f32(q[d])) * decoded_[keys_[at(t) + d]];
        weights[static_cast<std::size_t>(t)] = dot * kKeyScale / std::sqrt(kDim);
        most = std::max(most, weights[static_cast<std::size_t>(t)]);
      }
      double total = 0;
      std::array<double, kDim> sum{};
      for (int t = 0; t < contexts_[r]; ++t) {
        const double w = std::exp(weights[static_cast<std::size_t>(t)] - most);
        total += w;
        for (std::size_t d = 0; d < kDim; ++d) sum[d] += w * decoded_[values_[at(t) + d]];
      }
      for (std::size_t d = 0; d < kDim; ++d) {
        const double want = sum[d] / total * kValueScale;
        const double is =
            half_to_f32(got[(r * kHeads + static_cast<std::size_t>(h)) * kDim + d]) / scale();
        square += want * want;
        difference += (is - want) * (is - want);
      }
    }
    return std::sqrt(difference / square);
  }

  DenseAttention() {
    for (int i = 0; i < 256; ++i)
      decoded_[static_cast<std::size_t>(i)] = e4m3_to_f32(static_cast<std::uint8_t>(i));
  }

 private:
  std::array<double, 256> decoded_{};
  std::vector<cuda::DeviceBuffer> owned_;
  std::vector<int> contexts_;
  std::vector<std::uint8_t> keys_, values_;
  std::vector<std::int32_t> tables_;
  std::vector<std::uint16_t> queries_;  // BF16 [row][head][dim]
  int stride_ = 0;
};

TEST_F(DenseAttention, AsInDoublePrecision) {
  // Of one row, up to four, up to eight and more. 32,768 tokens have a partial a page; beyond,
  // two pages share one, beyond 65,536 four.
  const std::vector<std::vector<int>> cases = {
      {1},
      {127},
      {128},
      {129},
      {2048},
      {2049},
      {20000},
      {32768},
      {32769},
      {65537},
      {140000},
      {129, 40000, 1},
      {32768, 32769},
      {70000, 3, 500, 2049, 33000, 128},
      {1, 200, 3000, 40000, 5, 66000, 128, 129, 70, 2049, 33000, 9}};
  for (const auto& contexts : cases) {
    build(contexts);
    const std::vector<std::uint16_t> any = run(Kernels::kAny);
    const std::vector<std::uint16_t> m3 = run(Kernels::kDenseM3);
    EXPECT_EQ(any, m3) << contexts.front() << " tokens and " << contexts.size() << " rows";
    for (std::size_t r = 0; r < contexts.size(); ++r) {
      const double e = error(r, m3);
      EXPECT_LT(e, 4e-3) << contexts[r] << " tokens, row " << r << " of " << contexts.size();
    }
  }
}

TEST(SharedMemory, ActivationsThatLeaveNoRoomAreRefused) {
  constexpr int kLimit = 232448;
  for (const int row_bytes : {24640, 32832, 1 << 20}) {
    cuda::Params p{};
    p.shape.head_dim = kDim;
    EXPECT_FALSE(cuda::plan_shared_memory(8, row_bytes, 0, kLimit, p)) << row_bytes;
  }
  for (const int rows : {1, 2, 3, 4, 5, 6, 7, 8, 16}) {
    cuda::Params p{};
    p.shape.head_dim = kDim;
    p.shape.kv_fp8 = 1;
    ASSERT_TRUE(cuda::plan_shared_memory(rows, 12352, 0, kLimit, p)) << rows;
    EXPECT_LE(cuda::shared_memory(p), kLimit);
    EXPECT_GE(p.dense_slots, 16);
    if (rows > 8) {
      EXPECT_GE(p.dense_x_bytes, 16 * cuda::kHalfRowBytes);
    }
  }
}

TEST(DensePartials, AreAtMostSoMany) {
  for (int pages = 1; pages <= 8192; ++pages) {
    const int log = cuda::dense_log_span(pages);
    const int partials = cuda::dense_partials(pages);
    EXPECT_LE(partials, cuda::kMostPartials);
    EXPECT_GE(partials << log, pages);
    EXPECT_LT((partials - 1) << log, pages);
    if (log > 0) {
      EXPECT_GT(pages, cuda::kMostPartials << (log - 1));
    }
  }
}

}  // namespace
}  // namespace monolayer::test
