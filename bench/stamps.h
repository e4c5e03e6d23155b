// When a layer's call and the executor's run in it begin and end; all between is the library's.
#pragma once

#include <chrono>
#include <cstdint>

#include "mono/library.h"

// Whatever takes a stamp lies in one place, so that where the run's end has just been taken, taking
// the call's finds its own code in a cache and measures none of that.
#define BENCH_STAMPS __attribute__((section("bench_stamps"), noinline))

namespace monolayer::bench {

struct Stamps {
  using Clock = std::chrono::steady_clock;
  Clock::time_point begin, begun, ended, end;

  static double microseconds(Clock::duration d) {
    return std::chrono::duration<double, std::micro>(d).count();
  }
  double into_the_run() const { return microseconds(begun - begin); }
  double out_of_it() const { return microseconds(end - ended); }
};

// A call as its caller sees it.
BENCH_STAMPS static Status stamped_call(mono::Library& library, std::int64_t layer,
                                        const ml_tensor& hidden, const ml_tensor& residual,
                                        const ml_tensor& positions, mono::LibraryOutput& out,
                                        Stamps& stamps) {
  stamps.begin = Stamps::Clock::now();
  Status ran = library.forward_layers(layer, 1, hidden, residual, positions, out);
  stamps.end = Stamps::Clock::now();
  return ran;
}

}  // namespace monolayer::bench
