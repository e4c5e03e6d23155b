#include "backend/cuda/bench.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <set>
#include <utility>

#include <cuda_runtime_api.h>

#include "backend/cpu/cache.h"
#include "backend/cuda/device_memory.h"
#include "backend/cuda/random_model.h"
#include "tp/group.h"
#include "tp/launcher.h"

namespace monolayer::cuda {
namespace {

constexpr std::int64_t kPage = m3::kPageTokens;
constexpr std::int64_t kReserve = std::int64_t{1} << 30;  // of the device, left alone

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Which path the next whole step takes.
class Toggle : public cpu::StepJudge {
 public:
  bool fused(const cpu::StepShape& /*shape*/, int /*rank*/) override { return fused_next; }
  std::string reason(const cpu::StepShape& /*shape*/) const override { return "timed"; }
  bool fused_next = false;
};

// Distinct experts of every layer of one step.
class ExpertCount : public m3::TraceSink {
 public:
  explicit ExpertCount(std::int64_t layers) : chosen_(static_cast<std::size_t>(layers)) {}
  void hidden(std::int64_t, std::int64_t, std::span<const float>) override {}
  void blocks(std::int64_t, std::int64_t, std::int64_t, std::span<const std::int32_t>,
              std::span<const float>) override {}
  void experts(std::int64_t layer, std::int64_t, std::span<const std::int32_t> ids,
               std::span<const float>) override {
    chosen_[static_cast<std::size_t>(layer)].insert(ids.begin(), ids.end());
  }
  std::int64_t total() const {
    std::int64_t count = 0;
    for (const auto& layer : chosen_) count += static_cast<std::int64_t>(layer.size());
    return count;
  }

 private:
  std::vector<std::set<std::int32_t>> chosen_;
};

// Sequences of `query` rows each, with pages of their own in a mixed order.
struct Batch {
  std::vector<std::vector<std::int32_t>> tables;
  std::vector<std::int32_t> tokens;
  std::vector<cpu::StepSequence> sequences;

  Batch(std::int64_t rows, std::int64_t query, std::int64_t context) {
    const std::int64_t pages = (context + kPage - 1) / kPage;
    const std::int64_t all = rows / query * pages;
    const std::int64_t step = all % 37 != 0 ? 37 : 1;  // prime to all of them
    for (std::int64_t r = 0; r < rows; ++r)
      tokens.push_back(static_cast<std::int32_t>(1000 + 7919 * r));
    for (std::int64_t s = 0; s < rows / query; ++s) {
      auto& table = tables.emplace_back();
      for (std::int64_t i = 0; i < pages; ++i)
        table.push_back(static_cast<std::int32_t>((s * pages + i) * step % all));
    }
    for (std::size_t s = 0; s < tables.size(); ++s) {
      const auto n = static_cast<std::size_t>(query);
      sequences.push_back({.tokens = std::span(tokens).subspan(s * n, n),
                           .start = context - query,
                           .pages = tables[s],
                           .logit_rows = query});
    }
  }
};

class Bench {
 public:
  // `group`: the ranks that run the same, or null.
  Bench(const BenchOptions& options, const m3::ModelConfig& config, tp::Group* group)
      : options_(options), config_(config), group_(group) {}

  Status open() {
    NativeOptions native;
    native.policy = &toggle_;
    native.deadline_ns = 2'000'000'000;
    RandomOptions random{.stand_in = options_.ranks, .f32_router = options_.f32_router};
    if (group_ == nullptr) {
      ML_ASSIGN_OR_RETURN(team_, cpu::ThreadTeam::create({}));
      native.team = team_.get();
    } else {
      native.group = group_;
      native.device = group_->rank();
      random.stand_in = 1;
    }
    ML_ASSIGN_OR_RETURN(chain_, create_random(config_, random, native));
    ML_ASSIGN_OR_RETURN(const std::int64_t own, chain_->free_bytes());
    ML_ASSIGN_OR_RETURN(const auto all, of_all_ranks(own));
    free_ = *std::min_element(all.begin(), all.end());
    return {};
  }
  Status close() {
    ML_RETURN_IF_ERROR(chain_->close());
    chain_.reset();
    return group_ != nullptr ? group_->close() : Status{};
  }
  Status setup(BenchSetup& setup) const {
    cudaDeviceProp properties{};
    ML_CUDA(cudaGetDeviceProperties(&properties, 0));
    setup.device = properties.name;
    setup.weight_bytes = chain_->weight_bytes().all;
    return {};
  }
  bool m3_kernels() const { return chain_->m3_kernels(); }
  std::string kernel_family() const { return chain_->kernel_family(); }

