#include "backend/cuda/device_memory.h"

namespace monolayer::cuda {

Status cuda_status(cudaError_t error, const std::string& what) {
  if (error == cudaSuccess) return {};
  const Code code = error == cudaErrorMemoryAllocation ? Code::kResourceExhausted : Code::kInternal;
  return {code, what, std::string("CUDA: ") + cudaGetErrorString(error)};
}

Result<DeviceBuffer> DeviceBuffer::create(std::size_t bytes, const std::string& what) {
  DeviceBuffer buffer;
  const std::size_t wanted = bytes == 0 ? 16 : bytes;
  const cudaError_t error = cudaMalloc(&buffer.data_, wanted);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // the refusal is reported here and is no reason for later calls to fail
    std::size_t free = 0;
    std::size_t total = 0;
    cudaMemGetInfo(&free, &total);
    return Status(Code::kResourceExhausted, what,
                  "needs " + std::to_string(wanted) + " bytes of device memory, " +
                      std::to_string(free) + " of " + std::to_string(total) + " are free");
  }
  ML_RETURN_IF_ERROR(cuda_status(error, what));
  buffer.bytes_ = wanted;
  return buffer;
}

void DeviceBuffer::release() {
  if (data_ != nullptr) cudaFree(data_);
  data_ = nullptr;
}

}  // namespace monolayer::cuda
