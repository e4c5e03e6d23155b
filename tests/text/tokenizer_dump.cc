// Encodes and decodes a file of texts, for comparison with another implementation.
//   text_tokenizer_dump TOKENIZER special|plain|ids TEXTS OUT
// TEXTS: records of a 32-bit little-endian length and that many bytes. OUT, for each text: the
// count and the ids (32 bits each), then the ids decoded, and decoded without special tokens (each
// a length and bytes). A streamed decode is made of every text and must agree.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "text/stream_decoder.h"
#include "text/tokenizer.h"

namespace {

void put_u32(std::string& out, std::size_t value) {
  for (unsigned shift = 0; shift < 32; shift += 8) {
    out.push_back(static_cast<char>((value >> shift) & 0xFFU));
  }
}

std::uint32_t get_u32(std::string_view in, std::size_t at) {
  std::uint32_t value = 0;
  for (unsigned i = 0; i < 4; ++i) {
    value |= static_cast<std::uint32_t>(static_cast<unsigned char>(in[at + i])) << (8 * i);
  }
  return value;
}

std::vector<std::int32_t> unpack(std::string_view record) {
  std::vector<std::int32_t> ids;
  for (std::size_t at = 0; at + 4 <= record.size(); at += 4) {
    ids.push_back(static_cast<std::int32_t>(get_u32(record, at)));
  }
  return ids;
}

int fail(const std::string& message) {
  std::fprintf(stderr, "tokenizer_dump: %s\n", message.c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return fail("usage: TOKENIZER special|plain|ids TEXTS OUT");
  const auto tokenizer = monolayer::Tokenizer::load(argv[1]);
  if (!tokenizer.ok()) return fail(tokenizer.status().to_string());
  const bool mode_ids = std::strcmp(argv[2], "ids") == 0;
  const monolayer::EncodeOptions options{std::strcmp(argv[2], "special") == 0, {}};
  std::ifstream stream(argv[3], std::ios::binary);
  const std::string in((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  std::ofstream file(argv[4], std::ios::binary);
  std::string out;
  for (std::size_t at = 0; at + 4 <= in.size();) {
    const std::uint32_t length = get_u32(in, at);
    const std::string_view text = std::string_view(in).substr(at + 4, length);
    at += 4 + length;
    const auto ids = mode_ids ? monolayer::Result<std::vector<std::int32_t>>(unpack(text))
                              : tokenizer->encode(text, options);
    if (!ids.ok()) return fail(ids.status().to_string());
    put_u32(out, ids->size());
    for (const std::int32_t id : *ids) put_u32(out, static_cast<std::uint32_t>(id));
    for (const bool skip : {false, true}) {
      const std::string decoded = tokenizer->decode(*ids, skip);
      monolayer::StreamDecoder decoder(*tokenizer, skip);
      std::string streamed;
      for (const std::int32_t id : *ids) streamed += decoder.push(id);
      streamed += decoder.finish();
      if (streamed != decoded) return fail("streamed decoding differs");
      put_u32(out, decoded.size());
      out += decoded;
    }
    file << out;
    out.clear();
  }
  file.close();
  return file ? 0 : fail(std::string("cannot write ") + argv[4]);
}
