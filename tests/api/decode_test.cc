// Whole models decoded through the public interface and through the native chain: same bits, same
// caches, in every order of the two.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <thread>

#include "api/fused_model.h"
#include "backend_cpu/native_harness.h"
#include "backend_cpu/random_model.h"
#include "dispatch/dispatcher.h"
#include "engine/model_loader.h"

namespace monolayer::test {
namespace {

cpu::StepSequence sequence(std::span<const std::int32_t> tokens, std::int64_t start,
                           std::span<const std::int32_t> pages, std::int64_t logit_rows = 1) {
  cpu::StepSequence s;
  s.tokens = tokens;
  s.start = start;
  s.pages = pages;
  s.logit_rows = logit_rows;
  return s;
}

Status prefill(Engine& engine, std::span<const std::int32_t> tokens,
               std::span<const std::int32_t> pages, std::vector<float>& logits,
               std::size_t chunk = 64) {
  for (std::size_t at = 0; at < tokens.size(); at += chunk) {
    const cpu::StepSequence s = sequence(tokens.subspan(at, std::min(chunk, tokens.size() - at)),
                                         static_cast<std::int64_t>(at), pages);
    ML_RETURN_IF_ERROR(engine.native->step({&s, 1}, *engine.pool, logits, nullptr));
  }
  return {};
}

// Greedy decode on `ranks` threads, each with a library of its own, from the caches that `engine`
// holds; fails unless every step's logits are `expected`'s bits on every rank.
void expect_decode(const m3::ModelConfig& config, const m3::ModelWeights& weights,
                   const Engine& engine, const std::vector<std::int32_t>& pages, std::int64_t start,
                   const std::vector<std::int32_t>& tokens,
                   const std::vector<std::vector<float>>& expected, int ranks) {
  auto dense = std::move(tp::make_thread_group(ranks)).value();
  std::vector<ml_group*> groups(static_cast<std::size_t>(ranks), nullptr);
  if (ranks > 1) {
    ASSERT_EQ(ml_group_create_threads(ranks, 60, groups.data()), ML_OK);
  }
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(ranks));
  std::vector<std::string> failures(static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      const auto run = [&]() -> Status {
        ML_ASSIGN_OR_RETURN(const m3::RankShape shape, m3::rank_shape(config, r, ranks));
        ML_ASSIGN_OR_RETURN(const auto pool,
                            cpu::CachePool::create(m3::rank_config(config, shape),
                                                   engine.pool->options(), engine.pool->pages()));
        copy_heads(config, shape, *engine.pool, *pool);
        FusedModel::Options options;
        options.rank = r;
        options.ranks = ranks;
        options.dense_group = ranks > 1 ? dense[static_cast<std::size_t>(r)].get() : nullptr;
        options.group = groups[static_cast<std::size_t>(r)];
        ML_ASSIGN_OR_RETURN(const auto fused, FusedModel::create(config, weights, *pool, options));
        std::vector<float> logits;
        for (std::size_t i = 0; i < tokens.size(); ++i) {
          const cpu::StepSequence s =
              sequence({&tokens[i], 1}, start + static_cast<std::int64_t>(i), pages);
          ML_RETURN_IF_ERROR(fused->step({&s, 1}, logits));
          if (std::memcmp(logits.data(), expected[i].data(), logits.size() * 4) != 0) {
            return {Code::kInternal, "step " + std::to_string(i), "logits differ"};
          }
        }
        return fused->close();
      };
      const Status status = run();
      if (!status.ok()) failures[static_cast<std::size_t>(r)] = status.to_string();
      static_cast<void>(dense[static_cast<std::size_t>(r)]->close());
      if (ranks > 1) ml_group_close(groups[static_cast<std::size_t>(r)]);
    });
  }
  for (std::thread& t : threads) t.join();
  for (int r = 0; r < ranks; ++r) {
    EXPECT_EQ(failures[static_cast<std::size_t>(r)], "") << "rank " << r << " of " << ranks;
    ml_group_destroy(groups[static_cast<std::size_t>(r)]);
  }
}

