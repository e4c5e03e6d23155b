// Any bytes as a whole file. What is accepted must tile the file exactly and be readable.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "../fuzz_check.h"
#include "checkpoint/safetensors.h"

using monolayer::SafetensorsFile;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // A copy of exactly this size on the heap: one byte too far is an ASan report.
  const std::vector<std::uint8_t> bytes(data, data + size);
  auto file = SafetensorsFile::from_memory("fuzz", std::as_bytes(std::span(bytes)));
  if (!file.ok()) {
    const std::string text = file.status().to_string();
    FUZZ_CHECK(text.rfind("fuzz: ", 0) == 0 && text.find('\n') == std::string::npos);
    return 0;
  }
  std::size_t total = 0;
  unsigned sum = 0;
  for (const monolayer::TensorView& tensor : file->tensors()) {
    const auto elements = tensor.shape.elements();
    FUZZ_CHECK(elements.has_value());
    FUZZ_CHECK(static_cast<std::size_t>(*elements) * dtype_size(tensor.dtype) == tensor.bytes);
    FUZZ_CHECK(tensor.bytes == 0 ||
               reinterpret_cast<std::uintptr_t>(tensor.data) % dtype_size(tensor.dtype) == 0);
    for (std::size_t i = 0; i < tensor.bytes; ++i) sum += std::to_integer<unsigned>(tensor.data[i]);
    FUZZ_CHECK(file->find(tensor.name) == &tensor);
    total += tensor.bytes;
  }
  std::uint64_t header = 0;
  std::memcpy(&header, bytes.data(), 8);
  unsigned expected = 0;
  for (std::size_t i = 8 + header; i < size; ++i) expected += bytes[i];
  FUZZ_CHECK(8 + header + total == size);
  FUZZ_CHECK(sum == expected);  // every data byte belongs to exactly one tensor
  return 0;
}
