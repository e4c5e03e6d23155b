// Layer plans of the full model's shape: complete, balanced, and held to their contract; wrong
// plans are caught.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>

#include <nlohmann/json.hpp>

#include "mono/plan.h"
#include "mono/plan_check.h"
#include "mono/plan_work.h"

namespace monolayer::mono {
namespace {

// One rank of `ranks` of a 6144-wide model with 64 query heads, 4 KV heads, 128 experts.
PlanInput full_input(std::int64_t rows, int workers, bool sparse, std::int64_t ranks = 1,
                     std::int64_t blocks = 40) {
  PlanInput in;
  in.sparse = sparse;
  in.moe = sparse;
  in.workers = workers;
  in.rows = rows;
  in.hidden = 6144;
  in.heads = 64 / ranks;
  in.kv_heads = std::max<std::int64_t>(1, 4 / ranks);
  in.head_dim = in.index_dim = 128;
  in.index_heads = in.kv_heads;
  in.topk = 16;
  const auto rows_of = [](std::int64_t units, std::int64_t bytes) {
    return WorkItem{units, bytes, bytes};
  };
  in.projections[0] = rows_of(in.heads * 128, 6148);
  in.projections[1] = in.projections[2] = rows_of(in.kv_heads * 128, 6148);
  if (sparse) {
    in.projections[3] = rows_of(in.index_heads * 128, 6148);
    in.projections[4] = rows_of(128, 6148);
  }
  in.output = rows_of(6144, in.heads * 128 + 4);
  in.router = rows_of(128, 24576);
  for (std::int64_t g = 0; g < rows * 4 + 1; ++g) in.gate_up.push_back({3072 / ranks, 6528, 6528});
  in.down = {6144, 1632 / ranks, 1632 / ranks};
  const std::int64_t group = in.heads / in.kv_heads;
  if (sparse && blocks > in.topk) {
    for (std::int64_t r = 0; r < rows; ++r) in.scores.push_back({r, 1, blocks});
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t g = 0; g < in.kv_heads; ++g) {
      in.attention.push_back({r, 1, g, sparse ? std::min(in.topk, blocks) : blocks});
    }
  }
  in.pairs_per_part = group;
  const std::int64_t units = rows * in.kv_heads * (sparse ? in.topk : blocks);
  in.wave_units = sparse ? units : std::max<std::int64_t>(1, units / 3);
  in.score_bytes = 16384;
  in.attend_bytes = 32768;
  for (int r = 0; r < kRegions; ++r) {
    const auto at = static_cast<std::size_t>(r);
    in.largest[at] = 1000 * (r + 1) * 16;
    in.needed[at] = 1000 * (r + 1) * rows;
  }
  return in;
}

Status check_twice(const LayerPlan& plan) { return check_plans({&plan, &plan, &plan}); }

TEST(MonoPlan, T_B2_EveryTaskOnceForEveryRowCountAndTeam) {
  for (std::int64_t rows = 1; rows <= 16; ++rows) {
    for (const int workers : {1, 2, 3, 4, 7, 16}) {
      for (const std::int64_t ranks : {1, 2, 4, 8}) {
        for (const std::int64_t blocks : {1, 16, 17, 300}) {
          const LayerPlan sparse = make_plan(full_input(rows, workers, true, ranks, blocks));
          const LayerPlan dense = make_plan(full_input(rows, workers, false, ranks, blocks));
          const Status status = check_plans({&dense, &dense, &sparse, &sparse, &dense});
          ASSERT_TRUE(status.ok()) << rows << " rows, " << workers << " workers, " << ranks
                                   << " ranks, " << blocks << " blocks: " << status.to_string();
        }
      }
    }
  }
}

TEST(MonoPlan, T_B1_RegionsAreDisjointAlignedAndTheSameInEveryPlan) {
  const LayerPlan one = make_plan(full_input(1, 4, true));
  const LayerPlan many = make_plan(full_input(16, 4, true));
  const LayerPlan dense = make_plan(full_input(5, 4, false));
  for (int r = 0; r < kRegions; ++r) {
    const auto region = static_cast<Region>(r);
    EXPECT_EQ(one.place(region).offset, many.place(region).offset) << region_name(region);
    EXPECT_EQ(one.place(region).offset, dense.place(region).offset) << region_name(region);
    EXPECT_EQ(0, one.place(region).offset % kRegionAlign);
  }
  EXPECT_EQ(one.memory, many.memory);
  EXPECT_EQ(one.memory, dense.memory);
}

TEST(MonoPlan, T_B4_HeadsReadTheColumnsTheyWereProjectedInto) {
  for (const std::int64_t ranks : {1, 4}) {  // four index heads, one index head
    const LayerPlan plan = make_plan(full_input(2, 3, true, ranks));
    const std::int64_t heads = 64 / ranks, kv = std::max<std::int64_t>(1, 4 / ranks);
    for (const PlanStep& step : plan.steps) {
      if (step.stage != Stage::kHeads) continue;
      EXPECT_EQ(heads + 2 * kv + kv + 1, step.units);
      for (std::size_t t = 0; t < step.tasks.size(); ++t) {
        ASSERT_EQ(1U, step.reads[t].size());
        EXPECT_EQ(step.tasks[t].units.begin * 128, step.reads[t][0].units.begin);
        EXPECT_EQ(step.tasks[t].units.end * 128, step.reads[t][0].units.end);
      }
    }
  }
}

TEST(MonoPlan, WeightBytesAreBalancedWithinOneTile) {
  for (const int workers : {2, 3, 5, 16}) {
    const LayerPlan plan = make_plan(full_input(1, workers, true));
    for (const PlanStep& step : plan.steps) {
      if (step.stage != Stage::kProject && step.stage != Stage::kOutput &&
          step.stage != Stage::kDown && step.stage != Stage::kGateUp) {
        continue;
      }
      std::int64_t least = step.tasks[0].bytes, most = least;
      for (const Task& task : step.tasks) {
        least = std::min(least, task.bytes);
        most = std::max(most, task.bytes);
      }
      EXPECT_LE(most - least, 16 * 8196) << stage_name(step.stage) << ", " << workers;
    }
  }
}

// Every kind of breach, put into a good plan.
struct Breach {
  const char* name;
  std::function<void(LayerPlan&)> apply;
  const char* says;  // a part of the message
};

PlanStep& step_of(LayerPlan& plan, Stage stage) {
  return *std::find_if(plan.steps.begin(), plan.steps.end(),
                       [&](const PlanStep& step) { return step.stage == stage; });
}

void erase_task(PlanStep& step, std::size_t t) {
  const auto at = static_cast<std::ptrdiff_t>(t);
  step.tasks.erase(step.tasks.begin() + at);
  step.reads.erase(step.reads.begin() + at);
  step.writes.erase(step.writes.begin() + at);
}

TEST(MonoPlan, T_B7_WrongPlansAreReported) {
  const Breach breaches[] = {
      {"a task is missing", [](LayerPlan& p) { erase_task(step_of(p, Stage::kProject), 1); },
       "have no task"},
      {"a task is doubled",
       [](LayerPlan& p) {
         PlanStep& s = step_of(p, Stage::kRouter);
         s.tasks.push_back(s.tasks[0]);
         s.reads.push_back(s.reads[0]);
         s.writes.push_back(s.writes[0]);
       },
       "have two tasks"},
      {"a wait is missing", [](LayerPlan& p) { step_of(p, Stage::kOutput).waits[1].clear(); },
       "without waiting"},
      {"one wait of many is missing",
       [](LayerPlan& p) { step_of(p, Stage::kRoute).waits[2].pop_back(); }, "without waiting"},
      {"a wait for the layer before is missing",
       [](LayerPlan& p) { step_of(p, Stage::kInputNorm).waits[0].clear(); }, "without waiting"},
      {"a wait for a step too early",
       [](LayerPlan& p) {
         for (Wait& wait : step_of(p, Stage::kDown).waits[0]) --wait.step;
       },
       "without waiting"},
      {"a wait for a later step",
       [](LayerPlan& p) {
         step_of(p, Stage::kScore).waits[0].push_back({1, 12});
       },
       "not earlier"},
      {"the wrong writer",
       [](LayerPlan& p) {
         PlanStep& s = step_of(p, Stage::kAttend);
         for (auto& writes : s.writes) writes[0].region = Region::kAttended;
       },
       "reads partials"},
      {"a second writing stage",
       [](LayerPlan& p) {
         PlanStep& s = step_of(p, Stage::kRouter);
         s.writes[0].push_back({Region::kProjected, {0, 128}});
       },
       "which project writes"},
      {"writers overlap",
       [](LayerPlan& p) { step_of(p, Stage::kOutput).writes[0][0].units.end += 8; }, "output"},
      {"a region is read that nobody wrote",
       [](LayerPlan& p) {
         step_of(p, Stage::kProject).reads[0].push_back({Region::kAttended, {0, 1}});
       },
       "was not written before"},
      {"units outside the region",
       [](LayerPlan& p) { step_of(p, Stage::kMerge).writes[0][1].units.end += 100000; },
       "the region has"},
      {"stages in the wrong order", [](LayerPlan& p) { std::swap(p.steps[1], p.steps[2]); },
       "not earlier"},
      {"regions overlap", [](LayerPlan& p) { p.regions[2].offset = p.regions[1].offset; },
       "overlaps"},
      {"a region is not aligned", [](LayerPlan& p) { p.regions[4].offset += 8; }, "not a multiple"},
      {"a region is too small", [](LayerPlan& p) { p.regions[6].needed = p.regions[6].bytes + 1; },
       "needs"},
      {"memory too small", [](LayerPlan& p) { p.memory -= 1; }, "outside the memory"},
  };
  const LayerPlan good = make_plan(full_input(6, 3, true));
  ASSERT_TRUE(check_twice(good).ok()) << check_twice(good).to_string();
  for (const Breach& breach : breaches) {
    LayerPlan bad = good;
    breach.apply(bad);
    const Status status = check_twice(bad);
    EXPECT_FALSE(status.ok()) << breach.name;
    EXPECT_NE(std::string::npos, status.message().find(breach.says))
        << breach.name << ": " << status.to_string();
  }
}

// Each single wait matters or is implied by others: none may be dropped together with those that
// imply it. Dropping all waits of a worker in any step with reads of others' results must fail.
TEST(MonoPlan, T_B7_NoStepThatWaitsCanDoWithout) {
  const LayerPlan good = make_plan(full_input(6, 3, true));
  for (std::size_t s = 0; s < good.steps.size(); ++s) {
    for (std::size_t w = 0; w < 3; ++w) {
      if (good.steps[s].waits[w].empty()) continue;
      LayerPlan bad = good;
      bad.steps[s].waits[w].clear();
      // An earlier wait of the same worker may already imply it.
      bool implied = true;
      for (const Wait& wait : good.steps[s].waits[w]) {
        bool seen = false;
        for (std::size_t before = 0; before < s; ++before) {
          for (const Wait& other : good.steps[before].waits[w]) {
            seen |= other.worker == wait.worker && other.step >= wait.step;
          }
        }
        implied &= seen;
      }
      if (implied) continue;
      EXPECT_FALSE(check_twice(bad).ok()) << stage_name(good.steps[s].stage) << ", worker " << w;
    }
  }
}

TEST(MonoPlan, JsonNamesEveryTask) {
  const LayerPlan plan = make_plan(full_input(2, 2, true));
  const auto json = nlohmann::json::parse(plan_json(plan));
  ASSERT_EQ(plan.steps.size(), json["steps"].size());
  EXPECT_EQ("project", json["steps"][1]["stage"]);
  EXPECT_EQ(plan.bytes(), json["bytes"].get<std::int64_t>());
}

TEST(MonoPlan, SharesCoverEveryUnitOnce) {
  const std::vector<WorkItem> items = {{100, 7, 7}, {0, 5, 5}, {33, 1, 1}, {64, 50, 50}};
  for (int workers = 1; workers <= 20; ++workers) {
    std::int64_t at = 0;
    for (int w = 0; w < workers; ++w) {
      const Extent share = work_share(items, w, workers, 8);
      EXPECT_EQ(at, share.begin);
      EXPECT_LE(share.begin, share.end);
      at = share.end;
    }
    EXPECT_EQ(197, at);
  }
}

}  // namespace
}  // namespace monolayer::mono
