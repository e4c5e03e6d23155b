// The library from C++: the same tiny model on one rank and on groups of threads, all with the same
// bits.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include <monolayer/monolayer.hpp>

#include "tiny_model.h"

namespace ml = monolayer::api;

namespace {

// One rank's share of the whole model's layer, as views.
ml::LayerSpec share(const ml_layer_spec& whole, std::int64_t rank, std::int64_t ranks) {
  ml::LayerSpec s;
  static_cast<ml_layer_spec&>(s) = whole;
  const auto rows = [&](const ml_matrix& m, std::int64_t count, std::int64_t index) {
    ml_matrix out{};
    if (ml_slice_rows(&m, index * count, (index + 1) * count, &out) != ML_OK) std::abort();
    return out;
  };
  const auto columns = [&](ml_matrix m, int axis) {
    for (ml_tensor* t : {&m.weight, &m.scale}) {
      if (t->data == nullptr) continue;
      const std::int64_t width = t->shape[axis] / ranks;
      const std::int64_t unit = t->dtype == ML_BF16 ? 2 : 1;
      t->shape[axis] = width;
      t->data = static_cast<char*>(t->data) + rank * width * unit;
    }
    return m;
  };
  const std::int64_t kv = ranks > kKvHeads ? 1 : kKvHeads / ranks;
  const std::int64_t kv_index = rank * kKvHeads / ranks / kv;
  s.q = rows(whole.q, kHeads / ranks * kHeadDim, rank);
  s.k = rows(whole.k, kv * kHeadDim, kv_index);
  s.v = rows(whole.v, kv * kHeadDim, kv_index);
  s.index_q = rows(whole.index_q, kv * kIndexDim, kv_index);
  s.o = columns(whole.o, 1);
  s.stacked.gate = rows(whole.stacked.gate, kWidth / ranks, rank);
  s.stacked.up = rows(whole.stacked.up, kWidth / ranks, rank);
  s.stacked.down = columns(whole.stacked.down, 2);
  return s;
}

bool failed(const char* what, const ml::Status& status) {
  if (status.ok()) return false;
  std::fprintf(stderr, "%s: %s\n", what, status.message().c_str());
  return true;
}

// Checksum of rank 0's outputs; 0 on failure.
std::uint64_t decode(const std::vector<ml_layer_spec>& whole, std::int32_t rank, std::int32_t ranks,
                     ml_group* group) {
  tiny_arena arena{};
  const std::int64_t kv = ranks > kKvHeads ? 1 : kKvHeads / ranks;
  ml::Model model;
  static_cast<ml_model&>(model) = tiny_model_constants();
  std::vector<ml::LayerSpec> layers;
  std::vector<ml::CacheSpec> caches(kLayers);
  for (std::int32_t i = 0; i < kLayers; ++i) {
    layers.push_back(share(whole[static_cast<std::size_t>(i)], rank, ranks));
    static_cast<ml_cache_spec&>(caches[static_cast<std::size_t>(i)]) = tiny_cache(&arena, i, kv);
  }
  ml::TpContext context;
  context.rank = rank;
  context.tp_size = ranks;
  context.worker_threads = 1;
  context.group = group;
  auto mono = ml::Mono::create(model, layers, caches, context);
  if (failed("create", mono.status()) || !mono.ok()) return 0;
  tiny_step step{};
  step.hidden = static_cast<std::uint16_t*>(tiny_alloc(&arena, kTinyRows * kHidden * 2));
  step.residual = static_cast<std::uint16_t*>(tiny_alloc(&arena, kTinyRows * kHidden * 2));
  std::uint64_t sum = 0xcbf29ce484222325ULL;
  for (std::int32_t i = 0; i < kTinySteps; ++i) {
    tiny_next_step(&step, i);
    ml::StepMetadata md;
    static_cast<ml_step&>(md) = step.md;
    if (failed("prepare_step", mono->prepare_step(md))) return 0;
    const std::int64_t rows = md.token_count;
    ml::Activations out;
    if (failed("forward_layers",
               mono->forward_layers(kFirstLayer, kLayers,
                                    ml::tensor(step.hidden, ML_BF16, {rows, kHidden}),
                                    ml::tensor(step.residual, ML_BF16, {rows, kHidden}),
                                    ml::tensor(step.positions, ML_I64, {rows}), out))) {
      return 0;
    }
    sum = tiny_fold(sum, out.hidden.data, static_cast<std::size_t>(rows * kHidden * 2));
    sum = tiny_fold(sum, out.residual.data, static_cast<std::size_t>(rows * kHidden * 2));
  }
  if (failed("close", mono->close())) return 0;
  tiny_free(&arena);
  return sum;
}

// The same on two processes that share nothing but a token.
bool processes_agree(const std::vector<ml_layer_spec>& whole, std::uint64_t expected) {
  const std::string token = "stranger-" + std::to_string(getpid());
  const pid_t child = fork();
  const std::int32_t rank = child == 0 ? 1 : 0;
  bool good = false;
  {
    auto group = ml::Group::meet(token, rank, 2, 60);
    if (group.ok()) {
      good = decode(whole, rank, 2, group->handle()) == expected;
      good &= !failed("group close", group->close());
    } else {
      failed("meet", group.status());
    }
  }
  if (child == 0) _exit(good ? 0 : 1);
  int status = 1;
  return waitpid(child, &status, 0) == child && status == 0 && good;
}

}  // namespace

int main() {
  tiny_arena arena{};
  std::vector<ml_layer_spec> whole;
  whole.reserve(kLayers);
  for (std::int32_t i = 0; i < kLayers; ++i) whole.push_back(tiny_layer(&arena, i));
  const std::uint64_t one = decode(whole, 0, 1, nullptr);
  if (one == 0) return 1;
  for (const std::int32_t ranks : {2, 4, 8}) {
    auto groups = ml::Group::threads(ranks, 60);
    if (failed("group", groups.status()) || !groups.ok()) return 1;
    std::vector<std::uint64_t> sums(static_cast<std::size_t>(ranks));
    std::vector<std::thread> threads;
    threads.reserve(static_cast<std::size_t>(ranks));
    for (std::int32_t r = 0; r < ranks; ++r) {
      threads.emplace_back([&, r] {
        ml::Group& group = (*groups)[static_cast<std::size_t>(r)];
        sums[static_cast<std::size_t>(r)] = decode(whole, r, ranks, group.handle());
        failed("group close", group.close());
      });
    }
    for (std::thread& t : threads) t.join();
    for (const std::uint64_t sum : sums) {
      if (sum == one) continue;
      std::fprintf(stderr, "%d ranks: checksum %016llx, one rank has %016llx\n", ranks,
                   static_cast<unsigned long long>(sum), static_cast<unsigned long long>(one));
      return 1;
    }
  }
  if (!processes_agree(whole, one)) {
    std::fprintf(stderr, "two processes do not agree with one rank\n");
    return 1;
  }
  tiny_free(&arena);
  std::printf("checksum %016llx\n", static_cast<unsigned long long>(one));
  return 0;
}
