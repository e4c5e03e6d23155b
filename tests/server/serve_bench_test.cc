// Figures of a load run from times that are known.
#include "server/serve_bench.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/access_log.h"

namespace monolayer::server {
namespace {

TEST(ServeBench, PercentilesAreNearestRanks) {
  std::vector<double> values;
  for (int i = 100; i > 0; --i) values.push_back(i);
  const Percentiles p = percentiles(values);
  EXPECT_EQ(p.count, 100);
  EXPECT_DOUBLE_EQ(p.mean, 50.5);
  EXPECT_EQ(p.p50, 50);
  EXPECT_EQ(p.p90, 90);
  EXPECT_EQ(p.p99, 99);
  EXPECT_EQ(p.largest, 100);
  EXPECT_EQ(percentiles({7}).p99, 7);
  EXPECT_EQ(percentiles({}).count, 0);
}

// Waiting for a free stream counts: the clock runs from when a request was due.
TEST(ServeBench, FailedRequestsCountNowhereElse) {
  StreamTimes good;
  good.planned = 1;
  good.sent = 2;
  good.first = 3;
  good.last = 7;
  good.gaps = {1, 3};
  good.tokens = 5;
  StreamTimes one = good, bad = good;
  one.tokens = 1;
  bad.error = "500";
  const ServeBenchReport report = summarize({good, one, bad}, 10);
  EXPECT_EQ(report.completed, 2);
  EXPECT_EQ(report.failed, 1);
  EXPECT_EQ(report.tokens, 6);
  EXPECT_EQ(report.ttft.mean, 2);
  EXPECT_EQ(report.e2e.mean, 6);
  EXPECT_EQ(report.itl.count, 4);
  EXPECT_EQ(report.tpot.count, 1);
  EXPECT_EQ(report.tpot.mean, 1);
  const auto json = report_json({}, report);
  EXPECT_EQ(json.at("errors").size(), 1U);
  EXPECT_DOUBLE_EQ(json.at("output_tokens_per_second").get<double>(), 0.6);
}

TEST(AccessLog, ALineIsOneJsonObjectWhateverItHolds) {
  Access access;
  access.method = "GET";
  access.path = "/a\"b\n\xff";
  access.status = 404;
  access.note = "\"request_id\":\"x\",\"completion_tokens\":3";
  const std::string line = access_line(access, 1.5);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const auto json = nlohmann::json::parse(line);
  EXPECT_EQ(json.at("completion_tokens"), 3);
  EXPECT_EQ(json.at("status"), 404);
  access.note = "broken";
  EXPECT_TRUE(nlohmann::json::parse(access_line(access, 1)).is_object());
}

}  // namespace
}  // namespace monolayer::server
