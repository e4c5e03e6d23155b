#include "backend/cuda/device_memory.h"

namespace monolayer::cuda {

namespace {

// After these nothing works on the device any more, for this process.
bool is_lost(cudaError_t error) {
  switch (error) {
    case cudaErrorECCUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorNvlinkUncorrectable:
      return true;
    default:
      return false;
  }
}

}  // namespace

Status cuda_status(cudaError_t error, const std::string& what) {
  if (error == cudaSuccess) return {};
  const std::string text = std::string("CUDA: ") + cudaGetErrorString(error);
  if (is_lost(error)) return {Code::kIoError, what, text + "; the device is lost to this process"};
  return {error == cudaErrorMemoryAllocation ? Code::kResourceExhausted : Code::kInternal, what,
          text};
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
