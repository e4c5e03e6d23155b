// Steps through the library, and what happens out of order or when a rank fails.
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "mono/library_fixture.h"

namespace monolayer::mono {
namespace {

using test::Deployment;
using test::FakeBackend;
using test::FakeLog;
using test::on_ranks;
using test::Step;

// One rank with a library and room for activations.
struct One {
  FakeLog log;
  FakeBackend backend{log};
  Deployment deployment;
  std::unique_ptr<Library> library;
  std::vector<bf16_t> hidden = std::vector<bf16_t>(16 * 64 + 8, 1);
  std::vector<bf16_t> residual = std::vector<bf16_t>(16 * 64 + 8, 2);
  One() {
    auto made = Library::create(deployment.input, backend, nullptr);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    library = std::move(made).value();
  }
  Status forward(Step& step, std::int64_t first, std::int64_t count, LibraryOutput& out) {
    ml_tensor h = aligned(hidden, step), r = aligned(residual, step);
    ml_tensor p = test::position_tensor(step.positions);
    return library->forward_layers(first, count, h, r, p, out);
  }
  static ml_tensor aligned(std::vector<bf16_t>& v, const Step& step) {
    auto at = (reinterpret_cast<std::uintptr_t>(v.data()) + 15) / 16 * 16;
    return test::activation(reinterpret_cast<void*>(at), step.md.token_count, 64);
  }
};

TEST(Library, RunsLayersInOrderAndAlternatesItsBuffers) {
  One one;
  Step step({300, 129}, 3);
  ASSERT_TRUE(one.library->prepare_step(step.md).ok());
  LibraryOutput a, b;
  ASSERT_TRUE(one.forward(step, 3, 1, a).ok());
  ASSERT_TRUE(one.forward(step, 4, 2, b).ok());
  EXPECT_NE(a.hidden, b.hidden);
  EXPECT_NE(a.residual, b.residual);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(b.hidden) % 64, 0U);
  EXPECT_EQ(a.hidden[0], 1 + 0 + 1);
  EXPECT_EQ(b.hidden[6 * 64 - 1], 1 + 1 + 2);
  EXPECT_TRUE(one.library->close().ok());
  EXPECT_TRUE(one.library->close().ok());
  EXPECT_EQ(one.log.closes, 1);
  EXPECT_EQ(one.log.live_executors, 0);
}

TEST(Library, CallsOutOfOrderAreRefused) {
  One one;
  Step step({5}, 1);
  LibraryOutput out;
  const auto said = [&](const Status& status, Code code, const char* text) {
    EXPECT_EQ(status.code(), code);
    EXPECT_NE(status.to_string().find(text), std::string::npos) << status.to_string();
  };
  said(one.forward(step, 3, 1, out), Code::kFailedPrecondition, "no step is prepared");
  ASSERT_TRUE(one.library->prepare_step(step.md).ok());
  said(one.forward(step, 2, 1, out), Code::kInvalidArgument,
       "layer 2: unknown: ids go from 3 to 5");
  said(one.forward(step, 4, 1, out), Code::kFailedPrecondition, "out of order: layer 3 is next");
  said(one.forward(step, 3, 4, out), Code::kInvalidArgument, "is 4, from layer 3 there are 3");
  said(one.forward(step, 3, 0, out), Code::kInvalidArgument, "is 0");
  ASSERT_TRUE(one.forward(step, 3, 3, out).ok());
  said(one.forward(step, 3, 1, out), Code::kFailedPrecondition, "has run all its layers");
  ASSERT_TRUE(one.library->close().ok());
  said(one.library->prepare_step(step.md), Code::kFailedPrecondition, "called after close()");
  said(one.forward(step, 3, 1, out), Code::kFailedPrecondition, "called after close()");
}

// T-P4 at the interface: a step may be abandoned, prepared twice, or refused without harm.
TEST(Library, AbandonedAndRefusedStepsLeaveNothing) {
  One one;
  Step first({300}, 3), second({5}, 1), bad({5}, 1);
  bad.main_table[0] = 99;
  LibraryOutput out;
  ASSERT_TRUE(one.library->prepare_step(first.md).ok());
  ASSERT_TRUE(one.forward(first, 3, 1, out).ok());
  EXPECT_FALSE(one.library->prepare_step(bad.md).ok());
  EXPECT_TRUE(one.forward(first, 4, 1, out).ok()) << "the refused step must not end this one";
  ASSERT_TRUE(one.library->prepare_step(second.md).ok());
  ASSERT_TRUE(one.library->prepare_step(second.md).ok());
  EXPECT_TRUE(one.forward(second, 3, 3, out).ok());
}

TEST(Library, WrongActivationsAreRefusedByName) {
  One one;
  Step step({300, 129}, 3);
  ASSERT_TRUE(one.library->prepare_step(step.md).ok());
  ml_tensor h = One::aligned(one.hidden, step), r = One::aligned(one.residual, step);
  ml_tensor p = test::position_tensor(step.positions);
  LibraryOutput out;
  const auto said = [&](const ml_tensor& hidden, const ml_tensor& residual,
                        const ml_tensor& positions, const char* text) {
    const Status status = one.library->forward_layers(3, 1, hidden, residual, positions, out);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.to_string().find(text), std::string::npos) << status.to_string();
  };
  ml_tensor x = h;
  x.dtype = ML_F32;
  said(x, r, p, "hidden: dtype F32");
  x = r;
  x.shape[0] = 5;
  said(h, x, p, "residual: shape [5, 64], expected [6, 64]");
  x = h;
  x.strides[0] = 65;
  said(x, r, p, "hidden: stride 65 of axis 0, must be 64");
  x = h;
  x.data = static_cast<std::byte*>(x.data) + 2;
  said(x, r, p, "hidden: data is not aligned to 16");
  x = h;
  x.device_type = ML_DEVICE_CUDA;
  said(x, r, p, "hidden: on device 2:0");
  x = p;
  x.dtype = ML_I32;
  said(h, r, x, "positions: dtype I32");
  x = p;
  x.shape[0] = 5;
  said(h, r, x, "positions: shape [5], the step has 6 rows");
  step.positions[4] = 7;
  said(h, r, p, "row 4 has position 7, its request's length puts it at 127");
  EXPECT_EQ(one.log.runs, 0);
}

