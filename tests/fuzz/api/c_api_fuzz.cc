// The C interface with structs, steps and orders of calls that bytes decide: every call returns a
// code with a line of text, refused calls change nothing, and no memory outside what the structs
// name is touched. Only pointers tell the truth: each names memory of the original size or nothing.
#include <malloc.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "../../package/tiny_model.h"
#include "../fuzz_check.h"

namespace {

class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : at_(data), end_(data + size) {}
  bool empty() const { return at_ == end_; }
  unsigned next() { return empty() ? 0U : *at_++; }
  unsigned next16() { return next() | next() << 8; }

 private:
  const std::uint8_t *at_, *end_;
};

// Memory blocks that tensors may lie in.
struct Block {
  std::uintptr_t begin, end;
};

// What every input starts from; weights are made once.
struct Tiny {
  Tiny() {
    static_cast<void>(&tiny_next_step);  // what the other clients need
    static_cast<void>(&tiny_free);
    for (std::int32_t i = 0; i < kLayers; ++i) {
      layers[i] = tiny_layer(&arena, i);
      caches[i] = tiny_cache(&arena, i, kKvHeads);
    }
    rows = static_cast<std::uint16_t*>(tiny_alloc(&arena, ML_MAX_ROWS * kHidden * 2));
    residual = static_cast<std::uint16_t*>(tiny_alloc(&arena, ML_MAX_ROWS * kHidden * 2));
    positions = static_cast<std::int64_t*>(tiny_alloc(&arena, ML_MAX_ROWS * 8));
    angles = static_cast<std::uint16_t*>(tiny_alloc(&arena, 1024 * 16 * 2));
    for (int i = 0; i < 1024 * 16; ++i) angles[i] = tiny_bf16(3, static_cast<std::uint64_t>(i));
    for (int i = 0; i < arena.count; ++i) {
      const auto begin = reinterpret_cast<std::uintptr_t>(arena.blocks[i]);
      blocks.push_back({begin, begin + malloc_usable_size(arena.blocks[i])});
    }
  }
  // Caches are full of NaN patterns again, activations what they were.
  void reset() const {
    for (const ml_cache_spec& cache : caches) {
      for (const ml_tensor* t : {&cache.k, &cache.v, &cache.index}) {
        std::memset(t->data, 0xff, static_cast<std::size_t>(t->shape[0] * t->strides[0] * 2));
      }
    }
    for (int i = 0; i < ML_MAX_ROWS * kHidden; ++i) {
      rows[i] = tiny_bf16(1, static_cast<std::uint64_t>(i));
      residual[i] = tiny_bf16(2, static_cast<std::uint64_t>(i));
    }
  }

  tiny_arena arena{};
  std::vector<Block> blocks;
  ml_layer_spec layers[kLayers];
  ml_cache_spec caches[kLayers];
  std::uint16_t *rows, *residual, *angles;
  std::int64_t* positions;
};

const Tiny& tiny() {
  static const Tiny made;
  return made;
}

class Fuzz {
 public:
  explicit Fuzz(Bytes& bytes) : bytes_(bytes) {
    tiny().reset();
    model_ = tiny_model_constants();
    context_.size = sizeof context_;
    context_.tp_size = 1;
    context_.device_type = ML_DEVICE_CPU;
    context_.worker_threads = 1;
    std::copy_n(tiny().layers, kLayers, layers_);
    std::copy_n(tiny().caches, kLayers, caches_);
  }
  ~Fuzz() { ml_mono_destroy(mono_); }

  void run() {
    create();
    for (int calls = 0; calls < 24 && !bytes_.empty(); ++calls) call();
  }

 private:
  // A code, and a line exactly when it is an error.
  static std::int32_t checked(std::int32_t code) {
    FUZZ_CHECK(code >= ML_OK && code <= ML_INTERNAL);
    FUZZ_CHECK(code == ML_OK || std::strlen(ml_last_error()) > 0);
    FUZZ_CHECK(std::strchr(ml_last_error(), '\n') == nullptr);
    return code;
  }

