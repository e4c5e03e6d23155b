// Budgets of one parse or one render, and the internal failure type.
//
// Inside this folder errors are thrown as Failure, because an expression evaluator would otherwise
// test a Status after every operator. template.cc catches them: no exception leaves the folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "core/status.h"

namespace monolayer::jinja {

// Upper bounds of what a template may cost. Exceeding one is Code::kResourceExhausted and names
// the limit and the line.
struct Limits {
  std::size_t source_bytes = std::size_t{1} << 20;
  std::size_t nodes = 200'000;            // syntax tree
  int nesting = 100;                      // statements in statements, expressions in expressions
  int call_depth = 1000;                  // evaluator frames: nesting times macro recursion
  int value_depth = 200;                  // lists in lists
  std::uint64_t steps = 20'000'000;       // node evaluations, items visited, 64 bytes of text
  std::size_t output_bytes = 64u << 20;   // rendered text
  std::size_t memory_bytes = 256u << 20;  // live values, including captured text
};

struct Failure {
  Code code = Code::kInvalidArgument;
  std::string message;
  int line = 0;  // 0: the line being evaluated
};

// The parts in one string.
std::string cat(std::initializer_list<std::string_view> parts);

[[noreturn]] void fail(std::string message);
[[noreturn]] void fail_unsupported(std::string message);
[[noreturn]] void fail_limit(std::string message);

// Live bytes of values. Values given by the caller and literals of the template have no meter.
class Meter {
 public:
  explicit Meter(std::size_t limit) : limit_(limit) {}
  void charge(std::size_t bytes) {
    if (bytes > limit_ - live_) exceeded();
    live_ += bytes;
  }
  void release(std::size_t bytes) { live_ -= bytes; }
  std::size_t live() const { return live_; }

 private:
  [[noreturn]] void exceeded() const;
  std::size_t limit_;
  std::size_t live_ = 0;
};

// The counters of one render.
class Runtime {
 public:
  explicit Runtime(const Limits& bounds) : limits(bounds), meter(bounds.memory_bytes) {}
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  void step(std::uint64_t count = 1) {
    steps_ += count;
    if (steps_ > limits.steps) steps_exceeded();
  }
  // Reading or writing this many bytes of text; work by the character counts several times.
  void text(std::size_t bytes) { step(bytes / 64); }
  std::uint64_t steps() const { return steps_; }

  const Limits limits;
  Meter meter;
  int line = 0;   // of the node being evaluated
  int depth = 0;  // of the evaluator's own recursion

 private:
  [[noreturn]] void steps_exceeded() const;
  std::uint64_t steps_ = 0;
};

// One level of the evaluator's recursion.
class DepthGuard {
 public:
  explicit DepthGuard(Runtime& rt) : rt_(rt) {
    if (++rt.depth > rt.limits.call_depth) {
      --rt.depth;
      too_deep(rt);
    }
  }
  ~DepthGuard() { --rt_.depth; }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;

 private:
  [[noreturn]] static void too_deep(const Runtime& rt);
  Runtime& rt_;
};

}  // namespace monolayer::jinja
