// The tokens that a step's rows give.
#include <algorithm>
#include <new>
#include <utility>

#include "engine/engine_live.h"
#include "engine/sampler.h"

namespace monolayer::engine {
namespace {

bool contains(const std::vector<std::int32_t>& ids, std::int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

void Engine::prompt_rows(std::size_t item_index, const ScheduledSequence& item, Live& live,
                         RequestOutput& output) {
  const Sequence& sequence = live.sequence;
  if (!sequence.all_logits) return;
  // Row r predicts the token after its own. After a preemption the rows come once more.
  const std::int64_t first = item.start + item.count - item.logit_rows;
  for (std::int64_t row = 0; row < item.logit_rows; ++row) {
    const std::int64_t next = first + row + 1;
    if (next >= sequence.prompt_tokens || next <= live.prompt_rows_done) continue;
    live.prompt_rows_done = next;
    output.prompt_logprobs.push_back(token_logprobs(
        runner_.logits(item_index, row), sequence.tokens[static_cast<std::size_t>(next)],
        live.request.prompt_logprobs, drawers_.front().sampler));
  }
}

Engine::Drawn Engine::choose(std::size_t item_index, std::int64_t row, const Live& live,
                             std::int64_t position, Drawer& drawer) const {
  const Request& request = live.request;
  Drawn drawn;
  const std::span<const float> raw = runner_.logits(item_index, row);
  drawn.error = check_finite(raw, position);
  if (!drawn.error.ok()) return drawn;
  std::span<const float> logits = raw;
  const bool held = position - live.sequence.prompt_tokens < request.min_tokens;
  if (held || !request.rules.empty()) {
    drawer.logits.assign(raw.begin(), raw.end());
    live.processor.apply(drawer.logits, held ? live.held_ids : std::vector<std::int32_t>{});
    logits = drawer.logits;
  }
  drawn.id = sample_finite(logits, request.sampling, position, drawer.sampler);
  if (request.logprobs >= 0)
    drawn.logprobs = token_logprobs(raw, drawn.id, request.logprobs, drawer.sampler);
  return drawn;
}

void Engine::draw_ahead(const ScheduledStep& step, const std::vector<Status>& statuses) {
  struct Job {
    std::size_t item;
    std::int64_t row, index;
    const Live* live;
  };
  std::vector<Job> jobs;
  ahead_.assign(step.sequences.size(), {});
  const bool coins = options_.speculator != nullptr && options_.speculator->synthetic();
  for (std::size_t i = 0; i < step.sequences.size() && !coins; ++i) {
    const ScheduledSequence& item = step.sequences[i];
    const Live& live = *live_.at(item.sequence->id);
    if (!statuses[i].ok() || !item.samples || live.request.max_tokens == 0) continue;
    const std::int64_t rows = static_cast<std::int64_t>(item.drafts.size()) + 1;
    const std::int64_t first = item.logit_rows - rows;
    if (runner_.greedy_id(i, first)) continue;
    // Penalties of a row behind a guess depend on the token before it.
    if (rows > 1 && !live.request.rules.empty()) continue;
    ahead_[i].resize(static_cast<std::size_t>(rows));
    for (std::int64_t r = 0; r < rows; ++r) jobs.push_back({i, first + r, r, &live});
  }
  const auto work = [&](int worker, int workers) {
    for (auto j = static_cast<std::size_t>(worker); j < jobs.size();
         j += static_cast<std::size_t>(workers)) {
      const Job& job = jobs[j];
      Drawn& drawn = ahead_[job.item][static_cast<std::size_t>(job.index)];
      try {
        drawn = choose(job.item, job.row, *job.live, job.live->sequence.size() + job.index,
                       drawers_[static_cast<std::size_t>(worker)]);
      } catch (const std::bad_alloc&) {
        drawn.error = {Code::kResourceExhausted, "sampling", "no memory for a row of logits"};
      }
    }
  };
  if (options_.team == nullptr || jobs.size() < 2) return work(0, 1);
  options_.team->each([&](int worker) { work(worker, options_.team->size()); });
}

std::optional<FinishReason> Engine::draw(std::size_t item_index, std::int64_t row, Live& live,
                                         RequestOutput& output, std::optional<std::int32_t> given) {
  const Request& request = live.request;
  Sequence& sequence = live.sequence;
  if (request.max_tokens == 0) return FinishReason::kLength;
  const std::int64_t position = sequence.size();
  const bool held = sequence.generated() < request.min_tokens;
  std::vector<Drawn>& ahead = ahead_[item_index];
  Drawn drawn;
  if (const auto chosen = runner_.greedy_id(item_index, row)) {
    drawn.id = *chosen;
  } else if (!ahead.empty()) {
    drawn = std::move(ahead.front());
    ahead.erase(ahead.begin());
  } else {
    drawn = choose(item_index, row, live, position, drawers_.front());
  }
  if (!drawn.error.ok()) {
    output.error = std::move(drawn.error);
    return FinishReason::kError;
  }
  // Synthetic acceptance, which gives no logprobs.
  if (given && !(held && contains(live.held_ids, *given))) drawn.id = *given;
  const std::int32_t id = drawn.id;
  live.processor.generated(id);
  sequence.tokens.push_back(id);
  ++counters_.generated_tokens;
  if (sequence.generated() == 1) live.times.first_token = RequestTimes::Clock::now();
  output.tokens.push_back(id);
  if (drawn.logprobs) output.logprobs.push_back(std::move(*drawn.logprobs));

  const bool is_end =
      (!request.ignore_eos && contains(request.eos_ids, id)) || contains(request.stop_ids, id);
  if (is_end) {
    output.stop_id = id;
    return FinishReason::kStop;
  }
  output.text += live.text.push(id, sequence.generated() > request.min_tokens);
  if (live.text.matched()) {
    output.stop_string = *live.text.matched();
    return FinishReason::kStop;
  }
  if (sequence.generated() >= request.max_tokens) return FinishReason::kLength;
  return std::nullopt;
}

// A guess is one id, so accepting it with the target's probability of it, and else drawing from the
// target without it, is what one draw from the target does: it is accepted if it was drawn. The
// tokens are therefore those of a run without guesses, whatever is guessed.
std::int64_t Engine::draw_run(std::size_t item_index, const ScheduledSequence& item, Live& live,
                              RequestOutput& output, std::optional<FinishReason>& finish) {
  const auto drafts = static_cast<std::int64_t>(item.drafts.size());
  const std::int64_t first = item.logit_rows - 1 - drafts;
  for (std::int64_t i = 0;; ++i) {
    std::optional<std::int32_t> given;
    std::optional<bool> coin;
    if (i < drafts) {
      coin = options_.speculator->coin(static_cast<std::uint64_t>(counters_.steps), item_index, i);
      if (coin.value_or(false)) given = item.drafts[static_cast<std::size_t>(i)];
    }
    finish = draw(item_index, first + i, live, output, given);
    if (i == drafts) return i + 1;
    // A coin may also have accepted what min_tokens forbids: then something else was drawn.
    const bool accepted = coin.value_or(true) &&
                          live.sequence.tokens.back() == item.drafts[static_cast<std::size_t>(i)];
    if (finish || !accepted) return i + 1;
  }
}

}  // namespace monolayer::engine
