// Checks of one borrowed tensor of the public interface against what its role asks for.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "core/status.h"
#include "monolayer/monolayer.h"

namespace monolayer::mono {

// What a device takes. Tags are ML_LAYOUT_*, the preferred one first.
struct DeviceTraits {
  std::int32_t device_type = ML_DEVICE_CPU;
  std::string_view name = "cpu";
  std::span<const std::int32_t> weight_layouts, cache_layouts, activation_layouts;
  // Whether the host may read what step pointers name (tables, lengths, slots, positions).
  bool host_addressable = true;
  std::int64_t cache_alignment = 16, activation_alignment = 16;  // bytes

  std::span<const std::int32_t> layouts(std::int32_t role) const;  // ML_ROLE_*
};

// Up to ML_MAX_RANK numbers, copied.
class Numbers {
 public:
  Numbers() = default;
  Numbers(std::initializer_list<std::int64_t> values) {  // NOLINT: reads like the list it is
    for (const std::int64_t value : values) {
      if (count_ < ML_MAX_RANK) values_[count_++] = value;
    }
  }
  const std::int64_t* begin() const { return values_; }
  const std::int64_t* end() const { return values_ + count_; }
  int size() const { return count_; }

 private:
  std::int64_t values_[ML_MAX_RANK] = {};
  int count_ = 0;
};

// Who is asking, for messages, and what it must be.
struct TensorRule {
  std::string subject;  // "layer 5, o.weight"
  Numbers dtypes;
  Numbers shape;  // -1: any extent of at least 1
  std::int32_t role = ML_ROLE_WEIGHT;
  std::int32_t device_index = 0;
  std::int64_t alignment = 0;  // bytes of data; 0: of the element
  // The last `packed` axes lie without gaps; axes before them may be any distance apart as long as
  // entries do not overlap.
  int packed = 1;
};

std::string_view abi_dtype_name(std::int32_t dtype);
// Bytes of one stored unit, 0 for an unknown type.
std::int64_t abi_dtype_size(std::int32_t dtype);
inline bool present(const ml_tensor& tensor) { return tensor.data != nullptr; }
std::string shape_text(const ml_tensor& tensor);

// kInvalidArgument naming the subject, the value and what is accepted: struct size, presence, rank,
// device, layout tag, dtype, shape, strides (no overlap, extent within 2^63 bytes), alignment.
Status check_tensor(const ml_tensor& tensor, const DeviceTraits& device, const TensorRule& rule);

}  // namespace monolayer::mono
