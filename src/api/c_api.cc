// The C interface: argument checks, codes and messages around the library. No exception leaves.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "api/backends.h"
#include "api/repack.h"
#include "core/prefetch.h"
#include "mono/library.h"
#include "monolayer/monolayer.h"
#include "tp/group.h"
#include "tp/process_group.h"

struct ml_group {
  std::unique_ptr<monolayer::tp::Group> group;
  std::chrono::milliseconds timeout{10'000};
};

struct ml_mono {
  std::unique_ptr<monolayer::mono::Library> library;
};

namespace monolayer::api {
namespace {

thread_local std::string last_error;  // NOLINT: one message a thread is the interface

std::int32_t abi_code(Code code) {
  switch (code) {
    case Code::kOk:
      return ML_OK;
    case Code::kInvalidArgument:
    case Code::kInvalidFile:
    case Code::kNotFound:
      return ML_INVALID_ARGUMENT;
    case Code::kUnsupported:
      return ML_UNSUPPORTED;
    case Code::kFailedPrecondition:
      return ML_FAILED_PRECONDITION;
    case Code::kResourceExhausted:
      return ML_RESOURCE_EXHAUSTED;
    case Code::kDeadlineExceeded:
      return ML_DEADLINE_EXCEEDED;
    case Code::kPeerRefused:
      return ML_PEER_REFUSED;
    case Code::kIoError:
    case Code::kInternal:
      return ML_INTERNAL;
  }
  return ML_INTERNAL;
}

// Apart from the calls that went well, whose code is short.
ML_REFUSAL_CODE std::int32_t report_failure(const Status& status) noexcept {
  try {
    last_error = status.to_string();
  } catch (...) {
    last_error.clear();
  }
  return abi_code(status.code());
}

inline std::int32_t report(const Status& status) noexcept {
  return status.ok() ? ML_OK : report_failure(status);
}

// Runs f() -> Status with everything it may throw turned into a code.
template <typename F>
__attribute__((always_inline)) inline std::int32_t guarded(F&& f) noexcept {
  try {
    return report(f());
  } catch (const std::bad_alloc&) {
    return report({Code::kResourceExhausted, "", "out of memory"});
  } catch (const std::exception& e) {
    return report({Code::kInternal, "unexpected exception", e.what()});
  } catch (...) {
    return report({Code::kInternal, "unexpected exception", "of an unknown type"});
  }
}

Status null(const char* what) { return {Code::kInvalidArgument, what, "null pointer"}; }

Result<std::chrono::milliseconds> timeout_of(double seconds) {
  if (!(seconds > 0) || seconds > 86400) {
    return Status(Code::kInvalidArgument, "timeout_s",
                  "is " + std::to_string(seconds) + ", must be in (0, 86400]");
  }
  return std::chrono::milliseconds(std::max<std::int64_t>(1, std::llround(seconds * 1000)));
}

Status create(std::uint32_t abi_version, const ml_model* model, const ml_layer_spec* layers,
              std::int32_t layer_count, const ml_cache_spec* caches, std::int32_t cache_count,
              const ml_tp_context* context, ml_mono** out) {
  if (out == nullptr) return null("out");
  *out = nullptr;
  if (abi_version != ML_ABI_VERSION) {
    return {Code::kInvalidArgument, "abi_version",
            "is " + std::to_string(abi_version) + ", this library has " +
                std::to_string(ML_ABI_VERSION)};
  }
  // From here a rank of a group must not return without its peers: what is wrong with the arguments
  // is told to them at the first agreement.
  auto input = mono::read_input(model, layers, layer_count, caches, cache_count, context);
  ml_group* const group =
      context != nullptr && context->size >= sizeof(ml_tp_context) ? context->group : nullptr;
  mono::LibraryOptions options;
  if (group != nullptr) options.timeout = group->timeout;
  tp::Group* const ranks = group != nullptr ? group->group.get() : nullptr;
  mono::LibraryBackend* backend = nullptr;
  const Status readable = [&]() -> Status {
    if (!input.ok()) return input.status();
    if (group == nullptr && input->context.tp_size > 1) {
      return {Code::kInvalidArgument, "context.group",
              "null with " + std::to_string(input->context.tp_size) + " ranks"};
    }
    backend = find_backend(input->context.device_type);
    if (backend != nullptr) return {};
    return {Code::kUnsupported, "context.device_type",
            "is " + std::to_string(input->context.device_type) + ", this build runs on " +
                backend_names()};
  }();
  ML_RETURN_IF_ERROR(mono::agree_at(ranks, "arguments", readable, options.timeout));
  ML_ASSIGN_OR_RETURN(auto library,
                      mono::Library::create(std::move(input).value(), *backend, ranks, options));
  auto handle = std::make_unique<ml_mono>();
  handle->library = std::move(library);
  *out = handle.release();
  return {};
}

ML_LAYER_CODE Status forward(ml_mono* mono, std::int32_t first, std::int32_t count,
                             const ml_tensor* hidden, const ml_tensor* residual,
                             const ml_tensor* positions, ml_tensor* hidden_out,
                             ml_tensor* residual_out) {
  if (mono == nullptr) return null("mono");
  if (hidden == nullptr) return null("hidden");
  if (residual == nullptr) return null("residual");
  if (positions == nullptr) return null("positions");
  if (hidden_out == nullptr) return null("hidden_out");
  if (residual_out == nullptr) return null("residual_out");
  mono::LibraryOutput output;
  ML_RETURN_IF_ERROR(
      mono->library->forward_layers(first, count, *hidden, *residual, *positions, output));
  ml_tensor view = *hidden;  // shape, strides, type and device are the input's
  view.data = output.hidden;
  *hidden_out = view;
  view.data = output.residual;
  *residual_out = view;
  return {};
}

}  // namespace
}  // namespace monolayer::api

using monolayer::Status;
namespace api = monolayer::api;

extern "C" {

uint32_t ml_abi_version(void) { return ML_ABI_VERSION; }
const char* ml_version(void) { return MONOLAYER_VERSION; }

const char* ml_code_name(int32_t code) {
  switch (code) {
    case ML_OK:
      return "ok";
    case ML_INVALID_ARGUMENT:
      return "invalid argument";
    case ML_UNSUPPORTED:
      return "unsupported";
    case ML_FAILED_PRECONDITION:
      return "failed precondition";
    case ML_RESOURCE_EXHAUSTED:
      return "resource exhausted";
    case ML_DEADLINE_EXCEEDED:
      return "deadline exceeded";
    case ML_PEER_REFUSED:
      return "refused by another rank";
    case ML_INTERNAL:
      return "internal error";
    default:
      return "unknown code";
  }
}

const char* ml_last_error(void) { return api::last_error.c_str(); }

int32_t ml_accepted_layouts(int32_t device_type, int32_t role, int32_t* out, int32_t capacity) {
  const monolayer::mono::LibraryBackend* backend = api::find_backend(device_type);
  if (backend == nullptr) return 0;
  const auto tags = backend->traits().layouts(role);
  for (std::size_t i = 0; i < tags.size() && out != nullptr; ++i) {
    if (static_cast<std::int64_t>(i) < capacity) out[i] = tags[i];
  }
  return static_cast<int32_t>(tags.size());
}

int32_t ml_repack(const ml_tensor* from, const ml_tensor* to) {
  return api::guarded([&]() -> Status {
    if (from == nullptr) return api::null("from");
    if (to == nullptr) return api::null("to");
    return api::repack(*from, *to);
  });
}

int32_t ml_slice_rows(const ml_matrix* from, int64_t begin, int64_t end, ml_matrix* out) {
  return api::guarded([&]() -> Status {
    if (from == nullptr) return api::null("from");
    if (out == nullptr) return api::null("out");
    return api::slice_rows(*from, begin, end, *out);
  });
}

int32_t ml_group_create_threads(int32_t count, double timeout_s, ml_group** out) {
  return api::guarded([&]() -> Status {
    if (out == nullptr) return api::null("out");
    ML_ASSIGN_OR_RETURN(const auto timeout, api::timeout_of(timeout_s));
    ML_ASSIGN_OR_RETURN(auto groups, monolayer::tp::make_thread_group(count));
    std::vector<std::unique_ptr<ml_group>> handles;
    for (auto& group : groups) {
      handles.push_back(std::make_unique<ml_group>());
      handles.back()->group = std::move(group);
      handles.back()->timeout = timeout;
    }
    for (std::size_t i = 0; i < handles.size(); ++i) out[i] = handles[i].release();
    return {};
  });
}

int32_t ml_group_meet(const char* token, int32_t rank, int32_t count, double timeout_s,
                      ml_group** out) {
  return api::guarded([&]() -> Status {
    if (token == nullptr) return api::null("token");
    if (out == nullptr) return api::null("out");
    *out = nullptr;
    ML_ASSIGN_OR_RETURN(const auto timeout, api::timeout_of(timeout_s));
    ML_ASSIGN_OR_RETURN(auto group, monolayer::tp::meet_process_group(
                                        token, rank, count, monolayer::Deadline(timeout)));
    auto handle = std::make_unique<ml_group>();
    handle->group = std::move(group);
    handle->timeout = timeout;
    *out = handle.release();
    return {};
  });
}

int32_t ml_group_close(ml_group* group) {
  return api::guarded([&]() -> Status {
    if (group == nullptr) return api::null("group");
    return group->group->close(monolayer::Deadline(group->timeout));
  });
}

void ml_group_destroy(ml_group* group) { delete group; }

int32_t ml_mono_create(uint32_t abi_version, const ml_model* model, const ml_layer_spec* layers,
                       int32_t layer_count, const ml_cache_spec* caches, int32_t cache_count,
                       const ml_tp_context* context, ml_mono** out) {
  return api::guarded([&] {
    return api::create(abi_version, model, layers, layer_count, caches, cache_count, context, out);
  });
}

ML_STEP_CODE int32_t ml_mono_prepare_step(ml_mono* mono, const ml_step* step) {
  return api::guarded([&]() -> Status {
    if (mono == nullptr) return api::null("mono");
    if (step == nullptr) return api::null("step");
    return mono->library->prepare_step(*step);
  });
}

ML_LAYER_CODE int32_t ml_mono_forward_layer(ml_mono* mono, int32_t layer_id,
                                            const ml_tensor* hidden, const ml_tensor* residual,
                                            const ml_tensor* positions, ml_tensor* hidden_out,
                                            ml_tensor* residual_out) {
  return api::guarded([&] {
    return api::forward(mono, layer_id, 1, hidden, residual, positions, hidden_out, residual_out);
  });
}

ML_LAYER_CODE int32_t ml_mono_forward_layers(ml_mono* mono, int32_t first, int32_t count,
                                             const ml_tensor* hidden, const ml_tensor* residual,
                                             const ml_tensor* positions, ml_tensor* hidden_out,
                                             ml_tensor* residual_out) {
  return api::guarded([&] {
    return api::forward(mono, first, count, hidden, residual, positions, hidden_out, residual_out);
  });
}

int64_t ml_storage_pointers(const ml_layer_spec* layers, int32_t layer_count,
                            const ml_cache_spec* caches, int32_t cache_count, const void** out,
                            int64_t capacity) {
  std::int64_t count = 0;
  const std::int32_t code = api::guarded([&]() -> Status {
    ml_model model{};
    model.size = sizeof model;
    ml_tp_context context{};
    context.size = sizeof context;
    ML_ASSIGN_OR_RETURN(
        const auto input,
        monolayer::mono::read_input(&model, layers, layer_count, caches, cache_count, &context));
    const auto pointers = monolayer::mono::storage_pointers(input);
    count = static_cast<std::int64_t>(pointers.size());
    if (out != nullptr && capacity > 0) {
      std::copy_n(pointers.begin(), std::min(count, capacity), out);
    }
    return {};
  });
  return code == ML_OK ? count : -std::int64_t{code};
}

int32_t ml_mono_check_storage(const ml_mono* mono, const void* const* pointers, int64_t count) {
  return api::guarded([&]() -> Status {
    if (mono == nullptr) return api::null("mono");
    if (pointers == nullptr || count < 0) return api::null("pointers");
    return mono->library->check_storage({pointers, static_cast<std::size_t>(count)});
  });
}

int32_t ml_mono_close(ml_mono* mono) {
  return api::guarded([&]() -> Status {
    if (mono == nullptr) return api::null("mono");
    return mono->library->close();
  });
}

void ml_mono_destroy(ml_mono* mono) {
  static_cast<void>(api::guarded([&]() -> Status {
    delete mono;
    return {};
  }));
}

}  // extern "C"
