// Steps of two devices among what must not matter: entries that the step itself writes, rows behind
// the last one, a step left half way, a multiprocessor that something else holds.
#include <chrono>
#include <cstring>
#include <limits>
#include <string>

#include "backend_cuda/peer_harness.h"
#include "backend_cuda/peer_litmus.h"

namespace monolayer::test {
namespace {

class PeerSteps : public testing::TestWithParam<bool> {};

// Whether the last rows of `logits` are what a group of one computed up to token `end`.
bool same_rows(const Ranked& r, const std::vector<float>& logits, std::int64_t end) {
  const auto last = r.want.begin() + end * r.model.config.vocab_size;
  return std::equal(logits.begin(), logits.end(), last - static_cast<std::ptrdiff_t>(logits.size()),
                    last);
}

// Other tokens at the same positions leave other keys, values and index keys where the next step
// writes its own: whoever reads before they are written computes something else.
TEST_P(PeerSteps, T_P2_EntriesAreReadAfterTheyAreWritten) {
  const int rounds = from_environment("MONOLAYER_REPLAYS", 200);
  const auto statuses = on_devices([&](tp::Group& group) -> Status {
    Ranked r(group);
    NativeOptions o = path_options(GetParam());
    o.delay_ns = 3'000;
    ML_RETURN_IF_ERROR(r.start(o));
    std::vector<float> got;
    ML_RETURN_IF_ERROR(r.run(*r.native, 0, 40, got));
    const std::vector<std::int32_t> own = r.tokens;
    int differ = 0;
    for (int i = 0; i < rounds; ++i) {
      const std::int64_t rows = i % 2 == 0 ? 1 : 4;
      std::vector<float> logits;
      r.tokens = other_tokens(r.model.config, own, static_cast<std::uint64_t>(100 + i));
      ML_RETURN_IF_ERROR(r.step(*r.native, 40 - rows, rows, logits));
      if (same_rows(r, logits, 40)) return wrong("other tokens gave the same logits");
      r.tokens = own;
      ML_RETURN_IF_ERROR(r.step(*r.native, 40 - rows, rows, logits));
      differ += same_rows(r, logits, 40) ? 0 : 1;
    }
    if (group.rank() == 0) std::printf("%d rounds of other entries, %d differ\n", rounds, differ);
    if (differ != 0) return wrong(std::to_string(differ) + " steps with other bits");
    return r.close();
  });
  EXPECT_OK_ON_DEVICES(statuses);
}

// Rows of another sequence that are no numbers, beside the step's rows and then left behind them.
TEST_P(PeerSteps, T_P3_RowsThatAreNoNumbersHarmNoOther) {
  const auto statuses = on_devices([&](tp::Group& group) -> Status {
    Ranked r(group);
    const std::int64_t hidden = r.model.config.hidden_size;
    const std::uint16_t poison[] = {f32_to_bf16(std::numeric_limits<float>::quiet_NaN()),
                                    f32_to_bf16(std::numeric_limits<float>::infinity()),
                                    f32_to_bf16(3e38F)};
    // Tokens that the sequence does not use get embeddings of poison.
    std::vector<std::int32_t> bad;
    for (std::int32_t token = 0; bad.size() < std::size(poison); ++token) {
      if (std::find(r.tokens.begin(), r.tokens.end(), token) != r.tokens.end()) continue;
      auto* row = const_cast<std::byte*>(r.model.weights.embed.weight.data) + token * hidden * 2;
      for (std::int64_t i = 0; i < hidden; ++i) std::memcpy(row + i * 2, &poison[bad.size()], 2);
      bad.push_back(token);
    }
    ML_RETURN_IF_ERROR(r.start(path_options(GetParam())));
    std::vector<float> got;
    ML_RETURN_IF_ERROR(r.run(*r.native, 0, 40, got));
    const std::vector<std::int32_t> other_pages{1};
    for (std::int64_t rows = 1; rows < 16; ++rows) {
      std::vector<std::int32_t> tokens;
      for (std::int64_t i = rows; i < 16; ++i)
        tokens.push_back(bad[static_cast<std::size_t>(i) % bad.size()]);
      const auto live = static_cast<std::size_t>(rows);
      const cpu::StepSequence both[] = {
          {.tokens = std::span<const std::int32_t>(r.tokens).subspan(40 - live, live),
           .start = 40 - rows,
           .pages = r.pages,
           .logit_rows = rows},
          {.tokens = tokens, .start = 0, .pages = other_pages, .logit_rows = 0}};
      std::vector<float> logits;
      ML_RETURN_IF_ERROR(r.native->step(both, *r.pool, logits, nullptr));
      if (!same_rows(r, logits, 40)) return wrong(std::to_string(rows) + " rows beside poison");
      ML_RETURN_IF_ERROR(r.step(*r.native, 40 - rows, rows, logits));
      if (!same_rows(r, logits, 40)) return wrong(std::to_string(rows) + " rows before poison");
    }
    return r.close();
  });
  EXPECT_OK_ON_DEVICES(statuses);
}

// All ranks leave a step after some layers; the next one is as if it had not been.
TEST_P(PeerSteps, T_P4_AnAbandonedStepLeavesNothing) {
  for (const int layers : {0, 2, 4, 5}) {
    const auto statuses = on_devices([&](tp::Group& group) -> Status {
      Ranked r(group);
      NativeOptions o = path_options(GetParam());
      o.abandon_step = 21;
      o.abandon_layer = layers;
      ML_RETURN_IF_ERROR(r.start(o));
      std::vector<float> got;
      ML_RETURN_IF_ERROR(r.run(*r.native, 0, 20, got));
      std::vector<float> half;
      ML_RETURN_IF_ERROR(r.run(*r.native, 20, 21, half));
      if (same_rows(r, half, 21)) return wrong("the step was not abandoned");
      ML_RETURN_IF_ERROR(r.run(*r.native, 20, 40, got));
      if (got != r.want) return wrong("other bits after " + std::to_string(layers) + " layers");
      return r.close();
    });
    EXPECT_OK_ON_DEVICES(statuses);
  }
}

// One multiprocessor fewer: a launch waits until all its blocks fit, and its peer for it, no longer
// than the deadline.
TEST_P(PeerSteps, T_P11_AHeldMultiprocessorDelaysOrEndsTheStep) {
  for (const bool too_long : {false, true}) {
    const auto statuses = on_devices([&](tp::Group& group) -> Status {
      Ranked r(group);
      NativeOptions o = path_options(GetParam());
      o.deadline_ns = too_long ? 150'000'000 : 5'000'000'000;
      ML_RETURN_IF_ERROR(r.start(o));
      std::vector<float> got;
      ML_RETURN_IF_ERROR(r.run(*r.native, 0, 20, got));
      cudaStream_t other = nullptr;
      ML_RETURN_IF_ERROR(cuda::cuda_status(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking),
                                           "other stream"));
      if (group.rank() == 1)
        ML_RETURN_IF_ERROR(cuda::cuda_status(
            occupy_multiprocessor(too_long ? 1'000'000'000 : 300'000'000, other), "occupied"));
      const auto begin = std::chrono::steady_clock::now();
      const Status status = r.run(*r.native, 20, 40, got);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      cudaStreamSynchronize(other);
      cudaStreamDestroy(other);
      if (group.rank() == 0)
        std::printf("held for %s, %.3f s: %s\n", too_long ? "longer than the deadline" : "0.3 s",
                    took.count(), status.ok() ? "same bits" : status.to_string().c_str());
      if (too_long) {
        if (status.ok() || took.count() > 2.5) return wrong("not ended: " + status.to_string());
        return {Code::kDeadlineExceeded, "held", "as it should be"};
      }
      ML_RETURN_IF_ERROR(status);
      if (took.count() < 0.2) return wrong("the multiprocessor was not held");
      if (got != r.want) return wrong("other bits");
      return r.close();
    });
    if (without_devices(statuses)) GTEST_SKIP() << "needs two devices";
    for (const Status& status : statuses) {
      if (too_long) {
        EXPECT_EQ("held", status.subject()) << status.to_string();
      } else {
        EXPECT_TRUE(status.ok()) << status.to_string();
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, PeerSteps, testing::Bool(), [](const auto& test) {
  return std::string(test.param ? "Mono" : "Native");
});

}  // namespace
}  // namespace monolayer::test
