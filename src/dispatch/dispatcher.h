// One decision a step: fused or native, and why not.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/prefetch.h"
#include "dispatch/refusals.h"

namespace monolayer::dispatch {

enum class Path : std::uint8_t { kNative, kMono };

// What the operator asked for. Replicated: it comes from the command line that all ranks share.
enum class PathChoice : std::uint8_t { kAuto, kNative, kMono };

struct Decision {
  Path path = Path::kNative;
  // The step row that refused, an index into step_rows(); -1 for none.
  int refused = -1;
};

// Names that are not rows of the table.
inline constexpr std::string_view kReasonDeployment = "deployment";
inline constexpr std::string_view kReasonChosen = "native_chosen";

// Steps so far by path, and native ones by reason. Readable while another thread decides.
struct StepCounters {
  std::int64_t mono = 0, native = 0;
  std::vector<std::pair<std::string_view, std::int64_t>> reasons;  // every reason, also zeros
};

class Dispatcher {
 public:
  // The deployment is judged once. kMono as a choice does not lift a refusal: it makes create()
  // fail (kUnsupported, naming rows) instead of falling back for good.
  static Result<Dispatcher> create(const DeploymentFacts& facts, PathChoice choice);
  Dispatcher(Dispatcher&& other) noexcept;

  const Status& deployment() const { return deployment_; }

  // What decide() touches of this object.
  std::span<const std::byte> step_memory() const {
    return std::as_bytes(std::span(this, 1)).first(kCacheLine);
  }

  // A pure function of replicated state. Allocates nothing.
  Decision judge(const StepFacts& facts) const;
  // The same, counted. By one thread at a time.
  Decision decide(const StepFacts& facts);
  // A step that was accepted and then had to go native after all (a runner that is not there).
  void count_postponed();
  // The reason in words, with value and bound.
  std::string explain(const Decision& decision, const StepFacts& facts) const;

  StepCounters counters() const;

 private:
  Dispatcher(Status deployment, PathChoice choice);

  Decision counted(const Decision& native);

  const bool any_fused_;
  std::atomic<std::int64_t> mono_{0};
  Status deployment_;
  PathChoice choice_;
  std::vector<std::atomic<std::int64_t>> refused_;  // rows, then deployment, then chosen
};

}  // namespace monolayer::dispatch
