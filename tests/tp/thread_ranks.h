// Runs one function per rank on its own thread.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <thread>
#include <vector>

#include "tp/group.h"

namespace monolayer::tp {

// The ranks' own statuses, in rank order.
inline std::vector<Status> on_threads(int ranks, const std::function<Status(Group&)>& rank_main) {
  auto group = make_thread_group(ranks);
  EXPECT_TRUE(group.ok()) << group.status().to_string();
  std::vector<Status> results(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < results.size(); ++r) {
    threads.emplace_back([&, r] { results[r] = rank_main(*(*group)[r]); });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

inline void expect_ok(const std::vector<Status>& results) {
  for (const Status& status : results) EXPECT_TRUE(status.ok()) << status.to_string();
}

// Every rank failed with one and the same error.
inline void expect_same_error(const std::vector<Status>& results, Code code) {
  for (const Status& status : results) {
    EXPECT_EQ(status.code(), code) << status.to_string();
    EXPECT_EQ(status.to_string(), results[0].to_string());
  }
}

}  // namespace monolayer::tp
