// The C interface by itself: versions, codes, messages, layouts, copies, handles.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "mono/library_fixture.h"
#include "monolayer/monolayer.h"

namespace monolayer {
namespace {

using mono::test::Deployment;

struct Arguments {
  explicit Arguments(Deployment& d) : model(d.input.model), context(d.input.context) {
    for (const mono::LayerInput& layer : d.input.layers) layers.push_back(layer.spec);
    caches = d.input.caches;
    context.group = nullptr;
    context.worker_threads = 1;
  }
  std::int32_t create(ml_mono** out, std::uint32_t version = ML_ABI_VERSION) {
    return ml_mono_create(version, &model, layers.data(), static_cast<std::int32_t>(layers.size()),
                          caches.data(), static_cast<std::int32_t>(caches.size()), &context, out);
  }
  ml_model model;
  std::vector<ml_layer_spec> layers;
  std::vector<ml_cache_spec> caches;
  ml_tp_context context;
};

void said(std::int32_t code, std::int32_t expected, const char* text) {
  EXPECT_EQ(code, expected) << ml_last_error();
  EXPECT_NE(std::strstr(ml_last_error(), text), nullptr) << ml_last_error();
}

TEST(CApi, VersionsAndCodes) {
  EXPECT_EQ(ml_abi_version(), static_cast<std::uint32_t>(ML_ABI_VERSION));
  EXPECT_NE(std::strlen(ml_version()), 0U);
  for (int code = ML_OK; code <= ML_INTERNAL; ++code) {
    EXPECT_STRNE(ml_code_name(code), "unknown code") << code;
  }
  EXPECT_STREQ(ml_code_name(99), "unknown code");
}

TEST(CApi, LayoutsOfADevice) {
  std::int32_t tags[4] = {};
  EXPECT_EQ(ml_accepted_layouts(ML_DEVICE_CPU, ML_ROLE_WEIGHT, tags, 4), 1);
  EXPECT_EQ(tags[0], ML_LAYOUT_ROWS);
  EXPECT_EQ(ml_accepted_layouts(ML_DEVICE_CPU, ML_ROLE_CACHE, tags, 4), 1);
  EXPECT_EQ(tags[0], ML_LAYOUT_PAGES);
  EXPECT_EQ(ml_accepted_layouts(ML_DEVICE_CPU, ML_ROLE_CACHE, nullptr, 0), 1);
  EXPECT_EQ(ml_accepted_layouts(77, ML_ROLE_CACHE, tags, 4), 0);
  EXPECT_EQ(ml_accepted_layouts(ML_DEVICE_CPU, 77, tags, 4), 0);
}

TEST(CApi, RefusalsAreCodesWithALine) {
  Deployment d;
  Arguments good(d);
  ml_mono* mono = nullptr;
  said(good.create(nullptr), ML_INVALID_ARGUMENT, "out: null pointer");
  said(good.create(&mono, 2), ML_INVALID_ARGUMENT, "abi_version: is 2, this library has 1");
  Arguments bad(d);
  bad.layers[1].q_norm.dtype = ML_F32;
  said(bad.create(&mono), ML_INVALID_ARGUMENT, "layer 4, q_norm: dtype F32");
  EXPECT_EQ(mono, nullptr);
  bad = good;
  bad.context.device_type = ML_DEVICE_CUDA;
  said(bad.create(&mono), ML_UNSUPPORTED, "this build runs on cpu");
  bad = good;
  bad.context.tp_size = 2;
  said(bad.create(&mono), ML_INVALID_ARGUMENT, "context.group: null with 2 ranks");
  said(ml_mono_prepare_step(nullptr, nullptr), ML_INVALID_ARGUMENT, "mono: null pointer");
  said(ml_mono_close(nullptr), ML_INVALID_ARGUMENT, "mono: null pointer");
  ml_mono_destroy(nullptr);
  ml_group_destroy(nullptr);
}

// A thread's message is its own.
TEST(CApi, MessagesArePerThread) {
  said(ml_mono_close(nullptr), ML_INVALID_ARGUMENT, "null");
  std::thread([] { EXPECT_STREQ(ml_last_error(), ""); }).join();
}

TEST(CApi, StorageIsCheckedByPointer) {
  Deployment d;
  Arguments args(d);
  ml_mono* mono = nullptr;
  ASSERT_EQ(args.create(&mono), ML_OK) << ml_last_error();
  const auto n = static_cast<std::int32_t>(args.layers.size());
  const std::int64_t count =
      ml_storage_pointers(args.layers.data(), n, args.caches.data(), n, nullptr, 0);
  ASSERT_GT(count, 0);
  std::vector<const void*> pointers(static_cast<std::size_t>(count));
  EXPECT_EQ(
      ml_storage_pointers(args.layers.data(), n, args.caches.data(), n, pointers.data(), count),
      count);
  EXPECT_EQ(ml_mono_check_storage(mono, pointers.data(), count), ML_OK);
  pointers[0] = &d;
  said(ml_mono_check_storage(mono, pointers.data(), count), ML_FAILED_PRECONDITION,
       "layer 3, input_norm");
  EXPECT_EQ(ml_storage_pointers(nullptr, 0, nullptr, 0, nullptr, 0), -ML_INVALID_ARGUMENT);
  EXPECT_EQ(ml_mono_close(mono), ML_OK);
  EXPECT_EQ(ml_mono_close(mono), ML_OK);
  said(ml_mono_check_storage(mono, pointers.data(), count), ML_FAILED_PRECONDITION, "close()");
  ml_mono_destroy(mono);
}

TEST(CApi, RepackCopiesStridesAndRefusesByName) {
  Deployment d;
  ml_tensor from = d.tensor(ML_BF16, {3, 8, 16});
  ml_tensor to = d.tensor(ML_BF16, {3, 8, 20});
  to.shape[2] = 16;  // rows stay 20 apart
  auto* in = static_cast<bf16_t*>(from.data);
  for (int i = 0; i < 3 * 8 * 16; ++i) in[i] = static_cast<bf16_t>(i);
  ASSERT_EQ(ml_repack(&from, &to), ML_OK) << ml_last_error();
  const auto* out = static_cast<const bf16_t*>(to.data);
  EXPECT_EQ(out[(2 * 8 + 7) * 20 + 15], 3 * 8 * 16 - 1);
  EXPECT_EQ(out[20], 16);
  ml_tensor bad = to;
  bad.dtype = ML_E4M3;
  said(ml_repack(&from, &bad), ML_INVALID_ARGUMENT, "to: dtype E4M3");
  bad = to;
  bad.shape[0] = 2;
  said(ml_repack(&from, &bad), ML_INVALID_ARGUMENT, "to: shape [2, 8, 16]");
  bad = to;
  bad.layout = 9;
  said(ml_repack(&from, &bad), ML_INVALID_ARGUMENT, "to: layout tag 9");
  bad = from;
  bad.data = static_cast<bf16_t*>(from.data) + 8;
  said(ml_repack(&from, &bad), ML_INVALID_ARGUMENT, "to: overlaps the source");
  bad = to;
  bad.rank = 7;
  said(ml_repack(&from, &bad), ML_INVALID_ARGUMENT, "rank 7");
  bad = from;
  bad.device_type = ML_DEVICE_CUDA;
  said(ml_repack(&bad, &to), ML_UNSUPPORTED, "from: device 2");
  said(ml_repack(nullptr, &to), ML_INVALID_ARGUMENT, "from: null pointer");
}

TEST(CApi, RowSlicesAreViews) {
  Deployment d;
  const ml_matrix& table = d.input.layers[0].spec.stacked.gate;  // [5, 256, 64] MXFP4
  ml_matrix part;
  ASSERT_EQ(ml_slice_rows(&table, 128, 256, &part), ML_OK);
  EXPECT_EQ(part.weight.shape[1], 128);
  EXPECT_EQ(part.weight.strides[0], table.weight.strides[0]);
  EXPECT_EQ(static_cast<char*>(part.weight.data) - static_cast<char*>(table.weight.data), 128 * 32);
  EXPECT_EQ(static_cast<char*>(part.scale.data) - static_cast<char*>(table.scale.data), 128 * 2);
  const ml_matrix& q = d.input.layers[0].spec.q;  // per channel
  ASSERT_EQ(ml_slice_rows(&q, 8, 16, &part), ML_OK);
  EXPECT_EQ(part.scale.shape[0], 8);
  said(ml_slice_rows(&q, 8, 8, &part), ML_INVALID_ARGUMENT, "rows [8, 8) of 256");
  said(ml_slice_rows(&q, 250, 257, &part), ML_INVALID_ARGUMENT, "rows [250, 257) of 256");
  ml_matrix absent = q, far = q;
  absent.weight.data = nullptr;
  said(ml_slice_rows(&absent, 8, 16, &part), ML_INVALID_ARGUMENT, "weight: has no data");
  far.weight.strides[0] = std::int64_t{1} << 62;
  said(ml_slice_rows(&far, 8, 16, &part), ML_INVALID_ARGUMENT, "exceeds 2^63 bytes");
}

TEST(CApi, GroupsOfThreads) {
  ml_group* groups[8] = {};
  said(ml_group_create_threads(3, 1, groups), ML_INVALID_ARGUMENT, "3");
  said(ml_group_create_threads(2, 0, groups), ML_INVALID_ARGUMENT, "timeout_s");
  ASSERT_EQ(ml_group_create_threads(2, 5, groups), ML_OK);
  std::thread other([&] { EXPECT_EQ(ml_group_close(groups[1]), ML_OK); });
  EXPECT_EQ(ml_group_close(groups[0]), ML_OK);
  other.join();
  ml_group_destroy(groups[0]);
  ml_group_destroy(groups[1]);
  said(ml_group_meet("bad token!", 0, 2, 1, groups), ML_INVALID_ARGUMENT, "token");
}

// What is wrong with one rank's arguments reaches its peers at once, not by a deadline.
TEST(CApi, WrongArgumentsOfOneRankEndAllRanks) {
  ml_group* groups[2] = {};
  ASSERT_EQ(ml_group_create_threads(2, 60, groups), ML_OK);
  std::vector<std::thread> threads;
  threads.reserve(2);
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Deployment d({rank, 2, true, true, ML_E4M3});
      Arguments args(d);
      args.context.group = groups[rank];
      if (rank == 1) args.layers[0].size = 4000;
      ml_mono* mono = nullptr;
      EXPECT_EQ(args.create(&mono), rank == 1 ? ML_INVALID_ARGUMENT : ML_PEER_REFUSED)
          << ml_last_error();
      EXPECT_EQ(mono, nullptr);
      EXPECT_EQ(ml_group_close(groups[rank]), ML_OK);
    });
  }
  for (std::thread& t : threads) t.join();
  for (ml_group* group : groups) ml_group_destroy(group);
}

// T-L7: a process ends at once, whether or not its ranks closed what they made, and with their
// workers still there.
void make_and_leave(bool close) {
  ml_group* groups[2] = {};
  if (ml_group_create_threads(2, 30, groups) != ML_OK) std::exit(1);
  static std::vector<std::unique_ptr<Deployment>> kept;  // borrowed to the end
  kept.resize(2);
  std::vector<std::thread> threads;
  threads.reserve(2);
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      auto& d = kept[static_cast<std::size_t>(rank)];
      d = std::make_unique<Deployment>(Deployment::Options{rank, 2, true, true, ML_E4M3});
      Arguments args(*d);
      args.context.group = groups[rank];
      args.context.worker_threads = 2;
      ml_mono* mono = nullptr;
      if (args.create(&mono) != ML_OK) std::exit(2);
      if (close && ml_mono_close(mono) != ML_OK) std::exit(3);
      ml_mono_destroy(mono);
    });
  }
  for (std::thread& t : threads) t.join();
  std::exit(0);
}

TEST(CApiDeathTest, TL7ProcessEndsWithAndWithoutClose) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(make_and_leave(true), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(make_and_leave(false), testing::ExitedWithCode(0), "destroyed without close");
}

}  // namespace
}  // namespace monolayer
