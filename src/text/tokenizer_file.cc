#include "text/tokenizer_file.h"

#include <array>
#include <nlohmann/json.hpp>

#include "text/tokenizer_json.h"

namespace monolayer {
namespace {

using nlohmann::json;

// GPT-2's pattern, which the ByteLevel pre-tokenizer stands for when it says use_regex.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

constexpr std::size_t kMaxStages = 16;
constexpr std::size_t kMaxAddedBytes = 1024;

// Field access with errors that name the file and the field.
class Reader {
 public:
  explicit Reader(const std::string& name) : name_(name) {}

  Status invalid(const std::string& message) const { return {Code::kInvalidFile, name_, message}; }
  Status unsupported(const std::string& message) const {
    return {Code::kUnsupported, name_, message};
  }

  // The member, or null when it is absent or null. `object` must be an object.
  static const json* find(const json& object, const char* key) {
    const auto it = object.find(key);
    return it == object.end() || it->is_null() ? nullptr : &*it;
  }
  Result<bool> boolean(const json& object, const char* key, const std::string& where,
                       bool fallback) const {
    const json* v = find(object, key);
    if (v == nullptr) return fallback;
    if (!v->is_boolean()) return invalid(where + "." + key + ": not true or false");
    return v->get<bool>();
  }
  Result<std::string> string(const json& object, const char* key, const std::string& where) const {
    const json* v = find(object, key);
    if (v == nullptr || !v->is_string()) return invalid(where + "." + key + ": not a string");
    return v->get<std::string>();
  }
  // A processing step: null, or an object with a type.
  Result<std::string> type_of(const json& step, const std::string& where) const {
    if (!step.is_object()) return invalid(where + ": not an object");
    return string(step, "type", where);
  }
  // The steps of a Sequence under `key`, or the step itself.
  Result<std::vector<const json*>> steps(const json* step, const char* key,
                                         const std::string& where) const {
    std::vector<const json*> list;
    if (step == nullptr) return list;
    ML_ASSIGN_OR_RETURN(const std::string type, type_of(*step, where));
    if (type != "Sequence") {
      list.push_back(step);
      return list;
    }
    const json* inner = find(*step, key);
    if (inner == nullptr || !inner->is_array()) return invalid(where + "." + key + ": not a list");
    if (inner->size() > kMaxStages) {
      return invalid(where + "." + key + ": " + std::to_string(inner->size()) +
                     " steps, the limit is " + std::to_string(kMaxStages));
    }
    for (const json& s : *inner) list.push_back(&s);
    return list;
  }