// The embedded model at a context beyond topk_blocks x block_size = 512.
TEST(LibraryDecode, NanoEqualsNativeAtEveryTpSize) {
  const auto model = engine::open_model(std::string(MONOLAYER_SOURCE_DIR) + "/assets/nano");
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  const auto weights = engine::load_weights(**model);
  ASSERT_TRUE(weights.ok()) << weights.status().to_string();
  const m3::ModelConfig& config = (*model)->config;
  for (const bool fp8 : {false, true}) {
    EngineOptions options;
    options.pool_pages = 6;
    if (fp8) options.cache = fp8_cache();
    Engine engine(config, *weights, options);
    const std::vector<std::int32_t> pages = page_table(700);
    const std::vector<std::int32_t> prompt = random_tokens(config, 600, 3);
    std::vector<float> logits;
    ASSERT_TRUE(prefill(engine, prompt, pages, logits).ok());
    Engine start(config, *weights, options);
    std::memcpy(start.pool->memory(), engine.pool->memory(), engine.pool->bytes());
    std::vector<std::int32_t> tokens;
    std::vector<std::vector<float>> expected;
    for (std::int64_t i = 0; i < 12; ++i) {
      tokens.push_back(greedy(logits));
      const cpu::StepSequence s = sequence({&tokens.back(), 1}, 600 + i, pages);
      ASSERT_TRUE(engine.native->step({&s, 1}, *engine.pool, logits, nullptr).ok());
      expected.push_back(logits);
    }
    for (const int ranks : {1, 2, 4}) {
      expect_decode(config, *weights, start, pages, 600, tokens, expected, ranks);
    }
  }
}

// The shared expert's weight, the softmax scale and the angles are the caller's.
TEST(LibraryDecode, SharedWeightScaleAndAnglesOfTheCaller) {
  m3::ModelConfig config = tiny_config();
  config.shared_weight = 1.75F;
  config.softmax_scale = 0.4F;
  const RandomModel model(config, {}, 12);
  const RotaryBytes bf16(config, DType::kBF16, 1), f32(config, DType::kF32, 2);
  std::vector<std::vector<float>> last;
  for (const RotaryBytes* rotary : {&bf16, &f32}) {
    EngineOptions options;
    options.pool_pages = 2;
    options.rotary = rotary->table();
    Engine engine(model.config, model.weights, options);
    const std::vector<std::int32_t> tokens = random_tokens(config, 140, 3), pages = page_table(140);
    std::vector<float> expected, logits;
    ASSERT_TRUE(prefill(engine, tokens, pages, expected).ok());
    FusedModel::Options fused_options;
    fused_options.rotary = rotary->table();
    auto fused = FusedModel::create(model.config, model.weights, *engine.pool, fused_options);
    ASSERT_TRUE(fused.ok()) << fused.status().to_string();
    for (std::size_t at = 0; at < 140; at += 4) {
      const cpu::StepSequence s =
          sequence(std::span(tokens).subspan(at, 4), static_cast<std::int64_t>(at), pages);
      const Status status = (*fused)->step({&s, 1}, logits);
      ASSERT_TRUE(status.ok()) << status.to_string();
    }
    EXPECT_EQ(expected, logits);
    ASSERT_TRUE((*fused)->close().ok());
    last.push_back(logits);
  }
  EXPECT_NE(last[0], last[1]);
}

// A request of a serving engine in miniature: its tokens, how many of them are in the cache, its
// pages, and what an undisturbed run makes of it.
struct Request {
  std::vector<std::int32_t> tokens, pages;
  std::int64_t cached = 0;
  std::size_t prompt = 0;
  std::vector<std::int32_t> truth;  // prompt and continuation
};

// Both paths over one pool.
class Serving {
 public:
  explicit Serving(const std::vector<std::int64_t>& prompts, std::int64_t generated = 40)
      : model_(tiny_config(), formats(), 11) {
    EngineOptions options;
    options.pool_pages = static_cast<std::int64_t>(prompts.size()) * 8;
    options.cache = fp8_cache();
    engine_ = std::make_unique<Engine>(model_.config, model_.weights, options);
    for (std::size_t r = 0; r < prompts.size(); ++r) {
      Request q;
      q.tokens = random_tokens(model_.config, prompts[r], 100 + r);
      q.prompt = q.tokens.size();
      q.pages = page_table(prompts[r] + generated + 8, static_cast<std::int32_t>(r),
                           static_cast<std::int32_t>(prompts.size()));
      undisturbed(q, options, generated);
      requests.push_back(q);
    }
    FusedModel::Options fused;
    auto made = FusedModel::create(model_.config, model_.weights, *engine_->pool, fused);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    fused_ = std::move(made).value();
    dispatch::DeploymentFacts facts = dispatch::deployment_facts(model_.config, model_.weights, {});
    dispatcher_ = std::make_unique<dispatch::Dispatcher>(
        std::move(dispatch::Dispatcher::create(facts, dispatch::PathChoice::kAuto)).value());
  }
  ~Serving() { EXPECT_TRUE(fused_->close().ok()); }

