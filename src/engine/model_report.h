// What a checkpoint is, in figures: for people and for tools.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

#include "engine/model_loader.h"
#include "m3/config.h"
#include "m3/weights.h"

namespace monolayer::engine {

// Keys and values of all layers and index keys of sparse ones, for elements of `element_bytes`.
std::int64_t cache_bytes_per_token(const m3::ModelConfig& config, std::int64_t element_bytes);

// Stored weight bytes that one token reads in a decode step: every matrix but the embedding (one
// row of it) and the experts that are not chosen.
std::int64_t weight_bytes_per_token(const m3::ModelConfig& config, const m3::ModelWeights& weights);

// Files, config, layer pattern, formats and bytes per part, shapes of a rank at tensor-parallel
// sizes 1, 2, 4 and 8 (or why not), bytes per token, ignored tensors, notes. Keys are stable.
nlohmann::json model_report(const OpenModel& model, const m3::ModelWeights& weights);

// The same as lines of text.
std::string model_report_text(const nlohmann::json& report);

}  // namespace monolayer::engine
