#include "core/status.h"

namespace monolayer {

std::string_view code_name(Code code) {
  switch (code) {
    case Code::kOk:
      return "ok";
    case Code::kInvalidArgument:
      return "invalid argument";
    case Code::kInvalidFile:
      return "invalid file";
    case Code::kNotFound:
      return "not found";
    case Code::kUnsupported:
      return "unsupported";
    case Code::kResourceExhausted:
      return "resource exhausted";
    case Code::kIoError:
      return "i/o error";
    case Code::kInternal:
      return "internal error";
    case Code::kFailedPrecondition:
      return "failed precondition";
    case Code::kDeadlineExceeded:
      return "deadline exceeded";
    case Code::kPeerRefused:
      return "refused by another rank";
  }
  return "unknown";
}

std::string Status::to_string() const {
  if (ok()) return "ok";
  std::string text = subject_.empty() ? message_ : subject_ + ": " + message_;
  // A tensor name may hold any byte: one line and no terminal control sequences.
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) c = '?';
  }
  return text;
}

}  // namespace monolayer
