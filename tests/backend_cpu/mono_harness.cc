#include "backend_cpu/mono_harness.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <string>

#include "backend/cpu/cache_insert.h"
#include "backend/cpu/layer_views.h"
#include "backend/cpu/rank_slice.h"
#include "backend/cpu/row_stages.h"
#include "backend_cpu/rank_harness.h"
#include "core/dtype.h"

namespace monolayer::test {
namespace {

constexpr bf16_t kPaddingInput = 0x7fc0;  // NaN

std::int64_t end_of(const Request& request) { return request.start + request.rows; }
std::int64_t pages_of(const Request& request) {
  return (end_of(request) + m3::kPageTokens - 1) / m3::kPageTokens;
}

// BF16 values in [-1, 1), a pure function of the key.
void draw(std::uint64_t key, std::int64_t n, float* out) {
  std::uint64_t state = key * 0x9e3779b97f4a7c15ULL + 0x632be59bd9b4e019ULL;
  for (std::int64_t i = 0; i < n; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    out[i] = round_bf16(static_cast<float>(static_cast<std::int64_t>(state >> 40)) * 0x1p-23F - 1);
  }
}

std::uint64_t key_of(std::uint64_t seed, std::int64_t layer, std::int64_t what, std::size_t request,
                     std::int64_t position) {
  std::uint64_t key = seed;
  for (const std::uint64_t part :
       {static_cast<std::uint64_t>(layer), static_cast<std::uint64_t>(what),
        static_cast<std::uint64_t>(request), static_cast<std::uint64_t>(position)}) {
    key = (key ^ part) * 0xff51afd7ed558ccdULL;
    key ^= key >> 33;
  }
  return key;
}

std::byte* entry(const cpu::Matrix& page, std::int64_t token) {
  return static_cast<std::byte*>(const_cast<void*>(page.data)) + token * page.row_bytes;
}

// f(page, entry bytes, what, layer) for K, V of every local head and the index key of a position.
template <typename F>
void each_entry(const m3::ModelConfig& c, std::int64_t first_kv_head, const Pool& p,
                std::size_t request, std::int64_t position, const F& f) {
  const auto at = static_cast<std::size_t>(position / m3::kPageTokens);
  const std::int64_t token = position % m3::kPageTokens;
  for (std::int64_t layer = 0; layer < c.num_layers; ++layer) {
    for (std::int64_t g = 0; g < c.num_kv_heads; ++g) {
      const std::int64_t what = 2 * (first_kv_head + g);
      f(layer, what, entry(p.pool->k_page(layer, p.main[request][at], g), token), c.head_dim,
        false);
      f(layer, what + 1, entry(p.pool->v_page(layer, p.main[request][at], g), token), c.head_dim,
        false);
    }
    if (p.pool->layer(layer).index == nullptr) continue;
    f(layer, 1000, entry(p.pool->index_page(layer, p.index[request][at]), token), c.index_dim,
      true);
  }
}

std::vector<float> stream_of(const std::vector<bf16_t>& hidden,
                             const std::vector<bf16_t>& residual) {
  std::vector<float> out(hidden.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = round_bf16(bf16_to_f32(residual[i]) + bf16_to_f32(hidden[i]));
  }
  return out;
}

struct NativeStep {
  Recorder trace;
  std::vector<float> logits;
  std::vector<std::byte> entries;
};

// Everything of one rank that a mono executor is run with.
class Rank {
 public:
  Rank(const RandomModel& model, const MonoCase& c, int rank, tp::Group& group)
      : model_(model), case_(c), group_(group) {
    shape_ = m3::rank_shape(model.config, rank, c.ranks).value();
    local_ = m3::rank_config(model.config, shape_);
    view_ = cpu::slice_model(cpu::view_model(model.config, model.weights).value(), model.config,
                             shape_);
    team_ = cpu::ThreadTeam::create({.threads = c.threads, .pin = false}).value();
    for (const Request& request : c.requests) {
      tokens_.push_back(random_tokens(model.config, request.rows, c.seed + tokens_.size()));
    }
  }

  Pool pool(std::uint64_t shuffle, bool split) const {
    return make_pool(local_, shape_.first_kv_head, case_.cache, case_.requests, case_.seed, shuffle,
                     split, case_.junk);
  }

  NativeStep native() {
    NativeStep out;
    const Pool p = pool(1, false);
    auto chain = cpu::Native::create(model_.config, model_.weights, *team_,
                                     {.rotary = case_.rotary, .group = &group_});
    EXPECT_TRUE(chain.ok()) << chain.status().to_string();
    std::vector<cpu::StepSequence> sequences;
    for (std::size_t i = 0; i < case_.requests.size(); ++i) {
      sequences.push_back({tokens_[i], case_.requests[i].start, p.main[i], case_.requests[i].rows});
    }
    const Status status = (*chain)->step(sequences, *p.pool, out.logits, &out.trace);
    EXPECT_TRUE(status.ok()) << status.to_string();
    out.entries = new_entries(local_, p, case_.requests);
    return out;
  }

