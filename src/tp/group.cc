#include "tp/group.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "tp/control.h"
#include "tp/text_field.h"

namespace monolayer::tp {

struct Group::Call {
  enum Kind : std::uint32_t { kBarrier = 1, kAgree, kSame, kGather, kBroadcast, kReduce };
  Kind kind;
  std::uint64_t bytes = 0;
  std::uint32_t root = 0;

  CallHeader header() const { return {kind, root, bytes}; }
  static const char* name(std::uint32_t kind) {
    static constexpr const char* kNames[] = {"none",       "barrier",   "agree",     "agree_same",
                                             "all_gather", "broadcast", "all_reduce"};
    return kind < std::size(kNames) ? kNames[kind] : "unknown";
  }
};

namespace {

// A rank's vote, as it lies in the slot.
struct Vote {
  std::uint32_t code;
  std::uint32_t ready;
  char subject[120];
  char message[384];
};

std::string text_of(const Vote& vote) {
  return Status(static_cast<Code>(vote.code), vote.subject, vote.message).to_string();
}

bool is_failure(const Vote& vote) { return vote.code != static_cast<std::uint32_t>(Code::kOk); }
bool is_unsupported(const Vote& vote) {
  return vote.code == static_cast<std::uint32_t>(Code::kUnsupported);
}

// One line with the texts of `ranks`, equal texts once.
Status join(Code code, std::uint32_t ranks, std::span<const std::string> texts) {
  std::string subject;
  std::string message;
  for (std::size_t r = 0; r < texts.size(); ++r) {
    if ((ranks >> r & 1) == 0) continue;
    std::string who;
    int count = 0;
    for (std::size_t other = 0; other < texts.size(); ++other) {
      if ((ranks >> other & 1) == 0 || texts[other] != texts[r]) continue;
      if (other < r) break;  // said already
      if (count++ != 0) who.append(", ");
      who.append(std::to_string(other));
    }
    if (count == 0) continue;
    who.insert(0, count == 1 ? "rank " : "ranks ");
    if (subject.empty()) {
      subject = who;
      message = texts[r];
    } else {
      message.append("; ").append(who).append(": ").append(texts[r]);
    }
  }
  return {code, subject, message};
}

std::string describe(const CallHeader& header, const char* name) {
  std::string text = name;
  if (header.bytes != 0) text += " of " + std::to_string(header.bytes) + " bytes";
  if (header.root != 0) text += " from rank " + std::to_string(header.root);
  return text;
}

}  // namespace

void sum_eighths(std::span<const float* const> parts, std::span<float> out) {
  const int count = static_cast<int>(parts.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::array<float, kEighths> roots{};
    for (std::size_t p = 0; p < parts.size(); ++p) roots[p] = parts[p][i];
    out[i] = add_roots(roots.data(), count);
  }
}

Group::Group(ControlBlock* control, int rank, int size)
    : control_(control), poison_(&control->poison), rank_(rank), size_(size) {
  regions_.reserve(8);
}

Group::~Group() {
  if (closed_ || (size_ == 1 && regions_.empty())) return;
  // A group that failed has said why, and its ranks cannot meet to close it any more.
  if (poison_->raised()) return;
  std::fprintf(stderr,
               "monolayer: warning: rank %d of %d: group destroyed without close; %zu region(s) of "
               "shared memory stay allocated until the process ends\n",
               rank_, size_, regions_.size());
}

void Group::fail(const Status& why) {
  WaitRecord record;
  record.kind = WaitRecord::Kind::kFailed;
  record.code = why.code();
  record.rank = rank_;
  record.set_detail(why.to_string());
  poison_->raise(record);
}

Status Group::check_usable(const char* what) const {
  if (closed_) return {Code::kFailedPrecondition, what, "the group is closed"};
  return status();
}

std::byte* Group::slot(int rank) const { return control_->slots[epoch_ & 1][rank]; }

// Publishes the header and the own slot of call `epoch_` (already counted) and waits for the
// peers'.
Status Group::enter(const Call& call, const Deadline& deadline) {
  const CallHeader mine = call.header();
  CallHeader* headers = control_->headers[epoch_ & 1];
  headers[rank_] = mine;
  control_->arrivals[rank_].epoch.store(epoch_, std::memory_order_release);
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    const std::atomic<std::uint64_t>& arrived = control_->arrivals[r].epoch;
    Waiter waiter({deadline.remaining(), poison_});
    while (arrived.load(std::memory_order_acquire) < epoch_) {
      if (waiter.again()) continue;
      WaitRecord record;
      record.rank = rank_;
      record.index = r;
      record.expected = epoch_;
      record.seen = arrived.load(std::memory_order_relaxed);
      record.timeout_ms =
          std::chrono::duration_cast<std::chrono::milliseconds>(deadline.timeout()).count();
      record.set_region(std::string("group.") + Call::name(call.kind));
      record.set_detail("rank " + std::to_string(r) + " has not arrived");
      return waiter.give_up(record);
    }
    if (headers[r] == mine) continue;
    WaitRecord record;
    record.kind = WaitRecord::Kind::kDisagreed;
    record.rank = rank_;
    record.set_detail("calls " + describe(mine, Call::name(mine.kind)) + " while rank " +
                      std::to_string(r) + " calls " +
                      describe(headers[r], Call::name(headers[r].kind)));
    poison_->raise(record);
    return poison_->status();
  }
  return {};
}

