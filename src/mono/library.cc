#include "mono/library.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <utility>

#include "core/prefetch.h"
#include "mono/block_table.h"

namespace monolayer::mono {
namespace {

using std::to_string;

constexpr std::size_t kBufferAlignment = 64;

// FNV-1a over what must be the same on every rank.
class Fingerprint {
 public:
  void add(std::int64_t value) {
    for (int i = 0; i < 8; ++i) {
      hash_ = (hash_ ^ (static_cast<std::uint64_t>(value) >> (8 * i) & 0xffU)) * 0x100000001b3U;
    }
  }
  void add(double value) { add(std::bit_cast<std::int64_t>(value)); }
  std::uint64_t value() const { return hash_; }

 private:
  std::uint64_t hash_ = 0xcbf29ce484222325U;
};

// `attention_scale`: softmax_scale, or what its 0 stands for.
std::uint64_t fingerprint(const LibraryInput& input, float attention_scale) {
  Fingerprint f;
  const ml_model& m = input.model;
  const std::int64_t integers[] = {m.num_layers,
                                   m.hidden_size,
                                   m.num_heads,
                                   m.num_kv_heads,
                                   m.head_dim,
                                   m.rotary_dim,
                                   m.index_heads,
                                   m.index_dim,
                                   m.block_size,
                                   m.topk_blocks,
                                   m.init_blocks,
                                   m.local_blocks,
                                   m.num_experts,
                                   m.experts_per_token,
                                   m.expert_width,
                                   m.shared_width,
                                   m.max_positions,
                                   input.context.tp_size,
                                   m.cos_sin.data != nullptr ? m.cos_sin.dtype : 0};
  for (const std::int64_t value : integers) f.add(value);
  const double numbers[] = {m.rope_theta,
                            m.rms_eps,
                            m.routed_scale,
                            m.swiglu_alpha,
                            m.swiglu_limit,
                            m.swiglu_beta,
                            m.shared_weight != 0 ? m.shared_weight : 1,
                            attention_scale};
  for (const double value : numbers) f.add(value);
  for (std::size_t i = 0; i < input.layers.size(); ++i) {
    const ml_cache_spec& cache = input.caches[i];
    const std::int64_t values[] = {input.layers[i].spec.layer_id, cache.k.dtype, cache.index.dtype,
                                   cache.max_context};
    for (const std::int64_t value : values) f.add(value);
    f.add(double{cache.k_scale});
    f.add(double{cache.v_scale});
    f.add(double{cache.index_scale});
  }
  return f.value();
}

Status check_group(const tp::Group* group, const ml_tp_context& context) {
  if (group == nullptr && context.tp_size > 1) {
    return {Code::kInvalidArgument, "context.group",
            "null with " + to_string(context.tp_size) + " ranks"};
  }
  const int rank = group != nullptr ? group->rank() : 0;
  const int size = group != nullptr ? group->size() : 1;
  if (rank == context.rank && size == context.tp_size) return {};
  return {Code::kInvalidArgument, "context.rank",
          "rank " + to_string(context.rank) + " of " + to_string(context.tp_size) +
              ", the group's handle is rank " + to_string(rank) + " of " + to_string(size)};
}

}  // namespace

void keep_until_exit(void* owned) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<void*>();
  const std::lock_guard lock(mutex);
  kept->push_back(owned);
}

Status agree_at(tp::Group* group, const std::string& stage, const Status& mine,
                std::chrono::milliseconds timeout) {
  if (group == nullptr || group->size() == 1) return mine;
  const tp::Agreement all = group->agree(mine, Deadline(timeout));
  switch (all.outcome) {
    case tp::Agreement::Outcome::kAgreed:
      return {};
    case tp::Agreement::Outcome::kUnsupported:
      return {Code::kUnsupported, stage, all.status.message()};
    default:
      if (!mine.ok()) return mine;
      // A group that is lost is not another rank's refusal.
      if (!group->status().ok()) return all.status;
      return {Code::kPeerRefused, stage, all.status.to_string()};
  }
}

