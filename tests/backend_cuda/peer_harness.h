// Two processes, a device each, over CUDA IPC. The test's own process never touches a device, so
// that it may fork; without two devices every test skips.
#pragma once

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cuda/device_memory.h"
#include "backend/cuda/params.h"
#include "backend_cpu/random_model.h"
#include "backend_cuda/device_harness.h"
#include "tp/launcher.h"

namespace monolayer::test {

using cuda::NativeOptions;
using cuda::Path;
inline constexpr int kRanks = 2;

inline int from_environment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoi(text) : otherwise;
}

inline Status wrong(const std::string& what) { return {Code::kInternal, "test", what}; }

// One rank's run of a test; the statuses of all ranks.
inline std::vector<Status> on_devices(const std::function<Status(tp::Group&)>& body) {
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
inline bool without_devices(const std::vector<Status>& statuses) {
  return !statuses.empty() && statuses[0].code() == Code::kUnsupported &&
         statuses[0].subject() == "devices";
}
#define EXPECT_OK_ON_DEVICES(statuses)                                \
  if (without_devices(statuses)) GTEST_SKIP() << "needs two devices"; \
  for (const Status& status : (statuses)) EXPECT_TRUE(status.ok()) << status.to_string()

inline RandomModel small_model() {
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
    alone.abandon_step = 0;
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

inline NativeOptions path_options(bool mono) {
  NativeOptions o;
  o.path = mono ? Path::kMono : Path::kNative;
  return o;
}

}  // namespace monolayer::test
