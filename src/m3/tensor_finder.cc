#include "m3/tensor_finder.h"

#include <algorithm>

namespace monolayer::m3 {

namespace {

// Parts of names that mark tensors which text decoding does not need (docs/formats.md).
constexpr std::string_view kIgnoredParts[] = {
    "vision_tower.",  // image encoder
    "multi_modal_projector.",
    "patch_merge_mlp.",
    "mtp.",                 // multi-token prediction, announced by configs
    "rotary_emb.inv_freq",  // recomputed from rope_theta
    ".input_scale",         // scales of quantised activations; activations stay BF16 here
};

bool is_ignored(std::string_view name) {
  return std::any_of(std::begin(kIgnoredParts), std::end(kIgnoredParts),
                     [&](auto part) { return name.find(part) != std::string_view::npos; });
}

std::string first_five(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(5, names.size()); ++i) {
    text += (i == 0 ? "" : ", ") + names[i];
  }
  return names.size() > 5 ? text + ", ..." : text;
}

}  // namespace

bool TensorFinder::has(const std::string& module) const {
  return checkpoint_.find(module + ".weight") != nullptr || checkpoint_.find(module) != nullptr;
}

std::string TensorFinder::first_of(std::initializer_list<std::string> names) const {
  for (const std::string& name : names) {
    if (has(name)) return name;
  }
  return *names.begin();
}

void TensorFinder::fail(const Status& status) {
  if (error_.ok()) error_ = status;
}

void TensorFinder::use(const QuantizedMatrix& matrix) {
  used_.emplace(matrix.weight.name);
  if (!matrix.scale.empty()) used_.emplace(matrix.scale.name);
}

QuantizedMatrix TensorFinder::accept(Result<QuantizedMatrix> found, std::int64_t rows,
                                     std::int64_t cols) {
  if (!found.ok()) {
    fail(found.status());
    return {};
  }
  use(*found);
  if (const Status shape = expect_matrix(*found, rows, cols); !shape.ok()) {
    fail(shape);
    return {};
  }
  return *std::move(found);
}

QuantizedMatrix TensorFinder::matrix(const std::string& module, std::int64_t rows,
                                     std::int64_t cols, const std::vector<std::string>& parts) {
  if (!has(module)) {
    missing_.push_back(module + ".weight");
    return {};
  }
  return accept(find_matrix(checkpoint_, formats_, module, parts, check_), rows, cols);
}

QuantizedMatrix TensorFinder::plain(const std::string& module, std::int64_t rows,
                                    std::int64_t cols) {
  const TensorView* stored = checkpoint_.find(module + ".weight");
  if (stored == nullptr) {
    missing_.push_back(module + ".weight");
    return {};
  }
  QuantizedMatrix found = accept(plain_matrix(*stored), rows, cols);
  if (!found.empty()) {
    if (const Status values = check_values(found, check_); !values.ok()) fail(values);
  }
  return found;
}

QuantizedMatrix TensorFinder::stack(const std::string& module, std::int64_t count,
                                    std::int64_t rows, std::int64_t cols) {
  const TensorView* stored = checkpoint_.find(module + ".weight");
  if (stored == nullptr) stored = checkpoint_.find(module);
  QuantizedMatrix found = matrix(module, count * rows, cols);
  if (!found.empty() && (stored->shape.rank() != 3 || stored->shape[1] != rows)) {
    fail(Status(Code::kInvalidFile, std::string(stored->name),
                "has shape " + stored->shape.to_string() + ", expected " + std::to_string(count) +
                    " matrices of " + std::to_string(rows) + " rows and " + std::to_string(cols) +
                    " columns"));
    return {};
  }
  return found;
}

QuantizedMatrix TensorFinder::rows_of(const QuantizedMatrix& whole, std::int64_t begin,
                                      std::int64_t rows) {
  if (whole.empty()) return {};
  Result<QuantizedMatrix> part = slice_rows(whole, begin, begin + rows);
  if (!part.ok()) {
    fail(part.status());
    return {};
  }
  return *std::move(part);
}

TensorView TensorFinder::vector(const std::string& name, DType dtype, std::int64_t n) {
  const TensorView* found = checkpoint_.find(name);
  if (found == nullptr) {
    missing_.push_back(name);
    return {};
  }
  used_.emplace(found->name);
  Status status = expect_dtype(*found, dtype);
  if (status.ok()) status = expect_shape(*found, {n});
  if (status.ok()) {
    // Few and small: their values are always looked at.
    QuantizedMatrix row{WeightFormat::kPlain, 1, n, *found, {}};
    row.weight.shape = {1, n};
    status = check_values(row, ValueCheck::kAll);
  }
  if (!status.ok()) {
    fail(status);
    return {};
  }
  return *found;
}

std::int64_t TensorFinder::first_axis(const std::string& module) const {
  const TensorView* found = checkpoint_.find(module + ".weight");
  if (found == nullptr) found = checkpoint_.find(module);
  return found == nullptr || found->shape.rank() == 0 ? 0 : found->shape[0];
}

Status TensorFinder::finish(std::vector<std::string>& ignored) const {
  // A fault names one tensor exactly; names that are merely absent may be its consequence.
  if (!error_.ok()) return error_;
  std::vector<std::string> unexpected;
  for (const TensorView& tensor : checkpoint_.tensors()) {
    if (used_.find(tensor.name) != used_.end()) continue;
    (is_ignored(tensor.name) ? ignored : unexpected).emplace_back(tensor.name);
  }
  if (missing_.empty() && unexpected.empty()) return ok_status();

  std::string message;
  if (!missing_.empty()) {
    message +=
        std::to_string(missing_.size()) + " tensors are missing (" + first_five(missing_) + ")";
  }
  if (!unexpected.empty()) {
    message += (message.empty() ? "" : "; ") + std::to_string(unexpected.size()) +
               " are unexpected (" + first_five(unexpected) + ")";
  }
  return {Code::kInvalidFile, checkpoint_.path(),
          message +
              "; supported layouts: the hub's language_model.model.*, model.language_model.* "
              "and model.*, experts one by one or stacked, the shared expert apart or as the "
              "last expert, q/k/v and gate/up apart or packed"};
}

}  // namespace monolayer::m3
