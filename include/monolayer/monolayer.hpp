// C++20 over monolayer.h, header only: nothing but the C interface crosses the library's boundary,
// so any compiler and standard library will do. Ownership, shapes, units and thread rules are those
// of monolayer.h. Errors are values; only std::bad_alloc of the caller's own containers may throw.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "monolayer/monolayer.h"

namespace monolayer::api {

// A code of monolayer.h (ML_OK, ...) and one line naming what was wrong.
class [[nodiscard]] Status {
 public:
  Status() = default;
  // From a call on this thread.
  explicit Status(std::int32_t code) : code_(code) {
    if (code != ML_OK) message_ = ml_last_error();
  }
  bool ok() const { return code_ == ML_OK; }
  std::int32_t code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  std::int32_t code_ = ML_OK;
  std::string message_;
};

// A value, or the Status saying why there is none.
template <typename T>
class Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT
  Result(Status status) : status_(std::move(status)) {}  // NOLINT
  bool ok() const { return value_.has_value(); }
  T& operator*() { return *value_; }
  T* operator->() { return &*value_; }
  const Status& status() const { return status_; }

 private:
  std::optional<T> value_;
  Status status_;
};

// A borrowed tensor, contiguous unless strides are given (elements, outermost first).
inline ml_tensor tensor(void* data, std::int32_t dtype, std::initializer_list<std::int64_t> shape,
                        std::int32_t layout = ML_LAYOUT_ROWS,
                        std::initializer_list<std::int64_t> strides = {},
                        std::int32_t device_type = ML_DEVICE_CPU, std::int32_t device_index = 0) {
  ml_tensor t = ML_TENSOR_INIT;
  t.data = data;
  t.dtype = dtype;
  t.layout = layout;
  t.device_type = device_type;
  t.device_index = device_index;
  for (const std::int64_t dim : shape) {
    if (t.rank < ML_MAX_RANK) t.shape[t.rank++] = dim;
  }
  std::int64_t next = 1;
  for (int axis = t.rank - 1; axis >= 0; --axis) {
    t.strides[axis] = next;
    next *= t.shape[axis];
  }
  int axis = 0;
  for (const std::int64_t stride : strides) {
    if (axis < t.rank) t.strides[axis++] = stride;
  }
  return t;
}

// A matrix of a weight and, where its format has one, a scale.
inline ml_matrix matrix(const ml_tensor& weight, const ml_tensor& scale = ML_TENSOR_INIT) {
  ml_matrix m{};
  m.size = sizeof m;
  m.weight = weight;
  m.scale = scale;
  return m;
}

inline ml_mlp mlp(const ml_matrix& gate, const ml_matrix& up, const ml_matrix& down) {
  ml_mlp m{};
  m.size = sizeof m;
  m.gate = gate;
  m.up = up;
  m.down = down;
  return m;
}

// The C structs, starting out empty with their sizes set.
struct Model : ml_model {
  Model() : ml_model{} { size = sizeof(ml_model); }
};
struct LayerSpec : ml_layer_spec {
  LayerSpec() : ml_layer_spec{} { size = sizeof(ml_layer_spec); }
};
struct CacheSpec : ml_cache_spec {
  CacheSpec() : ml_cache_spec{} {
    size = sizeof(ml_cache_spec);
    k_scale = v_scale = index_scale = 1;
  }
};
struct TpContext : ml_tp_context {
  TpContext() : ml_tp_context{} {
    size = sizeof(ml_tp_context);
    tp_size = 1;
    device_type = ML_DEVICE_CPU;
  }
};
struct StepMetadata : ml_step {
  StepMetadata() : ml_step{} { size = sizeof(ml_step); }
};

// One rank's handle of a group.
class Group {
 public:
  static Result<std::vector<Group>> threads(std::int32_t count, double timeout_s = 10) {
    std::vector<ml_group*> handles(count > 0 ? static_cast<std::size_t>(count) : 1);
    const std::int32_t code = ml_group_create_threads(count, timeout_s, handles.data());
    if (code != ML_OK) return Status(code);
    std::vector<Group> groups;
    groups.reserve(handles.size());
    for (ml_group* handle : handles) groups.push_back(Group(handle));
    return groups;
  }
  static Result<Group> meet(const std::string& token, std::int32_t rank, std::int32_t count,
                            double timeout_s = 10) {
    ml_group* handle = nullptr;
    const std::int32_t code = ml_group_meet(token.c_str(), rank, count, timeout_s, &handle);
    if (code != ML_OK) return Status(code);
    return Group(handle);
  }
  Group(Group&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Group& operator=(Group&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Group() { ml_group_destroy(handle_); }

  ml_group* handle() const { return handle_; }
  Status close() { return Status(ml_group_close(handle_)); }  // collective

 private:
  explicit Group(ml_group* handle) : handle_(handle) {}
  ml_group* handle_;
};

// A layer's outputs: views of the library's memory, overwritten by the call after the next.
struct Activations {
  ml_tensor hidden = ML_TENSOR_INIT, residual = ML_TENSOR_INIT;
};

// The fused path of one rank. Close it (collective) before it is destroyed.
class Mono {
 public:
  static Result<Mono> create(const Model& model, std::span<const LayerSpec> layers,
                             std::span<const CacheSpec> caches, const TpContext& context) {
    ml_mono* handle = nullptr;
    const std::int32_t code = ml_mono_create(
        ML_ABI_VERSION, &model, layers.data(), static_cast<std::int32_t>(layers.size()),
        caches.data(), static_cast<std::int32_t>(caches.size()), &context, &handle);
    if (code != ML_OK) return Status(code);
    return Mono(handle);
  }
  Mono(Mono&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Mono& operator=(Mono&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Mono() { ml_mono_destroy(handle_); }

  Status prepare_step(const StepMetadata& step) {
    return Status(ml_mono_prepare_step(handle_, &step));
  }
  Status forward_layer(std::int32_t layer_id, const ml_tensor& hidden, const ml_tensor& residual,
                       const ml_tensor& positions, Activations& out) {
    return forward_layers(layer_id, 1, hidden, residual, positions, out);
  }
  Status forward_layers(std::int32_t first, std::int32_t count, const ml_tensor& hidden,
                        const ml_tensor& residual, const ml_tensor& positions, Activations& out) {
    return Status(ml_mono_forward_layers(handle_, first, count, &hidden, &residual, &positions,
                                         &out.hidden, &out.residual));
  }
  Status check_storage(std::span<const void* const> pointers) const {
    return Status(ml_mono_check_storage(handle_, pointers.data(),
                                        static_cast<std::int64_t>(pointers.size())));
  }
  Status close() { return Status(ml_mono_close(handle_)); }  // collective
  ml_mono* handle() const { return handle_; }

 private:
  explicit Mono(ml_mono* handle) : handle_(handle) {}
  ml_mono* handle_;
};

static_assert(sizeof(LayerSpec) == sizeof(ml_layer_spec));
static_assert(sizeof(CacheSpec) == sizeof(ml_cache_spec));

}  // namespace monolayer::api
