// An engine and the answers it gives, gathered by request.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace monolayer::engine {

// How long an answer may take: under a sanitizer that is up to thirty times its time.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr std::chrono::seconds kPatience{1200};
#else
inline constexpr std::chrono::seconds kPatience{60};
#endif

struct Answer {
  std::vector<std::int32_t> tokens;
  std::string text;
  std::vector<Logprobs> logprobs, prompt_logprobs;
  std::optional<FinishReason> finish;
  RequestOutput last;
};

class Harness {
 public:
  Harness(StepModel& model, const Tokenizer& tokenizer, const EngineOptions& options) {
    auto engine = Engine::start(model, tokenizer, options,
                                [this](std::vector<RequestOutput> outputs) { take(outputs); });
    status_ = engine.status();
    if (engine.ok()) engine_ = std::move(*engine);
  }
  ~Harness() { engine_.reset(); }

  Status status() const { return status_; }
  Engine& engine() { return *engine_; }

  // Waits for the end; nothing after kPatience.
  std::optional<Answer> wait(std::uint64_t id) {
    std::unique_lock lock(mutex_);
    const bool done =
        changed_.wait_for(lock, kPatience, [&] { return answers_[id].finish.has_value(); });
    if (!done) return std::nullopt;
    return answers_[id];
  }
  // Waits until a request has given `count` tokens or ended.
  bool wait_tokens(std::uint64_t id, std::size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] {
      return answers_[id].finish.has_value() || answers_[id].tokens.size() >= count;
    });
  }
  std::optional<Answer> ask(Request request) {
    const auto id = engine_->submit(std::move(request));
    if (!id.ok()) return std::nullopt;
    return wait(*id);
  }
  // The engine publishes its figures after the step that ended the last request.
  bool wait_idle() {
    const auto end = std::chrono::steady_clock::now() + kPatience / 6;
    while (std::chrono::steady_clock::now() < end) {
      const EngineStats stats = engine_->stats();
      if (stats.blocks_used == 0 && stats.running == 0 && stats.waiting == 0) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }

 private:
  void take(const std::vector<RequestOutput>& outputs) {
    const std::lock_guard lock(mutex_);
    for (const RequestOutput& output : outputs) {
      Answer& answer = answers_[output.id];
      answer.tokens.insert(answer.tokens.end(), output.tokens.begin(), output.tokens.end());
      answer.text += output.text;
      answer.logprobs.insert(answer.logprobs.end(), output.logprobs.begin(), output.logprobs.end());
      answer.prompt_logprobs.insert(answer.prompt_logprobs.end(), output.prompt_logprobs.begin(),
                                    output.prompt_logprobs.end());
      answer.finish = output.finish;
      answer.last = output;
    }
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, Answer> answers_;
  Status status_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace monolayer::engine