  // One step of these requests, each with `drafts` draft tokens of which `accepted` are right. The
  // dispatcher chooses the path unless one is forced; returns it.
  dispatch::Path step(const std::vector<std::size_t>& which, std::int64_t drafts = 0,
                      std::int64_t accepted = 0, std::int64_t padded_rows = 0,
                      int force = -1 /* 0 native, 1 mono */) {
    std::vector<std::vector<std::int32_t>> rows;
    std::vector<cpu::StepSequence> sequences;
    for (const std::size_t r : which) {
      Request& q = requests[r];
      std::vector<std::int32_t> tokens(q.tokens.begin() + q.cached, q.tokens.end());
      for (std::int64_t d = 0; d < drafts; ++d) {
        const std::int32_t truth = q.truth[q.tokens.size() + static_cast<std::size_t>(d)];
        const auto vocab = static_cast<std::int32_t>(model_.config.vocab_size);
        tokens.push_back(d < accepted ? truth : (truth + 1) % vocab);
      }
      rows.push_back(std::move(tokens));
    }
    for (std::size_t i = 0; i < which.size(); ++i) {
      const Request& q = requests[which[i]];
      sequences.push_back(sequence(rows[i], q.cached, q.pages, drafts + 1));
    }
    const dispatch::Path path =
        force < 0 ? decide(sequences, padded_rows)
                  : (force == 1 ? dispatch::Path::kMono : dispatch::Path::kNative);
    std::vector<float> logits;
    const Status status = path == dispatch::Path::kMono
                              ? fused_->step(sequences, logits, padded_rows)
                              : engine_->native->step(sequences, *engine_->pool, logits, nullptr);
    EXPECT_TRUE(status.ok()) << status.to_string();
    const auto vocab = static_cast<std::size_t>(model_.config.vocab_size);
    std::size_t at = 0;
    for (const std::size_t r : which) {
      Request& q = requests[r];
      const std::size_t before = q.tokens.size();
      for (std::int64_t d = 0; d <= drafts; ++d, at += vocab) {
        if (d > accepted) continue;
        q.tokens.push_back(greedy(std::span(logits).subspan(at, vocab)));
      }
      q.cached = static_cast<std::int64_t>(before) + accepted;
      for (std::size_t i = before; i < q.tokens.size(); ++i) {
        EXPECT_EQ(q.tokens[i], q.truth[i]) << "request " << r << ", token " << i;
      }
    }
    return path;
  }

  // All prompts but their last token into the cache, natively.
  void prefill_all() {
    for (Request& q : requests) prefill_one(q);
  }

  // The request loses its pages, whose bytes become NaN patterns, and gets others in another order;
  // what it had is computed again, in chunks of 5 tokens.
  void preempt_and_resume(std::size_t r, bool mono) {
    Request& q = requests[r];
    poison_tail(model_.config, *engine_->pool, q.pages, 0, std::numeric_limits<float>::quiet_NaN());
    std::reverse(q.pages.begin(), q.pages.end());
    const std::int64_t target = q.cached;
    for (q.cached = 0; q.cached < target;) {
      const std::int64_t n = std::min<std::int64_t>(5, target - q.cached);
      const cpu::StepSequence s =
          sequence({q.tokens.data() + q.cached, static_cast<std::size_t>(n)}, q.cached, q.pages);
      std::vector<float> logits;
      const Status status = mono ? fused_->step({&s, 1}, logits)
                                 : engine_->native->step({&s, 1}, *engine_->pool, logits, nullptr);
      ASSERT_TRUE(status.ok()) << status.to_string();
      q.cached += n;
    }
  }

  std::vector<Request> requests;

 private:
  static ModelFormats formats() {
    ModelFormats f;
    f.attention = WeightFormat::kFP8PerChannel;
    f.experts = f.shared = f.dense = WeightFormat::kMXFP4;
    return f;
  }

  void prefill_one(Request& q) {
    std::vector<float> logits;
    const std::span<const std::int32_t> all(q.tokens);
    ASSERT_TRUE(prefill(*engine_, all.first(q.prompt - 1), q.pages, logits).ok());
    q.cached = static_cast<std::int64_t>(q.prompt) - 1;
  }