TEST(Library, FlagsAndStreams) {
  One one;
  Step step({5}, 1);
  step.md.flags = ML_STEP_TRACING;
  EXPECT_EQ(one.library->prepare_step(step.md).code(), Code::kFailedPrecondition);
  step.md.flags = 64;
  EXPECT_EQ(one.library->prepare_step(step.md).code(), Code::kInvalidArgument);
  step.md.flags = 0;
  step.md.stream = &step;
  EXPECT_EQ(one.library->prepare_step(step.md).code(), Code::kInvalidArgument);
}

TEST(Library, MovedStorageIsNamed) {
  One one;
  std::vector<const void*> now(one.library->storage().begin(), one.library->storage().end());
  EXPECT_TRUE(one.library->check_storage(now).ok());
  now.back() = &now;
  EXPECT_NE(one.library->check_storage(now).to_string().find("layer 5, index cache"),
            std::string::npos);
  now.pop_back();
  EXPECT_EQ(one.library->check_storage(now).code(), Code::kInvalidArgument);
}

// L11: the caches may be half written, so a kernel failure is never retried.
TEST(Library, ExecutorFailureIsFinal) {
  FakeLog log;
  FakeBackend backend(log);
  backend.run_failure = Status(Code::kInternal, "kernel", "injected");
  Deployment d;
  auto library = std::move(Library::create(d.input, backend, nullptr)).value();
  Step step({5}, 1);
  std::vector<bf16_t> rows(64 + 16);
  ml_tensor h = One::aligned(rows, step), p = test::position_tensor(step.positions);
  LibraryOutput out;
  ASSERT_TRUE(library->prepare_step(step.md).ok());
  EXPECT_EQ(library->forward_layers(3, 1, h, h, p, out).code(), Code::kInternal);
  EXPECT_EQ(library->prepare_step(step.md).code(), Code::kFailedPrecondition);
  EXPECT_EQ(library->forward_layers(3, 1, h, h, p, out).code(), Code::kFailedPrecondition);
}

// T-L4, first half: unsupported on one rank before any allocation, on all by agreement.
TEST(LibraryGroup, TL4UnsupportedOnOnePeerIsUnsupportedOnAll) {
  FakeLog log;
  on_ranks(4, [&](int rank, tp::Group& group) {
    Deployment d({rank, 4, true, true, ML_E4M3});
    FakeBackend backend(log);
    if (rank == 2) backend.support = Status(Code::kUnsupported, "layer 4", "no such format");
    const auto made = Library::create(d.input, backend, &group);
    EXPECT_EQ(made.status().code(), Code::kUnsupported);
    EXPECT_NE(made.status().to_string().find("no such format"), std::string::npos);
  });
  EXPECT_EQ(log.constructions, 0);
}

// T-L4, second half, and L10: any other failure is raised on all ranks, the failing one's its own.
TEST(LibraryGroup, TL4OtherFailuresAreRaisedOnAll) {
  FakeLog log;
  on_ranks(4, [&](int rank, tp::Group& group) {
    Deployment d({rank, 4, true, true, ML_E4M3});
    FakeBackend backend(log);
    if (rank == 2) d.input.layers[1].spec.k_norm.data = nullptr;
    const auto made = Library::create(d.input, backend, &group);
    EXPECT_EQ(made.status().code(), rank == 2 ? Code::kInvalidArgument : Code::kPeerRefused);
    EXPECT_NE(made.status().to_string().find("layer 4, k_norm: missing"), std::string::npos)
        << made.status().to_string();
  });
  EXPECT_EQ(log.constructions, 0);
}

