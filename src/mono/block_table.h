// What a step brings by the thousand: block ids of a long context, pointers that must not have
// moved.
#pragma once

#include <cstddef>
#include <cstdint>

namespace monolayer::mono {

// Whether the first `entries` ids are all in [0, blocks); `blocks` below 2^31.
bool blocks_within(const std::int32_t* table, std::int64_t entries, std::int64_t blocks);
bool same_pointers(const void* const* a, const void* const* b, std::size_t count);

}  // namespace monolayer::mono
