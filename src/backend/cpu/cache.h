// Paged caches of the CPU backend: pages of 128 tokens, one block id for K, V and index keys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "backend/cpu/tiles.h"
#include "core/dtype.h"
#include "core/status.h"
#include "m3/config.h"

namespace monolayer::cpu {

struct CacheOptions {
  DType kv = DType::kBF16;                          // kBF16 or kE4M3
  DType index = DType::kBF16;                       // kBF16 or kE4M3
  float k_scale = 1, v_scale = 1, index_scale = 1;  // E4M3: stored = value / scale; finite, > 0

  bool operator==(const CacheOptions&) const = default;
};

// One layer's cache memory. The entry of (page, kv_head, token) begins at k + page * page_bytes +
// kv_head * head_bytes + token * token_bytes, of V likewise; index keys have no heads and are null
// on dense layers.
struct LayerCache {
  CacheOptions options;
  std::byte *k = nullptr, *v = nullptr, *index = nullptr;
  std::int64_t page_bytes = 0, head_bytes = 0, token_bytes = 0;
  std::int64_t index_page_bytes = 0, index_token_bytes = 0;
  std::int64_t pages = 0, index_pages = 0;
};

// Borrowed caches of every layer, as the stages read and write them.
struct Caches {
  std::int64_t head_dim = 0, index_dim = 0;
  std::vector<LayerCache> layers;

  const LayerCache& layer(std::int64_t i) const { return layers[static_cast<std::size_t>(i)]; }
  const CacheOptions& options(std::int64_t i) const { return layer(i).options; }
  // Rows = the 128 tokens of one page, as the tile functions read them.
  Matrix k_page(std::int64_t layer, std::int32_t page, std::int64_t kv_head) const;
  Matrix v_page(std::int64_t layer, std::int32_t page, std::int64_t kv_head) const;
  Matrix index_page(std::int64_t layer, std::int32_t page) const;
};

// Owns the pool. Fresh pages are not cleared: nothing may read past a sequence's own length.
class CachePool {
 public:
  // Bytes of one page over all layers.
  static std::int64_t page_bytes(const m3::ModelConfig& config, const CacheOptions& options);
  // kResourceExhausted, with both figures and the longest context that fits, before allocating;
  // kUnsupported for a cache type other than BF16 or E4M3.
  static Result<std::unique_ptr<CachePool>> create(const m3::ModelConfig& config,
                                                   const CacheOptions& options, std::int64_t pages);
  // A pool that only says its shape, for chains whose caches lie on a device: its addresses may not
  // be read or written.
  static Result<std::unique_ptr<CachePool>> reserve(const m3::ModelConfig& config,
                                                    const CacheOptions& options,
                                                    std::int64_t pages);
  ~CachePool();
  CachePool(const CachePool&) = delete;
  CachePool& operator=(const CachePool&) = delete;

  const CacheOptions& options() const { return options_; }
  std::int64_t pages() const { return pages_; }
  // Entries lie as [page][kv_head][128][head_dim] for K and for V, [page][128][index_dim] for index
  // keys.
  const Caches& caches() const { return caches_; }
  const LayerCache& layer(std::int64_t i) const { return caches_.layer(i); }
  std::int64_t layers() const { return static_cast<std::int64_t>(caches_.layers.size()); }
  Matrix k_page(std::int64_t layer, std::int32_t page, std::int64_t kv_head) const {
    return caches_.k_page(layer, page, kv_head);
  }
  Matrix v_page(std::int64_t layer, std::int32_t page, std::int64_t kv_head) const {
    return caches_.v_page(layer, page, kv_head);
  }
  Matrix index_page(std::int64_t layer, std::int32_t page) const {
    return caches_.index_page(layer, page);
  }

  bool has_memory() const { return has_memory_; }
  // The whole pool, for tests that poison or compare it.
  std::byte* memory() const { return memory_; }
  std::size_t bytes() const { return bytes_; }
  // Whether this pool was made for a model of these shapes.
  bool fits(const m3::ModelConfig& config) const;

 private:
  CachePool() = default;
  static Result<std::unique_ptr<CachePool>> map(const m3::ModelConfig& config,
                                                const CacheOptions& options, std::int64_t pages,
                                                bool has_memory);
  bool has_memory_ = true;
  CacheOptions options_;
  std::int64_t pages_ = 0, kv_heads_ = 0;
  std::byte* memory_ = nullptr;
  std::size_t bytes_ = 0;
  Caches caches_;
};

// The stored format of a cache type.
inline Format cache_format(DType dtype) {
  return dtype == DType::kE4M3 ? Format::kE4M3 : Format::kBF16;
}

}  // namespace monolayer::cpu