// T-L13: a failure at every stage of construction, on every rank in turn.
TEST(LibraryGroup, TL13FailureAtEveryStageLeavesNothing) {
  for (int stage = 0; stage < static_cast<int>(test::kFakeStages); ++stage) {
    for (int broken = 0; broken < 2; ++broken) {
      FakeLog log;
      on_ranks(2, [&](int rank, tp::Group& group) {
        Deployment d({rank, 2, true, true, ML_E4M3});
        FakeBackend backend(log);
        if (rank == broken) backend.fail_stage = stage;
        // Even "unsupported" is an error once building has begun.
        if (stage == 1) backend.stage_failure = Status(Code::kUnsupported, "arena", "injected");
        const auto made = Library::create(d.input, backend, &group);
        EXPECT_FALSE(made.ok());
        const Code own = stage == 1 ? Code::kInternal : Code::kResourceExhausted;
        EXPECT_EQ(made.status().code(), rank == broken ? own : Code::kPeerRefused);
        EXPECT_TRUE(group.status().ok()) << "the group must stay usable";
      });
      EXPECT_EQ(log.local_allocations, 0) << stage;
      EXPECT_EQ(log.live_executors, 0);
    }
  }
}

TEST(LibraryGroup, RanksMustBringTheSameModel) {
  FakeLog log;
  on_ranks(2, [&](int rank, tp::Group& group) {
    Deployment d({rank, 2, true, true, ML_E4M3});
    FakeBackend backend(log);
    if (rank == 1) d.input.model.rms_eps = 1e-5F;
    EXPECT_FALSE(Library::create(d.input, backend, &group).ok());
  });
  on_ranks(2, [&](int, tp::Group& group) {
    Deployment d({0, 2, true, true, ML_E4M3});
    FakeBackend backend(log);
    EXPECT_FALSE(Library::create(d.input, backend, &group).ok()) << "two ranks numbered 0";
  });
  EXPECT_EQ(log.constructions, 0);
}

TEST(LibraryGroup, SeveralRanksNeedAGroup) {
  FakeLog log;
  FakeBackend backend(log);
  const Deployment d({0, 2, true, true, ML_E4M3});
  const auto made = Library::create(d.input, backend, nullptr);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ("context.group: null with 2 ranks", made.status().to_string());
  EXPECT_EQ(log.constructions, 0);
}

// What 0 stands for may also be said.
TEST(LibraryGroup, ImpliedAndExplicitScalesAreTheSameModel) {
  FakeLog log;
  on_ranks(2, [&](int rank, tp::Group& group) {
    Deployment d({rank, 2, true, true, ML_E4M3});
    FakeBackend backend(log);
    ml_model& model = d.input.model;
    model.softmax_scale = rank == 0 ? 0.0F : 1.0F / std::sqrt(static_cast<float>(model.head_dim));
    auto made = Library::create(d.input, backend, &group);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    EXPECT_TRUE((*made)->close().ok());
  });
  on_ranks(2, [&](int rank, tp::Group& group) {
    Deployment d({rank, 2, true, true, ML_E4M3});
    FakeBackend backend(log);
    if (rank == 1) d.input.model.softmax_scale = 0.5F;
    EXPECT_FALSE(Library::create(d.input, backend, &group).ok());
  });
}

// T-L7, F3: destroyed without close, nothing collective runs, nothing a peer may read is freed.
TEST(LibraryGroup, TL7DestroyedWithoutCloseLeaksAndSaysSo) {
  FakeLog log;
  std::mutex mutex;
  int said = 0;
  on_ranks(2, [&](int rank, tp::Group& group) {
    Deployment d({rank, 2, true, true, ML_E4M3});
    FakeBackend backend(log);
    LibraryOptions options;
    options.log = [&](const std::string& line) {
      const std::lock_guard lock(mutex);
      said += line.find("without close()") != std::string::npos ? 1 : 0;
    };
    auto made = Library::create(d.input, backend, &group, options);
    ASSERT_TRUE(made.ok());
    // Rank 0 goes at once and must not wait for rank 1, which goes when its scope ends.
    if (rank == 0) std::move(made).value().reset();
  });
  EXPECT_EQ(said, 2);
  EXPECT_EQ(log.live_executors, 2);
  EXPECT_EQ(log.closes, 0);
}

}  // namespace
}  // namespace monolayer::mono