  // Replaces an aligned word of a struct. Words that point somewhere keep telling the truth.
  void mutate(void* data, std::size_t size) {
    auto* words = static_cast<std::byte*>(data);
    std::size_t offset = bytes_.next16() % size / 4 * 4;
    const unsigned choice = bytes_.next();
    std::uint64_t pair = 0;
    const std::size_t even = offset / 8 * 8;
    if (even + 8 <= size) std::memcpy(&pair, words + even, 8);
    if (pair > std::uint64_t{1} << 40 && pair >> 47 == 0) {  // a pointer
      pair = choice % 4 == 0 ? 0 : pair + (choice % 4 == 1 ? 1 : choice % 4 == 2 ? 2 : 0);
      std::memcpy(words + even, &pair, 8);
      return;
    }
    std::int32_t value = 0;
    std::memcpy(&value, words + offset, 4);
    const auto old = static_cast<std::uint32_t>(value);
    constexpr std::int32_t kValues[] = {0,
                                        1,
                                        -1,
                                        2,
                                        3,
                                        4,
                                        5,
                                        7,
                                        8,
                                        16,
                                        17,
                                        127,
                                        128,
                                        129,
                                        255,
                                        256,
                                        1023,
                                        1024,
                                        65536,
                                        1 << 20,
                                        1 << 30,
                                        0x7fffffff,
                                        static_cast<std::int32_t>(0x80000000U),
                                        0x7f800000,
                                        0x7fc00000,
                                        0x3f800000};
    constexpr unsigned kCount = sizeof kValues / sizeof kValues[0];
    if (choice < 2 * kCount) {
      value = kValues[choice % kCount];
    } else if (choice < 100) {
      value = static_cast<std::int32_t>(bytes_.next());
    } else {
      const std::uint32_t changed[] = {old + 1, old - 1, old * 2,
                                       old / 2, ~old,    old ^ 1U << choice % 32};
      value = static_cast<std::int32_t>(changed[choice % 6]);
    }
    std::memcpy(words + offset, &value, 4);
  }

  void mutate_specs() {
    switch (bytes_.next() % 8) {
      case 0:
        return mutate(&model_, offsetof(ml_model, cos_sin));
      case 1:
        return mutate(&context_, offsetof(ml_tp_context, group));
      case 2:
      case 3:
        return mutate(&layers_[bytes_.next() % kLayers], sizeof layers_[0]);
      case 4:
        return mutate(&caches_[bytes_.next() % kLayers], sizeof caches_[0]);
      case 5:
        layer_count_ = static_cast<std::int32_t>(bytes_.next() % 6) - 2;
        layer_count_ = std::min<std::int32_t>(layer_count_, kLayers);
        return;
      case 6:
        cache_count_ = static_cast<std::int32_t>(bytes_.next() % 6) - 2;
        cache_count_ = std::min<std::int32_t>(cache_count_, kLayers);
        return;
      default:
        model_.cos_sin = tiny_tensor(angles_, ML_BF16, 2, 1024, 16, 1, 1);
        return mutate(&model_.cos_sin, sizeof model_.cos_sin);
    }
  }

  // Whether all that an accepted tensor spans lies in the block it begins in.
  bool inside(const ml_tensor& t) const {
    if (t.data == nullptr) return true;
    if (t.rank < 0 || t.rank > ML_MAX_RANK) return false;
    const std::int64_t unit = t.dtype == ML_F32 || t.dtype == ML_I32 ? 4
                              : t.dtype == ML_I64                    ? 8
                              : t.dtype == ML_BF16                   ? 2
                                                                     : 1;
    __int128 last = 0;
    for (int axis = 0; axis < t.rank; ++axis) {
      if (t.shape[axis] > 1) last += static_cast<__int128>(t.shape[axis] - 1) * t.strides[axis];
    }
    const auto begin = reinterpret_cast<std::uintptr_t>(t.data);
    return std::any_of(tiny().blocks.begin(), tiny().blocks.end(), [&](const Block& block) {
      return begin >= block.begin && begin < block.end &&
             (last + 1) * unit <= static_cast<__int128>(block.end - begin);
    });
  }
  bool inside(const ml_matrix& m) const { return inside(m.weight) && inside(m.scale); }
  bool inside(const ml_mlp& m) const { return inside(m.gate) && inside(m.up) && inside(m.down); }
  bool all_inside() const {
    for (int i = 0; i < kLayers; ++i) {
      const ml_layer_spec& s = layers_[i];
      for (const ml_tensor* t :
           {&s.input_norm, &s.post_norm, &s.q_norm, &s.k_norm, &s.index_q_norm, &s.index_k_norm,
            &s.router_bias, &caches_[i].k, &caches_[i].v, &caches_[i].index}) {
        if (!inside(*t)) return false;
      }
      for (const ml_matrix* m : {&s.q, &s.k, &s.v, &s.index_q, &s.index_k, &s.o, &s.router}) {
        if (!inside(*m)) return false;
      }
      if (!inside(s.stacked) || !inside(s.shared)) return false;
    }
    return inside(model_.cos_sin);
  }

