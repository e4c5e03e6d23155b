// Small tokenizer files made in place.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "text/utf8.h"

namespace monolayer::testing {

// The character that stands for a byte in GPT-2's alphabet, written out independently of the code
// under test.
inline std::string symbol(int byte) {
  std::vector<int> printable;
  for (int b = '!'; b <= '~'; ++b) printable.push_back(b);
  for (int b = 0xA1; b <= 0xAC; ++b) printable.push_back(b);
  for (int b = 0xAE; b <= 0xFF; ++b) printable.push_back(b);
  int others = 0;
  for (int b = 0; b < 256; ++b) {
    bool is_printable = false;
    for (const int p : printable) is_printable = is_printable || p == b;
    if (b == byte) {
      std::string out;
      utf8::append_code_point(static_cast<char32_t>(is_printable ? b : 256 + others), out);
      return out;
    }
    if (!is_printable) ++others;
  }
  return {};
}

inline std::string symbols(const std::string& bytes) {
  std::string out;
  for (const char c : bytes) out += symbol(static_cast<unsigned char>(c));
  return out;
}

// A byte-level tokenizer.json whose ids 0 to 255 are the bytes; then one token per merge.
inline nlohmann::json byte_level_file(
    const std::vector<std::pair<std::string, std::string>>& merges = {},
    const std::string& pattern = "") {
  nlohmann::json file = nlohmann::json::parse(R"({
    "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                      "use_regex": false},
    "post_processor": null, "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "dropout": null, "unk_token": null, "fuse_unk": false,
              "continuing_subword_prefix": null, "end_of_word_suffix": null,
              "byte_fallback": false, "ignore_merges": false, "vocab": {}, "merges": []}})");
  for (int b = 0; b < 256; ++b) file["model"]["vocab"][symbol(b)] = b;
  for (const auto& [left, right] : merges) {
    const std::string l = symbols(left);
    const std::string r = symbols(right);
    file["model"]["vocab"].emplace(l + r, file["model"]["vocab"].size());
    file["model"]["merges"].push_back({l, r});
  }
  if (!pattern.empty()) {
    nlohmann::json split = {{"type", "Split"},
                            {"pattern", {{"Regex", pattern}}},
                            {"behavior", "Isolated"},
                            {"invert", false}};
    file["pre_tokenizer"] = {{"type", "Sequence"},
                             {"pretokenizers", {split, file["pre_tokenizer"]}}};
  }
  return file;
}

inline nlohmann::json added_token(int id, const std::string& content, bool special = true) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

}  // namespace monolayer::testing
