// Any text as an index. Accepted shard names are plain file names.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "../fuzz_check.h"
#include "checkpoint/shard_index.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  static_cast<void>(monolayer::looks_like_shard(text));
  const auto index = monolayer::parse_shard_index(text, "fuzz");
  if (!index.ok()) {
    FUZZ_CHECK(index.status().to_string().rfind("fuzz: ", 0) == 0);
    return 0;
  }
  FUZZ_CHECK(!index->shard_of.empty());
  for (const auto& [tensor, shard] : index->shard_of) {
    FUZZ_CHECK(shard.size() > 12 && shard.ends_with(".safetensors"));
    FUZZ_CHECK(shard.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos);
  }
  return 0;
}
