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

// The two ways to run the step at hand.
class StepPaths {
 public:
  virtual ~StepPaths() = default;
  virtual Status run_native() = 0;
  // An error here is final: the caches may be half written, so native is never tried after it.
  virtual Status run_mono(mono::Library& library) = 0;
};

// Which binding of the caches holds; the engine raises it on all ranks whenever it binds anew.
using Generation = Replicated<std::int64_t>;

class StepRunner {
 public:
  // `caches` yields what is bound now, for a rebuild. Borrows both.
  StepRunner(Dispatcher& dispatcher, mono::Lifecycle& lifecycle,
             std::function<std::vector<ml_cache_spec>()> caches)
      : dispatcher_(dispatcher), lifecycle_(lifecycle), caches_(std::move(caches)) {}

  // Decides and runs. `facts.runner` is filled in here. A library whose generation is not `bound`
  // is stale: rebuilt outside a capture (collective), refused inside one. `storage`: see
  // Lifecycle::acquire.
  Status step(StepFacts facts, const Generation& bound, const Flag& capturing, StepPaths& paths,
              std::span<const void* const> storage = {});

  // Of the last step.
  const Decision& last() const { return last_; }
  const std::string& reason() const { return reason_; }

 private:
  Dispatcher& dispatcher_;
  mono::Lifecycle& lifecycle_;
  std::function<std::vector<ml_cache_spec>()> caches_;
  std::int64_t built_ = -1;  // generation of the live library
  Decision last_;
  std::string reason_;
};

}  // namespace monolayer::dispatch
