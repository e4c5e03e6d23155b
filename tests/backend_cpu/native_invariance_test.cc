// A row's bits depend neither on chunking, threads, tiles, neighbours, page ids nor tile sizes.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>

#include "backend/cpu/tiles.h"
#include "backend_cpu/native_harness.h"
#include "backend_cpu/random_model.h"

namespace monolayer::test {
namespace {

ModelFormats mixed_formats() {
  return {.attention = WeightFormat::kFP8PerChannel,
          .dense = WeightFormat::kMXFP8,
          .experts = WeightFormat::kMXFP4,
          .shared = WeightFormat::kPlain,
          .router = DType::kF32};
}

class Invariance : public testing::TestWithParam<std::tuple<bool, bool>> {
 protected:
  static constexpr std::int64_t kTokens = 210;  // 14 blocks of 16, of which 4 are selected
  Invariance()
      : model_(tiny_config(), std::get<0>(GetParam()) ? mixed_formats() : ModelFormats{}, 7),
        tokens_(random_tokens(model_.config, kTokens, 11)) {}
  EngineOptions options() const {
    EngineOptions s;
    if (std::get<1>(GetParam())) s.cache = fp8_cache();
    return s;
  }
  Output run_with(const EngineOptions& s, const std::vector<std::int32_t>& pages,
                  const std::vector<std::int64_t>& chunks) {
    Engine engine(model_.config, model_.weights, s);
    return run(engine, tokens_, pages, chunks);
  }
  RandomModel model_;
  std::vector<std::int32_t> tokens_;
};

TEST_P(Invariance, Chunking) {
  const auto pages = page_table(kTokens);
  const Output whole = run_with(options(), pages, {kTokens});
  for (const std::vector<std::int64_t>& chunks :
       {std::vector<std::int64_t>{1}, {64}, {128}, {7, 1, 130, 1, 1, 40, 3}, {209, 1}}) {
    expect_same_bits(whole, run_with(options(), pages, chunks),
                     ("chunks of " + std::to_string(chunks[0])).c_str());
  }
}

TEST_P(Invariance, Threads) {
  const auto pages = page_table(kTokens);
  const Output one = run_with(options(), pages, {77});
  for (const int threads : {2, 3, 5}) {
    EngineOptions s = options();
    s.threads = threads;
    expect_same_bits(one, run_with(s, pages, {77}), "threads");
    expect_same_bits(one, run_with(s, pages, {180, 1}), "threads, decoding");
  }
}

TEST_P(Invariance, TileVariants) {
  const auto pages = page_table(kTokens);
  const Output best = run_with(options(), pages, {150, 1});
  for (const cpu::Tiles* tiles : cpu::available_tiles()) {
    EngineOptions s = options();
    s.tiles = tiles;
    expect_same_bits(best, run_with(s, pages, {209, 1}), std::string(tiles->name).c_str());
  }
}

TEST_P(Invariance, RowTileAndPageIds) {
  const Output plain = run_with(options(), page_table(kTokens), {150, 60});
  for (const std::int64_t row_tile : {1, 5, 16, 1000}) {
    EngineOptions s = options();
    s.row_tile = row_tile;
    expect_same_bits(plain, run_with(s, {63, 31}, {150, 60}), "row tile and permuted pages");
  }
}

TEST_P(Invariance, RowCountsOneToTwenty) {
  const auto pages = page_table(kTokens);
  const Output whole = run_with(options(), pages, {kTokens});
  std::vector<std::int64_t> chunks;
  for (std::int64_t rows = 1; rows <= 20; ++rows) chunks.push_back(rows);
  chunks.push_back(kTokens);
  expect_same_bits(whole, run_with(options(), pages, chunks), "1 to 20 rows");
}

// Four sequences of different lengths, phases and shared prefix pages in every step.
TEST_P(Invariance, Neighbours) {
  const std::int64_t lengths[] = {kTokens, 150, 61, 129};
  std::vector<Output> alone;
  std::vector<std::vector<std::int32_t>> tokens;
  for (std::size_t i = 0; i < 4; ++i) {
    tokens.push_back(i == 0 ? tokens_ : random_tokens(model_.config, lengths[i], 100 + i));
    Engine engine(model_.config, model_.weights, options());
    alone.push_back(run(engine, tokens[i], page_table(lengths[i]), {1}));
  }
  for (const int threads : {1, 2}) {
    EngineOptions s = options();
    s.threads = threads;
    Engine engine(model_.config, model_.weights, s);
    std::vector<std::vector<float>> logits(4);
    std::int64_t done[4] = {};
    const std::vector<std::vector<std::int32_t>> pages = {page_table(kTokens, 10),
                                                          page_table(150, 40, 3), page_table(61, 1),
                                                          page_table(129, 30, -2)};
    const auto finished = [&] {
      return std::equal(std::begin(done), std::end(done), std::begin(lengths));
    };
    for (std::int64_t step = 0; !finished(); ++step) {
      std::vector<cpu::StepSequence> sequences;
      std::vector<std::size_t> owner;
      for (std::size_t i = 0; i < 4; ++i) {
        // Ragged: sequence i takes 1, 14 or 37 rows, and joins at different steps.
        const std::int64_t want = (step + static_cast<std::int64_t>(i)) % 3 == 0 ? 1
                                  : i % 2 == 0                                   ? 37
                                                                                 : 14;
        const std::int64_t rows = std::min(want, lengths[i] - done[i]);
        if (rows == 0 || step < static_cast<std::int64_t>(i)) continue;
        cpu::StepSequence sequence;
        sequence.tokens = std::span(tokens[i]).subspan(static_cast<std::size_t>(done[i]),
                                                       static_cast<std::size_t>(rows));
        sequence.start = done[i];
        sequence.pages = pages[i];
        sequence.logit_rows = rows;
        sequences.push_back(sequence);
        owner.push_back(i);
      }
      std::vector<float> out;
      const Status status = engine.native->step(sequences, *engine.pool, out, nullptr);
      ASSERT_TRUE(status.ok()) << status.to_string();
      auto next = out.begin();
      for (std::size_t j = 0; j < sequences.size(); ++j) {
        const auto rows = static_cast<std::int64_t>(sequences[j].tokens.size());
        const auto end = next + rows * model_.config.vocab_size;
        logits[owner[j]].insert(logits[owner[j]].end(), next, end);
        next = end;
        done[owner[j]] += rows;
      }
    }
    for (std::size_t i = 0; i < 4; ++i) {
      ASSERT_EQ(alone[i].logits, logits[i]) << "sequence " << i;
      ASSERT_EQ(alone[i].cache, cache_bytes(model_.config, *engine.pool, pages[i], lengths[i]))
          << "sequence " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Invariance, testing::Combine(testing::Bool(), testing::Bool()),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param) ? "Mixed" : "Plain") +
                                  (std::get<1>(test.param) ? "Fp8Cache" : "Bf16Cache");
                         });

}  // namespace
}  // namespace monolayer::test
