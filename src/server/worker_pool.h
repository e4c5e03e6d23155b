// A few threads for work that would hold the server's thread up.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace monolayer::server {

class WorkerPool {
 public:
  WorkerPool(int threads, std::size_t most_queued) : most_queued_(most_queued) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { loop(); });
  }
  ~WorkerPool() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  // False when too much waits already.
  bool run(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      if (queue_.size() >= most_queued_) return false;
      queue_.push_back(std::move(work));
    }
    wake_.notify_one();
    return true;
  }

 private:
  void loop() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return stop_ || !queue_.empty(); });
      if (stop_) return;
      const std::function<void()> work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      work();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;
  std::size_t most_queued_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace monolayer::server
