#include "core/deadline.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <string>

namespace monolayer {

namespace {

using std::chrono::duration_cast;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr nanoseconds kShortestSleep{20'000};
constexpr nanoseconds kLongestSleep{1'000'000};
constexpr milliseconds kRecordGrace{100};

template <std::size_t n>
void copy_text(std::string_view text, char (&to)[n]) {
  const std::size_t length = std::min(text.size(), n - 1);
  std::memcpy(to, text.data(), length);
  std::memset(to + length, 0, n - length);
}

template <std::size_t n>
std::string_view view_text(const char (&from)[n]) {
  return {from, strnlen(from, n)};
}

void sleep_for(nanoseconds time) {
  timespec request{};
  request.tv_nsec = time.count();
  nanosleep(&request, nullptr);  // a signal may cut it short: the caller looks again anyway
}

std::string hexadecimal(std::uint64_t value) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  do {
    text.insert(text.begin(), kDigits[value & 15]);
    value >>= 4;
  } while (value != 0);
  return "0x" + text;
}

}  // namespace

WaitRecord& WaitRecord::set_region(std::string_view name) {
  copy_text(name, region);
  return *this;
}

WaitRecord& WaitRecord::set_detail(std::string_view text) {
  copy_text(text, detail);
  return *this;
}

Status WaitRecord::to_status() const {
  const std::string who = "rank " + std::to_string(rank);
  switch (kind) {
    case Kind::kNone:
      return {};
    case Kind::kDeadline: {
      std::string text = "waited " + std::to_string(timeout_ms) + " ms";
      if (layer >= 0) text += ", layer " + std::to_string(layer);
      if (stage >= 0) text += ", stage " + std::to_string(stage);
      text += ", region ";
      text += view_text(region);
      text += ", index " + std::to_string(index);
      text += ": expected " + hexadecimal(expected) + ", saw " + hexadecimal(seen);
      if (detail[0] != 0) {
        text += " (";
        text += view_text(detail);
        text += ')';
      }
      return {Code::kDeadlineExceeded, who, text};
    }
    case Kind::kPeerLost: {
      std::string text = "ended without leaving the group";
      if (detail[0] != 0) {
        text += " (";
        text += view_text(detail);
        text += ')';
      }
      return {Code::kDeadlineExceeded, who, text};
    }
    case Kind::kDisagreed:
      return {Code::kFailedPrecondition, who, std::string(view_text(detail))};
    case Kind::kFailed:
      return {code == Code::kOk ? Code::kInternal : code, who, std::string(view_text(detail))};
  }
  return {Code::kInternal, who, "unknown failure"};
}

bool Poison::raise(const WaitRecord& record) {
  std::uint32_t clean = kClean;
  if (!state_.compare_exchange_strong(clean, kWriting, std::memory_order_acq_rel)) return false;
  record_ = record;
  state_.store(kRaised, std::memory_order_release);
  return true;
}

WaitRecord Poison::record() const {
  if (!raised()) return {};
  // Its writer is a few instructions from done, unless its process was killed right there.
  const Deadline grace(kRecordGrace);
  while (state_.load(std::memory_order_acquire) != kRaised) {
    if (grace.expired()) {
      WaitRecord lost;
      lost.kind = WaitRecord::Kind::kPeerLost;
      return lost.set_detail("it ended while reporting a failure");
    }
    sched_yield();
  }
  return record_;
}

Status Poison::status() const { return record().to_status(); }

bool Waiter::again_slowly() {
  if (policy_.poison != nullptr && policy_.poison->raised()) return false;
  const auto now = Deadline::Clock::now();
  if (started_ == Deadline::Clock::time_point{}) started_ = now;
  const auto waited = now - started_;
  if (late_) return false;
  // This process may have been stopped for longer than the timeout: look once more.
  if (waited >= policy_.timeout) {
    late_ = true;
    return true;
  }
  const nanoseconds left = policy_.timeout - waited;
  sleep_for(std::min(left, std::clamp<nanoseconds>(waited / 8, kShortestSleep, kLongestSleep)));
  return true;
}

Status Waiter::give_up(WaitRecord record) const {
  record.kind = WaitRecord::Kind::kDeadline;
  if (record.timeout_ms < 0)
    record.timeout_ms = duration_cast<milliseconds>(policy_.timeout).count();
  if (policy_.poison == nullptr) return record.to_status();
  policy_.poison->raise(record);
  return policy_.poison->status();
}

Deadline::Clock::duration Waiter::waited() const {
  if (started_ == Deadline::Clock::time_point{}) return {};
  return Deadline::Clock::now() - started_;
}

}  // namespace monolayer
