#include "text/tokenizer_json.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/json_text.h"

namespace monolayer {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxDepth = 64;

std::string shortened(std::string_view text) {
  return text.size() <= 60 ? std::string(text) : std::string(text.substr(0, 60)) + "...";
}

// Receives nlohmann's parse events. Returning false stops the parser; status_ then says why.
class Handler : public nlohmann::json_sax<json> {
 public:
  Handler(TokenizerJson& out, json& tree) : out_(out), tree_(tree) {}

  const std::string& problem() const { return problem_; }

  bool null() override { return value(json(nullptr)); }
  bool boolean(bool v) override { return value(json(v)); }
  bool number_integer(number_integer_t v) override {
    if (place_ == Place::kVocab) {
      return fail("model.vocab: token \"" + shortened(key_) + "\" has the id " + std::to_string(v) +
                  ", ids are 0 to 2147483647");
    }
    return value(json(v));
  }
  bool number_unsigned(number_unsigned_t v) override {
    if (place_ != Place::kVocab) return value(json(v));
    if (v > static_cast<number_unsigned_t>(std::numeric_limits<std::int32_t>::max())) {
      return fail("model.vocab: token \"" + shortened(key_) + "\" has the id " + std::to_string(v) +
                  ", ids are 0 to 2147483647");
    }
    out_.vocab.emplace_back(std::move(key_), static_cast<std::int32_t>(v));
    return true;
  }
  bool number_float(number_float_t v, const string_t& /*text*/) override { return value(json(v)); }
  bool binary(binary_t& /*v*/) override { return fail("binary values are no JSON"); }

  bool string(string_t& v) override {
    switch (place_) {
      case Place::kMerges: {
        // GPT-2's merges.txt begins with a version line, which some converters kept.
        if (v.starts_with("#version")) return true;
        const std::size_t space = v.find(' ');
        if (space == std::string::npos || v.find(' ', space + 1) != std::string::npos) {
          return fail("model.merges[" + std::to_string(out_.merges.size()) + "]: \"" +
                      shortened(v) + "\" is not two tokens with one space between");
        }
        out_.merges.emplace_back(v.substr(0, space), v.substr(space + 1));
        return true;
      }
      case Place::kMergePair:
        if (pair_count_ == 0) {
          pair_.first = std::move(v);
        } else if (pair_count_ == 1) {
          pair_.second = std::move(v);
        }
        ++pair_count_;
        return pair_count_ <= 2 || fail(pair_problem());
      default:
        return value(json(std::move(v)));
    }
  }

  bool start_object(std::size_t /*size*/) override {
    if (place_ == Place::kTree && at_model_ && key_ == "vocab") {
      place_ = Place::kVocab;
      out_.has_vocab = true;
      return true;
    }
    return open(json::object());
  }
  bool end_object() override {
    if (place_ == Place::kVocab) {
      place_ = Place::kTree;
      return true;
    }
    return close();
  }
  bool start_array(std::size_t /*size*/) override {
    if (place_ == Place::kTree && at_model_ && key_ == "merges") {
      place_ = Place::kMerges;
      out_.has_merges = true;
      return true;
    }
    if (place_ == Place::kMerges) {
      place_ = Place::kMergePair;
      pair_count_ = 0;
      return true;
    }
    return open(json::array());
  }
  bool end_array() override {
    if (place_ == Place::kMergePair) {
      if (pair_count_ != 2) return fail(pair_problem());
      out_.merges.push_back(std::move(pair_));
      pair_ = {};
      place_ = Place::kMerges;
      return true;
    }
    if (place_ == Place::kMerges) {
      place_ = Place::kTree;
      return true;
    }
    return close();
  }
  bool key(string_t& k) override {
    key_ = std::move(k);
    if (place_ == Place::kVocab) return true;  // duplicates are found when ids are assigned
    if (stack_.back()->contains(key_) || (at_model_ && ((key_ == "vocab" && out_.has_vocab) ||
                                                        (key_ == "merges" && out_.has_merges)))) {
      return fail("the key \"" + shortened(key_) + "\" stands twice in one object");
    }
    return true;
  }
  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    return fail("not valid JSON at byte " + std::to_string(position));
  }

 private:
  enum class Place : std::uint8_t { kTree, kVocab, kMerges, kMergePair };

  bool fail(std::string problem) {
    if (problem_.empty()) problem_ = std::move(problem);
    return false;
  }
  std::string pair_problem() const {
    return "model.merges[" + std::to_string(out_.merges.size()) + "]: not a pair of strings";
  }

  bool value(json v) { return put(std::move(v)) != nullptr; }

  // Stores a value where the parser is; null when it may not be there.
  json* put(json v) {
    if (place_ == Place::kVocab) {
      fail("model.vocab: token \"" + shortened(key_) + "\" has an id that is no integer");
      return nullptr;
    }
    if (place_ == Place::kMerges || place_ == Place::kMergePair) {
      fail(pair_problem());
      return nullptr;
    }
    if (stack_.empty()) {
      tree_ = std::move(v);
      return &tree_;
    }
    json& parent = *stack_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(v));
      return &parent.back();
    }
    json& slot = parent[key_];
    slot = std::move(v);
    return &slot;
  }

  bool open(json empty) {
    if (stack_.size() >= kMaxDepth) {
      return fail("nested deeper than " + std::to_string(kMaxDepth) + " levels");
    }
    const bool model = stack_.size() == 1 && stack_.back()->is_object() && key_ == "model";
    json* slot = put(std::move(empty));
    if (slot == nullptr) return false;
    stack_.push_back(slot);
    if (model && slot->is_object()) model_ = slot;
    at_model_ = slot == model_;
    return true;
  }
  bool close() {
    stack_.pop_back();
    at_model_ = !stack_.empty() && stack_.back() == model_;
    return true;
  }

  TokenizerJson& out_;
  json& tree_;
  std::vector<json*> stack_;  // open containers; an array's elements move only while none is open
  std::string key_;
  std::string problem_;
  std::pair<std::string, std::string> pair_;
  int pair_count_ = 0;
  Place place_ = Place::kTree;
  const json* model_ = nullptr;  // the top level's "model", once it was opened
  bool at_model_ = false;        // it is the innermost open container
};

}  // namespace

Status parse_tokenizer_json(std::string_view text, const std::string& name, TokenizerJson& out,
                            json& tree) {
  if (const std::string nul = nul_in_json(text); !nul.empty())
    return {Code::kInvalidFile, name, "is not valid JSON: " + nul};
  try {
    Handler handler(out, tree);
    if (!json::sax_parse(text, &handler)) {
      return {Code::kInvalidFile, name,
              handler.problem().empty() ? "not valid JSON" : handler.problem()};
    }
  } catch (const std::bad_alloc&) {
    return {Code::kResourceExhausted, name, "out of memory while parsing"};
  } catch (const std::exception& e) {
    return {Code::kInvalidFile, name, e.what()};
  }
  return {};
}

}  // namespace monolayer
