// Memory of this process as the library's interface describes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "backend/cpu/cache.h"
#include "m3/config.h"
#include "monolayer/monolayer.h"

namespace monolayer::cpu {

// Contiguous, the last axis fastest; borrowed.
inline ml_tensor host_tensor(const void* data, std::int32_t dtype, std::int32_t layout,
                             std::initializer_list<std::int64_t> shape) {
  ml_tensor t = ML_TENSOR_INIT;
  t.data = const_cast<void*>(data);  // NOLINT: the interface has one type for both directions
  t.dtype = dtype;
  t.layout = layout;
  t.device_type = ML_DEVICE_CPU;
  for (const std::int64_t extent : shape) t.shape[t.rank++] = extent;
  std::int64_t stride = 1;
  for (int axis = t.rank - 1; axis >= 0; --axis) {
    t.strides[axis] = stride;
    stride *= t.shape[axis];
  }
  return t;
}

// A layer's caches, for contexts of up to `max_context` tokens.
inline ml_cache_spec cache_spec(const m3::ModelConfig& c, const LayerCache& cache,
                                std::int64_t layer, std::int64_t max_context) {
  const auto type = [](DType dtype) { return dtype == DType::kE4M3 ? ML_E4M3 : ML_BF16; };
  const auto pages = [&](const std::byte* data, DType dtype) {
    return host_tensor(data, type(dtype), ML_LAYOUT_PAGES,
                       {cache.pages, c.num_kv_heads, m3::kPageTokens, c.head_dim});
  };
  ml_cache_spec spec{};
  spec.size = sizeof spec;
  spec.layer_id = static_cast<std::int32_t>(layer);
  spec.k = pages(cache.k, cache.options.kv);
  spec.v = pages(cache.v, cache.options.kv);
  spec.index = host_tensor(cache.index, type(cache.options.index), ML_LAYOUT_PAGES,
                           {cache.index_pages, m3::kPageTokens, c.index_dim});
  spec.k_scale = cache.options.k_scale;
  spec.v_scale = cache.options.v_scale;
  spec.index_scale = cache.options.index_scale;
  spec.max_context = max_context;
  return spec;
}

}  // namespace monolayer::cpu