  // A pool for the largest of `rows` that fits.
  Status bind(std::int64_t context, const std::vector<std::int64_t>& rows) {
    const std::int64_t pages = (context + kPage - 1) / kPage;
    const std::int64_t room = (free_ - kReserve) / (pages * page_bytes());
    fitting_ = 0;
    for (const std::int64_t n : rows)
      fitting_ = std::max(fitting_, n / options_.query <= room ? n : 0);
    if (fitting_ == 0) return {};
    ML_ASSIGN_OR_RETURN(
        auto pool, cpu::CachePool::reserve(config_, caches(), fitting_ / options_.query * pages));
    pool.swap(pool_);  // the old one stays until the chain is bound to the new one
    return chain_->prepare(*pool_);
  }

  Result<BenchResult> time(std::int64_t rows, std::int64_t context) {
    BenchResult result;
    result.context = context;
    result.rows = rows;
    result.layers = options_.whole_step ? config_.num_layers : options_.sparse_layers;
    if (rows > fitting_) {
      result.skipped =
          "caches need " +
          std::to_string((context + kPage - 1) / kPage * (rows / options_.query) * page_bytes()) +
          " bytes beside the weights, " + std::to_string(free_ - kReserve) + " are free";
      return result;
    }
    const Batch batch(rows, options_.query, context);
    ML_RETURN_IF_ERROR(count_bytes(batch, result));
    ML_RETURN_IF_ERROR(time_device(batch, result));
    if (!options_.whole_step) return result;
    ML_RETURN_IF_ERROR(
        time_host(batch, true, result.native_wall_seconds, result.mono_wall_seconds));
    ML_RETURN_IF_ERROR(
        time_host(batch, false, result.native_logits_seconds, result.mono_logits_seconds));
    return result;
  }

 private:
  cpu::CacheOptions caches() const {
    cpu::CacheOptions caches = m3_caches();
    if (options_.kv == DType::kBF16) caches.k_scale = caches.v_scale = 1;
    if (options_.index == DType::kBF16) caches.index_scale = 1;
    caches.kv = options_.kv;
    caches.index = options_.index;
    return caches;
  }
  std::int64_t page_bytes() const { return chain_->page_bytes(caches()); }
  // One number of every rank, in rank order.
  template <typename T>
  Result<std::vector<T>> of_all_ranks(T own) {
    std::vector<T> all(group_ != nullptr ? static_cast<std::size_t>(group_->size()) : 1, own);
    if (group_ == nullptr) return all;
    ML_RETURN_IF_ERROR(group_->all_gather(std::as_bytes(std::span<const T>(&own, 1)),
                                          std::as_writable_bytes(std::span<T>(all))));
    return all;
  }
  std::vector<bool> paths() const {
    if (options_.path == "native") return {false};
    if (options_.path == "mono") return {true};
    return {false, true};
  }

  Status count_bytes(const Batch& batch, BenchResult& result) {
    ExpertCount count(config_.num_layers);
    std::vector<float> logits;
    toggle_.fused_next = false;
    ML_RETURN_IF_ERROR(chain_->step(batch.sequences, *pool_, logits, &count));
    const BenchChain::Bytes weights = chain_->weight_bytes();
    // Rows of a sequence read the same keys, values and index keys.
    const std::int64_t sequences = result.rows / options_.query, context = result.context;
    const std::int64_t kv_heads = std::max<std::int64_t>(1, config_.num_kv_heads / options_.ranks);
    const auto of = [](DType type) { return static_cast<std::int64_t>(dtype_size(type)); };
    const std::int64_t kv = 2 * kv_heads * config_.head_dim * of(options_.kv);  // of a token
    const std::int64_t attended = std::min(context, config_.topk_blocks * config_.block_size);
    const std::int64_t scored =
        context > attended ? context * config_.index_dim * of(options_.index) : 0;
    const std::int64_t sparse = options_.sparse_layers;
    result.experts = static_cast<double>(count.total()) / static_cast<double>(sparse);
    result.bytes = sparse * (weights.sparse_layer + sequences * (attended * kv + scored)) +
                   count.total() * weights.expert;
    if (options_.whole_step)
      result.bytes +=
          weights.head + options_.dense_layers * (weights.dense_layer + sequences * context * kv);
    return {};
  }

  Status time_device(const Batch& batch, BenchResult& result) {
    using Part = BenchChain::Part;
    const Part part = options_.whole_step ? Part::kStep : Part::kLayers;
    ML_RETURN_IF_ERROR(chain_->load(batch.sequences, *pool_));
    std::vector<double> seconds[2], streams;
    std::uint64_t first = 0;
    for (std::int64_t i = -1; i < options_.repeats; ++i) {  // the first pair warms up
      for (const bool fused : paths()) {
        if (group_ != nullptr) ML_RETURN_IF_ERROR(group_->barrier());
        ML_ASSIGN_OR_RETURN(const double own, chain_->time(part, fused));
        ML_ASSIGN_OR_RETURN(const auto taken, of_all_ranks(own));
        ML_ASSIGN_OR_RETURN(const std::uint64_t own_digest, chain_->digest());
        ML_ASSIGN_OR_RETURN(const auto digests, of_all_ranks(own_digest));
        for (const std::uint64_t digest : digests) {
          if (first == 0) first = digest;
          result.same_bits = result.same_bits && digest == first;
        }
        if (i >= 0) seconds[fused ? 1 : 0].push_back(*std::max_element(taken.begin(), taken.end()));
      }
      ML_ASSIGN_OR_RETURN(const double rate, chain_->stream());
      streams.push_back(rate);
    }
    result.stream_bytes_per_second = median(streams);
    const auto put = [&](const std::vector<double>& of, double& middle, double& best) {
      if (of.empty()) return;
      middle = median(of);
      best = *std::min_element(of.begin(), of.end());
    };
    put(seconds[0], result.native_seconds, result.native_best);
    put(seconds[1], result.mono_seconds, result.mono_best);
    return {};
  }

