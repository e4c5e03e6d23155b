// Where the model that ships with the program lies.
#pragma once

#include <string>

#include "core/status.h"

namespace monolayer::engine {

// The folder of the model that ships with the program: $MONOLAYER_ASSETS/nano, or next to the
// executable's installation (../share/monolayer/nano), or in the source tree of its build.
// kNotFound listing the places.
Result<std::string> embedded_model_folder();

// The draft trained for it; kNotFound where it is not installed.
Result<std::string> embedded_draft_folder();

}  // namespace monolayer::engine
