// Where things lie in a rank's region, and the tags: the same as those of the CPU's protocol, which
// the model in tests/protocol_model covers.
#include "backend/cuda/mailbox.h"

#include <gtest/gtest.h>

#include <set>

#include "mono/protocol.h"

namespace monolayer::test {
namespace {

TEST(DeviceMailbox, T_B1_EverythingHasAPlaceOfItsOwn) {
  constexpr int kHidden = 5;
  for (const int ranks : {1, 2, 4, 8}) {
    std::set<std::int64_t> places;
    const auto add = [&](std::int64_t at, std::int64_t bytes) {
      EXPECT_EQ(0, at % 8);
      for (std::int64_t i = at; i < at + bytes; i += 4) EXPECT_TRUE(places.insert(i).second) << i;
      EXPECT_LE(at + bytes, cuda::mail_bytes(ranks, kHidden));
    };
    add(cuda::kMailStep, 8);
    for (int r = 0; r < cuda::kMaxRanks; ++r) {
      add(cuda::kMailFence + r * cuda::kMailLine, 8);
      add(cuda::kMailSecondFence + r * cuda::kMailLine, 8);
    }
    add(cuda::kMailRecord, sizeof(cuda::Record));
    for (int site = 0; site < cuda::kSites; ++site) {
      for (int writer = 0; writer < ranks; ++writer) {
        for (int row = 0; row < cuda::kMailRows; ++row) {
          for (int column = 0; column < kHidden; ++column) {
            add(cuda::kMailWords + 8 * cuda::mail_word(ranks, kHidden, site, writer, row, column),
                8);
          }
        }
      }
    }
  }
}

TEST(DeviceMailbox, T_P8_TagsAreThoseOfTheModel) {
  const mono::TagScheme scheme;
  static_assert(cuda::kMailRound == 1ULL << mono::TagScheme::kMaxNonceBits);
  static_assert(cuda::kMailLayers == mono::TagScheme::kLayers);
  for (const std::uint64_t step :
       {1ULL, 2ULL, 77ULL, (1ULL << 24) - 1, 1ULL << 24, (1ULL << 24) + 1, (1ULL << 40) + 12345}) {
    for (const int layer : {0, 1, 59, cuda::kMailLayers - 1}) {
      const std::uint32_t tag = cuda::mail_tag(cuda::mail_step_tag(step), layer);
      EXPECT_EQ(scheme.tag(step, layer), tag);
      EXPECT_NE(0U, tag & 0xFFU);  // memory starts as zeros
    }
  }
}

}  // namespace
}  // namespace monolayer::test
