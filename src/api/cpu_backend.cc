// The CPU's fused executor, each with a worker team of its own.
#include "api/backends.h"
#include "backend/cpu/library_backend.h"

namespace monolayer::api {

mono::LibraryBackend& cpu_backend() {
  static cpu::LibraryBackend backend;
  return backend;
}

}  // namespace monolayer::api
