#include "engine/speculation.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <string>
#include <utility>

#include "core/dtype.h"
#include "engine/sampler.h"

namespace monolayer::engine {
namespace {

constexpr std::int64_t kBlock = m3::kPageTokens;

bool decodes(const ScheduledSequence& item) {
  return item.sequence->state == SequenceState::kDecode;
}

std::span<const std::int32_t> tokens_of(const Sequence& sequence, std::int64_t begin,
                                        std::int64_t end) {
  return std::span(sequence.tokens)
      .subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
}

}  // namespace

Status check_speculation(const SpeculationOptions& options) {
  if (options.tokens < 1 || options.tokens > m3::kMostDrafts)
    return {Code::kInvalidArgument, "num_speculative_tokens",
            "is " + std::to_string(options.tokens) + ", must be from 1 to " +
                std::to_string(m3::kMostDrafts)};
  const auto& rates = options.synthetic_rates;
  if (rates.empty()) return ok_status();
  if (static_cast<std::int64_t>(rates.size()) != options.tokens)
    return {Code::kInvalidArgument, "synthetic_acceptance_rates",
            "has " + std::to_string(rates.size()) + " rates for " + std::to_string(options.tokens) +
                " speculative tokens"};
  double last = 1;
  for (const double rate : rates) {
    if (!(rate >= 0 && rate <= last))
      return {Code::kInvalidArgument, "synthetic_acceptance_rates",
              "must be from 0 to 1 and not increase"};
    last = rate;
  }
  return ok_status();
}

Result<std::vector<double>> rates_of_length(double length, std::int64_t tokens) {
  if (!(length >= 1 && length <= static_cast<double>(tokens + 1)))
    return Status(Code::kInvalidArgument, "synthetic_acceptance_length",
                  "is " + std::to_string(length) + ", must be from 1 to " +
                      std::to_string(tokens + 1) + " (num_speculative_tokens and 1)");
  std::vector<double> rates;
  for (std::int64_t i = 0; i < tokens; ++i)
    rates.push_back(std::clamp(length - 1 - static_cast<double>(i), 0.0, 1.0));
  return rates;
}

Speculator::Speculator(const m3::DraftConfig& config, cpu::Draft& draft, cpu::CachePool& pool,
                       SpeculationOptions options)
    : config_(config),
      draft_(draft),
      pool_(pool),
      options_(std::move(options)),
      // Not cleared: only what is used becomes resident.
      boundaries_(new std::uint16_t[static_cast<std::size_t>(pool.pages() * config.hidden_size)]) {
  stats_.tokens = options_.tokens;
  stats_.synthetic = !options_.synthetic_rates.empty();
}

std::int64_t Speculator::boundary_bytes(const m3::DraftConfig& config) {
  return config.hidden_size * 2;
}

// The first rows of an admission: from nothing, or after a cached prefix.
void Speculator::begin(Sequence& sequence, std::int64_t start) const {
  DraftState& state = sequence.draft;
  if (state.done > 0) return;
  state.hidden.clear();
  state.done = std::max<std::int64_t>(start, 1);
  if (start == 0) return;
  const auto n = static_cast<std::size_t>(config_.hidden_size);
  const auto block = static_cast<std::size_t>(
      sequence.table.blocks[static_cast<std::size_t>((start - 1) / kBlock)]);
  for (std::size_t i = 0; i < n; ++i)
    state.hidden.push_back(bf16_to_f32(boundaries_[block * n + i]));
}

void Speculator::keep(Sequence& sequence, std::int64_t position, const float* rows,
                      std::int64_t count) {
  const std::int64_t n = config_.hidden_size;
  std::vector<float>& hidden = sequence.draft.hidden;
  hidden.insert(hidden.end(), rows, rows + count * n);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t next = position + i + 1;
    if (next % kBlock != 0) continue;
    const std::int64_t block = sequence.table.blocks[static_cast<std::size_t>(next / kBlock - 1)];
    for (std::int64_t c = 0; c < n; ++c)
      boundaries_[static_cast<std::size_t>(block * n + c)] = f32_to_bf16(rows[i * n + c]);
  }
}

void Speculator::switch_off(Sequence& sequence) {
  sequence.draft.off = true;
  sequence.draft.hidden.clear();
  ++stats_.failures;
}

