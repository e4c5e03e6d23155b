// The exchange between two devices: the same bits whoever is late, stopped or killed, and what the
// memory that they share promises.
#include <csignal>
#include <string>
#include <thread>

#include <unistd.h>

#include "backend/cuda/peers.h"
#include "backend_cuda/peer_harness.h"
#include "backend_cuda/peer_litmus.h"

namespace monolayer::test {
namespace {

class PeerProcesses : public testing::TestWithParam<bool> {};

TEST_P(PeerProcesses, SameBitsAsOneDevice) {
  const auto statuses = on_devices([&](tp::Group& group) -> Status {
    Ranked r(group);
    ML_RETURN_IF_ERROR(r.start(path_options(GetParam())));
    std::vector<float> got;
    ML_RETURN_IF_ERROR(r.run(*r.native, 0, 40, got));
    if (got != r.want) return wrong("other bits than one device");
    for (const int rows : {16, 8, 4, 2, 1}) {
      std::vector<float> logits;
      ML_RETURN_IF_ERROR(r.step(*r.native, 40 - rows, rows, logits));
      if (!std::equal(logits.rbegin(), logits.rend(), r.want.rbegin()))
        return wrong(std::to_string(rows) + " rows: other bits");
    }
    return r.close();
  });
  EXPECT_OK_ON_DEVICES(statuses);
}

// Steps that every rank refuses leave the group as it was.
TEST_P(PeerProcesses, ARefusedStepHarmsNobody) {
  const auto statuses = on_devices([&](tp::Group& group) -> Status {
    Ranked r(group);
    ML_RETURN_IF_ERROR(r.start(path_options(GetParam())));
    std::vector<float> got;
    ML_RETURN_IF_ERROR(r.run(*r.native, 0, 8, got));
    const std::vector<std::int32_t> bad{static_cast<std::int32_t>(r.model.config.vocab_size)};
    const std::vector<std::int32_t> good{1};
    const std::vector<std::int32_t> outside{4};             // of a pool of 4 pages
    const std::vector<std::int32_t> longer{0, 0, 0, 0, 1};  // than the pool
    const cpu::StepSequence refused[] = {
        {.tokens = bad, .start = 8, .pages = r.pages, .logit_rows = 1},
        {.tokens = good, .start = 8, .pages = outside, .logit_rows = 1},
        {.tokens = good, .start = 512, .pages = longer, .logit_rows = 1}};
    for (const cpu::StepSequence& sequence : refused) {
      std::vector<float> logits;
      const Status status = r.native->step({&sequence, 1}, *r.pool, logits, nullptr);
      if (status.code() != Code::kInvalidArgument) return wrong("taken: " + status.to_string());
    }
    ML_RETURN_IF_ERROR(r.run(*r.native, 8, 40, got));
    if (got != r.want) return wrong("other bits than one device");
    return r.close();
  });
  EXPECT_OK_ON_DEVICES(statuses);
}

TEST_P(PeerProcesses, T_P1_T_P6_SameBitsWhoeverIsLate) {
  const int replays = from_environment("MONOLAYER_REPLAYS", 200);
  const auto statuses = on_devices([&](tp::Group& group) -> Status {
    Ranked r(group);
    NativeOptions o = path_options(GetParam());
    o.delay_ns = 3'000;
    ML_RETURN_IF_ERROR(r.start(o));
    std::vector<float> got;
    ML_RETURN_IF_ERROR(r.run(*r.native, 0, 40, got));
    if (got != r.want) return wrong("other bits than one device");
    int differ = 0;
    for (int i = 0; i < replays; ++i) {
      std::vector<float> logits;
      const int rows = i % 4 == 3 ? 4 : 1;
      ML_RETURN_IF_ERROR(r.step(*r.native, 40 - rows, rows, logits));
      differ += std::equal(logits.rbegin(), logits.rend(), r.want.rbegin()) ? 0 : 1;
    }
    if (group.rank() == 0) std::printf("%d replays, %d differ\n", replays, differ);
    if (differ != 0) return wrong(std::to_string(differ) + " replays with other bits");
    return r.close();
  });
  EXPECT_OK_ON_DEVICES(statuses);
}

TEST_P(PeerProcesses, T_P5_T_P8_LateRanksAndTheWrapLoseNothing) {
  const auto statuses = on_devices([&](tp::Group& group) -> Status {
    Ranked r(group);
    NativeOptions o = path_options(GetParam());
    o.steps_done = (1U << 24) - 4;
    ML_RETURN_IF_ERROR(r.start(o));
    std::vector<float> got;
    for (int at = 0; at < 8; ++at) {
      // Longer than a tenth of a second, in turn; the peer's device waits in its first launch.
      if (at > 0 && at % 2 == group.rank())
        std::this_thread::sleep_for(std::chrono::milliseconds(120));
      ML_RETURN_IF_ERROR(r.run(*r.native, at, at + 1, got));
    }
    if (!std::equal(got.begin(), got.end(), r.want.begin())) return wrong("other bits");
    return r.close();
  });
  EXPECT_OK_ON_DEVICES(statuses);
}

// Rank 1 stops at a stage: both say so within the deadline, with the same record.
TEST_P(PeerProcesses, T_P7_StoppedAtEachStageIsReported) {
  for (int stage = cuda::kQkv; stage <= cuda::kDown; ++stage) {
    if (stage == cuda::kShared) continue;
    if (!GetParam() && stage != cuda::kOutput && stage != cuda::kDown) continue;
    const auto statuses = on_devices([&](tp::Group& group) -> Status {
      Ranked r(group);
      NativeOptions o = path_options(GetParam());
      o.deadline_ns = 100'000'000;
      o.stall_block = 1;
      o.stall_rank = 1;
      o.stall_stage = stage;
      o.stall_step = 4;
      ML_RETURN_IF_ERROR(r.start(o));
      std::vector<float> got;
      ML_RETURN_IF_ERROR(r.run(*r.native, 0, 3, got));
      const auto begin = std::chrono::steady_clock::now();
      Status status = r.run(*r.native, 3, 4, got);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      if (status.ok()) return wrong("nobody noticed");
      if (took.count() > 1) return wrong("noticed after " + std::to_string(took.count()) + " s");
      if (group.rank() == 0)
        std::printf("stage %d, %.3f s: %s\n", stage, took.count(), status.to_string().c_str());
      if (status.to_string().find("gave up waiting") == std::string::npos) return status;
      return {Code::kDeadlineExceeded, "stopped", "as it should be"};
    });
    if (without_devices(statuses)) GTEST_SKIP() << "needs two devices";
    for (const Status& status : statuses)
      EXPECT_EQ("stopped", status.subject()) << status.to_string();
  }
}

// Rank 1 is killed between or inside steps: rank 0 ends within its deadline.
TEST_P(PeerProcesses, T_P7_KilledRankIsReported) {
  for (const bool inside : {false, true}) {
    const auto statuses = on_devices([&](tp::Group& group) -> Status {
      Ranked r(group);
      NativeOptions o = path_options(GetParam());
      o.deadline_ns = 200'000'000;
      ML_RETURN_IF_ERROR(r.start(o));
      std::vector<float> got;
      ML_RETURN_IF_ERROR(r.run(*r.native, 0, 3, got));
      std::thread killer;
      if (group.rank() == 1) {
        if (!inside) kill(getpid(), SIGKILL);
        killer = std::thread([] {
          std::this_thread::sleep_for(std::chrono::milliseconds(30));
          kill(getpid(), SIGKILL);
        });
      }
      const auto begin = std::chrono::steady_clock::now();
      Status status;
      while (status.ok()) status = r.run(*r.native, 3, 4, got);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      if (killer.joinable()) killer.join();
      if (took.count() > 3) return wrong("noticed after " + std::to_string(took.count()) + " s");
      std::printf("killed %s a step, %.3f s: %s\n", inside ? "inside" : "before", took.count(),
                  status.to_string().c_str());
      return {Code::kDeadlineExceeded, "killed", "as it should be"};
    });
    if (without_devices(statuses)) GTEST_SKIP() << "needs two devices";
    ASSERT_EQ(2U, statuses.size());
    EXPECT_EQ("killed", statuses[0].subject()) << statuses[0].to_string();
    EXPECT_FALSE(statuses[1].ok());
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, PeerProcesses, testing::Bool(), [](const auto& test) {
  return std::string(test.param ? "Mono" : "Native");
});

class PeerLitmus : public testing::Test {
 protected:
  static Status run(tp::Group& group, bool publication) {
    const auto rounds =
        static_cast<std::uint32_t>(from_environment("MONOLAYER_LITMUS_ROUNDS", 200'000));
    ML_ASSIGN_OR_RETURN(auto peers, cuda::Peers::connect(group, 1024));
    const cuda::Mailbox& m = peers->mailbox(0);
    ML_ASSIGN_OR_RETURN(auto buffer, cuda::DeviceBuffer::create(sizeof(LitmusResult), "litmus"));
    ML_RETURN_IF_ERROR(
        cuda::cuda_status(cudaMemset(buffer.as<void>(), 0, sizeof(LitmusResult)), "litmus"));
    ML_RETURN_IF_ERROR(group.barrier());
    const auto kernel = publication ? run_publication : run_atomicity;
    ML_RETURN_IF_ERROR(cuda::cuda_status(
        kernel(m.region[m.rank] + cuda::kMailWords, m.region[1 - m.rank] + cuda::kMailWords, rounds,
               buffer.as<LitmusResult>(), nullptr),
        "litmus"));
    LitmusResult result{};
    ML_RETURN_IF_ERROR(cuda::cuda_status(
        cudaMemcpy(&result, buffer.as<void>(), sizeof result, cudaMemcpyDeviceToHost), "litmus"));
    std::printf("rank %d, %s: %u rounds, %u mismatches, %u gave up, %u seen\n", group.rank(),
                publication ? "publication" : "atomicity", rounds, result.mismatches,
                result.gave_up, result.seen);
    ML_RETURN_IF_ERROR(group.barrier());
    ML_RETURN_IF_ERROR(peers->close());
    if (result.mismatches != 0 || result.gave_up != 0) return wrong("litmus");
    // Every word is read at least once, after its last round; that alone would compare nothing.
    if (!publication && result.seen <= kLitmusWords)
      return wrong("no word was read while it was being written; MONOLAYER_LITMUS_ROUNDS");
    return group.close();
  }
};

TEST_F(PeerLitmus, T_P9_WordsAreNeverTorn) {
  const auto statuses = on_devices([](tp::Group& group) { return run(group, false); });
  EXPECT_OK_ON_DEVICES(statuses);
}
TEST_F(PeerLitmus, T_P10_DataIsThereWhenItsFlagIs) {
  const auto statuses = on_devices([](tp::Group& group) { return run(group, true); });
  EXPECT_OK_ON_DEVICES(statuses);
}

}  // namespace
}  // namespace monolayer::test
