// The little of NCCL that a bench compares with, from whatever library of it is installed: nothing
// is linked, and without one there is no comparison. Values from NCCL's public interface,
// version 2.
#pragma once

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace bench {

class Nccl {
 public:
  ~Nccl() {
    for (void* comm : comms_) destroy_(comm);
  }
  Nccl() = default;
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;

  // One communicator a device, 0 to n-1. False, and says why, without a library or with an error
  // of it. MONOLAYER_NCCL: path of the library, otherwise libnccl.so.2 where the loader finds it.
  bool open(int n) {
    const char* path = std::getenv("MONOLAYER_NCCL");
    void* library = dlopen(path != nullptr ? path : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      std::printf("no NCCL to compare with: %s\n", dlerror());
      return false;
    }
    const auto find = [&](auto& to, const char* name) {
      to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(dlsym(library, name));
      return to != nullptr;
    };
    int (*version)(int*) = nullptr;
    int (*init)(void**, int, const int*) = nullptr;
    if (!find(version, "ncclGetVersion") || !find(init, "ncclCommInitAll") ||
        !find(all_reduce_, "ncclAllReduce") || !find(begin_, "ncclGroupStart") ||
        !find(end_, "ncclGroupEnd") || !find(destroy_, "ncclCommDestroy")) {
      std::printf("no NCCL to compare with: a function is missing\n");
      return false;
    }
    std::vector<int> devices;
    for (int i = 0; i < n; ++i) devices.push_back(i);
    comms_.assign(static_cast<std::size_t>(n), nullptr);
    version(&version_);
    if (const int error = init(comms_.data(), n, devices.data()); error != 0) {
      std::printf("no NCCL to compare with: error %d\n", error);
      comms_.clear();
      return false;
    }
    return true;
  }
  bool is_open() const { return !comms_.empty(); }
  int version() const { return version_; }
  // Sums `count` floats of every device's `data` in place, on every device's stream.
  bool all_reduce(const std::vector<float*>& data, std::size_t count,
                  const std::vector<cudaStream_t>& streams) {
    constexpr int kFloat32 = 7;
    constexpr int kSum = 0;
    int error = begin_();
    for (std::size_t i = 0; i < comms_.size() && error == 0; ++i)
      error = all_reduce_(data[i], data[i], count, kFloat32, kSum, comms_[i], streams[i]);
    const int ended = end_();
    return error == 0 && ended == 0;
  }

 private:
  int version_ = 0;
  std::vector<void*> comms_;
  int (*all_reduce_)(const void*, void*, std::size_t, int, int, void*, cudaStream_t) = nullptr;
  int (*begin_)() = nullptr;
  int (*end_)() = nullptr;
  int (*destroy_)(void*) = nullptr;
};

}  // namespace bench
