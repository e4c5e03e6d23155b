// Files for tests: a folder that disappears, and safetensors files built by hand, not by the
// writer under test.
#pragma once

#include <stdlib.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace monolayer::testing_files {

class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "monolayer-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  std::string path() const { return path_; }
  std::string at(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline std::string write_file(const std::string& path, std::string_view bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return path;
}

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline std::string little_endian(std::uint64_t value) {
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i)
    bytes[static_cast<std::size_t>(i)] = static_cast<char>(value >> 8 * i);
  return bytes;
}

// Length, header, data.
inline std::string safetensors(std::string_view header, std::string_view data) {
  return little_endian(header.size()) + std::string(header) + std::string(data);
}

// A well-formed file from (name, dtype, shape text, bytes), header padded with spaces to 8 bytes.
struct Piece {
  std::string name, dtype, shape, bytes;
};
inline std::string safetensors(const std::vector<Piece>& pieces) {
  std::string header = "{", data;
  for (const Piece& piece : pieces) {
    if (header.size() > 1) header += ",";
    header += "\"" + piece.name + "\":{\"dtype\":\"" + piece.dtype + "\",\"shape\":" + piece.shape +
              ",\"data_offsets\":[" + std::to_string(data.size()) + "," +
              std::to_string(data.size() + piece.bytes.size()) + "]}";
    data += piece.bytes;
  }
  header += "}";
  while (header.size() % 8 != 0) header += " ";
  return safetensors(header, data);
}

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

}  // namespace monolayer::testing_files
