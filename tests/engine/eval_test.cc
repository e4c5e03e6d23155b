// The evaluation: its statistics, its files, and answers that are counted where they belong.
#include <unistd.h>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/eval.h"
#include "engine/eval_set.h"
#include "engine/native_run.h"

namespace monolayer::engine {
namespace {

const std::string kRoot = MONOLAYER_SOURCE_DIR;

// The interval's ends are the shares p with |hits/n - p| = z sqrt(p (1 - p) / n): found by halving.
double by_bisection(double share, double n, double inside, double outside) {
  for (int i = 0; i < 200; ++i) {
    const double p = (inside + outside) / 2;
    const bool within = std::abs(share - p) <= 1.959963984540054 * std::sqrt(p * (1 - p) / n);
    (within ? inside : outside) = p;
  }
  return inside;
}

TEST(Wilson, EqualsItsDefinition) {
  for (const auto& [hits, trials] : std::vector<std::pair<int, int>>{
           {0, 10}, {10, 10}, {1, 3}, {190, 200}, {1319, 1319}, {1187, 1319}}) {
    const double share = static_cast<double>(hits) / trials;
    const Interval got = wilson(hits, trials);
    EXPECT_NEAR(got.low, by_bisection(share, trials, share, 0), 1e-9) << hits << "/" << trials;
    EXPECT_NEAR(got.high, by_bisection(share, trials, share, 1), 1e-9) << hits << "/" << trials;
  }
  EXPECT_EQ(wilson(0, 0).low, 0);
  EXPECT_EQ(wilson(0, 0).high, 1);
}

class Eval : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto model = open_model(kRoot + "/assets/nano");
    ASSERT_TRUE(model.ok()) << model.status().to_string();
    model_ = std::move(*model);
    auto text = TextModel::load(model_->folder);
    ASSERT_TRUE(text.ok());
    text_ = std::make_unique<TextModel>(*std::move(text));
  }
  static void TearDownTestSuite() {
    text_.reset();
    model_.reset();
  }
  void TearDown() override { std::filesystem::remove(path_); }

  Result<std::vector<EvalItem>> read(const std::string& lines, std::int64_t limit = 0) {
    std::ofstream(path_) << lines;
    return read_eval_set(path_, *text_, model_->config, limit);
  }
  Result<EvalReport> run(const std::vector<EvalItem>& items, const std::string& path,
                         std::int64_t rows, int ranks = 1) {
    NativeRunOptions options;
    options.context_tokens = eval_pool_tokens(items, rows);
    options.path = path;
    options.ranks = ranks;
    options.threads = 1;
    ML_ASSIGN_OR_RETURN(auto loaded, NativeRun::load(*model_, options));
    NativeModel steps(model_->config, loaded->native(), loaded->pool());
    EvalOptions eval;
    eval.rows = rows;
    eval.eos_ids = {2004};
    return run_eval(steps, text_->tokenizer(), items, eval);
  }

  static std::unique_ptr<OpenModel> model_;
  static std::unique_ptr<TextModel> text_;
  const std::string path_ = std::filesystem::temp_directory_path() /
                            ("monolayer_eval_" + std::to_string(::getpid()) + ".jsonl");
};
std::unique_ptr<OpenModel> Eval::model_;
std::unique_ptr<TextModel> Eval::text_;

std::string question(const std::string& answer, int tokens, const std::string& thinking,
                     const std::string& task = "sums") {
  return R"({"task": ")" + task +
         R"(", "messages": [{"role": "user", "content": "What is 3 plus 4?"}], "answer": ")" +
         answer + R"(", "max_tokens": )" + std::to_string(tokens) + R"(, "thinking": ")" +
         thinking + "\"}\n";
}

TEST_F(Eval, MessagesThatATemplateWouldPassOverAreRefused) {
  const auto refused = [&](const std::string& messages) {
    const auto items = read(question("7", 9, "adaptive") + R"({"task": "a", "messages": )" +
                            messages + R"(, "answer": "7", "max_tokens": 9})" + "\n");
    return items.ok() ? "was read" : items.status().to_string();
  };
  EXPECT_EQ(path_ +
                ":2: messages[0].role: is 'narrator', must be one of system, developer, user, "
                "assistant, tool",
            refused(R"([{"role": "narrator", "content": "What is 3 plus 4?"}])"));
  EXPECT_EQ(path_ + ":2: messages[1].content: must be a string or a list of parts, is a number",
            refused(R"([{"role": "user", "content": "a"}, {"role": "user", "content": 5}])"));
  EXPECT_EQ(path_ + ":2: messages[0].content: must be a string or a list of parts, is missing",
            refused(R"([{"role": "user"}])"));
  EXPECT_EQ(path_ + ":2: messages: is empty", refused("[]"));
  const auto parts = [&](const std::string& list) {
    return refused(R"([{"role": "user", "content": [)" + list + "]}]");
  };
  const std::string at = path_ + ":2: messages[0].content[";
  EXPECT_EQ(at + "0]: must be an object, is a number", parts("5"));
  EXPECT_EQ(at + "0].type: is missing, must be 'text': the model takes nothing else",
            parts(R"({"text": "hi"})"));
  EXPECT_EQ(at + "1].type: is 'image_url', must be 'text': the model takes nothing else",
            parts(R"({"type": "text", "text": "hi"}, {"type": "image_url", "image_url": {}})"));
  EXPECT_EQ(at + "0].text: must be a string", parts(R"({"type": "text", "text": 5})"));
  EXPECT_EQ("was read", parts(R"({"type": "text", "text": "hi"}, "and more")"));
  EXPECT_EQ("was read", refused(R"([{"role": "user", "content": "a"}, {"role": "assistant"}])"));
}

