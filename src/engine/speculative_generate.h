// One answer with a draft's guesses, through the engine. The tokens are those of Generator.
#pragma once

#include <cstdint>
#include <span>

#include "core/status.h"
#include "engine/draft_model.h"
#include "engine/generator.h"
#include "engine/model_loader.h"
#include "engine/native_run.h"
#include "text/tokenizer.h"

namespace monolayer::engine {

// `draft` belongs to `run`. Errors and options as Generator::generate(); `on_token` is called on
// the caller's thread. Traffic includes the draft's. Prompt pieces end on blocks of 128 tokens and
// are at least one block long.
Result<GenerateReport> generate_speculating(const OpenModel& model, const Tokenizer& tokenizer,
                                            NativeRun& run, DraftRun& draft,
                                            std::span<const std::int32_t> prompt,
                                            const GenerateOptions& options,
                                            const TokenCallback& on_token);

}  // namespace monolayer::engine
