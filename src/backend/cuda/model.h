// A model's weights on the device, repacked once.
#pragma once

#include <memory>
#include <vector>

#include "backend/cpu/cache.h"
#include "backend/cuda/device_memory.h"
#include "backend/cuda/params.h"
#include "backend/cuda/slice.h"
#include "core/status.h"
#include "m3/config.h"
#include "m3/weights.h"

namespace monolayer::cuda {

class DeviceModel {
 public:
  // Packs and uploads one rank's share of a model to the current device. Norms, router, index key
  // and embedding are whole on every rank. kUnsupported naming tensor or field and limit.
  static Result<std::unique_ptr<DeviceModel>> create(const m3::ModelConfig& config,
                                                     const m3::ModelWeights& weights,
                                                     const m3::RankShape& rank);

  // The same with random weights made there: E4M3 for attention and dense layers, MXFP4 for
  // experts.
  static Result<std::unique_ptr<DeviceModel>> random(const m3::ModelConfig& config,
                                                     const m3::RankShape& rank, std::uint64_t seed,
                                                     bool f32_router = false);

  const std::vector<Layer>& layers() const { return layers_; }  // without caches
  const Matrix& lm_head() const { return lm_head_; }
  const std::uint16_t* embed() const { return embed_; }
  const std::uint16_t* final_norm() const { return final_norm_; }
  // Largest staged row of each kind: normed rows, attended rows, expert activations.
  int hidden_row_bytes() const { return hidden_row_; }
  int other_row_bytes() const { return other_row_; }
  std::int64_t weight_bytes() const { return weight_bytes_; }

 private:
  DeviceModel() = default;
  struct Share;
  Status build(const m3::ModelConfig& config, const m3::ModelWeights& weights, const Share& share);
  Status build_layer(const m3::LayerWeights& in, const Share& share, Layer& out);
  struct Random;
  Status build_random(const m3::ModelConfig& config, Random& random);
  // The largest staged rows of what is there.
  void measure_rows();
  Result<void*> upload(const void* data, std::size_t bytes, const char* what);
  template <typename T>
  Status upload_vector(const TensorView& tensor, const T*& out);
  Result<Matrix> upload_matrix(const std::vector<Slice>& slices, int parts);
  Result<Matrix> upload_packed(Matrix m, const std::vector<unsigned char>& packed,
                               std::vector<float>& scales);
  Result<Matrix> upload_gate_up(const std::vector<const m3::MlpWeights*>& experts,
                                const Share& share);
  Result<Matrix> upload_down(const std::vector<const m3::MlpWeights*>& experts, const Share& share);

  std::vector<DeviceBuffer> buffers_;
  std::vector<Layer> layers_;
  Matrix lm_head_;
  const std::uint16_t *embed_ = nullptr, *final_norm_ = nullptr;
  int hidden_row_ = 0, other_row_ = 0;
  std::int64_t weight_bytes_ = 0;
};

}  // namespace monolayer::cuda
