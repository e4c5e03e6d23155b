// The memory that ranks exchange through (docs/protocol.md): where everything lies in a rank's
// region, and the tags. Plain data shared by host and device.
#pragma once

#include <cstddef>
#include <cstdint>

namespace monolayer::cuda {

inline constexpr int kMaxRanks = 8;
inline constexpr int kMailRows = 16;

// The two exchanges of a layer.
enum Site : int { kAttentionSite, kMlpSite, kSites };

// What the first wait that gave up saw.
struct Record {
  std::uint32_t set;  // 0: nothing, 1: being written, 2: complete
  std::uint32_t block, layer, stage, expected, seen;
  std::uint32_t rank, region, index;
};
enum Region : std::uint32_t { kArrivals, kWords, kFence, kSecondFence, kHandOff };

// Bytes from the start of a region. Slot r of a fence is written by rank r only.
inline constexpr std::int64_t kMailLine = 128;
inline constexpr std::int64_t kMailStep = 0;
inline constexpr std::int64_t kMailFence = kMailStep + kMailLine;
inline constexpr std::int64_t kMailSecondFence = kMailFence + kMaxRanks * kMailLine;
inline constexpr std::int64_t kMailRecord = kMailSecondFence + kMaxRanks * kMailLine;
inline constexpr std::int64_t kMailWords = 4096;
static_assert(kMailRecord + static_cast<std::int64_t>(sizeof(Record)) <= kMailWords);

// Words [site][writer][row][column] of 64 bits: a payload below its tag.
constexpr std::int64_t mail_word(int ranks, int hidden, int site, int writer, int row, int column) {
  return ((static_cast<std::int64_t>(site) * ranks + writer) * kMailRows + row) * hidden + column;
}
constexpr std::int64_t mail_words(int ranks, int hidden) {
  return mail_word(ranks, hidden, kSites, 0, 0, 0);
}
constexpr std::int64_t mail_bytes(int ranks, int hidden) {
  return kMailWords + mail_words(ranks, hidden) * 8;
}

// The low 24 bits of the step, then the layer plus one, so that no tag is zero.
inline constexpr int kMailLayers = 255;
inline constexpr std::uint64_t kMailRound = 1ULL << 24;  // steps between two clearings
constexpr std::uint32_t mail_step_tag(std::uint64_t step) {
  return static_cast<std::uint32_t>(step % kMailRound) << 8;
}
constexpr std::uint32_t mail_tag(std::uint32_t step_tag, int layer) {
  return step_tag | static_cast<std::uint32_t>(layer + 1);
}

// A rank's view of the regions of all ranks.
struct Mailbox {
  unsigned char* region[kMaxRanks];  // of rank r, as this rank's device addresses it
  std::int32_t ranks, rank;          // ranks: at most 1 without peers
  std::int32_t stand_in;   // benches: all regions are this rank's own, and it writes for everybody
  std::uint32_t delay_ns;  // tests: before each exchange one rank is late by up to this much
};

}  // namespace monolayer::cuda
