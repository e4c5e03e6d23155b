#include "backend/cuda/pack.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <exception>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "core/dtype.h"

namespace monolayer::cuda {
namespace {

template <typename T>
T load(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

int tile_columns(Format format) { return format == Format::kMXFP4 ? 64 : 32; }
int planes(Format format) { return format == Format::kF32 ? 3 : 1; }
int tile_bytes(Format format) {
  switch (format) {
    case Format::kE4M3:
    case Format::kE4M3Half:
      return 512;
    case Format::kMXFP4:
      return 544;
    case Format::kMXFP8:
      return 528;
    default:
      return 1024;
  }
}

// First column of a part.
std::int64_t part_begin(const Matrix& m, int part) {
  const std::int64_t units = (m.cols + 31) / 32;
  return std::min<std::int64_t>(part * units / m.parts * 32, m.cols);
}

// One tile's source: 16 rows, columns [begin, end) present, zeros after.
struct TileSource {
  const StoredRow* rows;
  std::int64_t begin, end;

  bool has(int row, int column) const { return rows[row].data != nullptr && begin + column < end; }
  std::uint32_t nibble(int row, int column) const {
    if (!has(row, column)) return 0;
    const std::int64_t c = begin + column;
    const auto byte = static_cast<std::uint32_t>(rows[row].data[c / 2]);
    return byte >> (c % 2 * 4) & 15U;
  }
  std::uint32_t byte(int row, int column) const {
    return has(row, column) ? static_cast<std::uint32_t>(rows[row].data[begin + column]) : 0;
  }
  std::uint16_t bf16(int row, int column) const {
    return has(row, column) ? load<std::uint16_t>(rows[row].data + (begin + column) * 2)
                            : std::uint16_t{0};
  }
  // Plane p of an F32: three BF16 values that add up to it exactly.
  std::uint16_t plane(int row, int column, int p) const {
    if (!has(row, column)) return 0;
    float rest = load<float>(rows[row].data + (begin + column) * 4);
    for (int i = 0; i < p; ++i) rest -= round_bf16(rest);
    return f32_to_bf16(rest);
  }
  std::uint8_t scale(int row, int group) const {
    if (!has(row, group * 32)) return 127;
    return rows[row].scales[(begin + group * 32) / 32];
  }
};

// Bits of an E2M1 code in half `half` of register r (device/decode.cuh).
std::uint32_t place_e2m1(std::uint32_t code, int r, int half) {
  constexpr int kBits[4][4] = {{15, 8, 7, 6}, {9, 2, 1, 0}, {5 + 16, 14, 13, 12}, {11, 4, 3, 10}};
  std::uint32_t word = 0;
  for (int i = 0; i < 4; ++i) {
    word |= (code >> (3 - i) & 1U) << (kBits[r][i] + 16 * half) % 32;
  }
  return word;
}

void store_word(unsigned char* out, std::uint32_t word) { std::memcpy(out, &word, sizeof word); }

// Registers 0..3 of a 16 x 16 fragment are (row, first pair), (row + 8, first), (row, second),
// (row + 8, second).
void pack_mxfp4(const TileSource& in, unsigned char* out) {
  for (int lane = 0; lane < 32; ++lane) {
    for (int w = 0; w < 4; ++w) {
      const int column = w / 2 * 32 + lane % 4 * 8 + w % 2 * 4;
      std::uint32_t word = 0;
      for (int r = 0; r < 4; ++r) {
        for (int half = 0; half < 2; ++half) {
          word |= place_e2m1(in.nibble(lane / 4 + r % 2 * 8, column + r / 2 * 2 + half), r, half);
        }
      }
      store_word(out + lane * 16 + w * 4, word);
    }
  }
  for (int row = 0; row < 8; ++row) {
    for (int i = 0; i < 4; ++i) out[512 + row * 4 + i] = in.scale(row + i / 2 * 8, i % 2);
  }
}

void pack_e4m3(const TileSource& in, unsigned char* out) {
  for (int lane = 0; lane < 32; ++lane) {
    for (int w = 0; w < 4; ++w) {
      const int row = lane / 4 + w % 2 * 8;
      const int column = lane % 4 * 8 + w / 2 * 4;
      std::uint32_t word = 0;
      for (int i = 0; i < 4; ++i) word |= in.byte(row, column + i) << 8 * i;
      store_word(out + lane * 16 + w * 4, word);
    }
  }
}

// The same, and a scale of each row: of rows r and r + 8 side by side.
void pack_mxfp8(const TileSource& in, unsigned char* out) {
  pack_e4m3(in, out);
  for (int row = 0; row < 8; ++row) {
    for (int high = 0; high < 2; ++high) out[512 + row * 2 + high] = in.scale(row + high * 8, 0);
  }
}

template <typename V>
void pack_bf16(V&& value, unsigned char* out) {
  for (int half = 0; half < 2; ++half) {
    for (int lane = 0; lane < 32; ++lane) {
      for (int r = 0; r < 4; ++r) {
        const int row = lane / 4 + r % 2 * 8;
        const int column = lane % 4 * 8 + half * 4 + r / 2 * 2;
        const std::uint32_t low = value(row, column);
        const std::uint32_t high = value(row, column + 1);
        store_word(out + half * 512 + lane * 16 + r * 4, low | high << 16);
      }
    }
  }
}

void pack_tile(Format format, const TileSource& in, int plane, unsigned char* out) {
  switch (format) {
    case Format::kMXFP4:
      return pack_mxfp4(in, out);
    case Format::kMXFP8:
      return pack_mxfp8(in, out);
    case Format::kE4M3:
    case Format::kE4M3Half:
      return pack_e4m3(in, out);
    case Format::kBF16:
      return pack_bf16([&](int row, int column) { return in.bf16(row, column); }, out);
    case Format::kF32:
      return pack_bf16([&](int row, int column) { return in.plane(row, column, plane); }, out);
  }
}

Matrix sizes(Format format, std::int64_t rows, std::int64_t cols, int parts) {
  Matrix m;
  m.format = format;
  m.row_groups = static_cast<std::int32_t>((rows + 15) / 16);
  m.cols = static_cast<std::int32_t>(cols);
  m.groups_divider = divider(std::max(1, m.row_groups));
  m.vectors_divider = divider(std::max(1, m.cols / 8));
  m.parts = parts;
  const std::int64_t units = (cols + 31) / 32;
  const std::int64_t widest = (units + parts - 1) / parts * 32;
  const int columns = tile_columns(format);
  const auto tiles = static_cast<int>((widest + columns - 1) / columns);
  m.part_cols = tiles * columns;
  m.tiles = tiles * planes(format);
  m.tile_bytes = tile_bytes(format);
  m.chunk_tiles = m.tile_bytes > 600 ? 6 : 12;
  m.span = 1;
  while (m.span < parts && 2 * m.span * m.tiles <= m.chunk_tiles) m.span *= 2;
  m.chunks = (m.span * m.tiles + m.chunk_tiles - 1) / m.chunk_tiles;
  while (m.span << m.log_items < parts) ++m.log_items;
  m.group_bytes = static_cast<std::int64_t>(m.parts) * m.tiles * m.tile_bytes;
  const int bytes = m.parts * m.part_cols * 2;
  m.row_bytes = bytes % 128 == 64 ? bytes : bytes + 64;
  return m;
}

}  // namespace

Result<Format> pack_format(const QuantizedMatrix& matrix) {
  switch (matrix.format) {
    case WeightFormat::kMXFP4:
      return Format::kMXFP4;
    case WeightFormat::kMXFP8:
      return Format::kMXFP8;
    case WeightFormat::kFP8PerChannel:
      return Format::kE4M3;
    case WeightFormat::kPlain:
      if (matrix.weight.dtype == DType::kBF16) return Format::kBF16;
      if (matrix.weight.dtype == DType::kF32) return Format::kF32;
      break;
    default:
      break;
  }
  return Status(Code::kUnsupported, std::string(matrix.weight.name),
                "the CUDA kernels take BF16, MXFP4, MXFP8 and FP8 per channel (routers also F32)");
}

float half_scale(float bound) {
  if (!(bound < 0x1p38F)) return 0;
  float scale = 0x1p100F;
  while (scale > 0x1p-24F && bound * scale > 0x1p15F) scale /= 2;
  return scale;
}

void stage_as_half(float bound, Matrix& m) {
  const float scale = half_scale(bound);
  if (m.format != Format::kE4M3 || scale == 0) return;
  m.format = Format::kE4M3Half;
  m.x_scale = scale;
}

float activation_bound(float alpha, float limit, float beta) {
  if (!(alpha > 0) || !(limit >= 0)) return std::numeric_limits<float>::infinity();
  // Below zero g * sigmoid(alpha * g) is above -0.279 / alpha.
  return std::max(limit, 0.279F / alpha) * (limit + std::fabs(beta));
}

Matrix describe(Format format, std::int64_t rows, std::int64_t cols, int parts) {
  return sizes(format, rows, cols, parts);
}

namespace {

void pack_group(const Matrix& m, std::int64_t group,
                const std::function<StoredRow(std::int64_t)>& row, unsigned char* to) {
  const int tiles_a_part = m.tiles / planes(m.format);
  StoredRow rows[16];
  for (int i = 0; i < 16; ++i) rows[i] = row(group * 16 + i);
  for (int part = 0; part < m.parts; ++part) {
    const std::int64_t begin = part_begin(m, part);
    const std::int64_t end = part_begin(m, part + 1);
    for (int tile = 0; tile < tiles_a_part; ++tile) {
      const TileSource in{rows, begin + tile * tile_columns(m.format), end};
      for (int plane = 0; plane < planes(m.format); ++plane) {
        const std::int64_t place = part * m.tiles + tile * planes(m.format) + plane;
        pack_tile(m.format, in, plane, to + place * m.tile_bytes);
      }
    }
  }
}

// Below, starting threads takes longer than they save.
constexpr std::int64_t kWorthThreads = std::int64_t{1} << 20;
constexpr unsigned kMostPackers = 16;

}  // namespace

// One thread packs 120 MB a second: a model takes all there are.
void pack(const Matrix& m, const std::function<StoredRow(std::int64_t)>& row, unsigned char* out) {
  std::atomic<std::int64_t> next{0};
  const auto work = [&] {
    for (std::int64_t group = next++; group < m.row_groups; group = next++)
      pack_group(m, group, row, out + group * m.group_bytes);
  };
  std::vector<std::thread> others;
  if (packed_bytes(m) >= kWorthThreads) {
    const unsigned threads = std::min(std::thread::hardware_concurrency(), kMostPackers);
    try {
      others.reserve(threads);
      for (unsigned i = 1; i < threads; ++i) others.emplace_back(work);
    } catch (const std::exception&) {  // as many as there are; this one does the rest
    }
  }
  work();
  for (std::thread& other : others) other.join();
}

}  // namespace monolayer::cuda
