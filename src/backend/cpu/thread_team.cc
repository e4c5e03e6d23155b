#include "backend/cpu/thread_team.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "backend/cpu/thread_places.h"

namespace monolayer::cpu {
namespace {

constexpr int kMaxThreads = 1024;

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A 32-bit word threads wait on: spinning first, then in the kernel. A sleeper is counted, so that
// whoever changes the word pays for a system call only if somebody sleeps.
class alignas(64) Gate {
 public:
  std::uint32_t load() const { return word_.load(std::memory_order_acquire); }
  void store_quietly(std::uint32_t value) { word_.store(value, std::memory_order_relaxed); }

  void publish(std::uint32_t value) {
    word_.store(value, std::memory_order_seq_cst);
    wake_sleepers();
  }
  // Returns the value after the decrement; wakes when it is zero.
  void count_down() {
    if (word_.fetch_sub(1, std::memory_order_seq_cst) == 1) wake_sleepers();
  }
  // Returns once the word differs from (or, with `until`, equals) `value`.
  void wait_while(std::uint32_t value, std::chrono::nanoseconds spin) { wait(value, false, spin); }
  void wait_until(std::uint32_t value, std::chrono::nanoseconds spin) { wait(value, true, spin); }

 private:
  static_assert(sizeof(std::atomic<std::uint32_t>) == 4);

  long futex(int operation, std::uint32_t value) {
    return syscall(SYS_futex, &word_, operation | FUTEX_PRIVATE_FLAG, value, nullptr, nullptr, 0);
  }
  void wake_sleepers() {
    if (sleepers_.load(std::memory_order_seq_cst) != 0) futex(FUTEX_WAKE, 0x7fffffff);
  }
  void wait(std::uint32_t value, bool until, std::chrono::nanoseconds spin) {
    if ((load() == value) == until) return;
    if (spin.count() > 0) {
      const auto give_up = std::chrono::steady_clock::now() + spin;
      do {
        for (int i = 0; i < 64; ++i) {
          if ((load() == value) == until) return;
          relax();
        }
      } while (std::chrono::steady_clock::now() < give_up);
    }
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    for (;;) {
      const std::uint32_t seen = word_.load(std::memory_order_seq_cst);
      if ((seen == value) == until) break;
      futex(FUTEX_WAIT, seen);  // returns at once if the word moved on
    }
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  }

  std::atomic<std::uint32_t> word_{0};
  std::atomic<std::uint32_t> sleepers_{0};
};

bool bind_thread(pthread_t thread, int cpu) {
  if (cpu >= CPU_SETSIZE) return false;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(cpu), &set);
  return pthread_setaffinity_np(thread, sizeof set, &set) == 0;
}

class Team final : public ThreadTeam {
 public:
  Team(int size, std::vector<int> cpus, std::chrono::nanoseconds spin)
      : size_(size), cpus_(std::move(cpus)), spin_(spin) {}

  ~Team() override {
    stop_ = true;
    round_.publish(round_.load() + 1);
    for (std::thread& thread : threads_) thread.join();
  }

  // Throws std::system_error when a thread cannot be started.
  void start() {
    threads_.reserve(static_cast<std::size_t>(size_ - 1));
    for (int worker = 1; worker < size_; ++worker) {
      threads_.emplace_back([this, worker] { serve(worker); });
      if (!cpus_.empty()) {
        bound_ =
            bind_thread(threads_.back().native_handle(), cpus_[static_cast<std::size_t>(worker)]) &&
            bound_;
      }
    }
  }

  bool bound() const { return bound_; }
  void set_description(std::string text) { description_ = std::move(text); }
  int size() const override { return size_; }
  std::string_view describe() const override { return description_; }

  void run(void (*body)(void*, int), void* context) override {
    if (size_ == 1) {
      body(context, 0);
      return;
    }
    leave_workers_cpus();
    body_ = body;
    context_ = context;
    pending_.store_quietly(static_cast<std::uint32_t>(size_ - 1));
    round_.publish(round_.load() + 1);
    body(context, 0);
    pending_.wait_until(0, spin_);
  }

