// The backends this build carries.
#pragma once

#include <cstdint>
#include <string>

#include "mono/library.h"

namespace monolayer::api {

// By ML_DEVICE_*; null if this build has none for it. Lives as long as the process.
mono::LibraryBackend* find_backend(std::int32_t device_type);
std::string backend_names();

// The CPU's: native tile functions and the fused executor of backend/cpu.
mono::LibraryBackend& cpu_backend();

}  // namespace monolayer::api
