// The matrix product of every format by batch and threads, beside the read stream of the same run.
//   bench_cpu_matmul [--formats MXFP4,...] [--batch 1,2,...] [--threads 1,2] [--tiles avx2]
//                    [--cols N] [--mib N] [--repeats N] [--json]
// Weights are larger than the last-level cache; each worker takes a contiguous share of the rows.
// Passes of all batches and of the stream are interleaved, medians are reported.
#include <cstring>
#include <memory>
#include <random>

#include "backend/cpu/stream.h"
#include "backend/cpu/tiles.h"
#include "cpu_bench.h"

namespace {

using namespace monolayer;
using namespace monolayer::bench;
using cpu::Format;

struct NamedFormat {
  const char* name;
  Format format;
  double bits;  // stored bits a value, group scales included
};
constexpr NamedFormat kFormats[] = {{"F32", Format::kF32, 32},
                                    {"BF16", Format::kBF16, 16},
                                    {"E4M3", Format::kE4M3, 8},
                                    {"MXFP8", Format::kMXFP8, 8.25},
                                    {"MXFP4", Format::kMXFP4, 4.25}};

struct Weights {
  cpu::Matrix matrix;
  std::unique_ptr<std::uint64_t[]> data, scales;

  Weights(const NamedFormat& named, std::int64_t cols, std::int64_t bytes) {
    matrix.format = named.format;
    matrix.cols = cols;
    matrix.row_bytes = named.format == Format::kMXFP4  ? cols / 2
                       : named.format == Format::kF32  ? cols * 4
                       : named.format == Format::kBF16 ? cols * 2
                                                       : cols;
    matrix.rows = std::max<std::int64_t>(bytes / matrix.row_bytes, 1);
    // Finite values in every format: no byte has its exponent bits all set.
    std::mt19937_64 random(1);
    const std::int64_t words = matrix.rows * matrix.row_bytes / 8 + 1;
    data = std::make_unique<std::uint64_t[]>(static_cast<std::size_t>(words));
    for (std::int64_t i = 0; i < words; ++i) {
      data[static_cast<std::size_t>(i)] = random() & 0xbfbfbfbfbfbfbfbfU;
    }
    matrix.data = data.get();
    if (named.format == Format::kMXFP4 || named.format == Format::kMXFP8) {
      matrix.scale_row_bytes = cols / 32;
      const std::int64_t count = matrix.rows * matrix.scale_row_bytes / 8 + 1;
      scales = std::make_unique<std::uint64_t[]>(static_cast<std::size_t>(count));
      std::memset(scales.get(), 120, static_cast<std::size_t>(count) * 8);
      matrix.scales = scales.get();
    }
  }
};

struct Setup {
  const cpu::Tiles* tiles;
  std::int64_t cols, bytes;
  int repeats;
  bool json;
};

int run_format(const NamedFormat& named, const std::vector<int>& batches, cpu::ThreadTeam& team,
               cpu::ReadStream& stream, const Setup& setup) {
  const Weights weights(named, setup.cols, setup.bytes);
  const std::int64_t rows = weights.matrix.rows;
  const std::int64_t stride = cpu::padded_columns(named.format, setup.cols);
  const int most = *std::max_element(batches.begin(), batches.end());
  std::vector<float> x(static_cast<std::size_t>(setup.cols));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 17) / 16;
  std::vector<float> xp(static_cast<std::size_t>(most * stride));
  for (int r = 0; r < most; ++r) {
    setup.tiles->permute(named.format, x.data(), setup.cols, xp.data() + r * stride);
  }
  std::vector<float> y(static_cast<std::size_t>(most * rows));

  std::vector<double> stream_rates;
  std::vector<std::vector<double>> seconds(batches.size());
  for (int repeat = 0; repeat < setup.repeats; ++repeat) {
    stream_rates.push_back(stream.pass());
    for (std::size_t i = 0; i < batches.size(); ++i) {
      // Large batches compute more per byte: a part of the rows is enough.
      const std::int64_t used = batches[i] > 4 ? (rows + 7) / 8 : rows;
      seconds[i].push_back(seconds_of([&] {
        team.each([&](int worker) {
          const std::int64_t begin = used * worker / team.size();
          const std::int64_t end = used * (worker + 1) / team.size();
          setup.tiles->matmul(weights.matrix, begin, end, 0, setup.cols, xp.data(), stride,
                              batches[i], y.data() + begin, rows);
        });
      }));
    }
  }
  const double read = median(stream_rates);
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const std::int64_t used = batches[i] > 4 ? (rows + 7) / 8 : rows;
    const double values = static_cast<double>(used) * static_cast<double>(setup.cols);
    const double bytes = values * named.bits / 8;
    const double time = median(seconds[i]);
    const double flops = 2 * values * batches[i] / time;
    std::printf(setup.json
                    ? "{\"bench\":\"matmul\",\"tiles\":\"%s\",\"format\":\"%s\",\"threads\":%d,"
                      "\"batch\":%d,\"bytes\":%.0f,\"gb_per_s\":%.3f,\"stream_gb_per_s\":%.3f,"
                      "\"share\":%.4f,\"gflop_per_s\":%.2f}\n"
                    : "%s %-6s threads %d batch %3d: %12.0f bytes, %6.2f GB/s of %6.2f (%.4f), "
                      "%7.2f GFLOP/s\n",
                std::string(setup.tiles->name).c_str(), named.name, team.size(), batches[i], bytes,
                bytes / time / 1e9, read / 1e9, bytes / time / read, flops / 1e9);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Setup setup{};
  setup.tiles = cpu::find_tiles(option(argc, argv, "--tiles", ""));
  setup.cols = std::atoll(option(argc, argv, "--cols", "6144").c_str());
  setup.bytes = std::atoll(option(argc, argv, "--mib", "128").c_str()) << 20;
  setup.repeats = std::atoi(option(argc, argv, "--repeats", "7").c_str());
  setup.json = flag(argc, argv, "--json");
  if (setup.tiles == nullptr || setup.cols <= 0 || setup.cols % 32 != 0 || setup.bytes <= 0) {
    std::fprintf(stderr, "unknown --tiles, or --cols not a positive multiple of 32\n");
    return 2;
  }
  const std::string wanted = option(argc, argv, "--formats", "F32 BF16 E4M3 MXFP8 MXFP4");
  const std::vector<int> batches = integers(option(argc, argv, "--batch", "1,2,4,8,16,64"));
  for (const int threads : integers(option(argc, argv, "--threads", "1,2"))) {
    auto team = cpu::ThreadTeam::create({.threads = threads});
    if (!team.ok()) {
      std::fprintf(stderr, "%s\n", team.status().to_string().c_str());
      return 2;
    }
    auto stream = cpu::ReadStream::create(*team.value(), cpu::StreamEffort::kThorough);
    if (!stream.ok()) {
      std::fprintf(stderr, "%s\n", stream.status().to_string().c_str());
      return 2;
    }
    for (const NamedFormat& named : kFormats) {
      if (wanted.find(named.name) == std::string::npos) continue;
      run_format(named, batches, *team.value(), *stream.value(), setup);
    }
  }
  return 0;
}
