#include "m3/quantize.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "checkpoint/safetensors_writer.h"
#include "m3/quantize_source.h"

namespace monolayer::m3 {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kBlockValues = std::int64_t{4} << 20;

// A planned tensor with its source; plain tensors keep the dtype they have.
struct Conversion {
  PlannedTensor to;
  QuantizedMatrix from;
  bool copy = false;  // the stored bytes are already what is wanted
};

Status convert_rows(const Conversion& job, MxRule rule, std::int64_t begin, std::int64_t end,
                    std::byte* weight, std::byte* scale) {
  const std::int64_t rows = end - begin;
  const std::int64_t cols = job.to.cols;
  std::vector<float> values(static_cast<std::size_t>(rows * cols));
  dequantize(job.from, begin, end, values.data());
  auto* bytes = reinterpret_cast<std::uint8_t*>(weight);
  auto* scales = reinterpret_cast<std::uint8_t*>(scale);
  switch (job.to.format) {
    case WeightFormat::kMXFP4:
      return quantize_mxfp4(values.data(), rows, cols, rule, job.to.weight, bytes, scales);
    case WeightFormat::kMXFP8:
      return quantize_mxfp8(values.data(), rows, cols, rule, job.to.weight, bytes, scales);
    case WeightFormat::kFP8PerChannel: {
      std::vector<float> row_scales(static_cast<std::size_t>(rows));
      ML_RETURN_IF_ERROR(quantize_fp8_per_channel(values.data(), rows, cols, job.to.weight, bytes,
                                                  row_scales.data()));
      std::memcpy(scale, row_scales.data(), row_scales.size() * sizeof(float));
      return ok_status();
    }
    case WeightFormat::kPlain:
      for (std::size_t i = 0; i < values.size(); ++i) {
        const bf16_t value = f32_to_bf16(values[i]);
        std::memcpy(weight + i * sizeof value, &value, sizeof value);
      }
      return ok_status();
  }
  return {Code::kInternal, job.to.weight, "has no such format"};
}

// Rows [begin, end) on all threads; the first error of the lowest range is returned.
Status convert_block(const Conversion& job, MxRule rule, std::int64_t begin, std::int64_t end,
                     std::vector<std::byte>& weight, std::vector<std::byte>& scale) {
  const std::int64_t rows = end - begin;
  const std::int64_t row_bytes = job.to.row_bytes();
  const std::int64_t scale_bytes = job.to.scale_row_bytes();
  weight.resize(static_cast<std::size_t>(rows * row_bytes));
  scale.resize(static_cast<std::size_t>(rows * scale_bytes));
  const auto threads = std::clamp<std::int64_t>(
      std::min<std::int64_t>(std::thread::hardware_concurrency(), rows * job.to.cols >> 18), 1, 16);
  std::vector<Status> outcome(static_cast<std::size_t>(threads));
  std::vector<std::thread> team;
  for (std::int64_t t = 0; t < threads; ++t) {
    const auto part = [&, t] {
      const std::int64_t first = begin + rows * t / threads;
      const std::int64_t last = begin + rows * (t + 1) / threads;
      outcome[static_cast<std::size_t>(t)] =
          convert_rows(job, rule, first, last, weight.data() + (first - begin) * row_bytes,
                       scale.data() + (first - begin) * scale_bytes);
    };
    if (t + 1 < threads) {
      team.emplace_back(part);
    } else {
      part();
    }
  }
  for (std::thread& member : team) member.join();
  for (const Status& status : outcome) ML_RETURN_IF_ERROR(status);
  return ok_status();
}

std::span<const std::byte> bytes_of(const TensorView& tensor) {
  return {tensor.data, tensor.bytes};
}

Result<std::vector<Conversion>> plan_conversions(const ModelConfig& config,
                                                 const ModelWeights& weights,
                                                 const PartFormats& formats, bool flat) {
  ML_ASSIGN_OR_RETURN(auto plan, plan_checkpoint(config, formats, flat));
  std::vector<Conversion> jobs;
  for (PlannedTensor& tensor : plan) {
    Conversion job;
    job.from = source_of(weights, tensor);
    if (job.from.empty()) {
      // Without tied embeddings every planned tensor was bound; a model may lack the bias.
      if (tensor.role == Role::kRouterBias) continue;
      return Status(Code::kInternal, tensor.weight, "has no source in the bound model");
    }
    const bool never = part_of(tensor.role) == Part::kNone;
    const bool plain = job.from.format == WeightFormat::kPlain;
    job.copy = never || (job.from.format == tensor.format);
    if (job.copy && plain) tensor.plain_dtype = job.from.weight.dtype;
    job.to = std::move(tensor);
    jobs.push_back(std::move(job));
  }
  return jobs;
}

}  // namespace

