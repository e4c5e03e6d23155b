// 10,000 steps of a chain of eight layers at four ranks, with random delays at random stages and
// now and then an abandoned step: no difference, no hang. Labelled long.
#include <gtest/gtest.h>

#include <thread>

#include "mono/protocol_chain.h"
#include "tp/launcher.h"

namespace monolayer::mono {
namespace {

using tp::Group;
using tp::RankKind;

Status soak(Group& group, int steps) {
  const ChainShape shape{2, 96, 8};
  // Few nonce bits: the tags go round about 300 times.
  ML_ASSIGN_OR_RETURN(Mailbox mailbox, Mailbox::create(group, {2, 96, 2, 5, 2}));
  std::vector<std::vector<float>> expected;
  for (std::uint32_t seed = 0; seed < 16; ++seed) {
    expected.push_back(chain_expected(shape, seed));
  }
  std::mt19937 shared(1);                                            // the same on all ranks
  std::mt19937 own(static_cast<std::uint32_t>(100 + group.rank()));  // delays
  Chain chain{
      shape, {std::chrono::milliseconds(10'000), &group.poison()}, group.rank(), group.size()};
  for (int step = 0; step < steps; ++step) {
    const auto seed = static_cast<std::uint32_t>(shared() % 16);
    const int stop = shared() % 8 == 0 ? static_cast<int>(shared() % 16) : 16;
    chain.before_stage = [&](int layer, int site) {
      if (own() % 64 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 500));
      return layer * 2 + site < stop;
    };
    std::vector<float> values;
    if (!mailbox.begin_step(chain.policy)) return group.status();
    if (!chain.run(mailbox, seed, values)) return group.status();
    if (stop == 16 && !same_bits(values, expected[seed])) {
      return {Code::kInternal, "step " + std::to_string(step), "other bits than one processor"};
    }
  }
  return {};
}

class Soak : public ::testing::TestWithParam<RankKind> {};

TEST_P(Soak, TenThousandStepsWithRandomDelays) {
  const auto results =
      tp::run_ranks({GetParam(), 4}, [](Group& group) { return soak(group, 10'000); });
  ASSERT_TRUE(results.ok());
  for (const Status& status : *results) EXPECT_TRUE(status.ok()) << status.to_string();
}

INSTANTIATE_TEST_SUITE_P(Kinds, Soak, ::testing::Values(RankKind::kThreads, RankKind::kProcesses));

}  // namespace
}  // namespace monolayer::mono
