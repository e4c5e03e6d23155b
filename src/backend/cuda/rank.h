// One tensor-parallel rank on a device: its share of the weights, its caches and buffers, and what
// its blocks are told.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "backend/cpu/cache.h"
#include "backend/cuda/device_memory.h"
#include "backend/cuda/model.h"
#include "backend/cuda/params.h"
#include "core/status.h"
#include "m3/config.h"
#include "m3/weights.h"

namespace monolayer::cuda {

class Rank {
 public:
  // On the current device. `config`: the whole model's.
  static Result<std::unique_ptr<Rank>> create(
      const m3::ModelConfig& config, const m3::RankShape& shape,
      const std::function<Result<std::unique_ptr<DeviceModel>>()>& model);

  // Caches and step buffers for a pool of this many pages and these types, `blocks` blocks a
  // launch. Everything of params() but what ranks share: step, pages, barrier, record, mail, test
  // switches.
  Status bind(const cpu::CacheOptions& options, std::int64_t pages);
  void unbind() { buffers_.clear(); }
  // Benches: random entries everywhere, another in every layer.
  Status fill_caches(std::uint64_t seed);

  const m3::RankShape& shape() const { return shape_; }
  const m3::ModelConfig& config() const { return config_; }  // as this rank sees the model
  const DeviceModel& model() const { return *model_; }
  const std::vector<Layer>& layers() const { return layers_; }
  Params& params() { return params_; }
  const Params& params() const { return params_; }

 private:
  explicit Rank(const m3::RankShape& shape) : shape_(shape) {}
  void set_shape(const cpu::CacheOptions& options);
  template <typename T>
  Status allocate(T*& out, std::int64_t count, const char* what);

  m3::RankShape shape_;
  m3::ModelConfig config_;
  std::unique_ptr<DeviceModel> model_;
  std::vector<DeviceBuffer> buffers_;
  std::vector<Layer> layers_;
  std::int64_t kv_bytes_ = 0, index_bytes_ = 0;  // of each layer
  Params params_{};
};

}  // namespace monolayer::cuda
