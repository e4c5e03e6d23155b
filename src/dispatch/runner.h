// A step from decision to execution: keeps the library's generation current and takes native
// whenever the decision, or the library's state, says so.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "dispatch/dispatcher.h"
#include "mono/lifecycle.h"

namespace monolayer::dispatch {

// Which binding of the caches holds; the engine raises it on all ranks whenever it binds anew.
using Generation = Replicated<std::int64_t>;

class StepRunner {
 public:
  // `caches` yields what is bound now, for a rebuild. Borrows both. Ranks that share a dispatcher
  // take the same steps: one of them counts.
  StepRunner(Dispatcher& dispatcher, mono::Lifecycle& lifecycle,
             std::function<std::vector<ml_cache_spec>()> caches, bool counts = true)
      : dispatcher_(dispatcher),
        lifecycle_(lifecycle),
        counts_(counts),
        caches_(std::move(caches)) {}

  // Decides and runs. `facts.runner` is filled in here. A library whose generation is not `bound`
  // is stale: rebuilt outside a capture (collective), refused inside one. `storage`: see
  // Lifecycle::acquire.
  Status step(const StepFacts& facts, const Generation& bound, const Flag& capturing,
              mono::StepPaths& paths, std::span<const void* const> storage = {});
  // The same for a step that is only made ready for: nothing is counted.
  Status prepare(const StepFacts& facts, const Generation& bound, mono::StepPaths& paths);

  // Of the last step.
  const Decision& last() const { return last_; }
  const std::string& reason() const { return reason_; }

 private:
  Status take(const StepFacts& given, const Generation& bound, const Flag& capturing,
              mono::StepPaths& paths, std::span<const void* const> storage, bool counts);
  Status go_native(const StepFacts& facts, mono::StepPaths& paths);
  Status acquire(const mono::StepConditions& conditions, bool stale, const Generation& bound,
                 mono::StepPaths& paths, std::span<const void* const> storage, bool counts);

  Dispatcher& dispatcher_;
  mono::Lifecycle& lifecycle_;
  const bool counts_;
  std::int64_t built_ = -1;  // generation of the live library
  Decision last_;
  std::string reason_;
  std::function<std::vector<ml_cache_spec>()> caches_;
};

}  // namespace monolayer::dispatch
