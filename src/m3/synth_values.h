// The numbers of synthetic weights. Internal to synth.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "m3/config.h"
#include "m3/synth_plan.h"

namespace monolayer::m3 {

// What a tensor's values are: uniform around 0 with standard deviation `spread`.
double synth_spread(const ModelConfig& config, const PlannedTensor& tensor);

// Key of a tensor's random stream.
std::uint64_t synth_key(std::uint64_t seed, std::string_view name);

// Rows [begin, end) in stored form. `weight`: (end - begin) * row_bytes(); `scale`: likewise with
// scale_row_bytes(). Any split into ranges gives the same bytes.
void synth_rows(const PlannedTensor& tensor, std::uint64_t key, double spread, std::int64_t begin,
                std::int64_t end, std::span<std::byte> weight, std::span<std::byte> scale);

}  // namespace monolayer::m3
