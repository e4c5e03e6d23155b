#include "text/jinja/runtime.h"

#include <utility>

namespace monolayer::jinja {

std::string cat(std::initializer_list<std::string_view> parts) {
  std::string out;
  for (const std::string_view part : parts) out.append(part);
  return out;
}

void fail(std::string message) { throw Failure{Code::kInvalidArgument, std::move(message)}; }

void fail_unsupported(std::string message) {
  throw Failure{Code::kUnsupported, std::move(message)};
}

void fail_limit(std::string message) {
  throw Failure{Code::kResourceExhausted, std::move(message)};
}

void Meter::exceeded() const {
  fail_limit(cat({"values need more than ", std::to_string(limit_), " bytes of memory"}));
}

void Runtime::steps_exceeded() const {
  fail_limit(cat({"needs more than ", std::to_string(limits.steps), " evaluation steps"}));
}

void DepthGuard::too_deep(const Runtime& rt) {
  fail_limit("evaluation nests deeper than " + std::to_string(rt.limits.call_depth) +
             " levels (macro recursion?)");
}

}  // namespace monolayer::jinja