  // The request alone on the native chain with caches of its own.
  void undisturbed(Request& q, const EngineOptions& options, std::int64_t generated) {
    Engine alone(model_.config, model_.weights, options);
    std::vector<float> logits;
    ASSERT_TRUE(prefill(alone, q.tokens, q.pages, logits).ok());
    q.truth = q.tokens;
    for (std::int64_t i = 0; i < generated; ++i) {
      q.truth.push_back(greedy(logits));
      const cpu::StepSequence s =
          sequence({&q.truth.back(), 1}, static_cast<std::int64_t>(q.truth.size()) - 1, q.pages);
      ASSERT_TRUE(alone.native->step({&s, 1}, *alone.pool, logits, nullptr).ok());
    }
  }

  dispatch::Path decide(std::span<const cpu::StepSequence> sequences, std::int64_t padded) {
    using dispatch::scheduled;
    std::int64_t rows = 0, longest = 0, context = 0, width = 0;
    for (const cpu::StepSequence& s : sequences) {
      const auto n = static_cast<std::int64_t>(s.tokens.size());
      rows += n;
      longest = std::max(longest, n);
      context = std::max(context, s.start + n);
      width = std::max(width, static_cast<std::int64_t>(s.pages.size()));
    }
    dispatch::StepFacts facts;
    facts.rows = scheduled(rows + padded);
    facts.query_rows = scheduled(rows);
    facts.requests = facts.index_requests = scheduled(static_cast<std::int64_t>(sequences.size()));
    facts.longest_query = scheduled(longest);
    facts.longest_context = scheduled(context);
    facts.max_context = scheduled(engine_->pool->pages() * 128);
    facts.table_width = scheduled(width);
    return dispatcher_->decide(facts).path;
  }

  RandomModel model_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<FusedModel> fused_;
  std::unique_ptr<dispatch::Dispatcher> dispatcher_;
};

std::vector<std::size_t> first(std::size_t n) {
  std::vector<std::size_t> all(n);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// Contexts beyond topk_blocks x block_size = 64 tokens, and across a page border at 128.
const std::vector<std::int64_t> kPrompts = {90, 121, 150, 70, 126, 200, 65, 110};

TEST(LibraryDecode, TL8LargeAndSmallStepsKeepCaches) {
  using dispatch::Path;
  Serving s(kPrompts);
  s.prefill_all();
  // 8 requests with 3 drafts are 32 rows: native. The others fit the fused path.
  EXPECT_EQ(s.step(first(8), 3, 2), Path::kNative);
  EXPECT_EQ(s.step(first(4)), Path::kMono);
  EXPECT_EQ(s.step(first(8), 3, 1), Path::kNative);
  EXPECT_EQ(s.step(first(4), 3, 3), Path::kMono);
  EXPECT_EQ(s.step(first(4), 0, 0, 12), Path::kMono);
  EXPECT_EQ(s.step({6}), Path::kMono);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(s.step(first(8)), Path::kMono);
    EXPECT_EQ(s.step(first(4), 3, 0), Path::kMono);
    EXPECT_EQ(s.step(first(8), 3, 3), Path::kNative);
  }
}

TEST(LibraryDecode, TE3NativeAndFusedAlternateInMidRequest) {
  Serving s({90, 126, 200});
  s.prefill_all();
  for (int i = 0; i < 32; ++i) s.step(first(3), 0, 0, 0, i / 3 % 2);
}

TEST(LibraryDecode, TE3DraftsCrossPageBorders) {
  for (std::int64_t accepted = 0; accepted < 4; ++accepted) {
    Serving s({124, 125, 126, 127});
    s.prefill_all();
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(s.step(first(4), 3, accepted), dispatch::Path::kMono);
      s.step(first(4), 3, 3 - accepted, 0, 0);  // and natively
    }
  }
}

TEST(LibraryDecode, TE3PreemptedRequestsResume) {
  for (const bool mono : {false, true}) {
    Serving s({90, 130, 200});
    s.prefill_all();
    for (int i = 0; i < 4; ++i) s.step(first(3), 3, 2);
    s.preempt_and_resume(1, mono);
    for (int i = 0; i < 4; ++i) s.step(first(3), 3, i % 4);
    s.preempt_and_resume(2, !mono);
    for (int i = 0; i < 8; ++i) s.step(first(3));
  }
}

}  // namespace
}  // namespace monolayer::test
