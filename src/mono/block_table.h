// Block tables as a step brings them: rows of block ids, thousands for a long context.
#pragma once

#include <cstdint>

namespace monolayer::mono {

// Whether the first `entries` ids are all in [0, blocks); `blocks` below 2^31.
bool blocks_within(const std::int32_t* table, std::int64_t entries, std::int64_t blocks);

}  // namespace monolayer::mono
