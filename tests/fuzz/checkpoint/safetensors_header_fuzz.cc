// Any text as a header in front of as much data as its first bytes say. The check of accepted
// headers is a second reader: the JSON library's own document.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "../fuzz_check.h"
#include "checkpoint/safetensors_header.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::uint64_t data_bytes = data[0] | static_cast<std::uint64_t>(data[1]) << 8;
  const std::string_view json(reinterpret_cast<const char*>(data) + 2, size - 2);
  const auto header = monolayer::parse_safetensors_header(json, data_bytes, "fuzz");
  if (!header.ok()) return 0;
  const auto document = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  FUZZ_CHECK(document.is_object());
  FUZZ_CHECK(document.size() == header->tensors.size() + document.contains("__metadata__"));
  std::uint64_t end = 0;
  for (const monolayer::HeaderEntry& entry : header->tensors) {
    FUZZ_CHECK(entry.begin == end);
    end = entry.end;
    const auto& item = document.at(entry.name);
    FUZZ_CHECK(item.at("data_offsets").at(0) == entry.begin);
    FUZZ_CHECK(item.at("data_offsets").at(1) == entry.end);
    FUZZ_CHECK(item.at("shape").size() == static_cast<std::size_t>(entry.shape.rank()));
    FUZZ_CHECK(item.at("dtype") == monolayer::dtype_name(entry.dtype));
  }
  FUZZ_CHECK(end == data_bytes);
  return 0;
}
