// Binds every name of a template to a variable slot, with Jinja's scoping rules.
//
// Frames: the template itself, loop bodies, loop conditions, else branches of loops, macros, call
// blocks, set blocks, filter blocks and with blocks. `if` is not a frame. A name stored anywhere in
// a frame is a variable of that frame, initialised when the frame is entered: from the enclosing
// frame's variable if there is one, else (if only some branch stores it) from the caller's
// variables, else unset.
#pragma once

#include "text/jinja/ast.h"

namespace monolayer::jinja {

// Fills slots, frame layouts, filters and tests of `body`; returns the layout of the outermost
// frame. Throws Failure for names of filters and tests that do not exist, unless they stand in a
// branch that may never be evaluated.
FrameLayout resolve(Body& body);

}  // namespace monolayer::jinja
