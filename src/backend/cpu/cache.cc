#include "backend/cpu/cache.h"

#include <sys/mman.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "core/memory.h"

namespace monolayer::cpu {
namespace {

std::int64_t size_of(DType dtype) { return static_cast<std::int64_t>(dtype_size(dtype)); }

std::int64_t kv_page_bytes(const m3::ModelConfig& config, const CacheOptions& options) {
  return config.num_kv_heads * m3::kPageTokens * config.head_dim * size_of(options.kv);
}
std::int64_t index_page_bytes(const m3::ModelConfig& config, const CacheOptions& options) {
  return m3::kPageTokens * config.index_dim * size_of(options.index);
}

Status check_options(const CacheOptions& options) {
  for (const DType dtype : {options.kv, options.index}) {
    if (dtype != DType::kBF16 && dtype != DType::kE4M3) {
      return {Code::kUnsupported, "cache type",
              std::string(dtype_name(dtype)) + " is not one of BF16, F8_E4M3"};
    }
  }
  for (const float scale : {options.k_scale, options.v_scale, options.index_scale}) {
    if (!std::isfinite(scale) || scale <= 0) {
      return {Code::kInvalidArgument, "cache scale",
              std::to_string(scale) + " is not a finite number above 0"};
    }
  }
  return {};
}

Status too_large(std::int64_t pages, std::int64_t page_bytes, std::int64_t available) {
  const std::int64_t fitting = available / page_bytes;
  return {Code::kResourceExhausted, "cache",
          std::to_string(pages) + " pages of " + std::to_string(m3::kPageTokens) + " tokens need " +
              std::to_string(pages) + " x " + std::to_string(page_bytes) + " bytes, " +
              std::to_string(available) +
              " are available; the longest context that "
              "fits is " +
              std::to_string(fitting * m3::kPageTokens) + " tokens"};
}

}  // namespace

std::int64_t CachePool::page_bytes(const m3::ModelConfig& config, const CacheOptions& options) {
  std::int64_t bytes = 0;
  for (const m3::LayerPattern& layer : config.layers) {
    bytes += 2 * kv_page_bytes(config, options);
    if (layer.sparse_attention) bytes += index_page_bytes(config, options);
  }
  return bytes;
}

Result<std::unique_ptr<CachePool>> CachePool::create(const m3::ModelConfig& config,
                                                     const CacheOptions& options,
                                                     std::int64_t pages) {
  return map(config, options, pages, true);
}

Result<std::unique_ptr<CachePool>> CachePool::reserve(const m3::ModelConfig& config,
                                                      const CacheOptions& options,
                                                      std::int64_t pages) {
  return map(config, options, pages, false);
}

Result<std::unique_ptr<CachePool>> CachePool::map(const m3::ModelConfig& config,
                                                  const CacheOptions& options, std::int64_t pages,
                                                  bool has_memory) {
  ML_RETURN_IF_ERROR(check_options(options));
  if (pages <= 0) {
    return Status(Code::kInvalidArgument, "cache", std::to_string(pages) + " pages, at least 1");
  }
  if (pages > std::numeric_limits<std::int32_t>::max()) {
    return Status(Code::kInvalidArgument, "cache",
                  std::to_string(pages) + " pages, page ids have 31 bits");
  }
  const std::int64_t bytes = page_bytes(config, options);
  const Result<MemoryAvailable> left = available_memory();
  const std::int64_t available =
      left.ok() && has_memory ? left->bytes : std::numeric_limits<std::int64_t>::max();
  if (bytes > available / pages) return too_large(pages, bytes, available);

  std::unique_ptr<CachePool> pool(new CachePool);
  pool->options_ = options;
  pool->pages_ = pages;
  pool->kv_heads_ = config.num_kv_heads;
  pool->caches_.head_dim = config.head_dim;
  pool->caches_.index_dim = config.index_dim;
  pool->bytes_ = static_cast<std::size_t>(pages * bytes);
  // Anonymous pages are only backed when touched, so an unused part of the pool costs nothing.
  pool->has_memory_ = has_memory;
  void* memory = mmap(nullptr, pool->bytes_, has_memory ? PROT_READ | PROT_WRITE : PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return Status(Code::kResourceExhausted, "cache",
                  std::to_string(pool->bytes_) + " bytes: " + std::strerror(errno));
  }
  if (has_memory) madvise(memory, pool->bytes_, MADV_HUGEPAGE);
  pool->memory_ = static_cast<std::byte*>(memory);
  std::byte* next = pool->memory_;
  for (const m3::LayerPattern& pattern : config.layers) {
    LayerCache layer;
    layer.options = options;
    layer.pages = layer.index_pages = pages;
    layer.page_bytes = kv_page_bytes(config, options);
    layer.token_bytes = config.head_dim * size_of(options.kv);
    layer.head_bytes = m3::kPageTokens * layer.token_bytes;
    layer.index_page_bytes = index_page_bytes(config, options);
    layer.index_token_bytes = config.index_dim * size_of(options.index);
    layer.k = next;
    layer.v = layer.k + pages * kv_page_bytes(config, options);
    next = layer.v + pages * kv_page_bytes(config, options);
    if (pattern.sparse_attention) {
      layer.index = next;
      next += pages * index_page_bytes(config, options);
    }
    pool->caches_.layers.push_back(layer);
  }
  return pool;
}

CachePool::~CachePool() {
  if (memory_ != nullptr) munmap(memory_, bytes_);
}

namespace {

Matrix page_of(DType dtype, std::int64_t cols, const std::byte* data, std::int64_t token_bytes) {
  return {.format = cache_format(dtype),
          .rows = m3::kPageTokens,
          .cols = cols,
          .data = data,
          .row_bytes = token_bytes};
}

}  // namespace

Matrix Caches::k_page(std::int64_t index, std::int32_t page, std::int64_t kv_head) const {
  const LayerCache& c = layer(index);
  return page_of(c.options.kv, head_dim, c.k + page * c.page_bytes + kv_head * c.head_bytes,
                 c.token_bytes);
}

Matrix Caches::v_page(std::int64_t index, std::int32_t page, std::int64_t kv_head) const {
  const LayerCache& c = layer(index);
  return page_of(c.options.kv, head_dim, c.v + page * c.page_bytes + kv_head * c.head_bytes,
                 c.token_bytes);
}

Matrix Caches::index_page(std::int64_t index, std::int32_t page) const {
  const LayerCache& c = layer(index);
  return page_of(c.options.index, index_dim, c.index + page * c.index_page_bytes,
                 c.index_token_bytes);
}

bool CachePool::fits(const m3::ModelConfig& config) const {
  if (layers() != config.num_layers || kv_heads_ != config.num_kv_heads ||
      caches_.head_dim != config.head_dim || caches_.index_dim != config.index_dim) {
    return false;
  }
  for (std::size_t i = 0; i < caches_.layers.size(); ++i) {
    if ((caches_.layers[i].index != nullptr) != config.layers[i].sparse_attention) return false;
  }
  return true;
}

}  // namespace monolayer::cpu
