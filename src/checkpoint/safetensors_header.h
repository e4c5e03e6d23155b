// The header of a safetensors file, checked completely before anything uses it.
//
// File: 8 bytes little-endian header length N, N bytes of JSON, then the data. Rules, in addition
// to JSON's own (README.md has the list): N is at most kMaxHeaderBytes and ends inside the file;
// the JSON is one object that starts at its first byte, white space may follow it; keys are unique
// at every level; each tensor has exactly dtype, shape and data_offsets; the tensors' ranges tile
// the data from 0 to the end of the file without gap, overlap or rest; each range is as long as
// dtype and shape say. Tensors of zero bytes are legal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/tensor.h"
#include "core/status.h"

namespace monolayer {

inline constexpr std::size_t kMaxHeaderBytes = 100'000'000;

struct HeaderEntry {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  std::uint64_t begin = 0, end = 0;  // bytes, from the start of the data
};

struct SafetensorsHeader {
  std::vector<HeaderEntry> tensors;  // in the order of their data
  std::map<std::string, std::string> metadata;
};

// The 8 length bytes: N when the header ends inside a file of `file_bytes`. `first` holds up to
// the first 256 bytes of the file and serves to say what a foreign file is. kInvalidFile.
Result<std::size_t> header_length(std::span<const std::byte> first, std::size_t file_bytes,
                                  const std::string& file);

// `json`: the N header bytes; `data_bytes`: what follows them in the file. kInvalidFile naming
// file, tensor and bound; kUnsupported for well-formed dtypes and ranks this build does not hold.
Result<SafetensorsHeader> parse_safetensors_header(std::string_view json, std::uint64_t data_bytes,
                                                   const std::string& file);

// The dtype's name in a header ("F8_E4M3"); nullopt for kE2M1x2, which files hold as U8.
std::optional<std::string_view> safetensors_dtype_name(DType dtype);

}  // namespace monolayer