  void create() {
    if (mono_ != nullptr) return;
    for (unsigned i = bytes_.next() % 5; i > 0; --i) mutate_specs();
    const std::uint32_t version = bytes_.next() % 16 == 15 ? bytes_.next() : ML_ABI_VERSION;
    context_.worker_threads = std::min(context_.worker_threads, 2);
    for (ml_layer_spec& layer : layers_) {
      if (layer.experts == nullptr) continue;
      layer.experts = &expert_;
      layer.expert_count = std::min<std::int64_t>(layer.expert_count, 1);
    }
    const std::int32_t code = checked(ml_mono_create(version, &model_, layers_, layer_count_,
                                                     caches_, cache_count_, &context_, &mono_));
    FUZZ_CHECK((code == ML_OK) == (mono_ != nullptr));
    // What was accepted may span more than the memory there is; it is then never run.
    runnable_ = code == ML_OK && all_inside();
    closed_ = false;
  }

  void prepare() {
    std::int32_t table[2][256];
    std::int64_t slots[2][ML_MAX_ROWS];
    std::int32_t lengths[ML_MAX_ROWS], queries[ML_MAX_ROWS];
    const std::int32_t requests = 1 + static_cast<std::int32_t>(bytes_.next() % 8);
    const std::int32_t query = 1 + static_cast<std::int32_t>(bytes_.next() % 2);
    ml_step step{};
    step.size = sizeof step;
    step.requests = requests;
    step.query_len = query;
    step.token_count = std::min<std::int32_t>(ML_MAX_ROWS, requests * query);
    step.table_width = step.index_table_width = kTinyBlocks;
    for (int i = 0; i < 256; ++i) {  // request r has block r only
      table[0][i] = i % kTinyBlocks == 0 ? i / kTinyBlocks % kTinyBlocks : -1;
      table[1][i] = i % kTinyBlocks == 0 ? 7 - i / kTinyBlocks % kTinyBlocks : 1 << 29;
    }
    for (int r = 0; r < ML_MAX_ROWS; ++r) {
      lengths[r] = query + static_cast<std::int32_t>(bytes_.next() % 120);
      queries[r] = query;
    }
    for (int row = 0; row < ML_MAX_ROWS; ++row) {
      const int r = std::min(row / query, ML_MAX_ROWS - 1);
      positions_[row] = lengths[r] - query + row % query;
      slots[0][row] = r * 128 + positions_[row];
      slots[1][row] = (7 - r % 8) * 128 + positions_[row];
    }
    step.main_table = table[0];
    step.index_table = table[1];
    step.seq_lens = lengths;
    step.main_slots = slots[0];
    step.index_slots = slots[1];
    if (bytes_.next() % 4 == 0) step.query_lens = queries;
    for (unsigned i = bytes_.next() % 4; i > 0; --i) {
      switch (bytes_.next() % 8) {
        case 0:
          mutate(table[bytes_.next() % 2], 8 * kTinyBlocks * 4);
          break;
        case 1:
          mutate(slots[bytes_.next() % 2], sizeof slots[0]);
          break;
        case 2:
          mutate(lengths, sizeof lengths);
          break;
        case 3:
          mutate(queries, sizeof queries);
          break;
        case 4:
          mutate(positions_, ML_MAX_ROWS * 8);
          break;
        default:
          mutate(&step, sizeof step);
      }
    }
    // The arrays are as long as the widths say, and pointers to odd bytes are never taken.
    step.table_width = std::min(step.table_width, 16);
    step.index_table_width = std::min(step.index_table_width, 16);
    // (A null that was changed once more is no address.)
    const auto near = [](auto*& pointer, auto* array) {
      const auto at = reinterpret_cast<std::uintptr_t>(pointer);
      if (at != 0 && at - reinterpret_cast<std::uintptr_t>(array) > 2) pointer = array;
    };
    near(step.query_lens, queries);
    near(step.main_table, table[0]);
    near(step.index_table, table[1]);
    near(step.seq_lens, lengths);
    near(step.main_slots, slots[0]);
    near(step.index_slots, slots[1]);
    const bool shifted = (reinterpret_cast<std::uintptr_t>(step.main_table) |
                          reinterpret_cast<std::uintptr_t>(step.index_table) |
                          reinterpret_cast<std::uintptr_t>(step.seq_lens) |
                          reinterpret_cast<std::uintptr_t>(step.main_slots) |
                          reinterpret_cast<std::uintptr_t>(step.index_slots) |
                          reinterpret_cast<std::uintptr_t>(step.query_lens)) %
                             4 !=
                         0;
    const std::int32_t code = checked(ml_mono_prepare_step(mono_, &step));
    FUZZ_CHECK(!(shifted && code == ML_OK));
    FUZZ_CHECK(!((closed_ || mono_ == nullptr) && code == ML_OK));
    if (code == ML_OK) prepared_rows_ = step.token_count;
    // The library reads the arrays until the last forward.
    if (code == ML_OK && runnable_) {
      for (unsigned i = bytes_.next() % 3; i > 0; --i) forward();
      ml_step none{};
      none.size = sizeof none;
      FUZZ_CHECK(checked(ml_mono_prepare_step(mono_, &none)) != ML_OK);
    }
    arrays_gone_ = true;
    if (code == ML_OK) abandon();
  }

