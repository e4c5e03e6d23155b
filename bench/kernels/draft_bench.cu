// The EAGLE3 draft of MiniMax-M3 at full size on a device, random weights: milliseconds of a call
// as the engine makes it (uploads, kernels, download), and of reading its weights at the rate of a
// stream.
//   bench_cuda_draft [--context N] [--kv-heads N]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backend/cuda/draft.h"

namespace monolayer {
namespace {

constexpr std::int64_t kHidden = 6144, kWidth = 18432, kVocab = 200064, kHeads = 64, kHead = 128;

// One block of random numbers, repeated.
class Weights {
 public:
  Weights() : block_(std::size_t{1} << 25) {
    std::minstd_rand random(7);
    for (std::uint16_t& x : block_) {
      const auto bits = static_cast<std::uint32_t>(random());
      x = static_cast<std::uint16_t>((bits & 0x807F) | 0x3C80);  // about 2^-6, both signs
    }
  }
  TensorView matrix(std::int64_t rows, std::int64_t cols) {
    auto& all = storage_.emplace_back(static_cast<std::size_t>(rows * cols));
    for (std::size_t at = 0; at < all.size(); at += block_.size())
      std::copy_n(block_.begin(), std::min(block_.size(), all.size() - at), all.begin() + at);
    TensorView view;
    view.dtype = DType::kBF16;
    view.shape = {rows, cols};
    view.data = reinterpret_cast<const std::byte*>(all.data());
    view.bytes = all.size() * 2;
    bytes_ += static_cast<std::int64_t>(view.bytes);
    return view;
  }
  TensorView ones(std::int64_t n) {
    auto& all = storage_.emplace_back(static_cast<std::size_t>(n), 0x3F80);
    TensorView view;
    view.dtype = DType::kBF16;
    view.shape = {n};
    view.data = reinterpret_cast<const std::byte*>(all.data());
    view.bytes = all.size() * 2;
    return view;
  }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::vector<std::uint16_t> block_;
  std::deque<std::vector<std::uint16_t>> storage_;
  std::int64_t bytes_ = 0;
};

template <typename F>
double median_ms(int repeats, F&& f) {
  std::vector<double> times;
  for (int i = 0; i < repeats + 3; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    f();
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    if (i >= 3) times.push_back(took.count());
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.to_string().c_str());
  std::exit(2);
}

int run(std::int64_t context, std::int64_t kv_heads) {
  m3::ModelConfig target;
  target.hidden_size = kHidden;
  target.vocab_size = kVocab;
  target.max_positions = 1 << 20;
  m3::DraftConfig config;
  config.hidden_size = kHidden;
  config.num_heads = kHeads;
  config.num_kv_heads = kv_heads;
  config.head_dim = kHead;
  config.intermediate_size = kWidth;
  config.vocab_size = config.draft_vocab_size = kVocab;
  config.rope_theta = 5e6;
  config.rms_eps = 1e-6F;
  config.max_positions = target.max_positions;

  Weights made;
  m3::DraftWeights w;
  w.embed = made.matrix(1024, kHidden);  // of the tokens that are used
  const std::int64_t before = made.bytes();
  w.q = made.matrix(config.q_width(), 2 * kHidden);
  w.k = made.matrix(config.kv_width(), 2 * kHidden);
  w.v = made.matrix(config.kv_width(), 2 * kHidden);
  w.o = made.matrix(kHidden, config.q_width());
  w.gate = made.matrix(kWidth, kHidden);
  w.up = made.matrix(kWidth, kHidden);
  w.down = made.matrix(kHidden, kWidth);
  w.lm_head = made.matrix(kVocab, kHidden);
  const std::int64_t a_guess = made.bytes() - before;
  w.fc = made.matrix(kHidden, 3 * kHidden);
  for (TensorView& norm : w.fc_norms) norm = made.ones(kHidden);
  w.input_norm = w.hidden_norm = w.post_norm = w.final_norm = made.ones(kHidden);

  auto draft = cuda::create_draft(config, w, target, {}, {});
  must(draft.status());
  constexpr std::int64_t kMost = 16;
  const std::int64_t each = (context + 8 + 127) / 128;
  auto pool = cpu::CachePool::reserve(cpu::Draft::cache_shape(config, target), {}, kMost * each);
  must(pool.status());
  std::vector<std::vector<std::int32_t>> tables(kMost);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(context + 8));
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(i % 1024);
  std::vector<float> states(static_cast<std::size_t>((context + 8) * kHidden));
  std::minstd_rand random(9);
  for (float& x : states) x = static_cast<float>(static_cast<int>(random() % 256) - 128) / 64;
  std::vector<cpu::Proposal> proposals;
  const auto begin = std::chrono::steady_clock::now();
  for (std::int64_t s = 0; s < kMost; ++s) {
    for (std::int64_t page = 0; page < each; ++page)
      tables[static_cast<std::size_t>(s)].push_back(static_cast<std::int32_t>(s * each + page));
    const cpu::DraftSequence prompt{std::span(tokens).first(static_cast<std::size_t>(context)), 1,
                                    tables[static_cast<std::size_t>(s)], states.data(), false};
    must((*draft)->step({&prompt, 1}, **pool, proposals));
  }
  const std::chrono::duration<double> filled = std::chrono::steady_clock::now() - begin;
  std::printf(
      "{\"kv_heads\": %lld, \"context\": %lld, \"weight_bytes_a_guess\": %lld, "
      "\"prompt_rows_per_second\": %.0f, \"steps\": [",
      static_cast<long long>(kv_heads), static_cast<long long>(context),
      static_cast<long long>(a_guess), static_cast<double>(kMost * context) / filled.count());
  const char* comma = "";
  for (const std::int64_t sequences : {1, 2, 4, 8, 16}) {
    for (const std::int64_t rows : {1, 3, 4}) {
      if (sequences * rows > kMost) continue;
      std::vector<cpu::DraftSequence> inputs;
      for (std::int64_t s = 0; s < sequences; ++s)
        inputs.push_back({std::span(tokens).first(static_cast<std::size_t>(rows)), context + 1,
                          tables[static_cast<std::size_t>(s)], states.data() + s * kHidden, true});
      const double ms = median_ms(20, [&] { must((*draft)->step(inputs, **pool, proposals)); });
      std::printf(
          "%s\n  {\"sequences\": %lld, \"rows_of_each\": %lld, \"ms\": %.3f, "
          "\"weights_gb_per_s\": %.0f}",
          comma, static_cast<long long>(sequences), static_cast<long long>(rows), ms,
          static_cast<double>(a_guess) / ms / 1e6);
      comma = ",";
    }
  }
  std::printf("],\n \"combine\": [");
  comma = "";
  std::vector<float> combined(static_cast<std::size_t>(kMost * kHidden));
  for (const std::int64_t rows : {1, 4, 16}) {
    const std::span<const float> kept(states.data(), static_cast<std::size_t>(rows * 3 * kHidden));
    std::printf("%s{\"rows\": %lld, \"ms\": %.3f}", comma, static_cast<long long>(rows),
                median_ms(20, [&] { must((*draft)->combine(kept, combined.data())); }));
    comma = ", ";
  }
  std::printf("]}\n");
  return 0;
}

}  // namespace
}  // namespace monolayer

int main(int argc, char** argv) {
  std::int64_t context = 1024, kv_heads = 4;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::string(argv[i]) == "--context") context = std::atoll(argv[i + 1]);
    if (std::string(argv[i]) == "--kv-heads") kv_heads = std::atoll(argv[i + 1]);
  }
  return monolayer::run(std::clamp<std::int64_t>(context, 8, 1 << 17),
                        std::clamp<std::int64_t>(kv_heads, 1, 64));
}