// Together, or else one by one, so that a sequence whose draft fails fails alone. False if any did:
// those are switched off, and there are no proposals.
bool Speculator::run(std::span<const cpu::DraftSequence> inputs, std::vector<Sequence*>& owners) {
  if (inputs.empty()) return true;
  if (draft_.step(inputs, pool_, proposals_).ok()) return true;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!draft_.step(inputs.subspan(i, 1), pool_, proposals_).ok()) switch_off(*owners[i]);
  }
  proposals_.clear();
  return false;
}

void Speculator::add(Guess& guess, std::int32_t token) {
  const auto index = static_cast<std::int64_t>(guess.item->drafts.size());
  if (options_.rewrite) token = options_.rewrite(*guess.item->sequence, index, token);
  guess.item->drafts.push_back(token);
}

// Entries of every final token that has none, in place of those made from guesses; the last row
// gives the first guess.
void Speculator::guess_first(ScheduledStep& step, const BlockManager& blocks,
                             std::vector<Guess>& guesses) {
  std::vector<cpu::DraftSequence> inputs;
  std::vector<Sequence*> owners;
  for (ScheduledSequence& item : step.sequences) {
    Sequence& sequence = *item.sequence;
    DraftState& state = sequence.draft;
    if (!decodes(item) || state.off || state.done == 0) continue;
    // The sequence's last step: nobody will read what the draft would write.
    if (item.wanted_drafts == 0 && sequence.most_tokens - sequence.size() <= 1) continue;
    const std::int64_t end = sequence.size() + std::max<std::int64_t>(item.wanted_drafts - 1, 0);
    if (!blocks.check_writable(sequence.table, state.done, end).ok()) {
      switch_off(sequence);
      continue;
    }
    inputs.push_back({tokens_of(sequence, state.done, sequence.size()), state.done,
                      sequence.table.blocks, state.hidden.data(), item.wanted_drafts > 0});
    owners.push_back(&sequence);
    if (item.wanted_drafts > 0) guesses.push_back({&item, {}});
  }
  const bool ok = run(inputs, owners);
  for (Sequence* sequence : owners) {
    if (sequence->draft.off) continue;
    sequence->draft.done = sequence->size();
    sequence->draft.hidden.clear();
  }
  if (!ok) guesses.clear();
  for (std::size_t i = 0; i < guesses.size(); ++i) {
    guesses[i].hidden = std::move(proposals_[i].hidden);
    add(guesses[i], proposals_[i].token);
  }
}

void Speculator::guess_next(std::vector<Guess>& guesses) {
  std::erase_if(guesses, [](const Guess& guess) {
    return static_cast<std::int64_t>(guess.item->drafts.size()) >= guess.item->wanted_drafts;
  });
  std::vector<cpu::DraftSequence> inputs;
  std::vector<Sequence*> owners;
  for (const Guess& guess : guesses) {
    Sequence& sequence = *guess.item->sequence;
    const std::vector<std::int32_t>& drafts = guess.item->drafts;
    inputs.push_back({std::span(drafts).last(1),
                      sequence.size() + static_cast<std::int64_t>(drafts.size()) - 1,
                      sequence.table.blocks, guess.hidden.data(), true});
    owners.push_back(&sequence);
  }
  if (!run(inputs, owners)) guesses.clear();
  for (std::size_t i = 0; i < guesses.size(); ++i) {
    guesses[i].hidden = std::move(proposals_[i].hidden);
    add(guesses[i], proposals_[i].token);
  }
}

void Speculator::propose(ScheduledStep& step, const BlockManager& blocks) {
  std::vector<Guess> guesses;
  guess_first(step, blocks, guesses);
  while (!guesses.empty()) guess_next(guesses);
  for (ScheduledSequence& item : step.sequences) {
    if (!decodes(item)) continue;
    const auto drafts = static_cast<std::int64_t>(item.drafts.size());
    step.tokens += drafts - item.wanted_drafts;
    item.count = item.logit_rows = 1 + drafts;
    if (drafts > 0) ++stats_.steps;
    stats_.guesses += drafts;
  }
}