  // Replaces the prepared step by one whose arrays live on, so that nothing dangles.
  void abandon() {
    static const std::int32_t table[] = {0}, lengths[] = {1};
    static const std::int64_t slots[] = {0};
    ml_step step{};
    step.size = sizeof step;
    step.requests = step.query_len = step.token_count = 1;
    step.table_width = step.index_table_width = 1;
    step.main_table = step.index_table = table;
    step.seq_lens = lengths;
    step.main_slots = step.index_slots = slots;
    const std::int32_t code = checked(ml_mono_prepare_step(mono_, &step));
    FUZZ_CHECK(code == ML_OK || code == ML_FAILED_PRECONDITION || code == ML_RESOURCE_EXHAUSTED ||
               code == ML_INVALID_ARGUMENT);
    if (code == ML_OK) {
      prepared_rows_ = 1;
      positions_[0] = 0;
      arrays_gone_ = false;
    }
  }

  void forward() {
    ml_tensor in[3] = {tiny_tensor(rows_, ML_BF16, 2, prepared_rows_, kHidden, 1, 1),
                       tiny_tensor(residual_, ML_BF16, 2, prepared_rows_, kHidden, 1, 1),
                       tiny_tensor(positions_, ML_I64, 1, prepared_rows_, 1, 1, 1)};
    for (unsigned i = bytes_.next() % 3; i > 0; --i) mutate(&in[bytes_.next() % 3], sizeof in[0]);
    const unsigned which = bytes_.next();
    const std::int32_t first = which % 8 == 7 ? static_cast<std::int32_t>(bytes_.next()) - 2
                                              : kFirstLayer + static_cast<std::int32_t>(which % 2);
    const std::int32_t count = which / 8 % 8 == 7 ? static_cast<std::int32_t>(bytes_.next()) - 2
                                                  : 1 + static_cast<std::int32_t>(which / 8 % 2);
    // The first bytes of an activation are all there is to it.
    if (!inside(in[2])) in[2].data = nullptr;
    ml_tensor out[2] = {};
    const bool null = which / 64 == 3;
    const std::int32_t code = checked(ml_mono_forward_layers(
        mono_, first, count, &in[0], null ? nullptr : &in[1], &in[2], &out[0], &out[1]));
    FUZZ_CHECK(!((closed_ || null || mono_ == nullptr) && code == ML_OK));
    if (code != ML_OK) {
      FUZZ_CHECK(out[0].data == nullptr && out[1].data == nullptr);
      return;
    }
    for (const ml_tensor& t : out) {
      FUZZ_CHECK(t.data != nullptr && t.shape[0] == prepared_rows_ && t.shape[1] == kHidden);
      sum_ = tiny_fold(sum_, t.data, static_cast<std::size_t>(prepared_rows_ * kHidden) * 2);
    }
  }