 private:
  void serve(int worker) {
    std::uint32_t seen = 0;
    for (;;) {
      round_.wait_while(seen, spin_);
      seen = round_.load();
      if (stop_) return;
      body_(context_, worker);
      pending_.count_down();
    }
  }

  // The caller keeps its own affinity mask (threads it starts later inherit it), but must not sit
  // on a worker's core: the scheduler would let the two take turns. Moving it once is enough, it
  // stays where it is while that core is free.
  void leave_workers_cpus() {
    if (cpus_.empty()) return;
    const int cpu = sched_getcpu();
    if (cpu == cpus_[0] || std::find(cpus_.begin(), cpus_.end(), cpu) == cpus_.end()) return;
    cpu_set_t own;
    if (pthread_getaffinity_np(pthread_self(), sizeof own, &own) != 0) return;
    if (!CPU_ISSET(static_cast<std::size_t>(cpus_[0]), &own)) return;
    if (bind_thread(pthread_self(), cpus_[0])) {
      pthread_setaffinity_np(pthread_self(), sizeof own, &own);
    }
  }

  const int size_;
  const std::vector<int> cpus_;  // of workers 0, 1, ...; empty: not pinned
  const std::chrono::nanoseconds spin_;
  bool bound_ = true;
  std::string description_;
  // Written before round_ is published, read after it is seen.
  void (*body_)(void*, int) = nullptr;
  void* context_ = nullptr;
  bool stop_ = false;
  Gate round_;
  Gate pending_;
  std::vector<std::thread> threads_;
};

std::string join(const std::vector<int>& values) {
  std::string text;
  for (const int value : values) {
    if (!text.empty()) text += ',';
    text += std::to_string(value);
  }
  return text;
}

}  // namespace

Result<std::unique_ptr<ThreadTeam>> ThreadTeam::create(const TeamOptions& options) {
  if (options.threads < 0 || options.threads > kMaxThreads) {
    return Status(
        Code::kInvalidArgument, "threads",
        std::to_string(options.threads) + " is outside 0.." + std::to_string(kMaxThreads));
  }
  try {
    const Places places = find_places();
    const int cores = static_cast<int>(places.cores.size());
    // A team over its quota is stopped as a whole for the rest of each period, so round down.
    const int usable =
        places.cpu_limit > 0 ? std::clamp(static_cast<int>(places.cpu_limit), 1, cores) : cores;
    const int size = options.threads > 0 ? options.threads : std::min(usable, kMaxThreads);
    const bool crowded = size > usable;
    std::vector<int> cpus;
    if (options.pin && size > 1 && size <= cores) {
      cpus.assign(places.cores.begin(), places.cores.begin() + size);
    }
    // Spinning helps only while every thread has a core of its own.
    const auto spin = crowded ? std::chrono::microseconds(0) : std::chrono::microseconds(50);
    auto team = std::make_unique<Team>(size, cpus, spin);
    team->start();

    std::string text = std::to_string(size) + (size == 1 ? " thread" : " threads");
    text += options.threads > 0 ? " as asked" : ", one per usable physical core";
    text += "; " + std::to_string(cores) + " physical cores, " +
            std::to_string(places.allowed_cpus) + " CPUs allowed, ";
    text += places.cpu_limit > 0 ? "cgroup quota of " + std::to_string(places.cpu_limit) + " CPUs"
                                 : std::string("no cgroup quota");
    if (cpus.empty()) {
      text += "; not pinned";
    } else if (team->bound()) {
      text += "; pinned to CPUs " + join(cpus);
    } else {
      text += "; pinning was refused by the system";
    }
    if (crowded) text += "; more threads than cores to run on: waiting threads sleep at once";
    team->set_description(std::move(text));
    return std::unique_ptr<ThreadTeam>(std::move(team));
  } catch (const std::system_error& error) {
    return Status(Code::kResourceExhausted, "threads",
                  std::string("cannot start the thread team: ") + error.what());
  } catch (const std::bad_alloc&) {
    return Status(Code::kResourceExhausted, "threads", "no memory for the thread team");
  }
}

}  // namespace monolayer::cpu
