// Processor time of sampling one token from a row of logits on one thread.
//   bench_sampler [VOCABULARY]
// Logits are normal with a deviation of 3 and twenty likelier ones.
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "engine/sampler.h"

namespace {

using monolayer::engine::SamplerScratch;
using monolayer::engine::SamplingParams;

// Of this thread: other work on the machine doesn't count.
double now() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

template <typename F>
double median_ms(F&& body) {
  std::vector<double> seconds;
  for (int i = 0; i < 31; ++i) {
    const double begin = now();
    body(i);
    seconds.push_back(now() - begin);
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2] * 1e3;
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t vocab = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 200064;
  if (vocab < 32) return 2;
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(vocab);
  for (float& l : logits) l = normal(random);
  for (int i = 0; i < 20; ++i) logits[random() % vocab] = 12 + 0.3F * static_cast<float>(i);
  SamplerScratch scratch;
  const struct {
    const char* name;
    SamplingParams params;
  } cases[] = {{"greedy", {}},
               {"top-k 40, top-p 0.95", {.temperature = 1, .top_p = 0.95, .top_k = 40}},
               {"top-p 0.95", {.temperature = 1, .top_p = 0.95}},
               {"temperature 1", {.temperature = 1}},
               {"min-p 0.05", {.temperature = 1, .min_p = 0.05}}};
  std::int64_t sum = 0;
  std::printf("{\n \"vocabulary\": %zu", vocab);
  for (const auto& c : cases) {
    const double ms = median_ms([&](int i) {
      SamplingParams p = c.params;
      p.seed = static_cast<std::uint64_t>(i);
      sum += monolayer::engine::check_finite(logits, i).ok() ? 1 : 0;
      sum += monolayer::engine::sample_finite(logits, p, i, scratch);
    });
    std::printf(",\n \"%s\": %.3f", c.name, ms);
  }
  const double ms = median_ms(
      [&](int i) { sum += monolayer::engine::token_logprobs(logits, i, 20, scratch).rank; });
  std::printf(",\n \"20 logprobs\": %.3f\n}\n", ms);
  return sum == 0 ? 1 : 0;
}
