// Constants of the one exponential every variant computes (docs/numerics.md).
#pragma once

namespace monolayer::cpu::exp_constants {

// Outside this range the result is 0 or infinity; inside it the two scale factors stay normal.
inline constexpr float kLow = -104.0F;
inline constexpr float kHigh = 89.0F;

inline constexpr float kLog2E = 0x1.715476p+0F;
// Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the low mantissa bits.
inline constexpr float kRound = 12582912.0F;
// ln 2 = kLn2High + kLn2Low to about 2^-55.
inline constexpr float kLn2High = 0x1.62e430p-1F;
inline constexpr float kLn2Low = -0x1.05c610p-29F;

// exp(r) = 1 + r + r^2 * (kQ0 + kQ1 r + ... + kQ4 r^4), minimax in relative error on
// [-ln 2 / 2, ln 2 / 2], 3.1e-9 before rounding.
inline constexpr float kQ0 = 0x1.fffffcp-2F;
inline constexpr float kQ1 = 0x1.555492p-3F;
inline constexpr float kQ2 = 0x1.5558f2p-5F;
inline constexpr float kQ3 = 0x1.1239e2p-7F;
inline constexpr float kQ4 = 0x1.6a2434p-10F;

}  // namespace monolayer::cpu::exp_constants
