// Where the words lie that blocks of the fused kernel for one row of MiniMax-M3 hand to each other
// (device/words.cuh). Places are counted in words of 16 bytes; every region is sized for a model on
// one rank, the largest share there is.
#pragma once

#include <cstdint>

namespace monolayer::cuda {

inline constexpr int kWordHeads = 64, kWordKvHeads = 4, kWordChunks = 16;
inline constexpr int kWordUnits = 128;       // most blocks of all KV heads that are attended to
inline constexpr int kWordGroups = 4096;     // most groups of 16 keys whose scores are words
inline constexpr int kWordProjected = 9856;  // columns of query, key, value and both index heads

inline constexpr int kHiddenWords = 0;                                // [hidden / 4] of 4 BF16
inline constexpr int kMiddleWords = kHiddenWords + 6144 / 4;          // the same
inline constexpr int kRouterWords = kMiddleWords + 6144 / 4;          // [part][group][8] of 2 rows
inline constexpr int kAttendedWords = kRouterWords + 16 * 8 * 8;      // [head][dim / 4] of 4
inline constexpr int kQueryWords = kAttendedWords + kWordHeads * 32;  // [head][32] of dims 32 apart
inline constexpr int kMidWords = kQueryWords + kWordHeads * 32;       // [slot][width / 4] of 4
inline constexpr int kProjectedWords = kMidWords + 5 * 3072 / 4;      // [part][group][8] of 2 rows
// [unit][head][dim / 2]: two values, each with its tag. A unit is a KV head and a block.
inline constexpr int kPartialWords = kProjectedWords + 8 * kWordProjected / 2;
inline constexpr int kMaximaWords = kPartialWords + kWordUnits * 16 * 64;  // [unit][head], and sums
// [index head][group / 2]: two values, each with its tag.
inline constexpr int kScoreWords = kMaximaWords + kWordUnits * 16;
static_assert(kWordKvHeads * kWordChunks <= kWordUnits);
inline constexpr int kAllWords = kScoreWords + kWordKvHeads * kWordGroups / 2;

}  // namespace monolayer::cuda