 private:
  const std::string& name_;
};

Status read_normalizer(const Reader& r, const json& root, TokenizerFile& out) {
  ML_ASSIGN_OR_RETURN(const auto steps,
                      r.steps(Reader::find(root, "normalizer"), "normalizers", "normalizer"));
  for (const json* step : steps) {
    ML_ASSIGN_OR_RETURN(const std::string type, r.type_of(*step, "normalizer"));
    if (type != "NFC") return r.unsupported("normalizer: type \"" + type + "\" (NFC is supported)");
    out.nfc = true;
  }
  return {};
}

Result<SplitRule> read_split(const Reader& r, const json& step) {
  const std::string where = "pre_tokenizer.Split";
  SplitRule rule;
  const json* pattern = Reader::find(step, "pattern");
  if (pattern == nullptr || !pattern->is_object() || pattern->size() != 1) {
    return r.invalid(where + ".pattern: neither {\"Regex\": ...} nor {\"String\": ...}");
  }
  const std::string kind = pattern->begin().key();
  if (kind != "Regex" && kind != "String") {
    return r.invalid(where + ".pattern: neither {\"Regex\": ...} nor {\"String\": ...}");
  }
  rule.regex = kind == "Regex";
  ML_ASSIGN_OR_RETURN(rule.pattern, r.string(*pattern, kind.c_str(), where + ".pattern"));
  if (rule.pattern.empty()) return r.invalid(where + ".pattern: empty");
  ML_ASSIGN_OR_RETURN(rule.invert, r.boolean(step, "invert", where, false));
  ML_ASSIGN_OR_RETURN(const std::string behavior, r.string(step, "behavior", where));
  constexpr std::array<std::pair<std::string_view, SplitBehavior>, 5> kBehaviors = {
      {{"Isolated", SplitBehavior::kIsolated},
       {"Removed", SplitBehavior::kRemoved},
       {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
       {"MergedWithNext", SplitBehavior::kMergedWithNext},
       {"Contiguous", SplitBehavior::kContiguous}}};
  for (const auto& [text, value] : kBehaviors) {
    if (behavior != text) continue;
    rule.behavior = value;
    return rule;
  }
  return r.unsupported(where + ".behavior: \"" + behavior + "\"");
}

// Sets `byte_level` when the steps end in ByteLevel.
Status read_pre_tokenizer(const Reader& r, const json& root, TokenizerFile& out, bool& byte_level) {
  const std::string where = "pre_tokenizer";
  ML_ASSIGN_OR_RETURN(const auto steps,
                      r.steps(Reader::find(root, "pre_tokenizer"), "pretokenizers", where));
  for (const json* step : steps) {
    ML_ASSIGN_OR_RETURN(const std::string type, r.type_of(*step, where));
    if (byte_level) {
      std::string what = where;
      what.append(": \"").append(type).append("\" after ByteLevel, which must be the last step");
      return r.unsupported(what);
    }
    if (type == "Split") {
      ML_ASSIGN_OR_RETURN(SplitRule rule, read_split(r, *step));
      out.splits.push_back(std::move(rule));
    } else if (type == "Digits") {
      ML_ASSIGN_OR_RETURN(const bool individual,
                          r.boolean(*step, "individual_digits", where + ".Digits", false));
      out.splits.push_back({true, R"(\p{N})",
                            individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous,
                            false});
    } else if (type == "ByteLevel") {
      byte_level = true;
      ML_ASSIGN_OR_RETURN(const bool prefix,
                          r.boolean(*step, "add_prefix_space", where + ".ByteLevel", true));
      if (prefix) return r.unsupported(where + ".ByteLevel.add_prefix_space: true");
      ML_ASSIGN_OR_RETURN(const bool use_regex,
                          r.boolean(*step, "use_regex", where + ".ByteLevel", true));
      if (use_regex) {
        out.splits.push_back({true, std::string(kGpt2Pattern), SplitBehavior::kIsolated, false});
      }
    } else {
      std::string what = where;
      what.append(": type \"").append(type);
      what.append("\" (Split, Digits, ByteLevel and Sequence are supported)");
      return r.unsupported(what);
    }
  }
  return {};
}

Status read_decoder(const Reader& r, const json& root, bool byte_level) {
  const json* decoder = Reader::find(root, "decoder");
  if (decoder == nullptr) return r.unsupported("decoder: null, which puts spaces between tokens");
  ML_ASSIGN_OR_RETURN(const auto steps, r.steps(decoder, "decoders", "decoder"));
  std::string types;
  for (const json* step : steps) {
    ML_ASSIGN_OR_RETURN(const std::string type, r.type_of(*step, "decoder"));
    types += (types.empty() ? "" : ", ") + type;
  }
  const bool known = byte_level ? types == "ByteLevel" || types == "ByteLevel, Fuse"
                                : types == "ByteFallback" || types == "ByteFallback, Fuse";
  if (known) return {};
  return r.unsupported("decoder: \"" + types + "\" (ByteLevel with a ByteLevel pre_tokenizer, " +
                       "ByteFallback without)");
}

Status read_model(const Reader& r, const json& root, TokenizerFile& out, bool byte_level) {
  const json* model = Reader::find(root, "model");
  if (model == nullptr || !model->is_object()) return r.invalid("model: not an object");
  if (const json* type = Reader::find(*model, "type"); type != nullptr && *type != "BPE") {
    return r.unsupported(
        "model.type: " + type->dump(-1, ' ', true, json::error_handler_t::replace) +
        " (BPE is supported)");
  }
  for (const char* key : {"vocab", "merges"}) {
    if (model->contains(key)) return r.invalid(std::string("model.") + key + ": wrong type");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const json* v = Reader::find(*model, key);
    if (v != nullptr && !(v->is_string() && v->get<std::string>().empty())) {
      return r.unsupported(std::string("model.") + key + ": not null or empty");
    }
  }
  if (const json* dropout = Reader::find(*model, "dropout"); dropout != nullptr) {
    if (!dropout->is_number() || dropout->get<double>() != 0.0) {
      return r.unsupported("model.dropout: not null or 0");
    }
  }
  if (Reader::find(*model, "unk_token") != nullptr) {
    ML_ASSIGN_OR_RETURN(out.unk_token, r.string(*model, "unk_token", "model"));
  }
  ML_ASSIGN_OR_RETURN(out.fuse_unk, r.boolean(*model, "fuse_unk", "model", false));
  ML_ASSIGN_OR_RETURN(out.ignore_merges, r.boolean(*model, "ignore_merges", "model", false));
  ML_ASSIGN_OR_RETURN(const bool byte_fallback, r.boolean(*model, "byte_fallback", "model", false));
  if (!byte_level && !byte_fallback) {
    return r.unsupported("model: neither a ByteLevel pre_tokenizer nor byte_fallback");
  }
  out.symbols =
      byte_level ? TokenizerFile::Symbols::kByteLevel : TokenizerFile::Symbols::kCharacters;
  return {};
}

Status read_added(const Reader& r, const json& root, TokenizerFile& out) {
  const json* list = Reader::find(root, "added_tokens");
  if (list == nullptr) return {};
  if (!list->is_array()) return r.invalid("added_tokens: not a list");
  for (const json& entry : *list) {
    const std::string where = "added_tokens[" + std::to_string(out.added.size()) + "]";
    if (!entry.is_object()) return r.invalid(where + ": not an object");
    AddedToken token;
    ML_ASSIGN_OR_RETURN(token.content, r.string(entry, "content", where));
    if (token.content.empty() || token.content.size() > kMaxAddedBytes) {
      return r.invalid(where + ".content: " + std::to_string(token.content.size()) +
                       " bytes, must be 1 to " + std::to_string(kMaxAddedBytes));
    }
    const json* id = Reader::find(entry, "id");
    if (id == nullptr || !id->is_number_unsigned() || id->get<std::uint64_t>() > 0x7fffffffU) {
      return r.invalid(where + ".id: not an integer from 0 to 2147483647");
    }
    token.id = id->get<std::int32_t>();
    ML_ASSIGN_OR_RETURN(token.special, r.boolean(entry, "special", where, false));
    ML_ASSIGN_OR_RETURN(token.lstrip, r.boolean(entry, "lstrip", where, false));
    ML_ASSIGN_OR_RETURN(token.rstrip, r.boolean(entry, "rstrip", where, false));
    ML_ASSIGN_OR_RETURN(token.single_word, r.boolean(entry, "single_word", where, false));
    ML_ASSIGN_OR_RETURN(token.normalized, r.boolean(entry, "normalized", where, !token.special));
    out.added.push_back(std::move(token));
  }
  return {};
}

Status read_root(const Reader& r, const json& root, TokenizerFile& out) {
  if (!root.is_object()) return r.invalid("not a JSON object");
  for (const char* key : {"truncation", "padding"}) {
    if (Reader::find(root, key) != nullptr) {
      return r.unsupported(std::string(key) + ": not null (texts are encoded whole)");
    }
  }
  bool byte_level = false;
  ML_RETURN_IF_ERROR(read_normalizer(r, root, out));
  ML_RETURN_IF_ERROR(read_pre_tokenizer(r, root, out, byte_level));
  ML_RETURN_IF_ERROR(read_model(r, root, out, byte_level));
  ML_RETURN_IF_ERROR(read_decoder(r, root, byte_level));
  return read_added(r, root, out);
}

}  // namespace

Result<TokenizerFile> parse_tokenizer_file(std::string_view text, const std::string& name) {
  const Reader r(name);
  if (text.size() > kMaxTokenizerBytes) {
    return r.invalid(std::to_string(text.size()) + " bytes, the limit is " +
                     std::to_string(kMaxTokenizerBytes));
  }
  TokenizerJson parsed;
  json root;
  ML_RETURN_IF_ERROR(parse_tokenizer_json(text, name, parsed, root));
  TokenizerFile out;
  try {
    ML_RETURN_IF_ERROR(read_root(r, root, out));
  } catch (const std::exception& e) {
    return r.invalid(e.what());
  }
  if (!parsed.has_vocab) return r.invalid("model.vocab: missing");
  if (!parsed.has_merges) return r.invalid("model.merges: missing");
  out.vocab = std::move(parsed.vocab);
  out.merges = std::move(parsed.merges);
  return out;
}

}  // namespace monolayer
