// Aligned scratch memory that grows and is never cleared.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace monolayer::cpu {

// How often any buffer of the process has grown: what was sized at the start does not grow later.
inline std::atomic<std::int64_t>& buffer_growths() {
  static std::atomic<std::int64_t> count{0};
  return count;
}

// Contents are undefined after reserve(). Throws std::bad_alloc; callers own the boundary. A buffer
// may also borrow another's memory, which must stay where it is meanwhile.
template <typename T>
class Buffer {
 public:
  void reserve(std::int64_t count) {
    if (count <= capacity_) return;
    buffer_growths().fetch_add(1, std::memory_order_relaxed);
    memory_.reset();
    at_ = nullptr;
    capacity_ = 0;
    const auto n = static_cast<std::size_t>(count);
    if (n > SIZE_MAX / sizeof(T) - kAlign) throw std::bad_alloc();
    const std::size_t bytes = (n * sizeof(T) + kAlign - 1) / kAlign * kAlign;
    memory_.reset(static_cast<T*>(std::aligned_alloc(kAlign, bytes)));
    if (memory_ == nullptr) throw std::bad_alloc();
    at_ = memory_.get();
    capacity_ = count;
  }
  void borrow(const Buffer& other) {
    memory_.reset();
    at_ = other.at_;
    capacity_ = other.capacity_;
  }
  // Memory that somebody else owns, room for `count`.
  void place(T* at, std::int64_t count) {
    memory_.reset();
    at_ = at;
    capacity_ = count;
  }
  T* data() { return at_; }
  const T* data() const { return at_; }
  std::int64_t bytes() const { return capacity_ * static_cast<std::int64_t>(sizeof(T)); }

 private:
  static constexpr std::size_t kAlign = 256;
  struct Free {
    void operator()(T* p) const { std::free(p); }  // NOLINT: paired with aligned_alloc
  };
  std::unique_ptr<T, Free> memory_;
  T* at_ = nullptr;
  std::int64_t capacity_ = 0;
};

}  // namespace monolayer::cpu
