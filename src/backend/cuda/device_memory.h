// Device memory with an owner, and CUDA errors as values.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include <cuda_runtime_api.h>

#include "core/status.h"

namespace monolayer::cuda {

// kResourceExhausted for want of memory, kIoError after which nothing works on the device for this
// process, kInternal otherwise; `what` is the subject.
Status cuda_status(cudaError_t error, const std::string& what);
// In functions that return a Status or Result: ends them with the error of a call.
#define ML_CUDA(call) ML_RETURN_IF_ERROR(::monolayer::cuda::cuda_status((call), #call))

class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  ~DeviceBuffer() { release(); }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    release();
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    return *this;
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  // Contents undefined. kResourceExhausted states both figures.
  static Result<DeviceBuffer> create(std::size_t bytes, const std::string& what);

  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  std::size_t bytes() const { return bytes_; }
  // Gives the memory up without freeing it.
  void leak() { data_ = nullptr; }

 private:
  void release();
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace monolayer::cuda
