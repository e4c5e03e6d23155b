// Refuses a request for more memory than there is before anything is loaded, and says what fits.
#pragma once

#include <cstdint>
#include <string>

#include "core/memory.h"
#include "core/status.h"

namespace monolayer::engine {

// What the program itself needs beside weights and caches: code, tokenizer tables, thread stacks
// and activations of a prefill chunk of a small model. Stated in docs/commands.md and tested.
inline constexpr std::int64_t kConstantBytes = std::int64_t{96} << 20;

struct MemoryNeed {
  std::int64_t weight_bytes = 0;
  std::int64_t page_bytes = 0;  // cache bytes of one page, all layers
  std::int64_t page_tokens = 128;
  std::int64_t context_tokens = 0;  // asked for
  std::int64_t constant_bytes = kConstantBytes;
};

// kResourceExhausted, naming `subject`, with both figures and the longest context that fits.
Status check_memory(const MemoryNeed& need, const MemoryAvailable& available,
                    const std::string& subject);

// "1.5 GB": decimal units, three significant digits.
std::string format_bytes(std::int64_t bytes);

}  // namespace monolayer::engine