Status Group::barrier(const Deadline& deadline) {
  ML_RETURN_IF_ERROR(check_usable("barrier"));
  if (size_ == 1) return {};
  ++epoch_;
  return enter({Call::kBarrier}, deadline);
}

Agreement Group::agree(const Status& mine, bool ready, const Deadline& deadline) {
  const auto failed = [](Status status) {
    return Agreement{Agreement::Outcome::kFailed, std::move(status), 0};
  };
  Status usable = check_usable("agree");
  if (!usable.ok()) return failed(std::move(usable));
  ++epoch_;
  Vote vote{};
  vote.code = static_cast<std::uint32_t>(mine.code());
  vote.ready = ready ? 1 : 0;
  if (!mine.ok()) {
    copy_text(mine.subject(), vote.subject);
    copy_text(mine.message(), vote.message);
  }
  std::memcpy(slot(rank_), &vote, sizeof vote);
  if (size_ > 1) {
    Status entered = enter({Call::kAgree}, deadline);
    if (!entered.ok()) return failed(std::move(entered));
  }

  std::array<Vote, kMaxRanks> votes;
  std::uint32_t failures = 0, unsupported = 0, waiting = 0;
  for (int r = 0; r < size_; ++r) {
    Vote& peer = votes[static_cast<std::size_t>(r)];
    std::memcpy(&peer, slot(r), sizeof peer);
    const std::uint32_t bit = 1U << r;
    if (is_unsupported(peer))
      unsupported |= bit;
    else if (is_failure(peer))
      failures |= bit;
    if (peer.ready == 0) waiting |= bit;
  }
  if ((failures | unsupported | waiting) == 0) return {};

  Agreement result;
  std::array<std::string, kMaxRanks> texts;
  for (int r = 0; r < size_; ++r) {
    const auto i = static_cast<std::size_t>(r);
    texts[i] = is_failure(votes[i]) ? text_of(votes[i]) : "not ready";
  }
  const std::span<const std::string> all(texts.data(), static_cast<std::size_t>(size_));
  const auto decide = [&](Agreement::Outcome outcome, std::uint32_t ranks) {
    std::size_t first = 0;
    while ((ranks >> first & 1) == 0) ++first;
    const auto code = static_cast<Code>(votes[first].code);
    result.outcome = outcome;
    result.ranks = ranks;
    result.status = join(code == Code::kOk ? Code::kFailedPrecondition : code, ranks, all);
  };
  if (failures != 0)
    decide(Agreement::Outcome::kFailed, failures);
  else if (unsupported != 0)
    decide(Agreement::Outcome::kUnsupported, unsupported);
  else
    decide(Agreement::Outcome::kNotReady, waiting);
  return result;
}