  void storage() {
    // The specs may be other structs by now; only their sizes would lead outside.
    const std::int64_t count =
        ml_storage_pointers(layers_, layer_count_, caches_, cache_count_, nullptr, 0);
    FUZZ_CHECK(count >= -ML_INTERNAL);
    std::vector<const void*> pointers(static_cast<std::size_t>(std::max<std::int64_t>(count, 0)));
    if (count > 0) {
      FUZZ_CHECK(ml_storage_pointers(layers_, layer_count_, caches_, cache_count_, pointers.data(),
                                     count) == count);
    }
    const auto named = static_cast<std::int64_t>(bytes_.next() % 4 == 0 ? bytes_.next() : 0);
    const std::int64_t given = std::max<std::int64_t>(count - named, -1);
    checked(ml_mono_check_storage(mono_, pointers.empty() ? nullptr : pointers.data(), given));
  }

  void slices() {
    ml_matrix from = bytes_.next() % 2 == 0 ? layers_[0].q : layers_[1].stacked.gate, out{};
    for (unsigned i = bytes_.next() % 3; i > 0; --i) mutate(&from, sizeof from);
    const auto begin = static_cast<std::int64_t>(bytes_.next()) - 2;
    checked(
        ml_slice_rows(&from, begin, begin + static_cast<std::int64_t>(bytes_.next()) - 2, &out));
    ml_tensor source = tiny_tensor(rows_, ML_BF16, 2, ML_MAX_ROWS, kHidden, 1, 1);
    ml_tensor target = tiny_tensor(residual_, ML_BF16, 2, ML_MAX_ROWS, kHidden, 1, 1);
    for (unsigned i = bytes_.next() % 3; i > 0; --i) {
      mutate(bytes_.next() % 2 == 0 ? &source : &target, sizeof source);
    }
    if (inside(source) && inside(target)) checked(ml_repack(&source, &target));
    std::int32_t tags[2];
    const auto device = static_cast<std::int32_t>(bytes_.next() % 4);
    FUZZ_CHECK(ml_accepted_layouts(device, static_cast<std::int32_t>(bytes_.next()), tags, 2) >= 0);
  }

  void groups() {
    ml_group* group = nullptr;
    constexpr std::int32_t kCounts[] = {1, 0, -1, 3, 9, 1000};
    const double timeout = static_cast<double>(bytes_.next()) - 1;
    const std::int32_t count = kCounts[bytes_.next() % 6];
    if (checked(ml_group_create_threads(count, timeout, &group)) == ML_OK) {
      FUZZ_CHECK(count == 1 && group != nullptr);
      checked(ml_group_close(group));
      ml_group_destroy(group);
    }
    char token[4] = {static_cast<char>(bytes_.next()), '/', 0, 0};
    FUZZ_CHECK(checked(ml_group_meet(token, 0, 1, 1, &group)) != ML_OK);
    FUZZ_CHECK(checked(ml_group_close(nullptr)) != ML_OK);
    ml_group_destroy(nullptr);
  }

  void call() {
    switch (bytes_.next() % 12) {
      case 0:
        return create();
      case 1:
      case 2:
      case 3:
      case 4:
        return prepare();
      case 5:
      case 6:
        if (mono_ == nullptr || (runnable_ && !arrays_gone_)) forward();
        return;
      case 7:
        return storage();
      case 8:
        return slices();
      case 9:
        return groups();
      case 10: {
        const std::int32_t code = checked(ml_mono_close(mono_));
        FUZZ_CHECK((code == ML_OK) == (mono_ != nullptr));
        closed_ = true;
        return;
      }
      default:
        ml_mono_destroy(mono_);
        mono_ = nullptr;
        prepared_rows_ = 1;
    }
  }

  Bytes& bytes_;
  ml_model model_{};
  ml_tp_context context_{};
  ml_layer_spec layers_[kLayers];
  ml_cache_spec caches_[kLayers];
  ml_mlp expert_{};
  std::int32_t layer_count_ = kLayers, cache_count_ = kLayers;
  std::uint16_t *const rows_ = tiny().rows, *const residual_ = tiny().residual,
                       *const angles_ = tiny().angles;
  std::int64_t* const positions_ = tiny().positions;
  ml_mono* mono_ = nullptr;
  std::int32_t prepared_rows_ = 1;
  bool runnable_ = false, closed_ = false, arrays_gone_ = false;
  std::uint64_t sum_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Bytes bytes(data, size);
  Fuzz(bytes).run();
  return 0;
}
