// The published layout of a checkpoint: which tensors there are for a config and a choice of
// formats, under the hub's names, and the quantization_config that says so. Shared by everything
// that writes checkpoints.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "checkpoint/quantization.h"
#include "checkpoint/safetensors_writer.h"
#include "core/status.h"
#include "m3/config.h"

namespace monolayer::m3 {

enum class Role : std::uint8_t {
  kEmbed,
  kFinalNorm,
  kHead,
  kInputNorm,
  kPostNorm,
  kQ,
  kK,
  kV,
  kO,
  kQNorm,
  kKNorm,
  kIndexQ,
  kIndexK,
  kIndexQNorm,
  kIndexKNorm,
  kDenseGate,
  kDenseUp,
  kDenseDown,
  kRouter,
  kRouterBias,
  kExpertGate,
  kExpertUp,
  kExpertDown,
  kSharedGate,
  kSharedUp,
  kSharedDown,
};

// The groups of matrices that share one format.
enum class Part : std::uint8_t { kNone, kAttention, kDense, kExperts };
Part part_of(Role role);  // kNone: always stored plain

// Formats by part. An empty optional keeps what is there (only where there is something).
struct PartFormats {
  std::optional<WeightFormat> attention, dense, experts;

  std::optional<WeightFormat> of(Part part) const;
};

// "bf16": everything plain. "mxfp4": experts and shared expert. "mxfp8": every text linear.
// "ptpc_fp8": attention. "mxfp4+ptpc_fp8", "mxfp4+mxfp8" (experts first, MXFP8 for the rest).
// Parts a name does not mention are left empty. kInvalidArgument listing the names.
Result<PartFormats> parse_formats(const std::string& name);
const std::vector<std::string>& format_names();

struct PlannedTensor {
  Role role = Role::kEmbed;
  std::int64_t layer = -1, expert = -1;
  std::string module;         // name without ".weight" and its scale suffixes
  std::string weight, scale;  // tensor names; scale is empty for plain formats
  WeightFormat format = WeightFormat::kPlain;
  DType plain_dtype = DType::kBF16;  // of kPlain
  std::int64_t rows = 0, cols = 0;   // vectors: rows 1

  bool vector() const;
  std::int64_t row_bytes() const;        // of the weight
  std::int64_t scale_row_bytes() const;  // 0 for plain formats
  void announce(std::vector<TensorPlan>& tensors) const;
};

// Every tensor in the order of the forward pass. `flat`: prefix "model." as text-only exports
// have it, else "language_model.model.". All parts of `formats` must be set. kInvalidArgument when
// a row is no multiple of 32 values in an MX format.
Result<std::vector<PlannedTensor>> plan_checkpoint(const ModelConfig& config,
                                                   const PartFormats& formats, bool flat);

// The quantization_config for these formats, all set: null when everything is plain, the MXFP8
// release's form when all parts are MXFP8, quark's form otherwise.
nlohmann::json quantization_config(const PartFormats& formats);

// Copies tokenizer, chat template and generation config from one model folder to another, those
// that exist. Errors name the file.
Status copy_text_files(const std::string& from, const std::string& to);

}  // namespace monolayer::m3
