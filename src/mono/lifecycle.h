// What a serving engine puts between itself and the library: caches come and go, the library is
// built at the first step that can use it, and every turn is taken by all ranks alike.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "mono/library.h"

namespace monolayer::mono {

// Where a deployment's fused path stands.
enum class LifecycleState : std::uint8_t {
  kIdle,      // nothing built: caches missing, or no step that could build yet
  kLive,      // a library is built and serves
  kDisabled,  // some rank does not support it: native for the life of the process
  kFailed,    // an error at an agreement point or in the library: every use raises it
  kClosed,
};
std::string_view lifecycle_state_name(LifecycleState state);

// What the engine knows before a step; replicated over the ranks.
struct StepConditions {
  bool has_metadata = true;  // false: memory profiling, a forward without requests
  bool capturing = false;    // the stream is recording a graph
  bool tracing = false;      // a graph compiler is tracing
};

// The two ways to run the step at hand.
class StepPaths {
 public:
  virtual ~StepPaths() = default;
  virtual Status run_native() = 0;
  // An error here is final: the caches may be half written, so native is never tried after it.
  virtual Status run_mono(Library& library) = 0;
};

class Lifecycle {
 public:
  struct Options {
    LibraryOptions library;
    // What the deployment table says on this rank (kUnsupported: a refusal). Agreed on before
    // anything else, so that placeholder layers are never looked at where it refuses.
    Status deployment;
  };

  // `input` without caches: they are bound later. Borrows backend and group.
  Lifecycle(LibraryInput input, LibraryBackend& backend, tp::Group* group, Options options);
  // Never collective: leaves a live library to its destructor.
  ~Lifecycle() = default;

  // The engine's cache setters. `main` carries k, v, the scales and max_context; its index tensor
  // is not looked at. A tensor without data unbinds, and unbinding the main cache of any layer is a
  // detach. While a library lives a cache cannot be replaced: kFailedPrecondition, the old one
  // stays. kNotFound for a layer that is not among the specs.
  Status bind_main(const ml_cache_spec& main);
  Status bind_index(std::int64_t layer_id, const ml_tensor& index, float index_scale);

  // Collective, after all ranks destroyed their graphs: closes the library if there is one and
  // forgets every main cache. Twice closes once.
  Status detach();

  // Before each step. Collective until the answer is "live" or "disabled". The library, or null for
  // native with the reason in reason(). An error where the step must not run at all: first use
  // while capturing, tracing, caches or weights that moved, an earlier failure.
  // `storage`: the data pointers of weights and caches as the engine holds them now, in the order
  // of storage_pointers(); empty: those bound here.
  Result<Library*> acquire(const StepConditions& step, std::span<const void* const> storage = {});

  // What acquire() would say where that is the library that lives already; else null.
  Library* ready(const StepConditions& step, std::span<const void* const> storage = {}) const;

  // Collective: after a moved cache was found on some rank, closes the old library, so that the
  // next eager step builds a new one with what is bound then. `caches`: the new ones, may be empty.
  Status rebuild(const std::vector<ml_cache_spec>& caches);

  // kFailedPrecondition while a library borrows the weights: reload, transfer and reset would
  // change them under it. Ask before touching anything.
  Status allow_weight_change(std::string_view what) const;

  // Collective. `graphs`: how destroying this rank's graphs went. If it failed anywhere, memory
  // that replays may still reach is kept, on every rank.
  Status close(const Status& graphs = {});

  LifecycleState state() const { return state_; }
  const std::string& reason() const { return reason_; }
  // Libraries built so far: temporary caches and final ones have numbers of their own.
  std::int64_t generation() const { return generation_; }
  Library* library() { return library_.get(); }
  // What is bound for a layer now; null tensors where nothing is.
  const ml_cache_spec* bound(std::int64_t layer_id) const;

 private:
  ml_cache_spec* find(std::int64_t layer_id);
  Status fail(const Status& why);
  Status close_library();
  Result<Library*> build();
  bool all_bound(std::string& missing) const;
  void log(const std::string& line) const;

  LifecycleState state_ = LifecycleState::kIdle;
  std::unique_ptr<Library> library_;
  LibraryInput input_;  // caches: one entry per layer, tensors absent until bound
  LibraryBackend& backend_;
  tp::Group* group_;
  Options options_;
  std::string reason_;
  Status failure_;
  bool supported_ = false;  // the deployment was agreed on
  std::int64_t generation_ = 0;
};

}  // namespace monolayer::mono
