// Figures for Prometheus, under the names of both families that dashboards know.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dispatch/dispatcher.h"
#include "engine/engine.h"

namespace monolayer::server {

class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds)
      : bounds_(std::move(bounds)), counts_(bounds_.size() + 1, 0) {}
  void observe(double value, std::int64_t times = 1);
  // Lines of one family: buckets, sum, count.
  std::string text(const std::string& name, const std::string& help,
                   const std::string& labels) const;

 private:
  std::vector<double> bounds_;
  std::vector<std::int64_t> counts_;
  double sum_ = 0;
  std::int64_t count_ = 0;
};

// Written and read on the server's thread only.
class Metrics {
 public:
  explicit Metrics(const std::string& model_name);
  // One more step's output of a request; `first` is its first token.
  void tokens(std::int64_t count, bool first, double seconds_since_last);
  void finished(const engine::RequestOutput& output, std::int64_t prompt_tokens,
                std::int64_t generated);
  void http(int status) { ++responses_[status / 100 < 6 ? status / 100 : 5]; }
  std::string text(const engine::EngineStats& stats, const dispatch::StepCounters& paths,
                   std::int64_t connections) const;

 private:
  void speculation(const engine::SpeculationStats& stats, std::string& out) const;
  std::string labels_;
  Histogram first_token_, inter_token_, whole_, queue_, prefill_, decode_, prompt_, generation_;
  std::int64_t responses_[6] = {0, 0, 0, 0, 0, 0};
};

}  // namespace monolayer::server
