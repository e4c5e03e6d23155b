// Copies between layouts, and views of parts.
#pragma once

#include <cstdint>

#include "core/status.h"
#include "monolayer/monolayer.h"

namespace monolayer::api {

// Copies `from` into the memory of `to`, whose layout tag says what is wanted. kInvalidArgument
// naming what differs: dtype, shape, device, an unknown layout, overlapping memory.
Status repack(const ml_tensor& from, const ml_tensor& to);

// Rows [begin, end) of a matrix or of every matrix of a stack, as a view. kInvalidArgument outside.
Status slice_rows(const ml_matrix& from, std::int64_t begin, std::int64_t end, ml_matrix& out);

}  // namespace monolayer::api