Status Group::agree_same(std::uint64_t value, const char* what, const Deadline& deadline) {
  ML_RETURN_IF_ERROR(check_usable("agree_same"));
  if (size_ == 1) return {};
  ++epoch_;
  std::memcpy(slot(rank_), &value, sizeof value);
  ML_RETURN_IF_ERROR(enter({Call::kSame}, deadline));
  std::uint64_t first = 0;
  std::memcpy(&first, slot(0), sizeof first);
  for (int r = 1; r < size_; ++r) {
    std::uint64_t other = 0;
    std::memcpy(&other, slot(r), sizeof other);
    if (other == first) continue;
    return {Code::kFailedPrecondition, what,
            "differs between ranks: " + std::to_string(first) + " on rank 0, " +
                std::to_string(other) + " on rank " + std::to_string(r)};
  }
  return {};
}

Status Group::all_gather(std::span<const std::byte> mine, std::span<std::byte> all,
                         const Deadline& deadline) {
  ML_RETURN_IF_ERROR(check_usable("all_gather"));
  const std::size_t bytes = mine.size();
  if (all.size() / static_cast<std::size_t>(size_) != bytes ||
      all.size() % static_cast<std::size_t>(size_) != 0) {
    return {Code::kInvalidArgument, "all_gather",
            std::to_string(all.size()) + " bytes for " + std::to_string(size_) + " ranks of " +
                std::to_string(bytes)};
  }
  if (size_ == 1) {
    if (bytes != 0) std::memmove(all.data(), mine.data(), bytes);
    return {};
  }
  std::size_t done = 0;
  do {
    const std::size_t part = std::min(kSlotBytes, bytes - done);
    ++epoch_;
    if (part != 0) std::memcpy(slot(rank_), mine.data() + done, part);
    ML_RETURN_IF_ERROR(enter({Call::kGather, bytes}, deadline));
    for (int r = 0; r < size_ && part != 0; ++r) {
      std::memcpy(all.data() + static_cast<std::size_t>(r) * bytes + done, slot(r), part);
    }
    done += part;
  } while (done < bytes);
  return {};
}

Status Group::broadcast(std::span<std::byte> data, int root, const Deadline& deadline) {
  ML_RETURN_IF_ERROR(check_usable("broadcast"));
  if (root < 0 || root >= size_) {
    return {Code::kInvalidArgument, "broadcast",
            "root " + std::to_string(root) + " of " + std::to_string(size_) + " ranks"};
  }
  if (size_ == 1) return {};
  std::size_t done = 0;
  do {
    const std::size_t part = std::min(kSlotBytes, data.size() - done);
    ++epoch_;
    if (rank_ == root && part != 0) std::memcpy(slot(rank_), data.data() + done, part);
    ML_RETURN_IF_ERROR(
        enter({Call::kBroadcast, data.size(), static_cast<std::uint32_t>(root)}, deadline));
    if (rank_ != root && part != 0) std::memcpy(data.data() + done, slot(root), part);
    done += part;
  } while (done < data.size());
  return {};
}

Status Group::all_reduce(std::span<float> data, const Deadline& deadline) {
  ML_RETURN_IF_ERROR(check_usable("all_reduce"));
  if (size_ == 1) return {};
  constexpr std::size_t kPart = kSlotBytes / sizeof(float);
  std::size_t done = 0;
  do {
    const std::size_t part = std::min(kPart, data.size() - done);
    ++epoch_;
    if (part != 0) std::memcpy(slot(rank_), data.data() + done, part * sizeof(float));
    ML_RETURN_IF_ERROR(enter({Call::kReduce, data.size_bytes()}, deadline));
    std::array<const float*, kMaxRanks> roots{};
    for (int r = 0; r < size_; ++r) {
      roots[static_cast<std::size_t>(r)] = reinterpret_cast<const float*>(slot(r));
    }
    if (part != 0) {
      sum_eighths({roots.data(), static_cast<std::size_t>(size_)}, data.subspan(done, part));
    }
    done += part;
  } while (done < data.size());
  return {};
}

}  // namespace monolayer::tp