TEST_F(Eval, EveryAnswerIsCountedInItsPlace) {
  auto items = read(question("The answer is 7.", 60, "adaptive") +
                    question("The answer is 8.", 60, "adaptive") +
                    question("The answer is 7.", 3, "adaptive") +
                    question("The answer is 7.", 60, "disabled", "no thinking"));
  ASSERT_TRUE(items.ok()) << items.status().to_string();
  const auto report = run(*items, "auto", 4);
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  ASSERT_EQ(report->tasks.size(), 2U);
  const EvalTask& sums = report->tasks[0];
  EXPECT_EQ(sums.asked, 3);
  EXPECT_EQ(sums.exact, 1);
  EXPECT_EQ(sums.wrong, 1);
  EXPECT_EQ(sums.truncated, 1);
  EXPECT_EQ(sums.unparsed + sums.failed, 0);
  EXPECT_EQ(report->tasks[1].exact, 1);
  ASSERT_EQ(report->misses.size(), 2U);
  EXPECT_EQ(report->misses[0].line, 2);
}

// Native, fused, two ranks, one row or many: the same answers, and so the same figures.
TEST_F(Eval, FiguresDoNotDependOnThePath) {
  auto items =
      read_eval_set(kRoot + "/tests/data/eval/nano_small.jsonl", *text_, model_->config, 1);
  ASSERT_TRUE(items.ok()) << items.status().to_string();
  const auto first = run(*items, "native", 16);
  ASSERT_TRUE(first.ok()) << first.status().to_string();
  EXPECT_GE(first->tasks.size(), 6U);
  EXPECT_EQ(first->tasks[0].exact, 1);
  for (const EvalTask& task : first->tasks)
    if (task.name == "retrieval, codes") {
      EXPECT_EQ(task.exact, 1);
      EXPECT_GT(task.longest_prompt, 600);
    }
  for (const auto& [path, rows, ranks] :
       std::vector<std::tuple<std::string, int, int>>{{"mono", 3, 1}, {"native", 8, 2}}) {
    const auto again = run(*items, path, rows, ranks);
    ASSERT_TRUE(again.ok()) << again.status().to_string();
    for (std::size_t i = 0; i < first->tasks.size(); ++i) {
      EXPECT_EQ(again->tasks[i].exact, first->tasks[i].exact) << path;
      EXPECT_EQ(again->tasks[i].reply_tokens, first->tasks[i].reply_tokens) << path;
      EXPECT_EQ(again->tasks[i].perplexity, first->tasks[i].perplexity) << path;
    }
    ASSERT_EQ(again->misses.size(), first->misses.size());
    for (std::size_t i = 0; i < first->misses.size(); ++i)
      EXPECT_EQ(again->misses[i].reply, first->misses[i].reply);
  }
}

// exp of the mean loss, from the logits of a plain forward pass in double precision.
TEST_F(Eval, PerplexityIsThatOfTheLogits) {
  auto items = read(R"({"task": "text", "text": "]~b]user\nWhat is 3 plus 4?[e~[\n"})"
                    "\n"
                    R"({"task": "text", "text": "The code of the red door is 4821."})");
  ASSERT_TRUE(items.ok()) << items.status().to_string();
  EXPECT_EQ(items->front().prompt.ids.front(), 2003);  // control tokens of a text count
  double loss = 0;
  std::int64_t tokens = 0;
  for (const EvalItem& item : *items) {
    NativeRunOptions options;
    options.context_tokens = 128;
    options.threads = 1;
    auto loaded = NativeRun::load(*model_, options);
    ASSERT_TRUE(loaded.ok());
    const auto& ids = item.prompt.ids;
    const auto logits = (*loaded)->append(ids, static_cast<std::int64_t>(ids.size()), nullptr);
    ASSERT_TRUE(logits.ok());
    const auto vocab = static_cast<std::size_t>(model_->config.vocab_size);
    for (std::size_t row = 0; row + 1 < ids.size(); ++row, ++tokens) {
      double sum = 0;
      for (std::size_t i = 0; i < vocab; ++i) sum += std::exp(double{(*logits)[row * vocab + i]});
      loss +=
          std::log(sum) - double{(*logits)[row * vocab + static_cast<std::size_t>(ids[row + 1])]};
    }
  }
  const auto report = run(*items, "native", 2);
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  const EvalTask& task = report->tasks.front();
  EXPECT_EQ(task.texts, 2);
  EXPECT_EQ(task.predicted_tokens, tokens);
  const double want = std::exp(loss / static_cast<double>(tokens));
  EXPECT_NEAR(task.perplexity / want, 1, 1e-5);
  EXPECT_LT(task.perplexity_interval.low, want);
  EXPECT_GT(task.perplexity_interval.high, want);
}

