// A tile of a matrix times one column, from naive to what the kernels do: cycles a tile of one
// warp, with 1 to 16 warps of a block at it, all out of shared memory. Steps of the same format
// give the same sums, bit for bit.
//
//   bench_cuda_tile [json=FILE]
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "backend/cuda/device/decode.cuh"

namespace {

using namespace monolayer::cuda;  // NOLINT: a program of one file

constexpr int kWarpsMost = 16;
constexpr int kTiles = 12;  // of a warp, as a copy into the ring has them
constexpr int kTileBytes = 544;
constexpr int kBegin = 2048;  // of the tiles; before them 16 bytes of zeros, then the column
constexpr int kShared = kBegin + kWarpsMost * kTiles * kTileBytes;
constexpr int kRepeats = 50;

extern __shared__ __align__(128) unsigned char memory[];

template <typename T>
__device__ T at(int offset) {
  return *reinterpret_cast<const T*>(memory + offset);
}

// E2M1 through a table of BF16, a code at a time.
struct ByTable {
  __device__ static void decode(std::uint32_t w, std::uint32_t (&a)[4]) {
    constexpr std::uint16_t kMagnitudes[8] = {0,      0x0040, 0x0080, 0x00C0,
                                              0x0100, 0x0140, 0x0180, 0x01C0};
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      std::uint32_t two = 0;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::uint32_t code = w >> (r * 8 + half * 4) & 15U;
        two |= (kMagnitudes[code & 7] | (code & 8) << 12) << (16 * half);
      }
      a[r] = two;
    }
  }
  static std::uint32_t place(std::uint32_t code, int r, int half) {
    return code << (r * 8 + half * 4);
  }
};
// Layout 3: eleven instructions a word, eight of them on the pipe that masks and shifts right.
struct ByBits {
  __device__ static void decode(std::uint32_t w, std::uint32_t (&a)[4]) {
    a[0] = w & 0x81C081C0U;
    a[1] = (w << 3) & 0x81C081C0U;
    a[2] = (w << 6) & 0x81C081C0U;
    a[3] = ((w >> 4) & 0x00C000C0U) | ((w >> 5) & 0x01000100U) | ((w << 1) & 0x80008000U);
  }
  static std::uint32_t place(std::uint32_t code, int r, int half) {
    constexpr int kBits[4][4] = {{15, 8, 7, 6}, {12, 5, 4, 3}, {9, 2, 1, 0}, {14, 13, 11, 10}};
    return spread(code, kBits[r], half);
  }
  static std::uint32_t spread(std::uint32_t code, const int (&bits)[4], int half) {
    std::uint32_t word = 0;
    for (int i = 0; i < 4; ++i) word |= (code >> (3 - i) & 1U) << (bits[i] + 16 * half) % 32;
    return word;
  }
};
// Layout 4, the kernels': nine and seven.
struct ByFewerBits {
  __device__ static void decode(std::uint32_t w, std::uint32_t (&a)[4]) { decode_e2m1(w, a); }
  static std::uint32_t place(std::uint32_t code, int r, int half) {
    constexpr int kBits[4][4] = {{15, 8, 7, 6}, {9, 2, 1, 0}, {5 + 16, 14, 13, 12}, {11, 4, 3, 10}};
    return ByBits::spread(code, kBits[r], half);
  }
};

// One tile after the other: a group's sum, then one fma with its scale. AHEAD: the next tile's
// operands are fetched before this one's are used.
template <typename D, bool AHEAD>
__device__ float4 mxfp4(int tile, int x, int stride) {
  struct Operands {
    uint4 w, b0, b1;
    std::uint32_t scales;
  };
  const int lane = static_cast<int>(threadIdx.x) & 31;
  float acc[4] = {};
  const auto fetch = [&](int i) {
    const int from = tile + i * kTileBytes;
    return Operands{at<uint4>(from + lane * 16), at<uint4>(x + 2 * i * stride),
                    at<uint4>(x + (2 * i + 1) * stride),
                    at<std::uint32_t>(from + 512 + (lane >> 2) * 4)};
  };
  const auto add = [&](const Operands& o) {
    float f[4];
    decode_scales(o.scales, f);
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      std::uint32_t a0[4];
      std::uint32_t a1[4];
      D::decode(g != 0 ? o.w.z : o.w.x, a0);
      D::decode(g != 0 ? o.w.w : o.w.y, a1);
      const uint4 b = g != 0 ? o.b1 : o.b0;
      float q[4] = {};
      mma(q, a0[0], a0[1], a0[2], a0[3], b.x, b.y);
      mma(q, a1[0], a1[1], a1[2], a1[3], b.z, b.w);
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[i] = fmaf(f[i / 2 * 2 + g], q[i], acc[i]);
    }
  };
  if constexpr (!AHEAD) {
#pragma unroll 1
    for (int i = 0; i < kTiles; ++i) add(fetch(i));
  } else {
    Operands even = fetch(0);
#pragma unroll 1
    for (int i = 0; i < kTiles; i += 2) {
      const Operands odd = fetch(i + 1);
      add(even);
      if (i + 2 < kTiles) even = fetch(i + 2);
      add(odd);
    }
  }
  return {acc[0], acc[1], acc[2], acc[3]};
}

