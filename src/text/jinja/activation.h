// A frame for the time of a scope.
#pragma once

#include "text/jinja/evaluator.h"

namespace monolayer::jinja {

class Evaluator::Activation {
 public:
  struct Options {
    bool enter_now = true;  // initialise the variables; otherwise the user calls enter
    bool clear = true;      // unset the variables at the end, if a macro keeps the frame
  };
  // Parameters start unset.
  Activation(Evaluator& evaluator, Frame* outer, const FrameLayout& layout)
      : Activation(evaluator, outer, layout, Options()) {}
  Activation(Evaluator& evaluator, Frame* outer, const FrameLayout& layout, Options options)
      : evaluator_(evaluator), frame_(evaluator.acquire()), clear_(options.clear) {
    frame_->outer = outer;
    frame_->slots.assign(layout.slots.size(), Value::missing());
    if (options.enter_now) evaluator.enter(*frame_, layout);
  }
  ~Activation() { evaluator_.release(frame_, clear_); }
  Activation(const Activation&) = delete;
  Activation& operator=(const Activation&) = delete;

  Frame& frame() const { return *frame_; }

 private:
  Evaluator& evaluator_;
  Frame* frame_;
  bool clear_;
};

}  // namespace monolayer::jinja
