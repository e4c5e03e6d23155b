#include "text/tokenizer_split.h"

#include "text/utf8.h"

namespace monolayer {
namespace {

// Joins matches and gaps into pieces as a behavior says. Fed from left to right.
class Collector {
 public:
  Collector(SplitBehavior behavior, bool invert, std::uint32_t base, std::vector<Piece>& out)
      : behavior_(behavior), invert_(invert), base_(base), out_(out), first_(out.size()) {}

  void add(std::size_t begin, std::size_t end, bool match) {
    if (invert_) match = !match;
    const Piece piece{base_ + static_cast<std::uint32_t>(begin),
                      base_ + static_cast<std::uint32_t>(end)};
    switch (behavior_) {
      case SplitBehavior::kIsolated:
        push(piece);
        break;
      case SplitBehavior::kRemoved:
        if (!match) push(piece);
        break;
      case SplitBehavior::kContiguous:
        // The first piece counts as following a gap.
        if (match == previous_match_ && out_.size() > first_) {
          out_.back().end = piece.end;
        } else {
          push(piece);
        }
        break;
      case SplitBehavior::kMergedWithPrevious:
        if (match && !previous_match_ && out_.size() > first_) {
          out_.back().end = piece.end;
        } else {
          push(piece);
        }
        break;
      case SplitBehavior::kMergedWithNext:
        // A match is taken in by whatever gap comes next; by a match never.
        if (!match && pending_match_) {
          out_.back().end = piece.end;
        } else {
          push(piece);
        }
        pending_match_ = match;
        break;
    }
    previous_match_ = match;
  }

 private:
  void push(Piece piece) { out_.push_back(piece); }

  SplitBehavior behavior_;
  bool invert_;
  std::uint32_t base_;
  std::vector<Piece>& out_;
  std::size_t first_;
  bool previous_match_ = false;
  bool pending_match_ = false;
};

}  // namespace

Result<Splitter> Splitter::create(const std::vector<SplitRule>& rules) {
  Splitter splitter;
  for (const SplitRule& rule : rules) {
    auto regex = rule.regex ? Regex::oniguruma(rule.pattern) : Regex::literal(rule.pattern);
    if (!regex.ok()) return regex.status();
    splitter.stages_.push_back({std::move(regex).value(), rule.behavior, rule.invert});
  }
  return splitter;
}

Status Splitter::split_one(const Stage& stage, std::string_view whole, Piece piece,
                           RegexScratch& regex, std::vector<Piece>& out) {
  // A piece is matched as a text of its own: lookaround doesn't see its neighbours.
  const std::string_view text = whole.substr(piece.begin, piece.end - piece.begin);
  Collector collector(stage.behavior, stage.invert, piece.begin, out);
  std::size_t covered = 0;  // everything before is in pieces
  std::size_t search = 0;
  bool matched = false;
  while (search <= text.size()) {
    ML_ASSIGN_OR_RETURN(const Regex::Match match, stage.regex.find(text, search, regex));
    if (!match.found) break;
    // No empty match right after a match: the search would never end.
    if (match.begin == match.end && matched && match.end == covered) {
      if (search >= text.size()) break;
      search += utf8::step(text, search).length;
      continue;
    }
    if (covered != match.begin) collector.add(covered, match.begin, false);
    collector.add(match.begin, match.end, true);
    covered = match.end;
    search = match.end;
    matched = true;
  }
  if (covered != text.size()) collector.add(covered, text.size(), false);
  return {};
}

Status Splitter::split(std::string_view text, SplitScratch& scratch) const {
  scratch.pieces.clear();
  if (text.empty()) return {};
  scratch.pieces.push_back({0, static_cast<std::uint32_t>(text.size())});
  for (const Stage& stage : stages_) {
    scratch.other.clear();
    for (const Piece piece : scratch.pieces) {
      ML_RETURN_IF_ERROR(split_one(stage, text, piece, scratch.regex, scratch.other));
    }
    scratch.pieces.swap(scratch.other);
    std::erase_if(scratch.pieces, [](Piece p) { return p.begin == p.end; });
  }
  return {};
}

}  // namespace monolayer
