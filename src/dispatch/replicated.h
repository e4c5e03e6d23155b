// Values that every rank of a group has alike, as a type: what decides the path of a step is made
// of these and of nothing else, so that a flag of one rank cannot enter.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "core/status.h"
#include "tp/group.h"

namespace monolayer::dispatch {

template <typename T>
class Replicated {
 public:
  // Names where the sameness comes from. There is no conversion from a bare value.
  static Replicated from_configuration(T value) { return Replicated(std::move(value)); }
  static Replicated from_scheduler(T value) { return Replicated(std::move(value)); }
  // Where each rank has its own: asks. Collective; kFailedPrecondition on all if any differs.
  static Result<Replicated> agreed(
      tp::Group* group, T value, const char* what,
      const Deadline& deadline = Deadline()) requires std::is_trivially_copyable_v<T> {
    if (group != nullptr) {
      ML_RETURN_IF_ERROR(group->agree_same(static_cast<std::uint64_t>(value), what, deadline));
    }
    return Replicated(std::move(value));
  }

  const T& get() const { return value_; }

 private:
  explicit Replicated(T value) : value_(std::move(value)) {}
  T value_;
};

// What only one rank knows: a dummy-run marker, free memory, a caught exception. Not convertible.
template <typename T>
struct PerRank {
  T value;
};

}  // namespace monolayer::dispatch
