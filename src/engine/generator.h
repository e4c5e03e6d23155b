// One sequence from prompt to stop: pages, chunked prefill, the decode loop.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "backend/cpu/cache.h"
#include "backend/cpu/native.h"
#include "core/status.h"
#include "engine/page_list.h"
#include "engine/sampler.h"
#include "m3/config.h"

namespace monolayer::engine {

struct GenerateOptions {
  SamplingParams sampling;
  std::int64_t max_tokens = 256;
  std::int64_t max_context = 0;      // prompt and generated tokens together; 0: what the pool holds
  std::int64_t prefill_chunk = 512;  // rows of a prefill step; changes speed, never tokens
  std::vector<std::int32_t> stop_ids;
  // Asked after every step, before the token it led to is shown: an error ends the generation.
  // For weights that are used from a mapping, OpenModel::checkpoint.verify_unchanged().
  std::function<Status()> still_valid;
};

enum class Finish : std::uint8_t {
  kStop,      // a stop id was drawn
  kLength,    // max_tokens or max_context was reached
  kCancelled  // the callback asked to stop
};

struct GenerateReport {
  Finish finish = Finish::kLength;
  std::int64_t prompt_tokens = 0;
  std::int64_t generated_tokens = 0;  // without the stop id
  std::int64_t decode_steps = 0;      // forward passes after the prefill
  std::int64_t decode_tokens = 0;  // that these gave, a stop id too; more than steps with a draft
  double prefill_seconds = 0, decode_seconds = 0;
  cpu::Traffic prefill, decode;
};

// Sees each generated token but the stop id; false ends the generation.
using TokenCallback = std::function<bool(std::int32_t id)>;

class Generator {
 public:
  // Borrows all three. One generation at a time; pages are free again afterwards.
  Generator(const m3::ModelConfig& config, cpu::Native& native, cpu::CachePool& pool)
      : config_(config), native_(native), pool_(pool), pages_(pool.pages()) {}

  // kInvalidArgument: empty prompt, ids outside the vocabulary, a prompt that leaves no room for a
  // token below the limit (stating both), bad sampling parameters or chunk.
  Result<GenerateReport> generate(std::span<const std::int32_t> prompt,
                                  const GenerateOptions& options, const TokenCallback& on_token);

 private:
  Status check(std::span<const std::int32_t> prompt, const GenerateOptions& options,
               std::int64_t limit) const;
  // `wanted`: the last row gives the next token.
  Status step(std::span<const std::int32_t> tokens, std::int64_t start, bool wanted,
              const GenerateOptions& options, cpu::Traffic& traffic);
  Result<GenerateReport> run(std::span<const std::int32_t> prompt, const GenerateOptions& options,
                             std::int64_t limit, const TokenCallback& on_token);

  const m3::ModelConfig& config_;
  cpu::Native& native_;
  cpu::CachePool& pool_;
  PageList pages_;
  std::vector<std::int32_t> table_;
  std::vector<float> logits_;
};

}  // namespace monolayer::engine