Result<WriteReport> quantize_checkpoint(const Checkpoint& checkpoint, const ModelConfig& config,
                                        const ModelWeights& weights,
                                        const QuantizeOptions& options) {
  ML_ASSIGN_OR_RETURN(PartFormats formats, parse_formats(options.format));
  ML_ASSIGN_OR_RETURN(formats, keep_stored_formats(weights, formats));
  std::error_code error;
  if (fs::equivalent(checkpoint.path(), options.out, error))
    return Status(Code::kInvalidArgument, options.out, "is the folder of the model itself");

  nlohmann::json root = checkpoint.config();
  const bool flat = !root.contains("text_config");
  root.erase("quantization_config");
  if (!flat) root["text_config"].erase("quantization_config");
  nlohmann::json quantization = quantization_config(formats);
  if (!quantization.is_null()) root["quantization_config"] = std::move(quantization);

  ML_ASSIGN_OR_RETURN(const auto jobs, plan_conversions(config, weights, formats, flat));
  std::vector<TensorPlan> tensors;
  std::uint64_t total = 0;
  for (const Conversion& job : jobs) {
    job.to.announce(tensors);
    total += static_cast<std::uint64_t>(job.to.rows) *
             static_cast<std::uint64_t>(job.to.row_bytes() + job.to.scale_row_bytes());
  }
  std::vector<TensorView> extra;
  for (const std::string& name : weights.ignored) {
    const TensorView* tensor = checkpoint.find(name);
    if (tensor == nullptr) continue;
    extra.push_back(*tensor);
    tensors.push_back({name, tensor->dtype, tensor->shape});
    total += tensor->bytes;
  }

  ML_RETURN_IF_ERROR(prepare_folder(options.out, total, options.force));
  ML_ASSIGN_OR_RETURN(
      ShardedWriter writer,
      ShardedWriter::create(options.out, tensors, options.max_shard_bytes, {{"format", "pt"}}));
  std::uint64_t done = 0;
  std::vector<std::byte> weight;
  std::vector<std::byte> scale;
  const auto report = [&](std::uint64_t bytes) {
    done += bytes;
    if (options.progress) options.progress(done, total);
  };
  for (const Conversion& job : jobs) {
    if (job.copy) {
      ML_RETURN_IF_ERROR(writer.write(job.to.weight, bytes_of(job.from.weight)));
      if (!job.to.scale.empty())
        ML_RETURN_IF_ERROR(writer.write(job.to.scale, bytes_of(job.from.scale)));
      report(job.from.weight.bytes + job.from.scale.bytes);
      continue;
    }
    const std::int64_t block =
        std::max<std::int64_t>(1, kBlockValues / std::max<std::int64_t>(1, job.to.cols));
    for (std::int64_t begin = 0; begin < job.to.rows; begin += block) {
      const std::int64_t end = std::min(job.to.rows, begin + block);
      ML_RETURN_IF_ERROR(convert_block(job, options.rule, begin, end, weight, scale));
      ML_RETURN_IF_ERROR(writer.write(job.to.weight, weight));
      if (!scale.empty()) ML_RETURN_IF_ERROR(writer.write(job.to.scale, scale));
      report(weight.size() + scale.size());
    }
  }
  for (const TensorView& tensor : extra) {
    ML_RETURN_IF_ERROR(writer.write(tensor.name, bytes_of(tensor)));
    report(tensor.bytes);
  }
  ML_RETURN_IF_ERROR(checkpoint.verify_unchanged());
  ML_RETURN_IF_ERROR(writer.finish());
  ML_RETURN_IF_ERROR(write_text_file(options.out + "/config.json", root.dump(2) + "\n"));
  ML_RETURN_IF_ERROR(copy_text_files(checkpoint.path(), options.out));
  return WriteReport{tensors.size(), total, writer.shards()};
}

}  // namespace monolayer::m3