// Numbers that no answer can come from, for the prompt of one length.
class NoNumbers : public NativeModel {
 public:
  NoNumbers(const m3::ModelConfig& config, NativeRun& run, std::size_t prompt)
      : NativeModel(config, run.native(), run.pool()), prompt_(prompt) {}
  Status step(std::span<const cpu::StepSequence> sequences, std::vector<float>& logits) override {
    ML_RETURN_IF_ERROR(NativeModel::step(sequences, logits));
    auto row = logits.begin();
    for (const cpu::StepSequence& sequence : sequences) {
      const auto end = row + sequence.logit_rows * vocab_size();
      if (sequence.tokens.size() == prompt_) std::fill(row, end, std::nanf(""));
      row = end;
    }
    return ok_status();
  }

  bool chooses_greedily() const override { return false; }  // so that every row has logits

 private:
  const std::size_t prompt_;
};

TEST_F(Eval, AQuestionThatCannotBeAnsweredIsCountedAndTheRestGoesOn) {
  auto items = read(question("The answer is 7.", 60, "adaptive") +
                    question("The answer is 7.", 60, "disabled") +
                    question("The answer is 7.", 60, "adaptive"));
  ASSERT_TRUE(items.ok()) << items.status().to_string();
  ASSERT_NE((*items)[0].prompt.ids.size(), (*items)[1].prompt.ids.size());
  NativeRunOptions options;
  options.context_tokens = eval_pool_tokens(*items, 1);
  options.threads = 1;
  auto loaded = NativeRun::load(*model_, options);
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  NoNumbers model(model_->config, **loaded, (*items)[1].prompt.ids.size());
  EvalOptions eval;
  eval.rows = 1;
  eval.eos_ids = {2004};
  const auto report = run_eval(model, text_->tokenizer(), *items, eval);
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  EXPECT_EQ(report->tasks[0].asked, 3);
  EXPECT_EQ(report->tasks[0].failed, 1);
  EXPECT_EQ(report->tasks[0].exact, 2);
}

TEST_F(Eval, LinesAreThoseOfTheFile) {
  const auto items = read(question("x", 5, "adaptive") + question("x", 5, "adaptive") +
                              question("x", 5, "enabled", "b"),
                          1);
  ASSERT_TRUE(items.ok()) << items.status().to_string();
  EXPECT_EQ(items->back().line, 3);
  const auto report = run(*items, "native", 2);
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  ASSERT_EQ(report->misses.size(), 2U);
  EXPECT_EQ(report->misses[1].line, 3);
}

TEST_F(Eval, ALimitHoldsForEachTask) {
  std::string lines;
  for (int i = 0; i < 5; ++i)
    lines += question("x", 5, "adaptive") + question("x", 5, "enabled", "b");
  const auto items = read(lines, 2);
  ASSERT_TRUE(items.ok());
  EXPECT_EQ(items->size(), 4U);
}

TEST_F(Eval, RefusesLinesItCannotRead) {
  const std::string good = question("x", 5, "adaptive");
  for (const char* line :
       {"", "[]", "{\"task\": \"a\"}", "{\"task\": 1, \"text\": \"a b\"}",
        "{\"task\": \"a\", \"text\": \"a b\", \"more\": 1}", "{\"task\": \"a\", \"text\": \"\"}",
        "{\"task\": \"a\", \"messages\": [], \"answer\": \"x\", \"max_tokens\": 5}",
        "{\"task\": \"a\", \"messages\": 3, \"answer\": \"x\", \"max_tokens\": 5}",
        "{\"task\": \"a\", \"answer\": \"x\", \"max_tokens\": 5}"}) {
    const auto items = read(std::string(good).append(line).append("\n").append(good));
    ASSERT_FALSE(items.ok()) << line;
    EXPECT_NE(items.status().to_string().find(path_ + ":2"), std::string::npos)
        << items.status().to_string();
  }
  // Longer than the model's positions, said before anything is answered.
  const auto longest =
      static_cast<int>(std::min<std::int64_t>(model_->config.max_positions, 1 << 20));
  const auto items = read(good + question("x", longest, "adaptive"));
  ASSERT_FALSE(items.ok());
  EXPECT_NE(items.status().to_string().find(path_ + ":2"), std::string::npos);
  EXPECT_FALSE(read(question("x", 0, "adaptive")).ok());
  EXPECT_FALSE(read(question("x", 5, "sometimes")).ok());
  EXPECT_FALSE(read("").ok());
}

}  // namespace
}  // namespace monolayer::engine
