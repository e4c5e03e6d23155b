#include "mono/lifecycle.h"

#include <cstdio>
#include <utility>

#include "core/prefetch.h"

namespace monolayer::mono {
namespace {

using std::to_string;

bool has_main(const ml_cache_spec& cache) { return present(cache.k) && present(cache.v); }

}  // namespace

std::string_view lifecycle_state_name(LifecycleState state) {
  switch (state) {
    case LifecycleState::kIdle:
      return "idle";
    case LifecycleState::kLive:
      return "live";
    case LifecycleState::kDisabled:
      return "disabled";
    case LifecycleState::kFailed:
      return "failed";
    case LifecycleState::kClosed:
      return "closed";
  }
  return "unknown";
}

Lifecycle::Lifecycle(LibraryInput input, LibraryBackend& backend, tp::Group* group, Options options)
    : input_(std::move(input)), backend_(backend), group_(group), options_(std::move(options)) {
  input_.caches.clear();
  for (const LayerInput& layer : input_.layers) {
    ml_cache_spec cache{};
    cache.size = sizeof(ml_cache_spec);
    cache.layer_id = layer.spec.layer_id;
    cache.k.size = cache.v.size = cache.index.size = sizeof(ml_tensor);
    cache.k_scale = cache.v_scale = cache.index_scale = 1;
    input_.caches.push_back(cache);
  }
}

void Lifecycle::log(const std::string& line) const {
  if (options_.library.log) {
    options_.library.log(line);
  } else {
    std::fprintf(stderr, "monolayer: %s\n", line.c_str());
  }
}

ml_cache_spec* Lifecycle::find(std::int64_t layer_id) {
  for (ml_cache_spec& cache : input_.caches) {
    if (cache.layer_id == layer_id) return &cache;
  }
  return nullptr;
}

const ml_cache_spec* Lifecycle::bound(std::int64_t layer_id) const {
  return const_cast<Lifecycle*>(this)->find(layer_id);
}

Status Lifecycle::bind_main(const ml_cache_spec& main) {
  const std::string subject = "layer " + to_string(main.layer_id) + ", main cache";
  ml_cache_spec* cache = find(main.layer_id);
  if (cache == nullptr) return {Code::kNotFound, subject, "no such sparse layer"};
  if (!has_main(main)) {
    if (library_ != nullptr) return detach();
    cache->k.data = cache->v.data = nullptr;
    return {};
  }
  if (library_ != nullptr) {
    return {Code::kFailedPrecondition, subject,
            "a live library has borrowed the bound one; detach first"};
  }
  const ml_tensor index = cache->index;
  const float index_scale = cache->index_scale;
  *cache = main;
  cache->index = index;
  cache->index_scale = index_scale;
  return {};
}

Status Lifecycle::bind_index(std::int64_t layer_id, const ml_tensor& index, float index_scale) {
  const std::string subject = "layer " + to_string(layer_id) + ", index cache";
  ml_cache_spec* cache = find(layer_id);
  if (cache == nullptr) return {Code::kNotFound, subject, "no such sparse layer"};
  if (library_ != nullptr) {
    return {Code::kFailedPrecondition, subject,
            "a live library has borrowed the bound one; detach first"};
  }
  cache->index = index;
  cache->index_scale = index_scale;
  return {};
}

bool Lifecycle::all_bound(std::string& missing) const {
  for (const ml_cache_spec& cache : input_.caches) {
    const bool main = has_main(cache);
    if (main && present(cache.index)) continue;
    missing = "layer " + to_string(cache.layer_id) + " has no " + (main ? "index" : "main") +
              " cache bound";
    return false;
  }
  return true;
}

Status Lifecycle::fail(const Status& why) {
  state_ = LifecycleState::kFailed;
  failure_ = why;
  reason_ = why.to_string();
  return why;
}

Status Lifecycle::close_library() {
  if (library_ == nullptr) return {};
  Status status = library_->close();
  library_.reset();
  return status;
}

Status Lifecycle::detach() {
  if (state_ == LifecycleState::kClosed) return {};
  const Status closed = close_library();
  for (ml_cache_spec& cache : input_.caches) cache.k.data = cache.v.data = nullptr;
  if (!closed.ok()) return fail(closed);
  if (state_ == LifecycleState::kLive) {
    state_ = LifecycleState::kIdle;
    reason_ = "caches are detached";
  }
  return {};
}

Status Lifecycle::rebuild(const std::vector<ml_cache_spec>& caches) {
  if (state_ == LifecycleState::kClosed || state_ == LifecycleState::kFailed) {
    return {Code::kFailedPrecondition, "rebuild",
            "the fused path is " + std::string(lifecycle_state_name(state_))};
  }
  const Status closed = close_library();
  if (!closed.ok()) return fail(closed);
  if (state_ == LifecycleState::kLive) state_ = LifecycleState::kIdle;
  for (const ml_cache_spec& cache : caches) {
    ML_RETURN_IF_ERROR(bind_main(cache));
    ML_RETURN_IF_ERROR(bind_index(cache.layer_id, cache.index, cache.index_scale));
  }
  return {};
}

Result<Library*> Lifecycle::build() {
  const auto timeout = options_.library.timeout;
  if (!supported_) {
    const Status agreed = agree_at(group_, "deployment", options_.deployment, timeout);
    if (agreed.code() == Code::kUnsupported) {
      state_ = LifecycleState::kDisabled;
      reason_ = agreed.to_string();
      if (group_ == nullptr || group_->rank() == 0) log("fused path off: " + reason_);
      return nullptr;
    }
    if (!agreed.ok()) return fail(agreed);
    supported_ = true;
  }
  std::string missing;
  const bool ready = all_bound(missing);
  if (group_ != nullptr) {
    const tp::Agreement all = group_->agree({}, ready, Deadline(timeout));
    if (all.outcome == tp::Agreement::Outcome::kNotReady) {
      reason_ = "postponed: " + (ready ? "another rank has caches to bind" : missing);
      return nullptr;
    }
    if (!all.ok()) return fail(all.status);
  } else if (!ready) {
    reason_ = "postponed: " + missing;
    return nullptr;
  }
  Result<std::unique_ptr<Library>> built =
      Library::create(input_, backend_, group_, options_.library);
  if (built.status().code() == Code::kUnsupported) {
    state_ = LifecycleState::kDisabled;
    reason_ = built.status().to_string();
    if (group_ == nullptr || group_->rank() == 0) log("fused path off: " + reason_);
    return nullptr;
  }
  if (!built.ok()) return fail(built.status());
  library_ = std::move(built).value();
  ++generation_;
  state_ = LifecycleState::kLive;
  reason_.clear();
  return library_.get();
}

ML_STEP_CODE Library* Lifecycle::ready(const StepConditions& step,
                                       std::span<const void* const> storage) const {
  const bool live = state_ == LifecycleState::kLive && !step.tracing && step.has_metadata;
  return live && (storage.empty() || library_->has_storage(storage)) ? library_.get() : nullptr;
}

Result<Library*> Lifecycle::acquire(const StepConditions& step,
                                    std::span<const void* const> storage) {
  if (state_ == LifecycleState::kClosed) {
    return Status(Code::kFailedPrecondition, "acquire", "called after close()");
  }
  if (state_ == LifecycleState::kFailed) return failure_;
  if (state_ == LifecycleState::kDisabled) return nullptr;
  if (step.tracing) {
    return Status(Code::kFailedPrecondition, "acquire",
                  "a graph compiler is tracing; the fused path cannot be traced");
  }
  if (!step.has_metadata) {
    reason_ = "no request metadata";
    return nullptr;
  }
  if (state_ == LifecycleState::kLive) {
    if (!storage.empty()) ML_RETURN_IF_ERROR(library_->check_storage(storage));
    return library_.get();
  }
  if (step.capturing) {
    return Status(Code::kFailedPrecondition, "acquire",
                  "first use while a graph is being captured; run one eager step before");
  }
  return build();
}

Status Lifecycle::allow_weight_change(std::string_view what) const {
  if (library_ == nullptr) return {};
  return {Code::kFailedPrecondition, std::string(what),
          "refused: the fused path has borrowed the weights; detach it first"};
}

Status Lifecycle::close(const Status& graphs) {
  if (state_ == LifecycleState::kClosed) return {};
  Status destroyed = agree_at(group_, "graphs destroyed", graphs, options_.library.timeout);
  state_ = LifecycleState::kClosed;
  if (!destroyed.ok()) {
    if (library_ != nullptr) {
      log("graphs could not be destroyed, memory they may reach is kept: " + destroyed.to_string());
      keep_until_exit(library_.release());
    }
    return destroyed;
  }
  return close_library();
}

}  // namespace monolayer::mono