  void mono(const NativeStep& native, const cpu::MonoOptions& options, bool layer_by_layer,
            const char* what) {
    const Pool p = pool(2, true);
    mono::ExecutorConfig config = cpu::executor_config(local_, view_, p.pool->caches());
    config.group = &group_;
    config.rotary = case_.rotary;
    auto made = cpu::MonoExecutor::create(config, team_.get(), options);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    cpu::MonoExecutor& executor = **made;
    const auto rows = step_rows(p, case_.requests, case_.padding);
    const Status prepared = executor.prepare(rows);
    ASSERT_TRUE(prepared.ok()) << prepared.to_string();

    const auto n = static_cast<std::size_t>(local_.hidden_size);
    std::vector<bf16_t> hidden(rows.size() * n, kPaddingInput);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      if (!rows[r].live) continue;
      const auto& embedded = native.trace.hidden_rows.at({0, rows[r].position});
      for (std::size_t i = 0; i < n; ++i) hidden[r * n + i] = f32_to_bf16(embedded[i]);
    }
    std::vector<bf16_t> residual(rows.size() * n, kPaddingInput);
    const std::int64_t step = layer_by_layer ? 1 : local_.num_layers;
    for (std::int64_t layer = 0; layer < local_.num_layers; layer += step) {
      const Status status =
          executor.run_layers(layer, step, hidden.data(), layer == 0 ? nullptr : residual.data(),
                              hidden.data(), residual.data());
      ASSERT_TRUE(status.ok()) << what << ": " << status.to_string();
      compare_stream(native, rows, layer + step, stream_of(hidden, residual), what);
      compare_selections(native, rows, layer + step - 1, executor.selections(), what);
      for (std::size_t r = 0; r < rows.size(); ++r) {
        if (rows[r].live) continue;
        ASSERT_TRUE(
            std::all_of(&hidden[r * n], &hidden[r * n] + n, [](bf16_t x) { return x == 0; }))
            << what << ": padding row " << r;
        std::fill_n(&hidden[r * n], n, kPaddingInput);
        std::fill_n(&residual[r * n], n, kPaddingInput);
      }
    }
    ASSERT_EQ(native.entries, new_entries(local_, p, case_.requests)) << what << ": cache entries";
    const Status closed = executor.close();
    ASSERT_TRUE(closed.ok()) << closed.to_string();
  }

 private:
  void compare_stream(const NativeStep& native, const std::vector<mono::StepRow>& rows,
                      std::int64_t layer, const std::vector<float>& stream, const char* what) {
    const auto n = static_cast<std::size_t>(local_.hidden_size);
    const cpu::Tiles& tiles = *cpu::find_tiles("");
    std::vector<float> values(n);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      if (!rows[r].live) continue;
      std::copy_n(&stream[r * n], n, values.begin());
      if (layer == local_.num_layers) {  // the trace shows it after the final norm
        tiles.scale_by_norm(
            &stream[r * n],
            cpu::norm_factor(tiles, &stream[r * n], local_.hidden_size, local_.rms_eps),
            view_.final_norm, local_.hidden_size, values.data());
      }
      const auto& expected = native.trace.hidden_rows.at({layer, rows[r].position});
      for (std::size_t i = 0; i < n; ++i) {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(expected[i]),
                  std::bit_cast<std::uint32_t>(values[i]))
            << what << ": stream entering layer " << layer << ", row " << r << " of " << rows.size()
            << ", position " << rows[r].position << ", column " << i;
      }
    }
  }

  void compare_selections(const NativeStep& native, const std::vector<mono::StepRow>& rows,
                          std::int64_t layer, std::span<const std::int32_t> ids, const char* what) {
    if (!local_.layers[static_cast<std::size_t>(layer)].sparse_attention) {
      ASSERT_TRUE(ids.empty());
      return;
    }
    const auto k = static_cast<std::size_t>(local_.topk_blocks);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      for (std::int64_t h = 0; h < local_.index_heads; ++h) {
        const auto mine = ids.subspan(
            (r * static_cast<std::size_t>(local_.index_heads) + static_cast<std::size_t>(h)) * k,
            k);
        std::vector<std::int32_t> expected;
        if (rows[r].live) expected = native.trace.selections.at({layer, rows[r].position, h});
        expected.resize(k, -1);
        ASSERT_EQ(expected, std::vector<std::int32_t>(mine.begin(), mine.end()))
            << what << ": blocks of layer " << layer << ", row " << r << ", head " << h;
      }
    }
  }

  const RandomModel& model_;
  const MonoCase& case_;
  tp::Group& group_;
  m3::RankShape shape_;
  m3::ModelConfig local_;
  cpu::ModelView view_;
  std::unique_ptr<cpu::ThreadTeam> team_;
  std::vector<std::vector<std::int32_t>> tokens_;
};

}  // namespace

m3::ModelConfig eight_way_config() {
  m3::ModelConfig c = tiny_config();
  c.num_heads = 8;
  c.num_kv_heads = 4;
  c.index_heads = 4;
  c.dense_width = 256;
  c.expert_width = 256;
  c.shared_width = 256;
  c.vocab_size = 160;
  return c;
}

