// The JSON of a tokenizer file. Vocabulary and merges, nearly all of its bytes, go straight to
// arrays; the rest becomes a small tree.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/status.h"

namespace monolayer {

struct TokenizerJson {
  std::vector<std::pair<std::string, std::int32_t>> vocab;  // model.vocab
  std::vector<std::pair<std::string, std::string>> merges;  // model.merges, either form
  bool has_vocab = false;
  bool has_merges = false;
};

// Parses into `out` and `tree` (everything but the two arrays). Refuses malformed JSON, invalid
// UTF-8, nesting deeper than 64, a key twice in one object, ids outside 0 .. 2^31-1.
Status parse_tokenizer_json(std::string_view json, const std::string& name, TokenizerJson& out,
                            nlohmann::json& tree);

}  // namespace monolayer
