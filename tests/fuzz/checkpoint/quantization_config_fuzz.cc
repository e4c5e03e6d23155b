// Any text as config.json, then the questions a loader asks. The answers must be the same under
// every spelling of a module's prefix.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "../fuzz_check.h"
#include "checkpoint/quantization.h"
#include "checkpoint/text_io.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto json = monolayer::parse_json(text, "fuzz");
  if (!json.ok()) return 0;
  const auto config = monolayer::QuantizationConfig::parse(*json, "fuzz");
  if (!config.ok()) {
    FUZZ_CHECK(config.status().to_string().rfind("fuzz: ", 0) == 0);
    return 0;
  }
  for (const char* core : {"layers.3.self_attn.q_proj", "layers.3.block_sparse_moe.experts.12.w1",
                           "layers.3.block_sparse_moe.gate", "lm_head"}) {
    const auto plain = config->format_for(core);
    for (const char* prefix : {"model.", "language_model.model.", "model.language_model."}) {
      const auto other = config->format_for(std::string(prefix) + core);
      // Only running out of steps may depend on the order in which spellings are tried.
      if (plain.status().code() == monolayer::Code::kResourceExhausted ||
          other.status().code() == monolayer::Code::kResourceExhausted)
        continue;
      FUZZ_CHECK(plain.ok() == other.ok());
      if (plain.ok()) {
        FUZZ_CHECK(*plain == *other);
        FUZZ_CHECK(*config->allows(core, *plain));
      }
    }
  }
  return 0;
}
