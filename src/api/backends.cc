#include "api/backends.h"

namespace monolayer::api {

mono::LibraryBackend* find_backend(std::int32_t device_type) {
  if (device_type == ML_DEVICE_CPU) return &cpu_backend();
  return nullptr;
}

std::string backend_names() { return "cpu (1)"; }

}  // namespace monolayer::api