Result<std::unique_ptr<Library>> Library::create(LibraryInput input, LibraryBackend& backend,
                                                 tp::Group* group, const LibraryOptions& options) {
  const DeviceTraits& traits = backend.traits();
  const auto agree = [&](const char* stage, const Status& mine) {
    return agree_at(group, stage, mine, options.timeout);
  };
  ExecutorConfig config;
  const Status checked = [&]() -> Status {
    ML_RETURN_IF_ERROR(check_group(group, input.context));
    ML_ASSIGN_OR_RETURN(config, check_input(input, traits));
    return {};
  }();
  ML_RETURN_IF_ERROR(agree("layers and caches", checked));
  if (group != nullptr) {
    ML_RETURN_IF_ERROR(group->agree_same(fingerprint(input, config.shape.attention_scale()),
                                         "model, layer ids and cache formats",
                                         Deadline(options.timeout)));
  }
  config.group = group;
  ML_RETURN_IF_ERROR(agree("backend support", backend.supports(config)));

  auto library = std::unique_ptr<Library>(new Library());
  library->options_ = options;
  library->group_ = group;
  library->traits_ = traits;
  library->config_ = config.shape;
  library->storage_ = storage_pointers(input);
  library->limits_ = {config.caches.front().blocks, config.caches.front().index_blocks,
                      config.max_context};
  for (const LayerInput& layer : input.layers) library->layer_ids_.push_back(layer.spec.layer_id);
  library->first_id_ = library->layer_ids_.front();
  library->hidden_size_ = static_cast<std::int32_t>(config.shape.hidden_size);
  const BuildOptions build{input.context.worker_threads, options.timeout};
  library->input_ = std::move(input);
  library->take_traits(traits);
  // From here to the end nothing of this object outlives a failure: closed_ keeps the destructor
  // from speaking of leaks.
  library->closed_ = true;
  const auto allocate = [&]() -> Status {
    const std::size_t rows = static_cast<std::size_t>(kMaxRows * config.shape.hidden_size);
    const std::size_t padded = (rows + 31) / 32 * 32;
    try {
      library->buffers_.resize(4 * padded + kBufferAlignment / sizeof(bf16_t));
    } catch (const std::bad_alloc&) {
      return {Code::kResourceExhausted, "activation buffers",
              to_string(8 * padded) + " bytes could not be allocated"};
    }
    auto at = reinterpret_cast<std::uintptr_t>(library->buffers_.data());
    at = (at + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
    auto* base = reinterpret_cast<bf16_t*>(at);
    for (std::size_t i = 0; i < 2; ++i) {
      library->outputs_[i] = {base + 2 * i * padded, base + (2 * i + 1) * padded};
    }
    return {};
  };
  ML_RETURN_IF_ERROR(agree("activation buffers", allocate()));
  const std::unique_ptr<Construction> construction = backend.construct(std::move(config), build);
  const auto stages = construction->stages();
  for (std::size_t i = 0; i < stages.size(); ++i) {
    // Unsupported is a word of the checks: once building has begun it is a failure like any other.
    Status mine = construction->run(i);
    if (mine.code() == Code::kUnsupported) {
      mine = Status(Code::kInternal, mine.subject(), mine.message());
    }
    ML_RETURN_IF_ERROR(agree_at(group, std::string(stages[i]), mine, options.timeout));
  }
  library->executor_ = construction->finish();
  const Status built = library->executor_ != nullptr
                           ? Status{}
                           : Status(Code::kInternal, "construction", "no executor");
  ML_RETURN_IF_ERROR(agree("registration", built));
  library->closed_ = false;
  library->usable_ = true;
  library->executor_memory_ = library->executor_->step_memory();
  library->executor_virtuals_ = virtuals_of(library->executor_.get());
  return library;
}

Library::~Library() {
  if (closed_ || executor_ == nullptr) return;
  if (group_ == nullptr || group_->size() == 1) {
    const Status status = executor_->close();
    if (!status.ok()) log("closing the fused path failed: " + status.to_string());
    return;
  }
  // A group that failed has said why, and its ranks cannot meet to close anything.
  if (group_->status().ok()) {
    log("a library of rank " + to_string(group_->rank()) +
        " was destroyed without close(): its memory is kept until the process ends");
  }
  keep_until_exit(executor_.release());
}

void Library::log(const std::string& line) const {
  if (options_.log) {
    options_.log(line);
  } else {
    std::fprintf(stderr, "monolayer: %s\n", line.c_str());
  }
}

ML_REFUSAL_CODE Status Library::refused_call(const char* call) const {
  if (closed_) return {Code::kFailedPrecondition, call, "called after close()"};
  return {Code::kFailedPrecondition, call,
          "an earlier call failed for good: " + failure_.to_string()};
}

ML_STEP_CODE void Library::ask_for_step(std::int64_t rows) {
  if (asked_) return;
  asked_ = true;
  const auto* first = reinterpret_cast<const char*>(&executor_);
  ask_for(first, static_cast<std::size_t>(reinterpret_cast<const char*>(&steps_) - first));
  ask_for_step_code();
  const ExpandedStep& next = steps_[1 - current_];
  const std::int64_t taken = std::clamp<std::int64_t>(rows, 0, kMaxRows);
  for (const auto& part : executor_memory_.fixed) ask_for(part.data(), part.size());
  ask_for(executor_virtuals_, kCacheLine);
  ask_for(&next, next.bytes(taken));
  for (const StepMemory::Rows& part : executor_memory_.per_row) {
    ask_for(part.begin, part.bytes * static_cast<std::size_t>(taken));
  }
}

ML_STEP_CODE Status Library::prepare_step(const ml_step& step) {
  std::uint32_t size = 0;
  std::memcpy(&size, &step, sizeof size);
  const bool whole = size == sizeof(ml_step);
  ask_for_step(whole ? step.token_count : kMaxRows);
  asked_ = false;
  if (!usable_) [[unlikely]]
    return refused_call("prepare_step");
  if (whole) [[likely]]
    return prepare_whole(step);
  return prepare_older(step);
}

// A caller's struct of another size.
ML_REFUSAL_CODE Status Library::prepare_older(const ml_step& step) {
  ml_step whole;
  ML_RETURN_IF_ERROR(read_step(&step, whole));
  return prepare_whole(whole);
}

ML_STEP_CODE Status Library::prepare_whole(const ml_step& step) {
  constexpr std::uint32_t kTaken = ML_STEP_CAPTURING;
  if ((step.flags & ~kTaken) != 0 || (host_addressable_ && step.stream != nullptr)) [[unlikely]] {
    return refused_kind(step);
  }
  ExpandedStep& next = steps_[1 - current_];
  if (!take_step(step, limits_, next)) [[unlikely]]
    return prepare_examined(step, next);
  return prepare_executor(next);
}

// A step with padding, or one to refuse.
ML_REFUSAL_CODE Status Library::prepare_examined(const ml_step& step, ExpandedStep& next) {
  const StepFinding found = examine_step(step, limits_, next);
  return found.none() ? prepare_executor(next) : step_refusal(step, limits_, next, found);
}

ML_STEP_CODE Status Library::prepare_executor(const ExpandedStep& next) {
  Status status = executor_->prepare_checked(next.view());
  if (status.ok()) {
    current_ = 1 - current_;
    prepared_ = true;
    next_layer_ = 0;
    next_id_ = first_id_;
  }
  return status;
}

ML_REFUSAL_CODE Status Library::refused_kind(const ml_step& step) const {
  if ((step.flags & ~(ML_STEP_CAPTURING | ML_STEP_TRACING)) != 0) {
    return {Code::kInvalidArgument, "step: flags", "unknown bits in " + to_string(step.flags)};
  }
  if ((step.flags & ML_STEP_TRACING) != 0) {
    return {Code::kFailedPrecondition, "prepare_step",
            "a graph compiler is tracing; the fused path works on addresses and cannot be traced"};
  }
  return {Code::kInvalidArgument, "step: stream", "must be null on " + std::string(traits_.name)};
}

ML_STEP_CODE bool Library::has_storage(std::span<const void* const> pointers) const {
  return usable_ && pointers.size() == storage_.size() &&
         same_pointers(storage_.data(), pointers.data(), storage_.size());
}

Status Library::check_storage(std::span<const void* const> pointers) const {
  if (!usable_) return refused_call("check_storage");
  if (has_storage(pointers)) return {};
  if (pointers.size() != storage_.size()) {
    return {Code::kInvalidArgument, "storage",
            to_string(pointers.size()) + " pointers, the bound layers and caches have " +
                to_string(storage_.size())};
  }
  const auto moved = std::mismatch(storage_.begin(), storage_.end(), pointers.begin()).first;
  return {Code::kFailedPrecondition, storage_name(input_, moved - storage_.begin()),
          "its memory moved since it was bound; close and bind again"};
}

Status Library::close() {
  if (closed_) return {};
  // What the executor holds may be in use by peers until all of them are here, which is its own
  // close's business; a failed close keeps the memory.
  const Status mine = executor_->close();
  Status all = agree_at(group_, "close", mine, options_.timeout);
  closed_ = true;
  usable_ = prepared_ = false;
  if (all.ok()) {
    executor_.reset();
  } else {
    log("closing the fused path failed, its memory is kept: " + all.to_string());
    keep_until_exit(executor_.release());
  }
  return all;
}

}  // namespace monolayer::mono
