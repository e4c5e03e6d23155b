// A call of layers: what is given is checked at a look, the executor runs, the next call's memory
// is asked for.
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <string>

#include "core/prefetch.h"
#include "mono/library.h"

namespace monolayer::mono {

namespace {

using std::to_string;

// Tensors as nearly every caller has them, contiguous in the preferred layout, are taken at a look,
// which is a few words compared at once; of all others check_tensor() says whether they are, and
// why not.

// What stands before the data: size and type, layout and device, its number and the rank.
using TensorHead = std::array<std::uint64_t, 3>;

__attribute__((always_inline)) inline TensorHead head_of(const ml_tensor& tensor) {
  TensorHead head;
  static_assert(offsetof(ml_tensor, data) == sizeof head);
  std::memcpy(&head, &tensor, sizeof head);
  return head;
}

__attribute__((always_inline)) inline std::uint64_t pair_of(std::uint32_t first,
                                                            std::uint32_t second) {
  return std::bit_cast<std::uint64_t>(std::array{first, second});
}

__attribute__((always_inline)) inline std::uint64_t differences(std::int64_t a, std::int64_t b) {
  return static_cast<std::uint64_t>(a ^ b);
}

// Of an address: bits that must not be set, or no address at all.
__attribute__((always_inline)) inline std::uint64_t misplaced(const void* data,
                                                              std::uint64_t mask) {
  return (reinterpret_cast<std::uintptr_t>(data) & mask) | (data == nullptr ? 1U : 0U);
}

}  // namespace

ML_REFUSAL_CODE Status Library::check_rows(const char* name, const ml_tensor& tensor) const {
  TensorRule rule;
  rule.subject = name;
  rule.dtypes = {ML_BF16};
  rule.shape = {step().count, config_.hidden_size};
  rule.role = ML_ROLE_ACTIVATION;
  rule.device_index = input_.context.device_index;
  rule.alignment = traits_.activation_alignment;
  rule.packed = 2;
  return check_tensor(tensor, traits_, rule);
}

ML_REFUSAL_CODE Status Library::check_positions(const ml_tensor& positions) const {
  TensorRule rule;
  rule.subject = "positions";
  rule.dtypes = {ML_I64};
  rule.shape = {-1};
  rule.role = ML_ROLE_ACTIVATION;
  rule.device_index = input_.context.device_index;
  ML_RETURN_IF_ERROR(check_tensor(positions, traits_, rule));
  if (positions.shape[0] < step().count) {
    return {
        Code::kInvalidArgument, "positions",
        "shape " + shape_text(positions) + ", the step has " + to_string(step().count) + " rows"};
  }
  if (!host_addressable_) return {};
  const auto* values = static_cast<const std::int64_t*>(positions.data);
  for (std::int64_t i = 0; i < step().count; ++i) {
    const StepRow& row = step().rows[static_cast<std::size_t>(i)];
    if (row.live && values[i] != row.position) {
      return {Code::kInvalidArgument, "positions",
              "row " + to_string(i) + " has position " + to_string(values[i]) +
                  ", its request's length puts it at " + to_string(row.position)};
    }
  }
  return {};
}

void Library::take_traits(const DeviceTraits& traits) {
  ml_tensor rows = ML_TENSOR_INIT;
  rows.dtype = ML_BF16;
  rows.layout = traits.activation_layouts.front();
  rows.device_type = traits.device_type;
  rows.device_index = input_.context.device_index;
  rows.rank = 2;
  usual_head_ = head_of(rows);
  activation_mask_ = static_cast<std::uint32_t>(traits.activation_alignment - 1);
  host_addressable_ = traits.host_addressable;
}

ML_LAYER_CODE __attribute__((noinline)) std::uint64_t Library::unusual_rows(
    const ml_tensor& tensor, std::int64_t rows) const {
  const TensorHead head = head_of(tensor);
  return (head[0] ^ usual_head_[0]) | (head[1] ^ usual_head_[1]) | (head[2] ^ usual_head_[2]) |
         misplaced(tensor.data, activation_mask_) | differences(tensor.shape[0], rows) |
         differences(tensor.shape[1], hidden_size_) | differences(tensor.strides[0], hidden_size_) |
         differences(tensor.strides[1], 1);
}

__attribute__((always_inline)) inline bool Library::usual_positions(const ml_tensor& positions,
                                                                    const ExpandedStep& now) const {
  const TensorHead head = head_of(positions);
  const std::uint64_t unusual =
      (head[0] ^ pair_of(sizeof(ml_tensor), ML_I64)) | (head[1] ^ usual_head_[1]) |
      (head[2] ^ usual_head_[2] ^ pair_of(0, 1 ^ 2)) | differences(positions.strides[0], 1) |
      misplaced(positions.data, sizeof(std::int64_t) - 1);
  if (unusual != 0 || positions.shape[0] < now.count) [[unlikely]]
    return false;
  if (!host_addressable_) return true;
  const auto* values = static_cast<const std::int64_t*>(positions.data);
  std::int64_t other = 0;
  for (std::int64_t i = 0; i < now.count; ++i) {
    const std::int64_t expected = now.positions[static_cast<std::size_t>(i)];
    other |= (values[i] ^ expected) & ~(expected >> 63);  // -1: any
  }
  return other == 0;
}

ML_REFUSAL_CODE Status Library::refused_order(std::int64_t first, std::int64_t count) const {
  if (!prepared_) return {Code::kFailedPrecondition, "forward_layers", "no step is prepared"};
  const auto found = std::find(layer_ids_.begin(), layer_ids_.end(), first);
  if (found == layer_ids_.end()) {
    return {Code::kInvalidArgument, "layer " + to_string(first),
            "unknown: ids go from " + to_string(layer_ids_.front()) + " to " +
                to_string(layer_ids_.back())};
  }
  const auto left = layer_ids_.end() - found;
  if (count < 1 || count > left) {
    return {Code::kInvalidArgument, "layer count",
            "is " + to_string(count) + ", from layer " + to_string(first) + " there are " +
                to_string(left)};
  }
  const std::string expected = next_layer_ < layer_ids_.size()
                                   ? "layer " + to_string(layer_ids_[next_layer_]) + " is next"
                                   : std::string("the step has run all its layers");
  return {Code::kFailedPrecondition, "layer " + to_string(first), "out of order: " + expected};
}

// What a layer's call touches, by addresses that are at hand: none is looked up for it.
struct Library::LayerMemory {
  const Library* library;
  const ExpandedStep* step;
  const void *executor, *virtuals, *ids, *positions;
  __attribute__((always_inline)) void ask() const {
    ask_for_layer_code();
    ask_for_lines<2>(&library->executor_);
    ask_for_lines<3>(step);  // up to its rows
    ask_for_lines<1>(executor);
    ask_for_lines<1>(virtuals);
    ask_for_lines<1>(ids);
    ask_for_lines<2>(positions);
  }
  // After a call the six addresses are read from the stack. (The compiler would rather keep what it
  // made of them, a line of stack more for each few.)
  __attribute__((always_inline)) void ask_again() {
    asm volatile("" : "+m"(*this));
    ask();
  }
};

__attribute__((always_inline)) inline Library::LayerMemory Library::layer_memory(
    const ml_tensor& positions) const {
  return {
      this,          &step(), executor_.get(), executor_virtuals_, layer_ids_.data() + next_layer_,
      positions.data};
}

// The layers read more than the caches hold. So all that a call changes it changes before they run
// (a failure is final), and what is left to do then is to ask for what the next call touches, while
// its caller is still on the way.
__attribute__((always_inline)) inline Status Library::run_next(LayerMemory memory,
                                                               std::int64_t count,
                                                               const ml_tensor& hidden,
                                                               const ml_tensor& residual,
                                                               LibraryOutput& out) {
  const auto first = static_cast<std::int64_t>(next_layer_);
  next_layer_ += static_cast<std::size_t>(count);
  next_id_ = next_layer_ < layer_ids_.size() ? layer_ids_[next_layer_] : -1;
  out = outputs_[next_buffer_++ & 1U];
  Status ran =
      executor_->run_layers(first, count, static_cast<const bf16_t*>(hidden.data),
                            static_cast<const bf16_t*>(residual.data), out.hidden, out.residual);
  memory.ask_again();
  if (!ran.ok()) [[unlikely]]
    fail(ran);
  return ran;
}

ML_LAYER_CODE Status Library::forward_layers(std::int64_t first, std::int64_t count,
                                             const ml_tensor& hidden, const ml_tensor& residual,
                                             const ml_tensor& positions, LibraryOutput& out) {
  const LayerMemory memory = layer_memory(positions);
  memory.ask();
  if (!usable_) [[unlikely]]
    return refused_call("forward_layers");
  if (first != next_id_ || count < 1 || count > layers_left()) [[unlikely]]
    return refused_order(first, count);
  const std::int64_t rows = memory.step->count;
  if ((unusual_rows(hidden, rows) | unusual_rows(residual, rows)) != 0 ||
      !usual_positions(positions, *memory.step)) [[unlikely]] {
    return run_unusual(count, hidden, residual, positions, out);
  }
  return run_next(memory, count, hidden, residual, out);
}

ML_REFUSAL_CODE Status Library::run_unusual(std::int64_t count, const ml_tensor& hidden,
                                            const ml_tensor& residual, const ml_tensor& positions,
                                            LibraryOutput& out) {
  ML_RETURN_IF_ERROR(check_rows("hidden", hidden));
  ML_RETURN_IF_ERROR(check_rows("residual", residual));
  ML_RETURN_IF_ERROR(check_positions(positions));
  return run_next(layer_memory(positions), count, hidden, residual, out);
}

ML_REFUSAL_CODE void Library::fail(const Status& why) {
  failure_ = why;
  usable_ = false;
  if (group_ != nullptr && group_->status().ok()) group_->fail(why);  // ends the peers' waits
}

}  // namespace monolayer::mono
