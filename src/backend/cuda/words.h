// Where the words lie that blocks of the fused kernels of MiniMax-M3 hand to each other
// (device/words.cuh): those for one to four rows most values, those for more sums of squares
// and the choice of experts.
// Places are counted in words of 16 bytes; every region is sized for a model on one rank, the
// largest share there is.
#pragma once

#include <cstdint>

namespace monolayer::cuda {

inline constexpr int kWordHeads = 64, kWordKvHeads = 4, kWordChunks = 16;
inline constexpr int kWordUnits = 128;       // most blocks of all KV heads that are attended to
inline constexpr int kWordGroups = 4096;     // most groups of 16 keys whose scores are words
inline constexpr int kWordProjected = 9856;  // columns of query, key, value and both index heads

inline constexpr int kWordRows = 4;  // most rows of a step that hand over most values as words

// Of more rows: [norm of the layer][row][kSquaresOfRow] values, each with its tag.
inline constexpr int kSquareWords = 0;
inline constexpr int kSquaresOfRow = 16, kSquareRows = 16;
// [row][choice], ascending: an expert and its weight.
inline constexpr int kChoiceWords = kSquareWords + 2 * kSquareRows * kSquaresOfRow / 2;

// Of up to kWordRows rows.
// [slot][width / 4] of 4, of the experts of all rows.
inline constexpr int kMidWords = kChoiceWords + kSquareRows * 4;
inline constexpr int kWordSlots = 5 * kWordRows;  // four chosen experts and the shared one

// Of each row, kRowWords apart.
inline constexpr int kHiddenWords = kMidWords + kWordSlots * 3072 / 4;  // [hidden / 4] of 4 BF16
inline constexpr int kMiddleWords = kHiddenWords + 6144 / 4;            // the same
inline constexpr int kAttendedWords = kMiddleWords + 6144 / 4;          // [head][dim / 4] of 4
// [part][group][8] of 2 rows of the matrix, both; a router's of one row alone.
inline constexpr int kRouterWords = kAttendedWords + kWordHeads * 32;
inline constexpr int kProjectedWords = kRouterWords + 16 * 8 * 8;
inline constexpr int kRowWords = kProjectedWords + 8 * kWordProjected / 2 - kHiddenWords;

// Of one row alone, where a second one's would lie.
// [unit][head][dim / 2] of two values, each with its tag. A unit is a KV head and a block.
inline constexpr int kPartialWords = kHiddenWords + kRowWords;
inline constexpr int kMaximaWords = kPartialWords + kWordUnits * 16 * 64;  // [unit][head], and sums
// [index head][group / 2]: two values, each with its tag.
inline constexpr int kScoreWords = kMaximaWords + kWordUnits * 16;
static_assert(kWordKvHeads * kWordChunks <= kWordUnits);
// [head][32] of dims 32 apart.
inline constexpr int kQueryWords = kScoreWords + kWordKvHeads * kWordGroups / 2;
inline constexpr int kOneRowEnd = kQueryWords + kWordHeads * 32;

// What a launch for up to so many rows clears.
inline constexpr int words_of(int rows) {
  return rows == 1 ? kOneRowEnd : rows > kWordRows ? kMidWords : kHiddenWords + rows * kRowWords;
}
inline constexpr int kAllWords = kOneRowEnd > words_of(kWordRows) ? kOneRowEnd
                                                                  : words_of(kWordRows);

}  // namespace monolayer::cuda