  Status time_host(const Batch& batch, bool greedy, double& native, double& mono) {
    using Clock = std::chrono::steady_clock;
    std::vector<cpu::StepSequence> sequences = batch.sequences;
    for (cpu::StepSequence& sequence : sequences) sequence.greedy = greedy;
    std::vector<double> seconds[2];
    std::vector<float> logits;
    for (std::int64_t i = -1; i < std::min<std::int64_t>(options_.repeats, 9); ++i) {
      for (const bool fused : paths()) {
        toggle_.fused_next = fused;
        if (group_ != nullptr) ML_RETURN_IF_ERROR(group_->barrier());
        const auto begin = Clock::now();
        ML_RETURN_IF_ERROR(chain_->step(sequences, *pool_, logits, nullptr));
        const std::chrono::duration<double> own = Clock::now() - begin;
        ML_ASSIGN_OR_RETURN(const auto taken, of_all_ranks(own.count()));
        if (i >= 0) seconds[fused ? 1 : 0].push_back(*std::max_element(taken.begin(), taken.end()));
      }
    }
    if (!seconds[0].empty()) native = median(seconds[0]);
    if (!seconds[1].empty()) mono = median(seconds[1]);
    return {};
  }

  const BenchOptions& options_;
  const m3::ModelConfig& config_;
  tp::Group* const group_;
  Toggle toggle_;
  std::unique_ptr<cpu::ThreadTeam> team_;  // as the engine has one
  std::unique_ptr<cpu::CachePool> pool_;
  std::unique_ptr<BenchChain> chain_;
  std::int64_t free_ = 0, fitting_ = 0;
};

}  // namespace

Status run_bench(const BenchOptions& options,
                 const std::function<void(const BenchSetup&)>& on_setup,
                 const std::function<void(const BenchResult&)>& on_result) {
  const m3::ModelConfig config = m3_config(options.dense_layers, options.sparse_layers);
  for (const std::int64_t n : options.rows) {
    if (n < 1 || n > 16)
      return {Code::kUnsupported, "--rows",
              std::to_string(n) + ", a timed step on cuda has 1 to 16"};
  }
  for (const std::int64_t n : options.contexts) {
    if (n < std::max<std::int64_t>(1, options.query) || n > config.max_positions)
      return {Code::kUnsupported, "--contexts",
              std::to_string(n) + ", the model takes 1 to " + std::to_string(config.max_positions)};
  }
  if (options.query < 1 || options.query > 16)
    return {Code::kUnsupported, "--query",
            std::to_string(options.query) + ", a sequence has 1 to 16 rows of a step"};
  for (const std::int64_t n : options.rows) {
    if (n % options.query != 0)
      return {Code::kUnsupported, "--rows",
              std::to_string(n) + ", not a multiple of the " + std::to_string(options.query) +
                  " rows of a sequence"};
  }
  const auto run = [&](tp::Group* group) -> Status {
    Bench bench(options, config, group);
    ML_RETURN_IF_ERROR(bench.open());
    const bool tells = group == nullptr || group->rank() == 0;
    BenchSetup setup;
    ML_RETURN_IF_ERROR(bench.setup(setup));
    bool told = false;
    for (const std::int64_t context : options.contexts) {
      ML_RETURN_IF_ERROR(bench.bind(context, options.rows));
      for (const std::int64_t rows : options.rows) {
        ML_ASSIGN_OR_RETURN(const BenchResult result, bench.time(rows, context));
        setup.m3_kernels = bench.m3_kernels();
        setup.kernel_family = bench.kernel_family();
        if (!tells) continue;
        if (!std::exchange(told, true)) on_setup(setup);
        on_result(result);
      }
    }
    return bench.close();
  };
  if (!options.every_rank) return run(nullptr);
  ML_ASSIGN_OR_RETURN(
      const auto statuses,
      tp::run_ranks({.ranks = options.ranks}, [&](tp::Group& group) { return run(&group); }));
  for (const Status& status : statuses) ML_RETURN_IF_ERROR(status);
  return {};
}

}  // namespace monolayer::cuda
