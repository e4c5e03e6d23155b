// The tables of refusals: T-C1, T-C2, T-C5.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <type_traits>

#include "dispatch/dispatcher.h"

namespace monolayer::dispatch {
namespace {

// T-C5 as types: neither a bare value nor one that only a rank knows becomes a fact.
static_assert(!std::is_convertible_v<bool, Flag>);
static_assert(!std::is_constructible_v<Flag, bool>);
static_assert(!std::is_constructible_v<Flag, PerRank<bool>>);
static_assert(!std::is_assignable_v<decltype(StepFacts::microbatched)&, bool>);
static_assert(!std::is_assignable_v<decltype(StepFacts::rows)&, PerRank<std::int64_t>>);
static_assert(!std::is_assignable_v<decltype(StepFacts::runner)&, RunnerState>);

DeploymentFacts supported() {
  DeploymentFacts facts;
  facts.tensor_parallel = configured(std::int64_t{4});
  facts.sparse_moe_layers = configured(std::int64_t{57});
  facts.max_model_length = configured(std::int64_t{1 << 20});
  facts.draft_tokens = configured(std::int64_t{3});
  facts.rotary_dim = configured(std::int64_t{64});
  facts.head_dim = facts.index_dim = configured(std::int64_t{128});
  facts.kv_cache = facts.index_cache = configured(DType::kE4M3);
  return facts;
}

using Flip = std::function<void(DeploymentFacts&)>;
const std::map<std::string, std::pair<Flip, std::string>>& flips() {
  const auto n = [](std::int64_t v) { return configured(v); };
  static const std::map<std::string, std::pair<Flip, std::string>> all = {
      {"backend", {[](auto& f) { f.backend = configured(std::string("tpu")); }, "is tpu"}},
      {"tensor_parallel", {[=](auto& f) { f.tensor_parallel = n(6); }, "is 6, needs 1, 2, 4 or 8"}},
      {"pipeline_parallel", {[=](auto& f) { f.pipeline_parallel = n(2); }, "is 2, needs 1"}},
      {"data_parallel", {[=](auto& f) { f.data_parallel = n(2); }, "is 2"}},
      {"expert_parallel", {[](auto& f) { f.expert_parallel = configured(true); }, "is on"}},
      {"decode_context_parallel", {[=](auto& f) { f.decode_context_parallel = n(2); }, "is 2"}},
      {"prefill_context_parallel", {[=](auto& f) { f.prefill_context_parallel = n(2); }, "is 2"}},
      {"microbatching", {[](auto& f) { f.microbatching = configured(true); }, "is on"}},
      {"piecewise_graphs", {[](auto& f) { f.piecewise_graphs = configured(true); }, "is on"}},
      {"weight_transfer", {[](auto& f) { f.weight_transfer = configured(true); }, "is on"}},
      {"lora", {[](auto& f) { f.lora = configured(true); }, "is on"}},
      {"kv_transfer", {[](auto& f) { f.kv_transfer = configured(true); }, "is on"}},
      {"sleep_mode", {[](auto& f) { f.sleep_mode = configured(true); }, "is on"}},
      {"replicated_output_projection",
       {[](auto& f) { f.replicated_output_projection = configured(true); }, "is on"}},
      {"kv_cache_dtype", {[](auto& f) { f.kv_cache = configured(DType::kF16); }, "BF16 or E4M3"}},
      {"index_cache_dtype",
       {[](auto& f) { f.index_cache = configured(DType::kF32); }, "BF16 or E4M3"}},
      {"cache_block_tokens", {[=](auto& f) { f.cache_block_tokens = n(64); }, "is 64, needs 128"}},
      {"max_model_length",
       {[=](auto& f) { f.max_model_length = n((1 << 20) + 1); }, "is 1048577, needs 1 to 1048576"}},
      {"draft_tokens", {[=](auto& f) { f.draft_tokens = n(8); }, "is 8, needs 0 to 7"}},
      {"sparse_moe_layers", {[=](auto& f) { f.sparse_moe_layers = n(0); }, "is 0"}},
      {"layer_mix",
       {[](auto& f) { f.layer_offender = configured(std::string("layer 9")); }, "is layer 9"}},
      {"rank_shape",
       {[](auto& f) { f.shape_offender = configured(std::string("65 heads")); }, "is 65 heads"}},
      {"selection_block", {[=](auto& f) { f.selection_block = n(48); }, "is 48"}},
      {"selection_topk", {[=](auto& f) { f.selection_topk = n(0); }, "is 0"}},
      {"index_heads", {[=](auto& f) { f.index_heads = n(3); }, "is 3 for 1"}},
      {"rotary_dim", {[=](auto& f) { f.rotary_dim = n(130); }, "is 130"}},
      {"attention_formats",
       {[](auto& f) { f.attention_offender = configured(std::string("q in F16")); }, "q in F16"}},
      {"norms",
       {[](auto& f) { f.norm_offender = configured(std::string("n in F32")); }, "n in F32"}},
      {"router",
       {[](auto& f) { f.router_offender = configured(std::string("r in F16")); }, "r in F16"}},
      {"router_bias",
       {[](auto& f) { f.bias_offender = configured(std::string("b in BF16")); }, "b in BF16"}},
      {"expert_formats",
       {[](auto& f) { f.expert_offender = configured(std::string("e in F16")); }, "e in F16"}},
      {"shared_expert",
       {[](auto& f) { f.shared_offender = configured(std::string("s in F16")); }, "s in F16"}},
  };
  return all;
}

TEST(Refusals, TC1SupportedDeploymentHasNone) {
  const DeploymentFacts facts = supported();
  EXPECT_TRUE(deployment_status(facts).ok()) << deployment_status(facts).to_string();
  for (const RowOutcome& row : check_deployment(facts)) EXPECT_TRUE(row.holds) << row.name;
}

TEST(Refusals, TC1EachRowFlippedAloneIsNamed) {
  for (const DeploymentRow& row : deployment_rows()) {
    const auto flip = flips().find(std::string(row.name));
    ASSERT_NE(flip, flips().end()) << row.name << " has no test";
    DeploymentFacts facts = supported();
    flip->second.first(facts);
    for (const RowOutcome& outcome : check_deployment(facts)) {
      EXPECT_EQ(outcome.holds, outcome.name != row.name) << row.name << " / " << outcome.name;
    }
    const Status status = deployment_status(facts);
    EXPECT_EQ(status.code(), Code::kUnsupported);
    EXPECT_NE(status.message().find(std::string(row.name) + ": is"), std::string::npos);
    EXPECT_NE(status.message().find(flip->second.second), std::string::npos) << status.message();
    // Chosen by name, a refusal is an error; by default it is native for good.
    EXPECT_EQ(Dispatcher::create(facts, PathChoice::kMono).status().code(), Code::kUnsupported);
    auto dispatcher = std::move(Dispatcher::create(facts, PathChoice::kAuto)).value();
    EXPECT_EQ(dispatcher.decide(StepFacts{}).path, Path::kNative);
  }
  EXPECT_EQ(flips().size(), deployment_rows().size());
}

using StepFlip = std::function<void(StepFacts&)>;
const std::map<std::string, std::pair<StepFlip, std::string>>& step_flips() {
  const auto n = [](std::int64_t v) { return scheduled(v); };
  static const std::map<std::string, std::pair<StepFlip, std::string>> all = {
      {"no_metadata", {[](auto& s) { s.has_metadata = scheduled(false); }, "without requests"}},
      {"input_embeddings", {[](auto& s) { s.input_embeddings = scheduled(true); }, "embeddings"}},
      {"pipeline_intermediates",
       {[](auto& s) { s.pipeline_intermediates = scheduled(true); }, "present"}},
      {"microbatched", {[](auto& s) { s.microbatched = scheduled(true); }, "microbatches"}},
      {"prefill", {[=](auto& s) { s.prefill_rows = n(3); }, "is 3 prefill rows"}},
      {"rows", {[=](auto& s) { s.rows = n(17); }, "is 17, needs 1 to 16"}},
      {"query_length", {[=](auto& s) { s.longest_query = n(9); }, "is 1 to 9, needs 1 to 8"}},
      {"requests", {[=](auto& s) { s.query_rows = n(5); }, "is 1 of 5 rows in a step of 4"}},
      {"index_requests", {[=](auto& s) { s.index_requests = n(2); }, "is 2 for 1"}},
      {"context", {[=](auto& s) { s.longest_context = n(4097); }, "is 4097 of 4096"}},
      {"table_width", {[=](auto& s) { s.table_width = n(8193); }, "is 8193"}},
      {"slots", {[=](auto& s) { s.highest_slot = n(std::int64_t{1} << 31); }, "is 2147483648"}},
      {"measured",
       {[=](auto& s) {
          s.key_groups = n(101);
          s.fastest_groups = n(100);
        },
        "is 101 groups of 16 tokens over 4 rows, fused is faster up to 100"}},
      {"runner",
       {[](auto& s) { s.runner = Runner::from_scheduler(RunnerState::kStale); }, "is stale"}},
  };
  return all;
}

StepFacts fused_step() {
  StepFacts facts;
  facts.rows = scheduled(std::int64_t{4});
  facts.query_rows = facts.longest_query = scheduled(std::int64_t{4});
  facts.max_context = scheduled(std::int64_t{4096});
  facts.longest_context = scheduled(std::int64_t{300});
  return facts;
}

TEST(Refusals, TC2EachStepRowFlippedAloneGoesNative) {
  auto dispatcher = std::move(Dispatcher::create(supported(), PathChoice::kAuto)).value();
  ASSERT_EQ(dispatcher.decide(fused_step()).path, Path::kMono);
  for (std::size_t i = 0; i < step_rows().size(); ++i) {
    const StepRowRule& row = step_rows()[i];
    const auto flip = step_flips().find(std::string(row.name));
    ASSERT_NE(flip, step_flips().end()) << row.name << " has no test";
    StepFacts facts = fused_step();
    flip->second.first(facts);
    const Decision decision = dispatcher.decide(facts);
    EXPECT_EQ(decision.path, Path::kNative) << row.name;
    EXPECT_EQ(decision.refused, static_cast<int>(i)) << row.name;
    const std::string said = dispatcher.explain(decision, facts);
    EXPECT_EQ(said.find(std::string(row.name) + ": is"), 0U) << said;
    EXPECT_NE(said.find(flip->second.second), std::string::npos) << said;
  }
  const StepCounters counters = dispatcher.counters();
  EXPECT_EQ(counters.mono, 1);
  EXPECT_EQ(counters.native, static_cast<std::int64_t>(step_rows().size()));
  for (std::size_t i = 0; i < step_rows().size(); ++i) {
    EXPECT_EQ(counters.reasons[i].first, step_rows()[i].name);
    EXPECT_EQ(counters.reasons[i].second, 1);
  }
}

TEST(Refusals, TC2RowCounts) {
  auto dispatcher = std::move(Dispatcher::create(supported(), PathChoice::kAuto)).value();
  for (const std::int64_t rows : {1, 2, 3, 4, 5, 12, 16, 17}) {
    StepFacts facts = fused_step();
    facts.rows = facts.query_rows = facts.requests = facts.index_requests = scheduled(rows);
    facts.longest_query = scheduled(std::int64_t{1});
    EXPECT_EQ(dispatcher.decide(facts).path, rows <= 16 ? Path::kMono : Path::kNative) << rows;
  }
}

// T-C3: what is switched off never takes a step.
TEST(Refusals, TC3NativeChosenNeverTakesAStep) {
  auto dispatcher = std::move(Dispatcher::create(supported(), PathChoice::kNative)).value();
  for (int i = 0; i < 10; ++i) EXPECT_EQ(dispatcher.decide(fused_step()).path, Path::kNative);
  const StepCounters counters = dispatcher.counters();
  EXPECT_EQ(counters.mono, 0);
  EXPECT_EQ(counters.reasons.back().first, kReasonChosen);
  EXPECT_EQ(counters.reasons.back().second, 10);
}

// T-C5 as a property: whatever each rank's own state, the ranks decide alike.
TEST(Refusals, TC5DecisionsAreUniformOverRanks) {
  std::mt19937_64 random(7);
  std::vector<Dispatcher> ranks;
  ranks.reserve(8);
  for (int r = 0; r < 8; ++r) {
    ranks.push_back(std::move(Dispatcher::create(supported(), PathChoice::kAuto)).value());
  }
  std::set<int> seen;
  for (int step = 0; step < 20000; ++step) {
    const std::uint64_t bits = random();
    const auto pick = [&](int shift, std::int64_t bound) {
      return static_cast<std::int64_t>((bits >> shift) % static_cast<std::uint64_t>(bound));
    };
    std::vector<Decision> decisions;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      // A rank's own facts exist beside the replicated ones and have no way in.
      const PerRank<bool> dummy_run{(random() & 1U) != 0};
      const PerRank<std::int64_t> free_memory{static_cast<std::int64_t>(random() >> 30)};
      if (dummy_run.value && free_memory.value % 3 == 0) ranks[r].counters();
      StepFacts facts = fused_step();
      facts.rows = scheduled(pick(0, 20));
      facts.query_rows = scheduled(pick(6, 20));
      facts.longest_query = scheduled(pick(12, 10));
      facts.prefill_rows = scheduled(pick(18, 4) == 0 ? std::int64_t{2} : std::int64_t{0});
      facts.longest_context = scheduled(pick(24, 5000));
      facts.microbatched = scheduled(pick(30, 9) == 0);
      facts.has_metadata = scheduled(pick(36, 9) != 0);
      facts.runner = Runner::from_scheduler(static_cast<RunnerState>(pick(42, 7) % 5));
      decisions.push_back(ranks[r].decide(facts));
    }
    for (const Decision& d : decisions) {
      ASSERT_EQ(d.path, decisions[0].path);
      ASSERT_EQ(d.refused, decisions[0].refused);
    }
    seen.insert(decisions[0].refused);
  }
  EXPECT_GE(seen.size(), 7U) << "the steps must exercise the table";
}

TEST(Refusals, TC5AgreementRefusesValuesThatDiffer) {
  auto groups = std::move(tp::make_thread_group(4)).value();
  std::vector<std::thread> threads;
  threads.reserve(4);
  std::array<bool, 4> same{}, different{};
  for (int r = 0; r < 4; ++r) {
    threads.emplace_back([&, r] {
      tp::Group* group = groups[static_cast<std::size_t>(r)].get();
      same[static_cast<std::size_t>(r)] = Count::agreed(group, std::int64_t{5}, "width").ok();
      different[static_cast<std::size_t>(r)] = Flag::agreed(group, r == 2, "dummy run").ok();
      static_cast<void>(group->close());
    });
  }
  for (std::thread& t : threads) t.join();
  for (int r = 0; r < 4; ++r) {
    EXPECT_TRUE(same[static_cast<std::size_t>(r)]);
    EXPECT_FALSE(different[static_cast<std::size_t>(r)]);
  }
}

}  // namespace
}  // namespace monolayer::dispatch