Pool make_pool(const m3::ModelConfig& local, std::int64_t first_kv_head,
               const cpu::CacheOptions& options, const std::vector<Request>& requests,
               std::uint64_t seed, std::uint64_t shuffle, bool split, int junk) {
  Pool out;
  std::int64_t pages = 0;
  for (const Request& request : requests) pages += pages_of(request);
  const std::int64_t spare = 3;  // pages nobody may touch
  out.pool = cpu::CachePool::create(local, options, pages + spare).value();
  std::memset(out.pool->memory(), junk, out.pool->bytes());
  std::mt19937_64 random(shuffle);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(pages + spare));
  std::iota(ids.begin(), ids.end(), 0);
  const auto deal = [&](std::vector<std::vector<std::int32_t>>& tables) {
    std::shuffle(ids.begin(), ids.end(), random);
    auto next = ids.begin();
    for (const Request& request : requests) {
      tables.emplace_back(next, next + pages_of(request));
      next += pages_of(request);
    }
  };
  deal(out.main);
  if (split) {
    deal(out.index);
  } else {
    out.index = out.main;
  }
  for (auto* tables : {&out.main, &out.index}) {
    for (auto& table : *tables) table.insert(table.end(), {-1, 0x7fffffff});  // nobody may look
  }
  std::vector<float> values(static_cast<std::size_t>(std::max(local.head_dim, local.index_dim)));
  for (std::size_t i = 0; i < requests.size(); ++i) {
    for (std::int64_t p = 0; p < requests[i].start; ++p) {
      each_entry(
          local, first_kv_head, out, i, p,
          [&](std::int64_t layer, std::int64_t what, std::byte* at, std::int64_t n, bool index) {
            draw(key_of(seed, layer, what, static_cast<std::size_t>(requests[i].start), p), n,
                 values.data());
            cpu::store_entry(index ? options.index : options.kv,
                             index           ? options.index_scale
                             : what % 2 == 0 ? options.k_scale
                                             : options.v_scale,
                             values.data(), n, at);
          });
    }
  }
  return out;
}

std::vector<std::byte> new_entries(const m3::ModelConfig& local, const Pool& pool,
                                   const std::vector<Request>& requests) {
  std::vector<std::byte> out;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    for (std::int64_t p = requests[i].start; p < end_of(requests[i]); ++p) {
      each_entry(local, 0, pool, i, p,
                 [&](std::int64_t, std::int64_t, const std::byte* at, std::int64_t n, bool index) {
                   const DType type = index ? pool.pool->options().index : pool.pool->options().kv;
                   out.insert(out.end(), at, at + n * static_cast<std::int64_t>(dtype_size(type)));
                 });
    }
  }
  return out;
}

std::vector<mono::StepRow> step_rows(const Pool& pool, const std::vector<Request>& requests,
                                     const std::vector<std::int64_t>& padding) {
  std::vector<mono::StepRow> rows;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    for (std::int64_t p = requests[i].start; p < end_of(requests[i]); ++p) {
      const auto at = static_cast<std::size_t>(p / m3::kPageTokens);
      const std::int64_t token = p % m3::kPageTokens;
      rows.push_back({.live = true,
                      .request = static_cast<std::int32_t>(i),
                      .position = p,
                      .main_table = pool.main[i].data(),
                      .index_table = pool.index[i].data(),
                      .main_slot = pool.main[i][at] * m3::kPageTokens + token,
                      .index_slot = pool.index[i][at] * m3::kPageTokens + token});
    }
  }
  for (const std::int64_t at : padding) {
    rows.insert(rows.begin() + at, {.live = false, .request = -7, .position = -1});
  }
  return rows;
}

std::vector<bf16_t> step_inputs(const m3::ModelConfig& config,
                                const std::vector<mono::StepRow>& rows, std::uint64_t seed) {
  const auto n = static_cast<std::size_t>(config.hidden_size);
  std::vector<bf16_t> out(rows.size() * n, kPaddingInput);
  std::vector<float> values(n);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (!rows[r].live) continue;
    draw(key_of(seed, 7, 7, 7, rows[r].position), config.hidden_size, values.data());
    for (std::size_t i = 0; i < n; ++i) out[r * n + i] = f32_to_bf16(values[i]);
  }
  return out;
}

void compare_paths(const RandomModel& model, const MonoCase& c) {
  on_ranks(c.ranks, [&](int rank, tp::Group& group) {
    Rank one(model, c, rank, group);
    const NativeStep native = one.native();
    if (testing::Test::HasFatalFailure()) return;
    one.mono(native, c.options, true, "mono, layer by layer");
    one.mono(native, c.options, false, "mono, all layers in one run");
    if (!c.serial) return;
    cpu::MonoOptions serial;
    serial.serial = true;
    serial.serial_workers = c.serial_workers;
    one.mono(native, serial, true, "serial interpreter");
  });
}

}  // namespace monolayer::test
