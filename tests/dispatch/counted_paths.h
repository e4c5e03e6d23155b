// The two paths of a step, counted.
#pragma once

#include "mono/lifecycle.h"

namespace monolayer::dispatch {

struct CountedPaths : mono::StepPaths {
  int native = 0, mono = 0;
  Status run_native() override {
    ++native;
    return {};
  }
  Status run_mono(mono::Library&) override {
    ++mono;
    return {};
  }
};

}  // namespace monolayer::dispatch
