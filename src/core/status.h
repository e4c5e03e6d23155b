// Errors as values. Nothing in the library throws across a room's boundary.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace monolayer {

// What kind of thing went wrong; the message says which thing and which bound.
enum class Code : std::uint8_t {
  kOk = 0,
  kInvalidArgument,     // the caller passed a value outside its documented bounds
  kInvalidFile,         // a file's bytes break the format (names file, tensor or field)
  kNotFound,            // a file, folder, tensor or revision does not exist
  kUnsupported,         // well formed, but a feature this build does not have (named)
  kResourceExhausted,   // not enough memory, disk or cache for the request (states both numbers)
  kIoError,             // the operating system refused a read or write
  kInternal,            // a broken invariant of ours: always a bug
  kFailedPrecondition,  // a call out of order: use after close, forward before prepare
  kDeadlineExceeded,    // a peer did not answer in time; the group is unusable from then on
  kPeerRefused,         // another rank refused at an agreement point
};

std::string_view code_name(Code code);

// A code and a one-line message. `subject` names the offending file, tensor, field or flag.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string subject, std::string message)
      : code_(code), subject_(std::move(subject)), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& subject() const { return subject_; }
  const std::string& message() const { return message_; }
  // "subject: message", on one line whatever bytes the subject holds.
  std::string to_string() const;

 private:
  Code code_ = Code::kOk;
  std::string subject_;
  std::string message_;
};

inline Status ok_status() { return {}; }

// A value or the Status saying why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}         // NOLINT
  Result(Status status) : state_(std::in_place_index<1>, std::move(status)) {}  // NOLINT

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  // Only when ok().
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T* operator->() { return &std::get<0>(state_); }
  const T* operator->() const { return &std::get<0>(state_); }
  T& operator*() & { return std::get<0>(state_); }
  const T& operator*() const& { return std::get<0>(state_); }
  T&& operator*() && { return std::get<0>(std::move(state_)); }
  // ok_status() when ok().
  Status status() const { return ok() ? Status{} : std::get<1>(state_); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace monolayer

#define ML_CONCAT_INNER(a, b) a##b
#define ML_CONCAT(a, b) ML_CONCAT_INNER(a, b)

// Returns the Status of `expr` from the enclosing function unless it is ok.
#define ML_RETURN_IF_ERROR(expr)             \
  do {                                       \
    ::monolayer::Status ml_status_ = (expr); \
    if (!ml_status_.ok()) return ml_status_; \
  } while (false)

// Evaluates a Result; assigns its value to `lhs` (which may be a declaration, so it cannot stand in
// parentheses) or returns its Status.
// NOLINTBEGIN(bugprone-macro-parentheses)
#define ML_ASSIGN_OR_RETURN(lhs, expr) \
  ML_ASSIGN_OR_RETURN_IMPL(ML_CONCAT(ml_result_, __LINE__), lhs, expr)
#define ML_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                             \
  if (!tmp.ok()) return tmp.status();            \
  lhs = std::move(tmp).value()
// NOLINTEND(bugprone-macro-parentheses)
