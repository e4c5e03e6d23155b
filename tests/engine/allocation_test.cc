// What steps allocate once the engine has started: operator new is counted in this binary, and the
// buffers of the chains count their own growth.
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include <gtest/gtest.h>

#include "backend/cpu/buffer.h"
#include "engine/speculation_harness.h"

namespace {

std::atomic<std::int64_t> g_live{0}, g_largest{0}, g_pieces{0};
// The thread that asks is not counted: what it gives back while a step runs is not the step's.
thread_local bool t_asks = false;

void* counted(void* p, std::size_t bytes) {
  if (p == nullptr) throw std::bad_alloc();
  if (t_asks) return p;
  g_live += static_cast<std::int64_t>(malloc_usable_size(p));
  ++g_pieces;
  const auto size = static_cast<std::int64_t>(bytes);
  std::int64_t seen = g_largest;
  while (size > seen && !g_largest.compare_exchange_weak(seen, size)) {
  }
  return p;
}

void uncounted(void* p) {
  if (p == nullptr) return;
  if (!t_asks) {
    g_live -= static_cast<std::int64_t>(malloc_usable_size(p));
    --g_pieces;
  }
  std::free(p);
}

void* aligned(std::size_t bytes, std::align_val_t at) {
  const auto n = static_cast<std::size_t>(at);
  return std::aligned_alloc(n, (bytes + n - 1) / n * n);
}

}  // namespace

void* operator new(std::size_t n) { return counted(std::malloc(n), n); }
void* operator new[](std::size_t n) { return counted(std::malloc(n), n); }
void* operator new(std::size_t n, std::align_val_t at) { return counted(aligned(n, at), n); }
void* operator new[](std::size_t n, std::align_val_t at) { return counted(aligned(n, at), n); }
void operator delete(void* p) noexcept { uncounted(p); }
void operator delete[](void* p) noexcept { uncounted(p); }
void operator delete(void* p, std::size_t) noexcept { uncounted(p); }
void operator delete[](void* p, std::size_t) noexcept { uncounted(p); }
void operator delete(void* p, std::align_val_t) noexcept { uncounted(p); }
void operator delete[](void* p, std::align_val_t) noexcept { uncounted(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { uncounted(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { uncounted(p); }

namespace monolayer::engine {
namespace {

// What the model's steps kept, and the largest piece they took.
class Measured : public NativeModel {
 public:
  using NativeModel::NativeModel;
  Status step(std::span<const cpu::StepSequence> sequences, std::vector<float>& logits) override {
    const std::int64_t live = g_live, pieces = g_pieces;
    g_largest = 0;
    Status status = NativeModel::step(sequences, logits);
    kept += g_live - live;
    kept_pieces += g_pieces - pieces;
    largest = std::max<std::int64_t>(largest, g_largest);
    ++steps;
    return status;
  }
  void clear() { kept = kept_pieces = largest = steps = 0; }
  std::atomic<std::int64_t> kept = 0, kept_pieces = 0, largest = 0, steps = 0;
};

struct Case {
  const char* path;
  int ranks;
};

class Allocation : public Speculation, public ::testing::WithParamInterface<Case> {};

// The longest prompt there can be, cold and with its prefix cached, with a draft: no buffer grows
// after the start, a repeated step keeps no byte, and no piece it takes depends on the caches.
TEST_P(Allocation, Conformance15_TheLargestCachedPrefillAllocatesNothing) {
  NativeRunOptions small;
  small.context_tokens = 24 * m3::kPageTokens;
  small.threads = 1;
  small.path = GetParam().path;
  small.ranks = GetParam().ranks;
  auto loaded = NativeRun::load(*model_, small);
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  const auto run = std::move(*loaded);
  const struct Asking {
    Asking() { t_asks = true; }
    ~Asking() { t_asks = false; }
  } asking;
  ASSERT_TRUE(run->native().capture(draft_->config.aux_layers).ok());
  const auto draft =
      *cpu::Draft::create(draft_->config, weights_, model_->config, run->weights(), run->team());
  const auto draft_pool = *cpu::CachePool::create(
      cpu::Draft::cache_shape(draft_->config, model_->config), {}, run->pool().pages());
  SpeculationOptions speculation;
  speculation.tokens = 3;
  Speculator speculator(draft_->config, *draft, *draft_pool, speculation);
  Measured steps(model_->config, run->native(), run->pool());
  EngineOptions options;
  options.scheduler.max_sequences = 16;
  options.scheduler.max_step_tokens = 1024;
  options.speculator = &speculator;
  const std::int64_t before = cpu::buffer_growths();
  Harness harness(steps, *tokenizer_, options);
  ASSERT_TRUE(harness.status().ok()) << harness.status().to_string();

  const std::int64_t longest = run->pool().pages() * m3::kPageTokens;
  const Request r = request(prompt(7, static_cast<std::size_t>(longest - 16)), 12, 0);
  const std::int64_t started = cpu::buffer_growths();
  EXPECT_GT(started, before) << "the start makes every pool";
  ASSERT_TRUE(harness.ask(r));  // the very first steps: cold
  EXPECT_EQ(cpu::buffer_growths() - started, 0);
  ASSERT_TRUE(harness.ask(r));
  EXPECT_EQ(cpu::buffer_growths() - started, 0);
  steps.clear();
  const auto answer = harness.ask(r);
  ASSERT_TRUE(answer);
  EXPECT_GE(answer->last.cached_tokens, longest - 16 - m3::kPageTokens);
  EXPECT_GT(steps.steps, 1);
  EXPECT_EQ(cpu::buffer_growths() - started, 0);
  EXPECT_EQ(steps.kept_pieces, 0) << "pieces that steps did not give back";
  EXPECT_LT(steps.kept, 256);  // the allocator's chunks for one size differ by its granule
  EXPECT_LT(steps.largest, std::int64_t{1} << 18);
  EXPECT_GT(steps.largest, 0) << "steps run on threads that are counted";
  std::printf("largest piece %lld bytes in %lld steps\n", static_cast<long long>(steps.largest),
              static_cast<long long>(steps.steps));
}

INSTANTIATE_TEST_SUITE_P(Paths, Allocation,
                         ::testing::Values(Case{"native", 1}, Case{"mono", 1}, Case{"mono", 2}),
                         [](const auto& p) {
                           return std::string(p.param.path) + std::to_string(p.param.ranks);
                         });

}  // namespace
}  // namespace monolayer::engine
