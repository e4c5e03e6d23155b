// Requests of random tokens, and the answer of a generator that knows one sequence and no engine.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "engine/generator.h"
#include "engine/model_loader.h"
#include "engine/native_run.h"
#include "engine/request.h"

namespace monolayer::engine {

inline std::vector<std::int32_t> random_prompt(std::uint32_t seed, std::size_t length) {
  std::mt19937 random(seed);
  std::vector<std::int32_t> ids(length);
  for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random() % 1900);
  return ids;
}

inline Request random_request(std::vector<std::int32_t> ids, std::int64_t tokens,
                              double temperature) {
  Request r;
  r.prompt = std::move(ids);
  r.max_tokens = tokens;
  r.ignore_eos = true;
  r.sampling.temperature = temperature;
  r.sampling.top_p = temperature > 0 ? 0.9 : 1.0;
  r.sampling.top_k = temperature > 0 ? 50 : 0;
  r.sampling.seed = 1234;
  return r;
}

inline std::vector<std::int32_t> answer_alone(const OpenModel& model, NativeRun& run,
                                              const Request& r) {
  Generator generator(model.config, run.native(), run.pool());
  GenerateOptions options;
  options.sampling = r.sampling;
  options.max_tokens = r.max_tokens;
  std::vector<std::int32_t> tokens;
  const auto report = generator.generate(r.prompt, options, [&](std::int32_t id) {
    tokens.push_back(id);
    return true;
  });
  EXPECT_TRUE(report.ok()) << report.status().to_string();
  return tokens;
}

}  // namespace monolayer::engine
