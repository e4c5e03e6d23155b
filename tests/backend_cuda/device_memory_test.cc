// Errors of the runtime as statuses; needs no device.
#include "backend/cuda/device_memory.h"

#include <gtest/gtest.h>

namespace monolayer::cuda {
namespace {

TEST(CudaStatus, ErrorsThatLoseTheDeviceStopTheEngine) {
  EXPECT_TRUE(cuda_status(cudaSuccess, "x").ok());
  EXPECT_EQ(Code::kResourceExhausted, cuda_status(cudaErrorMemoryAllocation, "x").code());
  EXPECT_EQ(Code::kInternal, cuda_status(cudaErrorInvalidValue, "x").code());
  for (const cudaError_t error :
       {cudaErrorIllegalAddress, cudaErrorLaunchFailure, cudaErrorECCUncorrectable}) {
    const Status status = cuda_status(error, "graph");
    EXPECT_EQ(Code::kIoError, status.code());
    EXPECT_NE(std::string::npos, status.to_string().find("lost to this process"));
    EXPECT_EQ("graph", status.subject());
  }
}

}  // namespace
}  // namespace monolayer::cuda
