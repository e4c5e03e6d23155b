// What a multiprocessor's pipes do side by side: cycles an iteration of one warp of a loop of some
// instructions, with 1 to 16 warps of a block at it. Of 16 warps four share a scheduler, so a
// quarter of the last column is what an iteration costs it. The experts' tiles are such a mixture:
// masks and shifts (LOP3, SHF), shifts to the left (IMAD), products (HMMA), sums (FFMA).
//
//   bench_cuda_pipe [json=FILE]
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "backend/cuda/device/ptx.cuh"

namespace {

using namespace monolayer::cuda;  // NOLINT: a program of one file

constexpr int kWarpsMost = 16;
constexpr int kIterations = 600;

// Four of an instruction, chains of their own, with constants that the compiler does not know.
struct Registers {
  std::uint32_t x[4], c[2], a[4], b[2];
  float f[4], g[2], q[4][4];
};
__device__ __forceinline__ void four_lop3(Registers& r) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
    asm volatile("lop3.b32 %0, %0, %1, %2, 0x6A;" : "+r"(r.x[i]) : "r"(r.c[0]), "r"(r.c[1]));
}
__device__ __forceinline__ void four_imad(Registers& r) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
    asm volatile("mad.lo.u32 %0, %0, %1, %2;" : "+r"(r.x[i]) : "r"(r.c[0]), "r"(r.c[1]));
}
__device__ __forceinline__ void four_ffma(Registers& r) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
    asm volatile("fma.rn.f32 %0, %0, %1, %2;" : "+f"(r.f[i]) : "f"(r.g[0]), "f"(r.g[1]));
}
__device__ __forceinline__ void one_hmma(Registers& r, int i) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(r.q[i][0]), "+f"(r.q[i][1]), "+f"(r.q[i][2]), "+f"(r.q[i][3])
      : "r"(r.a[0]), "r"(r.a[1]), "r"(r.a[2]), "r"(r.a[3]), "r"(r.b[0]), "r"(r.b[1]));
}

// In each quarter of an iteration: a product if HMMA, then LOP3, IMAD and FFMA fours.
template <bool HMMA, int LOP3, int IMAD, int FFMA>
__global__ void __launch_bounds__(kWarpsMost * 32, 1)
    run(std::uint32_t seed, std::uint32_t* out, std::uint32_t* cycles) {
  const auto thread = threadIdx.x;
  Registers r{};
  for (std::uint32_t i = 0; i < 4; ++i) {
    r.x[i] = seed * (i + 1) + thread;
    r.a[i] = seed * (i + 5) + thread;
    r.f[i] = static_cast<float>(i);
  }
  for (std::uint32_t i = 0; i < 2; ++i) {
    r.c[i] = seed * (i + 11);
    r.b[i] = seed * (i + 13);
    r.g[i] = static_cast<float>(seed) * 1e-9F;
  }
  const auto begin = static_cast<std::uint32_t>(clock64());
#pragma unroll 1
  for (int i = 0; i < kIterations; ++i) {
#pragma unroll
    for (int quarter = 0; quarter < 4; ++quarter) {
      if (HMMA) one_hmma(r, quarter);
#pragma unroll
      for (int k = 0; k < LOP3; ++k) four_lop3(r);
#pragma unroll
      for (int k = 0; k < IMAD; ++k) four_imad(r);
#pragma unroll
      for (int k = 0; k < FFMA; ++k) four_ffma(r);
    }
  }
  const auto end = static_cast<std::uint32_t>(clock64());
  std::uint32_t all = 0;
  for (int i = 0; i < 4; ++i) {
    all ^= r.x[i] ^ __float_as_uint(r.f[i]);
    for (const float q : r.q[i]) all ^= __float_as_uint(q);
  }
  out[thread] = all;
  if (thread % 32 == 0) cycles[thread / 32] = end - begin;
}

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

std::string json;

template <bool HMMA, int LOP3, int IMAD, int FFMA>
void loop(const char* name) {
  std::uint32_t *out = nullptr, *cycles = nullptr;
  check(cudaMalloc(&out, sizeof(std::uint32_t) * kWarpsMost * 32));
  check(cudaMalloc(&cycles, sizeof(std::uint32_t) * kWarpsMost));
  std::printf("%-28s", name);
  json += (json.empty() ? "" : ", ") + ("{\"loop\": \"" + std::string(name)) + "\", \"cycles\": {";
  for (const int warps : {1, 4, 8, 16}) {
    std::uint32_t took[kWarpsMost];
    for (int again = 0; again < 2; ++again)
      run<HMMA, LOP3, IMAD, FFMA><<<1, warps * 32>>>(12345, out, cycles);
    check(cudaMemcpy(took, cycles, sizeof took, cudaMemcpyDeviceToHost));
    const double each = *std::max_element(took, took + warps) / double{kIterations};
    std::printf(" %7.1f", each);
    char text[48];
    std::snprintf(text, sizeof text, "%s\"%d\": %.1f", warps > 1 ? ", " : "", warps, each);
    json += text;
  }
  std::printf("\n");
  json += "}}";
  check(cudaFree(out));
  check(cudaFree(cycles));
}

}  // namespace

int main(int argc, char** argv) {
  std::printf("%-28s %7s %7s %7s %7s\n", "cycles an iteration, warps:", "1", "4", "8", "16");
  loop<true, 0, 0, 0>("4 HMMA");
  loop<false, 2, 0, 0>("32 LOP3");
  loop<false, 0, 2, 0>("32 IMAD");
  loop<false, 0, 0, 2>("32 FFMA");
  loop<false, 2, 2, 0>("32 LOP3, 32 IMAD");
  loop<true, 1, 0, 0>("4 HMMA, 16 LOP3");
  loop<true, 2, 0, 0>("4 HMMA, 32 LOP3");
  loop<true, 0, 2, 0>("4 HMMA, 32 IMAD");
  loop<true, 0, 0, 2>("4 HMMA, 32 FFMA");
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "json=", 5) != 0) continue;
    if (FILE* f = std::fopen(argv[i] + 5, "w")) {
      std::fprintf(f, "[%s]\n", json.c_str());
      std::fclose(f);
    }
  }
  return 0;
}
