// A chain of layers without a model: each layer turns a row into partial sums by eighths, reduces
// them twice through mailboxes and mixes the result back, so that any word that arrives wrong,
// early or late changes everything after it.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "mono/protocol_mailbox.h"
#include "tp/group.h"

namespace monolayer::mono {

struct ChainShape {
  std::int64_t rows = 4;
  std::int64_t columns = 96;
  int layers = 8;
};

// What eighth `e` contributes at `column` when the row holds `value` there.
inline float chain_part(float value, int e, int layer, int site, std::int64_t column) {
  const auto mix = static_cast<std::uint32_t>((layer * 2 + site) * 8 + e) * 2654435761U +
                   static_cast<std::uint32_t>(column) * 40503U;
  const float scale = 0.25F + static_cast<float>(mix >> 12 & 255) / 128.0F;
  return value * scale + static_cast<float>(static_cast<std::int32_t>(mix)) * 0x1p-34F;
}

inline std::vector<float> chain_input(const ChainShape& shape, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(shape.rows * shape.columns));
  for (float& value : values) value = normal(random);
  return values;
}

// Neighbours feed each other, so that a push of a word needs the whole row of the exchange before.
inline void chain_mix(const ChainShape& shape, std::vector<float>& values) {
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    float* begin = values.data() + row * shape.columns;
    float total = 0;
    for (std::int64_t c = 0; c < shape.columns; ++c) total += begin[c];
    const float shift = total / static_cast<float>(shape.columns);
    for (std::int64_t c = 0; c < shape.columns; ++c) begin[c] = begin[c] * 0.25F + shift;
  }
}

// The chain on one processor, in the fixed tree, without any protocol.
inline std::vector<float> chain_expected(const ChainShape& shape, std::uint32_t seed) {
  std::vector<float> values = chain_input(shape, seed);
  for (int layer = 0; layer < shape.layers; ++layer) {
    for (int site = 0; site < 2; ++site) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        const auto column = static_cast<std::int64_t>(i) % shape.columns;
        float p[8];
        for (int e = 0; e < 8; ++e) p[e] = chain_part(values[i], e, layer, site, column);
        values[i] = ((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7]));
      }
      chain_mix(shape, values);
    }
  }
  return values;
}

// One rank of the chain. `before_stage(layer, site)` may delay, or stop the step by returning
// false; then run() returns true with *stopped set. False: the group is poisoned.
struct Chain {
  ChainShape shape;
  WaitPolicy policy;
  int rank = 0, ranks = 1;
  std::function<bool(int layer, int site)> before_stage = [](int, int) { return true; };
  std::function<void(int layer, int site)> after_send = [](int, int) {};

  bool run(const Mailbox& mailbox, std::uint32_t seed, std::vector<float>& values,
           bool* stopped = nullptr) const {
    values = chain_input(shape, seed);
    const int each = 8 / ranks;
    std::vector<std::vector<float>> parts(static_cast<std::size_t>(each));
    for (int layer = 0; layer < shape.layers; ++layer) {
      for (int site = 0; site < 2; ++site) {
        if (!before_stage(layer, site)) {
          if (stopped != nullptr) *stopped = true;
          return true;
        }
        std::vector<const float*> roots;
        for (int p = 0; p < each; ++p) {
          auto& part = parts[static_cast<std::size_t>(p)];
          part.resize(values.size());
          for (std::size_t i = 0; i < values.size(); ++i) {
            const auto column = static_cast<std::int64_t>(i) % shape.columns;
            part[i] = chain_part(values[i], rank * each + p, layer, site, column);
          }
          roots.push_back(part.data());
        }
        tp::sum_eighths(roots, values);
        const Block block{0, shape.rows, 0, shape.columns, values.data(), shape.columns};
        const WaitPlace place{rank, layer, site, site == 0 ? "attention sum" : "mlp sum"};
        const Exchange exchange = mailbox.exchange(site, layer, shape.rows);
        mailbox.send(exchange, block);
        after_send(layer, site);
        if (!mailbox.reduce(exchange, block, policy, place)) return false;
        if (!mailbox.gather(exchange, block, policy, place)) return false;
        chain_mix(shape, values);
      }
    }
    return true;
  }
};

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) {
    return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y);
  });
}

}  // namespace monolayer::mono