void Speculator::observe(const ScheduledStep& step, std::span<const Status> statuses,
                         std::span<const float> kept, const BlockManager& blocks) {
  const std::int64_t n = config_.hidden_size;
  std::int64_t rows = 0;
  first_rows_.clear();
  for (const ScheduledSequence& item : step.sequences) {
    first_rows_.push_back(rows);
    rows += item.count;
  }
  combined_.resize(static_cast<std::size_t>(rows * n));
  const bool combined = static_cast<std::int64_t>(kept.size()) ==
                            rows * n * static_cast<std::int64_t>(m3::kAuxLayers) &&
                        draft_.combine(kept, combined_.data()).ok();

  std::vector<cpu::DraftSequence> inputs;
  std::vector<Sequence*> owners;
  for (std::size_t i = 0; i < step.sequences.size(); ++i) {
    const ScheduledSequence& item = step.sequences[i];
    Sequence& sequence = *item.sequence;
    if (!statuses[i].ok() || sequence.draft.off) continue;
    if (!combined) {
      switch_off(sequence);
      continue;
    }
    if (decodes(item)) continue;
    begin(sequence, item.start);
    keep(sequence, item.start, combined_.data() + first_rows_[i] * n, item.count);
    const std::int64_t end = item.start + item.count;
    if (end > sequence.draft.done) {
      if (!blocks.check_writable(sequence.table, sequence.draft.done, end).ok()) {
        switch_off(sequence);
        continue;
      }
      inputs.push_back({tokens_of(sequence, sequence.draft.done, end), sequence.draft.done,
                        sequence.table.blocks, sequence.draft.hidden.data(), false});
      owners.push_back(&sequence);
    }
  }
  run(inputs, owners);
  // Only the last state waits for its next token.
  for (Sequence* sequence : owners) {
    DraftState& state = sequence->draft;
    if (state.off) continue;
    state.done += static_cast<std::int64_t>(state.hidden.size()) / n - 1;
    state.hidden.erase(state.hidden.begin(), state.hidden.end() - static_cast<std::ptrdiff_t>(n));
  }
}

std::optional<bool> Speculator::coin(std::uint64_t step, std::size_t row,
                                     std::int64_t index) const {
  if (!synthetic()) return std::nullopt;
  const auto at = static_cast<std::size_t>(index);
  const double before = index == 0 ? 1 : options_.synthetic_rates[at - 1];
  const double rate = before > 0 ? options_.synthetic_rates[at] / before : 0;
  const std::uint64_t counter =
      (step * 65536 + static_cast<std::uint64_t>(row)) * m3::kMostDrafts + at;
  return counter_uniform(options_.synthetic_seed, counter) < rate;
}

void Speculator::accept(const ScheduledStep& step, std::size_t index, std::int64_t rows) {
  const ScheduledSequence& item = step.sequences[index];
  Sequence& sequence = *item.sequence;
  const auto drafts = static_cast<std::int64_t>(item.drafts.size());
  const std::int64_t taken = std::min(rows - 1, drafts);
  if (drafts > 0) {
    stats_.accepted += taken;
    for (std::int64_t i = 0; i < taken; ++i) ++stats_.accepted_at[static_cast<std::size_t>(i)];
    ++stats_.steps_accepting[static_cast<std::size_t>(taken)];
  }
  if (sequence.draft.off || sequence.draft.done == 0) return;
  keep(sequence, item.start, combined_.data() + first_rows_[index] * config_.hidden_size, rows);
}

Status Speculator::prepare_for(std::int64_t rows, std::int64_t sequences) {
  try {
    combined_.reserve(static_cast<std::size_t>(rows * config_.hidden_size));
    first_rows_.reserve(static_cast<std::size_t>(sequences));
    proposals_.reserve(static_cast<std::size_t>(sequences));
  } catch (const std::exception&) {  // bad_alloc, or length_error of a number no memory has
    return {Code::kResourceExhausted, "draft",
            "no memory for the states of " + std::to_string(rows) + " rows and the guesses of " +
                std::to_string(sequences) + " sequences"};
  }
  return draft_.prepare_for(rows, sequences, pool_);
}

void Speculator::poison(std::int32_t block) {
  const auto n = static_cast<std::size_t>(config_.hidden_size);
  std::memset(&boundaries_[static_cast<std::size_t>(block) * n], 0xff, n * 2);
  if (!pool_.has_memory()) return;  // a device's entries
  const cpu::LayerCache& layer = pool_.layer(0);
  std::memset(layer.k + block * layer.page_bytes, 0xff, static_cast<std::size_t>(layer.page_bytes));
  std::memset(layer.v + block * layer.page_bytes, 0xff, static_cast<std::size_t>(layer.page_bytes));
}

}  // namespace monolayer::engine