// E4M3 in two chains, the halves of each tile. To FP16 by conversion, or placed as FP16 by bits
// (the values times 2^-8, which the end undoes); AHEAD tiles are fetched before the first is used.
template <bool CONVERT, int AHEAD>
__device__ float4 e4m3(int tile, int x, int stride) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const auto base = static_cast<std::uint32_t>(__cvta_generic_to_shared(memory));
  std::uint32_t from = base + tile + lane * 16;
  std::uint32_t column = base + x;
  float acc[2][4] = {};
  uint4 w[AHEAD];
  uint4 b[AHEAD];
  const auto fetch = [&](int k) {
    w[k] = load_shared(from);
    b[k] = load_shared(column);
    from += 512;
    column += stride;
  };
  const auto add = [&](int k) {
    std::uint32_t a[8];
    const auto decode = [](std::uint32_t v, std::uint32_t& low, std::uint32_t& high) {
      if constexpr (CONVERT) {
        halves_of_e4m3(v, low, high);
      } else {
        const std::uint32_t p = __byte_perm(v, 0, 0x3120);
        low = ((p << 7) & 0x3F803F80U) | ((p << 8) & 0x80008000U);
        high = ((p >> 1) & 0x3F803F80U) | (p & 0x80008000U);
      }
    };
    decode(w[k].x, a[0], a[2]);
    decode(w[k].y, a[1], a[3]);
    decode(w[k].z, a[4], a[6]);
    decode(w[k].w, a[5], a[7]);
    mma_half(acc[0], a[0], a[1], a[2], a[3], b[k].x, b[k].y);
    mma_half(acc[1], a[4], a[5], a[6], a[7], b[k].z, b[k].w);
  };
#pragma unroll
  for (int k = 0; k < AHEAD; ++k) fetch(k);
#pragma unroll 1
  for (int i = AHEAD; i < kTiles; i += AHEAD) {
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
      add(k);
      fetch(k);
    }
  }
#pragma unroll
  for (int k = 0; k < AHEAD; ++k) add(k);
  const float post = CONVERT ? 1.0F : 256.0F;
  return {(acc[0][0] + acc[1][0]) * post, (acc[0][1] + acc[1][1]) * post,
          (acc[0][2] + acc[1][2]) * post, (acc[0][3] + acc[1][3]) * post};
}

using Product = float4 (*)(int, int, int);
template <Product PRODUCT>
__device__ __noinline__ float4 apart(int tile, int x, int stride) {
  return PRODUCT(tile, x, stride);
}

template <Product PRODUCT>
__global__ void __launch_bounds__(kWarpsMost * 32, 1)
    run(const unsigned char* tiles, float4* sums, std::uint32_t* cycles) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < kShared / 4; i += static_cast<int>(blockDim.x)) {
    std::uint32_t word = 0;
    if (i * 4 >= kBegin) {
      word = reinterpret_cast<const std::uint32_t*>(tiles)[i - kBegin / 4];
    } else if (i >= 4) {
      word = 0x3C003C00U + (static_cast<std::uint32_t>(i) * 7919U & 0x03FF03FFU);
    }
    reinterpret_cast<std::uint32_t*>(memory)[i] = word;
  }
  __syncthreads();
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int tile = kBegin + warp * kTiles * kTileBytes;
  const int x = lane < 4 ? 16 + lane * 16 : 0;
  const int stride = lane < 4 ? 64 : 0;
  apart<PRODUCT>(tile, x, stride);
  __syncthreads();
  float4 sum = {};
  const auto begin = static_cast<std::uint32_t>(clock64());
#pragma unroll 1
  for (int i = 0; i < kRepeats; ++i) {
    const float4 v = apart<PRODUCT>(tile, x, stride);
    sum.x += v.x;
    sum.y += v.y;
    sum.z += v.z;
    sum.w += v.w;
  }
  const auto end = static_cast<std::uint32_t>(clock64());
  sums[thread] = sum;
  if (lane == 0) cycles[warp] = end - begin;
}

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

std::string json;
bool all_same = true;

