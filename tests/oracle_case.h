// One reference case of tests/data: a checkpoint and what another implementation computes for it.
#pragma once

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "m3/config.h"
#include "m3/weights.h"

namespace monolayer {

struct OracleCase {
  std::string folder;
  m3::ModelConfig config;
  std::unique_ptr<Checkpoint> checkpoint;
  m3::ModelWeights weights;
  std::unique_ptr<SafetensorsFile> expected;
  std::vector<std::int32_t> input_ids, rows, greedy;
  std::vector<float> greedy_gap;

  static Result<OracleCase> load(const std::string& folder, const std::string& expected_file) {
    OracleCase result;
    result.folder = folder;
    ML_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::open(folder));
    result.checkpoint = std::make_unique<Checkpoint>(std::move(checkpoint));
    ML_ASSIGN_OR_RETURN(result.config, m3::parse_config(result.checkpoint->config(), folder));
    ML_ASSIGN_OR_RETURN(result.weights, m3::bind_weights(result.config, *result.checkpoint));
    ML_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::open(expected_file));
    result.expected = std::make_unique<SafetensorsFile>(std::move(file));
    result.input_ids = result.ints("input_ids");
    result.rows = result.ints("rows");
    if (result.expected->find("greedy") != nullptr) {
      result.greedy = result.ints("greedy");
      result.greedy_gap = result.floats("greedy_gap");
    }
    return result;
  }
  // A case of tests/data/oracle or tests/data/oracle_extra by name, or "nano", the embedded model.
  static Result<OracleCase> load(const std::string& name) {
    const std::string root = MONOLAYER_SOURCE_DIR;
    if (name == "nano") {
      return load(root + "/assets/nano", root + "/tests/data/nano_expected.safetensors");
    }
    std::string folder = root + "/tests/data/oracle/" + name;
    if (!std::filesystem::exists(folder)) folder = root + "/tests/data/oracle_extra/" + name;
    return load(folder, folder + "/expected.safetensors");
  }

  std::vector<std::int32_t> ints(const std::string& name) const {
    const TensorView* t = expected->find(name);
    return {t->as<std::int32_t>(), t->as<std::int32_t>() + *t->shape.elements()};
  }
  std::vector<float> floats(const std::string& name) const {
    const TensorView* t = expected->find(name);
    return {t->as<float>(), t->as<float>() + *t->shape.elements()};
  }
};

// |a - b| / |b| over all values, in double; NaN if any value is.
inline double relative_l2(std::span<const float> a, std::span<const float> b) {
  double difference = 0, norm = 0;
  if (a.size() != b.size()) return NAN;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - b[i];
    difference += d * d;
    norm += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(difference / norm);
}

}  // namespace monolayer
