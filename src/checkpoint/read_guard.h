// Reading mapped files safely. A file that shrinks after it was mapped turns reads of the lost
// pages into SIGBUS. Every mapping is registered here, and a handler installed once decides:
//   - inside guard_reads(): the read ends early and a Status names the file;
//   - elsewhere (compute threads): one line on stderr naming the file, then exit code 2;
//   - an address that belongs to no registered mapping: the handler that was there before.
// Bytes lost inside the last page read as zeros without any fault: verify_unchanged() of the
// mapping finds that case, so callers check it after loading and between steps.
#pragma once

#include <cstddef>
#include <type_traits>

#include "core/status.h"

namespace monolayer {

namespace internal {
struct MappingRecord;
// `path` must outlive the registration and be NUL-terminated; `fd` is only stat'ed.
MappingRecord* register_mapping(const void* begin, std::size_t bytes, const char* path, int fd);
void unregister_mapping(MappingRecord* record);
Status guard_reads(void (*function)(void*), void* argument);
}  // namespace internal

// Runs fn(); a fault on a page of a mapped file ends it at once with kIoError naming the file.
// Destructors inside fn are then skipped, so fn is a plain loop over the bytes: it allocates
// nothing, locks nothing, calls no library that does, and does not throw. Guards nest; each thread
// has its own.
template <typename Function>
Status guard_reads(Function&& fn) {
  using Plain = std::remove_reference_t<Function>;
  return internal::guard_reads([](void* argument) { (*static_cast<Plain*>(argument))(); }, &fn);
}

}  // namespace monolayer
