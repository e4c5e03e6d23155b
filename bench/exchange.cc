// Latency of one all-reduce of rows x 6144 float32 between ranks that do nothing else: the group's
// own, and the mailboxes' two variants; ranks as threads and as processes.
//   bench_exchange [repeats]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "mono/protocol_mailbox.h"
#include "tp/launcher.h"

namespace {

using namespace monolayer;  // NOLINT: a program of its own
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kColumns = 6144;
constexpr int kExchanges = 32;  // of one step: 16 layers

struct Figures {
  double median = 0, best = 0;  // microseconds
};

Figures figures(std::vector<double>& times) {
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times.front()};
}

void print(const tp::Group& group, tp::RankKind kind, std::int64_t rows, const char* what,
           const Figures& f) {
  if (group.rank() != 0) return;
  std::printf("| %s | %d | %lld | %s | %.1f | %.1f |\n",
              kind == tp::RankKind::kThreads ? "threads" : "processes", group.size(),
              static_cast<long long>(rows), what, f.median, f.best);
  std::fflush(stdout);
}

Status measure(tp::Group& group, tp::RankKind kind, std::int64_t rows, int repeats) {
  std::vector<float> values(static_cast<std::size_t>(rows * kColumns), 1.0F);
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    ML_RETURN_IF_ERROR(group.barrier());
    const auto start = Clock::now();
    for (int e = 0; e < kExchanges; ++e) ML_RETURN_IF_ERROR(group.all_reduce(values));
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count() /
                    kExchanges);
    std::fill(values.begin(), values.end(), 1.0F);
  }
  print(group, kind, rows, "group all_reduce", figures(times));

  for (const bool scatter : {false, true}) {
    ML_ASSIGN_OR_RETURN(mono::Mailbox mailbox,
                        mono::Mailbox::create(group, {rows, kColumns, 2, 24, scatter ? 1 : 99}));
    const WaitPolicy policy{Deadline::kDefault, &group.poison()};
    times.clear();
    for (int i = 0; i < repeats; ++i) {
      if (!mailbox.begin_step(policy)) return group.status();
      const auto start = Clock::now();
      for (int e = 0; e < kExchanges; ++e) {
        const mono::Block block{0, rows, 0, kColumns, values.data(), kColumns};
        const mono::WaitPlace place{group.rank(), e / 2, e % 2, "sum"};
        if (!mailbox.all_reduce(mailbox.exchange(e % 2, e / 2, rows), block, policy, place)) {
          return group.status();
        }
      }
      times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count() /
                      kExchanges);
      std::fill(values.begin(), values.end(), 1.0F);
    }
    print(group, kind, rows, scatter ? "mailbox scattered" : "mailbox direct", figures(times));
    ML_RETURN_IF_ERROR(mailbox.release(group));
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  const int repeats = argc > 1 ? std::max(1, std::atoi(argv[1])) : 50;
  std::printf("| ranks are | ranks | rows of %lld | all-reduce | median us | best us |\n",
              static_cast<long long>(kColumns));
  std::printf("|---|---|---|---|---|---|\n");
  for (const auto kind : {tp::RankKind::kThreads, tp::RankKind::kProcesses}) {
    for (const int ranks : {2, 4, 8}) {
      const auto results = tp::run_ranks({kind, ranks}, [&](tp::Group& group) -> Status {
        for (const std::int64_t rows : {1, 4, 16}) {
          ML_RETURN_IF_ERROR(measure(group, kind, rows, repeats));
        }
        return {};
      });
      if (!results.ok()) {
        std::fprintf(stderr, "%s\n", results.status().to_string().c_str());
        return 1;
      }
      for (const Status& status : *results) {
        if (status.ok()) continue;
        std::fprintf(stderr, "%s\n", status.to_string().c_str());
        return 1;
      }
    }
  }
  return 0;
}
