// Paged caches of the CPU backend: pages of 128 tokens, one block id for K, V and index keys.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/dtype.h"
#include "core/status.h"
#include "m3/config.h"

namespace monolayer::cpu {

struct CacheOptions {
  DType kv = DType::kBF16;                          // kBF16 or kE4M3
  DType index = DType::kBF16;                       // kBF16 or kE4M3
  float k_scale = 1, v_scale = 1, index_scale = 1;  // E4M3: stored = value / scale
};

// Views of one layer's cache memory; entries are [page][kv_head][128][head_dim] for K and V, and
// [page][128][index_dim] for index keys (null on dense layers).
struct LayerCache {
  std::byte *k = nullptr, *v = nullptr, *index = nullptr;
};

// Owns the pool. Fresh pages are not cleared: nothing may read past a sequence's own length.
class CachePool {
 public:
  // Bytes of one page over all layers.
  static std::int64_t page_bytes(const m3::ModelConfig& config, const CacheOptions& options);
  // kResourceExhausted, with both figures and the longest context that fits, before allocating.
  static Result<std::unique_ptr<CachePool>> create(const m3::ModelConfig& config,
                                                   const CacheOptions& options, std::int64_t pages);
  ~CachePool();

  const CacheOptions& options() const { return options_; }
  std::int64_t pages() const { return pages_; }
  const LayerCache& layer(std::int64_t i) const { return layers_[static_cast<std::size_t>(i)]; }

 private:
  CachePool() = default;
  CacheOptions options_;
  std::int64_t pages_ = 0;
  std::byte* memory_ = nullptr;
  std::size_t bytes_ = 0;
  std::vector<LayerCache> layers_;
};

}  // namespace monolayer::cpu
