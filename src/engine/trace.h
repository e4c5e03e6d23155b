// Runs given token ids and writes what the forward pass showed, under the names of the reference
// files: the comparison of every path with every other.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/status.h"
#include "m3/config.h"
#include "m3/trace.h"

namespace monolayer::engine {

struct TraceInput {
  std::vector<std::int32_t> input_ids;
  std::vector<std::int32_t> rows;  // positions whose hidden states and logits are kept
};

// `path`: a JSON list of ids, a JSON object or a safetensors file with `input_ids` and optionally
// `rows`. `rows_text` ("0,5,10-20", "all", or empty: those of the file, else all) has precedence.
// Refused: ids outside [0, vocab), rows outside the input, rows named twice, no ids at all.
Result<TraceInput> read_trace_input(const std::string& path, const std::string& rows_text,
                                    std::int64_t vocab_size);

// "0,5,10-20" or "all" to positions below `count`, in the order given.
Result<std::vector<std::int32_t>> parse_rows(const std::string& text, std::int64_t count);

// Appends tokens to one sequence; logits of the last `logit_rows` of them, row-major.
using TraceForward = std::function<Result<std::vector<float>>(
    std::span<const std::int32_t> tokens, std::int64_t logit_rows, m3::TraceSink* sink)>;

// Runs all ids in chunks of `chunk` and writes hidden.0 .. hidden.L and logits float32 [rows, ...],
// blocks.i int32 [every token, index head, topk] padded with -1, rows and input_ids int32.
Status write_trace(const std::string& path, const m3::ModelConfig& config, const TraceInput& input,
                   std::int64_t chunk, const TraceForward& forward);

}  // namespace monolayer::engine
