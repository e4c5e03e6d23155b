#include "m3/synth_values.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "checkpoint/quantized_tensor.h"
#include "core/dtype.h"

namespace monolayer::m3 {
namespace {

// Root mean square of what random bits decode to, before scales.
constexpr double kFp4Rms = 2.926;  // all sixteen E2M1 codes equally likely
constexpr double kFp8Rms = 108.1;  // E4M3 exponent fields 11 to 14
constexpr double kMxRms = 15.08;   // of the six group scales 2^0 .. 2^5

std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// Word i of a stream: a counter-based generator, so that rows can be made in any order.
std::uint64_t word(std::uint64_t key, std::uint64_t i) {
  return mix(key + (i + 1) * 0x9e3779b97f4a7c15ULL);
}

// Words a row occupies, so that every row starts on a fresh one.
std::uint64_t words_of(std::int64_t bytes) { return (static_cast<std::uint64_t>(bytes) + 7) / 8; }

template <typename Convert>
void raw_row(std::uint64_t key, std::uint64_t row, std::int64_t bytes, std::byte* out,
             Convert&& convert) {
  const std::uint64_t first = row * words_of(bytes);
  for (std::int64_t done = 0, i = 0; done < bytes; done += 8, ++i) {
    const std::uint64_t bits = convert(word(key, first + static_cast<std::uint64_t>(i)));
    std::memcpy(out + done, &bits,
                static_cast<std::size_t>(std::min<std::int64_t>(8, bytes - done)));
  }
}

void bf16_row(std::uint64_t key, std::uint64_t row, std::int64_t cols, float step, std::byte* out) {
  raw_row(key, row, cols * 2, out, [step](std::uint64_t bits) {
    std::uint64_t packed = 0;
    for (int i = 0; i < 4; ++i) {
      const auto value = static_cast<std::int16_t>(bits >> (16 * i));
      packed |= static_cast<std::uint64_t>(f32_to_bf16(static_cast<float>(value) * step))
                << (16 * i);
    }
    return packed;
  });
}

void f32_row(std::uint64_t key, std::uint64_t row, std::int64_t cols, float step, std::byte* out) {
  raw_row(key, row, cols * 4, out, [step](std::uint64_t bits) {
    std::uint64_t packed = 0;
    for (int i = 0; i < 2; ++i) {
      const auto value = static_cast<std::int16_t>(bits >> (32 * i));
      packed |= static_cast<std::uint64_t>(std::bit_cast<std::uint32_t>(value * step)) << (32 * i);
    }
    return packed;
  });
}

// E4M3 codes of magnitude 16 to 240: sign and mantissa random, exponent field 11 to 14.
std::uint64_t fp8_codes(std::uint64_t bits) {
  return (bits & 0x8787878787878787ULL) | ((bits & 0x1818181818181818ULL) + 0x5858585858585858ULL);
}

// The exponents of a row's groups. The residue of group + 2 row mod 3 makes neighbours in both
// directions differ; a random bit makes longer repeats unlikely.
void mx_scales(std::uint64_t key, std::uint64_t row, std::int64_t groups, int base,
               std::byte* out) {
  for (std::int64_t g = 0; g < groups; ++g) {
    const auto place = row * static_cast<std::uint64_t>(groups) + static_cast<std::uint64_t>(g);
    const auto residue = static_cast<int>((static_cast<std::uint64_t>(g) + 2 * row) % 3);
    const int step = 2 * residue + static_cast<int>(word(~key, place) & 1U);
    out[g] = static_cast<std::byte>(std::clamp(base + step, 1, 254));
  }
}

}  // namespace

std::uint64_t synth_key(std::uint64_t seed, std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return mix(mix(seed + 0x9e3779b97f4a7c15ULL) ^ hash);
}

double synth_spread(const ModelConfig& config, const PlannedTensor& tensor) {
  const double fan_in = 1 / std::sqrt(static_cast<double>(tensor.cols));
  switch (tensor.role) {
    case Role::kEmbed:
      return 1;
    case Role::kRouterBias:
      return 0.05;
    case Role::kO:
    case Role::kDenseDown:
    case Role::kExpertDown:
    case Role::kSharedDown:
      // Two additions to the residual stream a layer: their variances sum to about one.
      return fan_in / std::sqrt(2.0 * static_cast<double>(config.num_layers));
    default:
      return tensor.vector() ? 0.1 : fan_in;
  }
}

void synth_rows(const PlannedTensor& tensor, std::uint64_t key, double spread, std::int64_t begin,
                std::int64_t end, std::span<std::byte> weight, std::span<std::byte> scale) {
  const std::int64_t row_bytes = tensor.row_bytes();
  const std::int64_t scale_bytes = tensor.scale_row_bytes();
  const auto step = static_cast<float>(spread * std::sqrt(3.0) / 32768);
  const double rms = tensor.format == WeightFormat::kMXFP4 ? kFp4Rms : kFp8Rms;
  const int base = 127 + static_cast<int>(std::lround(std::log2(spread / (rms * kMxRms))));
  for (std::int64_t r = begin; r < end; ++r) {
    const auto row = static_cast<std::uint64_t>(r);
    std::byte* out = weight.data() + (r - begin) * row_bytes;
    std::byte* scales = scale.data() + (r - begin) * scale_bytes;
    switch (tensor.format) {
      case WeightFormat::kPlain:
        if (tensor.plain_dtype == DType::kF32) {
          f32_row(key, row, tensor.cols, step, out);
        } else {
          bf16_row(key, row, tensor.cols, step, out);
        }
        break;
      case WeightFormat::kMXFP4:
        raw_row(key, row, row_bytes, out, [](std::uint64_t bits) { return bits; });
        mx_scales(key, row, scale_bytes, base, scales);
        break;
      case WeightFormat::kMXFP8:
        raw_row(key, row, row_bytes, out, fp8_codes);
        mx_scales(key, row, scale_bytes, base, scales);
        break;
      case WeightFormat::kFP8PerChannel: {
        raw_row(key, row, row_bytes, out, fp8_codes);
        const double unit = static_cast<double>(word(~key, row) >> 11) * 0x1p-53;
        const auto value = static_cast<float>(spread / kFp8Rms * (0.5 + unit));
        std::memcpy(scales, &value, sizeof value);
        break;
      }
    }
  }
}

}  // namespace monolayer::m3