template <Product PRODUCT>
void step(const char* name, const std::vector<unsigned char>& tiles, std::vector<float>& want) {
  unsigned char* device_tiles = nullptr;
  float4* sums = nullptr;
  std::uint32_t* cycles = nullptr;
  check(cudaMalloc(&device_tiles, tiles.size()));
  check(cudaMalloc(&sums, sizeof(float4) * kWarpsMost * 32));
  check(cudaMalloc(&cycles, sizeof(std::uint32_t) * kWarpsMost));
  check(cudaMemcpy(device_tiles, tiles.data(), tiles.size(), cudaMemcpyHostToDevice));
  check(cudaFuncSetAttribute(run<PRODUCT>, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
  std::printf("%-44s", name);
  json += (json.empty() ? "" : ", ") + ("{\"step\": \"" + std::string(name)) + "\", \"cycles\": {";
  for (const int warps : {1, 4, 8, 16}) {
    run<PRODUCT><<<1, warps * 32, kShared>>>(device_tiles, sums, cycles);
    check(cudaDeviceSynchronize());
    std::uint32_t took[kWarpsMost];
    check(cudaMemcpy(took, cycles, sizeof took, cudaMemcpyDeviceToHost));
    const double each = *std::max_element(took, took + warps) / double{kRepeats * kTiles};
    std::printf(" %7.1f", each);
    char text[48];
    std::snprintf(text, sizeof text, "%s\"%d\": %.1f", warps > 1 ? ", " : "", warps, each);
    json += text;
  }
  std::vector<float> got(std::size_t{kWarpsMost} * 32 * 4);
  check(cudaMemcpy(got.data(), sums, got.size() * sizeof(float), cudaMemcpyDeviceToHost));
  if (want.empty()) want = got;
  const bool same = std::memcmp(want.data(), got.data(), got.size() * sizeof(float)) == 0;
  all_same = all_same && same;
  std::printf("  same sums: %s\n", same ? "yes" : "NO");
  json += std::string("}, \"same\": ") + (same ? "true}" : "false}");
  check(cudaFree(device_tiles));
  check(cudaFree(sums));
  check(cudaFree(cycles));
}

// The same codes and scales in a decoder's layout.
template <typename D>
std::vector<unsigned char> mxfp4_tiles() {
  std::srand(1);
  std::vector<unsigned char> out(std::size_t{kWarpsMost} * kTiles * kTileBytes);
  for (std::size_t tile = 0; tile < out.size(); tile += kTileBytes) {
    for (std::size_t word = 0; word < 128; ++word) {
      std::uint32_t w = 0;
      for (int r = 0; r < 4; ++r) {
        for (int half = 0; half < 2; ++half)
          w |= D::place(static_cast<std::uint32_t>(std::rand()) >> 8 & 15U, r, half);
      }
      std::memcpy(&out[tile + word * 4], &w, 4);
    }
    for (std::size_t i = 512; i < kTileBytes; ++i)
      out[tile + i] = static_cast<unsigned char>(120 + (std::rand() >> 4) % 12);
  }
  return out;
}
std::vector<unsigned char> e4m3_tiles() {
  std::srand(2);
  std::vector<unsigned char> out(std::size_t{kWarpsMost} * kTiles * kTileBytes);
  for (unsigned char& b : out) {
    b = static_cast<unsigned char>(std::rand() >> 6);
    if ((b & 0x7F) == 0x7F) b = 0;  // NaN
  }
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  std::printf("%-44s %7s %7s %7s %7s\n", "cycles a tile, by warps at work", "1", "4", "8", "16");
  std::vector<float> want;
  step<mxfp4<ByTable, false>>("MXFP4: a table of values", mxfp4_tiles<ByTable>(), want);
  step<mxfp4<ByBits, false>>("MXFP4: bits placed", mxfp4_tiles<ByBits>(), want);
  step<mxfp4<ByBits, true>>("MXFP4: the next tile fetched early", mxfp4_tiles<ByBits>(), want);
  step<mxfp4<ByFewerBits, true>>("MXFP4: bits where fewer masks reach them",
                                 mxfp4_tiles<ByFewerBits>(), want);
  want.clear();
  const std::vector<unsigned char> bytes = e4m3_tiles();
  step<e4m3<false, 1>>("E4M3: bits placed", bytes, want);
  step<e4m3<true, 1>>("E4M3: converted by the hardware", bytes, want);
  step<e4m3<true, 2>>("E4M3: two tiles ahead", bytes, want);
  step<e4m3<true, 4>>("E4M3: four tiles ahead", bytes, want);
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "json=", 5) != 0) continue;
    if (FILE* f = std::fopen(argv[i] + 5, "w")) {
      std::fprintf(f, "[%s]\n", json.c_str());
      std::fclose(f);
    }
  }
  return all_same ? 0 : 1;
}
