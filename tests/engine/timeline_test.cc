// The picture of a fused run: a box per task and per wait, on its worker's line, in proportion.
#include "engine/timeline.h"

#include <gtest/gtest.h>

#include <regex>
#include <string>

#include "backend/cpu/layer_views.h"
#include "backend_cpu/mono_harness.h"

namespace monolayer::engine {
namespace {

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(Timeline, BoxesInProportion) {
  const std::vector<cpu::TaskTime> times = {
      {0, 0, mono::Stage::kProject, 0, 0, 1e-3},
      {1, 0, mono::Stage::kProject, 1e-3, 1e-3, 3e-3},
      {1, 1, mono::Stage::kOutput, 1e-3, 2e-3, 5e-3},
  };
  const std::string svg = timeline_svg(times, 2, 1);  // layer 1 alone
  EXPECT_EQ(count(svg, "fused layer 1, "), 3U);       // two tasks and a wait
  EXPECT_EQ(count(svg, "fused layer 0, "), 0U);
  EXPECT_NE(svg.find("4000.0 us from left to right"), std::string::npos);
  EXPECT_NE(svg.find("worker 1: waits 1000.0 us"), std::string::npos);
  // 1,600 units for 4 ms: the first task takes half of them, the wait a quarter.
  EXPECT_NE(svg.find("x=\"70.00\" y=\"30.0\" width=\"800.00\""), std::string::npos) << svg;
  EXPECT_NE(svg.find("x=\"70.00\" y=\"62.0\" width=\"400.00\""), std::string::npos) << svg;
  EXPECT_NE(svg.find("waits 12.5 %"), std::string::npos);
  EXPECT_EQ(count(svg, "<rect"), count(svg, "</rect>"));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
}

// What an executor records, and that it records nothing unless asked.
TEST(Timeline, OfARun) {
  const m3::ModelConfig config = test::eight_way_config();
  const test::RandomModel model(config, {}, 3);
  const cpu::ModelView view = cpu::view_model(model.config, model.weights).value();
  const std::vector<test::Request> requests = {{40, 2}};
  const test::Pool pool = test::make_pool(config, 0, {}, requests, 1, 1, false);
  const auto rows = test::step_rows(pool, requests, {});
  auto hidden = test::step_inputs(config, rows, 1), residual = hidden;
  const auto team = cpu::ThreadTeam::create({.threads = 2, .pin = false}).value();
  for (const bool record : {false, true}) {
    cpu::MonoOptions options;
    options.record = record;
    auto made = cpu::MonoExecutor::create(cpu::executor_config(config, view, pool.pool->caches()),
                                          team.get(), options);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    ASSERT_TRUE((*made)->prepare(rows).ok());
    ASSERT_TRUE((*made)
                    ->run_layers(0, config.num_layers, hidden.data(), nullptr, hidden.data(),
                                 residual.data())
                    .ok());
    std::size_t tasks = 0;
    for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
      for (const mono::PlanStep& step : (*made)->plan(layer).steps) tasks += step.tasks.size();
    }
    EXPECT_EQ((*made)->times().size(), record ? tasks : 0U);
    for (const cpu::TaskTime& t : (*made)->times()) {
      EXPECT_LE(t.wait_begin, t.begin);
      EXPECT_LE(t.begin, t.end);
    }
    if (record) {
      const std::string svg = timeline_svg((*made)->times(), 2, 3);
      EXPECT_GE(count(svg, "<title>fused layer"), tasks);
    }
    ASSERT_TRUE((*made)->close().ok());
  }
}

}  // namespace
}  // namespace monolayer::engine
