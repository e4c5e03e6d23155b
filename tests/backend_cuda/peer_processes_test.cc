// Two processes, a device each, over CUDA IPC. The test's own process never touches a device, so
// that it may fork; without two devices every test skips.
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>

#include <gtest/gtest.h>
#include <unistd.h>

#include "backend/cuda/params.h"
#include "backend/cuda/peers.h"
#include "backend_cpu/random_model.h"
#include "backend_cuda/device_harness.h"
#include "backend_cuda/peer_litmus.h"
#include "tp/launcher.h"

namespace monolayer::test {
namespace {

using cuda::NativeOptions;
using cuda::Path;
constexpr int kRanks = 2;

int from_environment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoi(text) : otherwise;
}

Status wrong(const std::string& what) { return {Code::kInternal, "test", what}; }

// One rank's run of a test; the statuses of all ranks.
std::vector<Status> on_devices(const std::function<Status(tp::Group&)>& body) {
  tp::LaunchOptions launch;
  launch.kind = tp::RankKind::kProcesses;
  launch.ranks = kRanks;
  auto statuses = tp::run_ranks(launch, [&](tp::Group& group) -> Status {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < kRanks)
      return {Code::kUnsupported, "devices", "fewer than ranks"};
    const Status set = cuda::cuda_status(cudaSetDevice(group.rank()), "device");
    ML_RETURN_IF_ERROR(group.agree(set).status);
    return body(group);
  });
  EXPECT_TRUE(statuses.ok()) << statuses.status().to_string();
  return statuses.ok() ? *statuses : std::vector<Status>{};
}
bool without_devices(const std::vector<Status>& statuses) {
  return !statuses.empty() && statuses[0].code() == Code::kUnsupported &&
         statuses[0].subject() == "devices";
}
#define EXPECT_OK_ON_DEVICES(statuses)                                \
  if (without_devices(statuses)) GTEST_SKIP() << "needs two devices"; \
  for (const Status& status : (statuses)) EXPECT_TRUE(status.ok()) << status.to_string()

RandomModel small_model() {
  return {nano_config(),
          {.attention = WeightFormat::kFP8PerChannel,
           .dense = WeightFormat::kMXFP4,
           .experts = WeightFormat::kMXFP4,
           .shared = WeightFormat::kMXFP4,
           .router = DType::kBF16},
          11};
}

// A chain of this rank and what a group of one computes for the same tokens.
struct Ranked {
  explicit Ranked(tp::Group& of) : group(of), model(small_model()) {
    tokens = random_tokens(model.config, 48, 5);
    pages = page_table(48);
  }
  Status start(NativeOptions options) {
    options.device = group.rank();
    auto made = cpu::CachePool::create(model.config, fp8_cache(), 4);
    ML_RETURN_IF_ERROR(made.status());
    pool = std::move(made).value();
    NativeOptions alone = options;
    alone.delay_ns = 0;
    alone.stall_block = -1;
    auto one = cuda::create_native(model.config, model.weights, alone);
    ML_RETURN_IF_ERROR(one.status());
    ML_RETURN_IF_ERROR(run(**one, 0, 40, want));
    options.group = &group;
    auto many = cuda::create_native(model.config, model.weights, options);
    ML_RETURN_IF_ERROR(many.status());
    native = std::move(many).value();
    return {};
  }
  // Token by token; the logits of all.
  Status run(cpu::Native& chain, std::int64_t begin, std::int64_t end, std::vector<float>& all) {
    for (std::int64_t at = begin; at < end; ++at) {
      std::vector<float> logits;
      ML_RETURN_IF_ERROR(step(chain, at, 1, logits));
      all.insert(all.end(), logits.begin(), logits.end());
    }
    return {};
  }
  Status step(cpu::Native& chain, std::int64_t at, std::int64_t rows, std::vector<float>& logits) {
    const cpu::StepSequence sequence{
        .tokens = std::span<const std::int32_t>(tokens).subspan(static_cast<std::size_t>(at),
                                                                static_cast<std::size_t>(rows)),
        .start = at,
        .pages = pages,
        .logit_rows = rows};
    return chain.step({&sequence, 1}, *pool, logits, nullptr);
  }
  Status close() {
    ML_RETURN_IF_ERROR(native->close());
    native.reset();
    return group.close();
  }

  tp::Group& group;
  RandomModel model;
  std::vector<std::int32_t> tokens, pages;
  std::unique_ptr<cpu::CachePool> pool;
  std::unique_ptr<cpu::Native> native;
  std::vector<float> want;  // of tokens 0 to 39, one after the other
};

NativeOptions path_options(bool mono) {
  NativeOptions o;
  o.path = mono ? Path::kMono : Path::kNative;
  return o;
}

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
