// Looks tensors up by role and keeps account of which were used and which were missing.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/quantization.h"
#include "checkpoint/quantized_tensor.h"
#include "core/status.h"

namespace monolayer::m3 {

// A missing tensor is noted, not an error, so that all missing names can be reported at once; any
// other fault (dtype, shape, scales) is kept as the first error. Lookups go on either way and give
// empty results.
class TensorFinder {
 public:
  TensorFinder(const Checkpoint& checkpoint, const QuantizationConfig& formats, ValueCheck check)
      : checkpoint_(checkpoint), formats_(formats), check_(check) {}

  // Whether "<module>.weight" or "<module>" is stored.
  bool has(const std::string& module) const;
  // The first of `names` that has(); the first of all if none has.
  std::string first_of(std::initializer_list<std::string> names) const;

  // A matrix of exactly [rows, cols].
  // `parts`: the modules it is packed from, by which the quantisation config may know it.
  QuantizedMatrix matrix(const std::string& module, std::int64_t rows, std::int64_t cols,
                         const std::vector<std::string>& parts = {});
  // A matrix that is never quantised and that the quantisation config does not speak of.
  QuantizedMatrix plain(const std::string& module, std::int64_t rows, std::int64_t cols);
  // A stack of matrices [count, rows, cols] seen as [count * rows, cols].
  QuantizedMatrix stack(const std::string& module, std::int64_t count, std::int64_t rows,
                        std::int64_t cols);
  // Rows [begin, begin + rows) of `whole`, empty if `whole` is.
  QuantizedMatrix rows_of(const QuantizedMatrix& whole, std::int64_t begin, std::int64_t rows);
  // A vector of n values of `dtype`.
  TensorView vector(const std::string& name, DType dtype, std::int64_t n);

  // Length of the first axis of "<module>[.weight]", 0 if it is not stored or a scalar.
  std::int64_t first_axis(const std::string& module) const;

  // Keeps `status` if it is the first fault.
  void fail(const Status& status);

  // ok, or what was wrong: the first fault, else the missing and unexpected names with their
  // counts. `ignored` gets the stored names that are unused on purpose.
  Status finish(std::vector<std::string>& ignored) const;

 private:
  QuantizedMatrix accept(Result<QuantizedMatrix> found, std::int64_t rows, std::int64_t cols);
  void use(const QuantizedMatrix& matrix);

  const Checkpoint& checkpoint_;
  const QuantizationConfig& formats_;
  ValueCheck check_;
  std::set<std::string, std::less<>> used_;
  std::vector<std::string> missing_;
  Status error_;
};

}  // namespace monolayer::m3
