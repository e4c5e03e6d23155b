#include "engine/rank_processes.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/deadline.h"
#include "tp/process_group.h"

namespace monolayer::engine {
namespace {

using std::chrono::seconds;

// What rank 0 tells the others to do.
enum class Order : std::int64_t { kStep = 1, kCapture = 2, kClose = 3, kPrepare = 4 };

// False: the other end is gone, or has not taken all by then.
bool write_all(int fd, const void* data, std::size_t bytes, const Deadline& deadline) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t done = ::send(fd, at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      if (deadline.expired()) return false;
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining());
      pollfd room{fd, POLLOUT, 0};
      (void)::poll(&room, 1, static_cast<int>(left.count()));
      continue;
    }
    if (done <= 0) return false;
    at += done;
    bytes -= static_cast<std::size_t>(done);
  }
  return true;
}

bool read_all(int fd, void* data, std::size_t bytes) {
  auto* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t done = ::read(fd, at, bytes);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    at += done;
    bytes -= static_cast<std::size_t>(done);
  }
  return true;
}

// A message: its length in words, the order, then the order's words.
using Message = std::vector<std::int64_t>;

Message step_message(Order order, std::span<const cpu::StepSequence> sequences) {
  Message m{0, static_cast<std::int64_t>(order), static_cast<std::int64_t>(sequences.size())};
  for (const cpu::StepSequence& s : sequences) {
    m.push_back(s.start);
    m.push_back(s.logit_rows);
    m.push_back(s.greedy ? 1 : 0);
    m.push_back(static_cast<std::int64_t>(s.tokens.size()));
    m.insert(m.end(), s.tokens.begin(), s.tokens.end());
    m.push_back(static_cast<std::int64_t>(s.pages.size()));
    m.insert(m.end(), s.pages.begin(), s.pages.end());
  }
  m[0] = static_cast<std::int64_t>(m.size());
  return m;
}

bool receive(int fd, Message& m) {
  std::int64_t words = 0;
  if (!read_all(fd, &words, sizeof words)) return false;
  m.resize(static_cast<std::size_t>(words));
  return read_all(fd, m.data() + 1, (m.size() - 1) * sizeof(m[0]));
}

// The sequences of a step, with the memory they point into.
struct Received {
  std::vector<std::vector<std::int32_t>> lists;
  std::vector<cpu::StepSequence> sequences;

  explicit Received(const Message& m) {
    std::size_t at = 2;
    const auto next = [&] { return m[at++]; };
    const auto list = [&] {
      auto& out = lists.emplace_back(static_cast<std::size_t>(next()));
      for (std::int32_t& value : out) value = static_cast<std::int32_t>(next());
      return std::span<const std::int32_t>(out);
    };
    const std::int64_t count = next();
    lists.reserve(static_cast<std::size_t>(2 * count));
    for (std::int64_t i = 0; i < count; ++i) {
      cpu::StepSequence s;
      s.start = next();
      s.logit_rows = next();
      s.greedy = next() != 0;
      s.tokens = list();
      s.pages = list();
      sequences.push_back(s);
    }
  }
};

// What one rank, of any process, computes with.
struct Rank {
  std::unique_ptr<tp::Group> group;
  std::unique_ptr<cpu::ThreadTeam> team;
  std::unique_ptr<cpu::CachePool> pool;
  std::unique_ptr<cpu::Native> native;

  Status load(const OpenModel& model, const m3::ModelWeights& weights,
              const RankProcessOptions& options, dispatch::ChainPolicy& policy, int memory,
              int rank) {
    // Reading a large model's weights takes its time on every rank.
    ML_ASSIGN_OR_RETURN(
        group, tp::join_process_group(memory, rank, options.ranks, Deadline(seconds(3600))));
    ML_RETURN_IF_ERROR(group->agree_same(policy.any_fused() ? 1 : 0, "whether steps may be fused",
                                         Deadline(seconds(3600))));
    ML_ASSIGN_OR_RETURN(const m3::RankShape shape,
                        m3::rank_shape(model.config, rank, options.ranks));
    int threads = options.threads;
    if (threads == 0) {
      ML_ASSIGN_OR_RETURN(const auto probe, cpu::ThreadTeam::create({.threads = 0, .pin = false}));
      threads = probe->size();
    }
    ML_ASSIGN_OR_RETURN(team, cpu::ThreadTeam::create(
                                  {.threads = std::max(1, threads / options.ranks), .pin = false}));
    ML_ASSIGN_OR_RETURN(pool, cpu::CachePool::create(m3::rank_config(model.config, shape),
                                                     options.cache, options.pages));
    cpu::NativeOptions native_options;
    native_options.tiles = options.tiles;
    native_options.fused = true;
    native_options.policy = &policy;
    native_options.group = group.get();
    ML_ASSIGN_OR_RETURN(native, cpu::Native::create(model.config, weights, *team, native_options));
    return {};
  }
};

// An error that every rank finds by itself, from the same input.
bool is_everybodys(Code code) {
  return code == Code::kInvalidArgument || code == Code::kUnsupported || code == Code::kInternal;
}

// Why a rank ends before it takes orders, sent up its socket: a code, then a line.
constexpr std::size_t kMostReason = 2048;

void send_reason(int orders, const Status& status) {
  const std::string text = status.to_string().substr(0, kMostReason - 1);
  const std::string reason = static_cast<char>(status.code()) + text;
  (void)::send(orders, reason.data(), reason.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

// What send_reason() sent, as often as it is asked for; ok if it did not.
Status sent_reason(int fd, int rank) {
  char reason[kMostReason];
  const ssize_t bytes = ::recv(fd, reason, sizeof reason, MSG_PEEK | MSG_DONTWAIT);
  if (bytes < 1) return {};
  std::string text(reason + 1, static_cast<std::size_t>(bytes) - 1);
  // It may have ended over another's failure.
  const bool named = text.starts_with("rank ");
  const std::size_t end = named ? text.find(": ") : std::string::npos;
  if (end == std::string::npos)
    return {static_cast<Code>(reason[0]), "rank " + std::to_string(rank), std::move(text)};
  return {static_cast<Code>(reason[0]), text.substr(0, end), text.substr(end + 2)};
}

// A rank's whole life. Returns its exit code.
int serve_rank(const OpenModel& model, const RankProcessOptions& options, int memory, int orders,
               int number) {
  std::unique_ptr<dispatch::ChainPolicy> policy;  // outlives the rank's chain
  Rank rank;
  const auto weights = m3::bind_weights(model.config, model.checkpoint, ValueCheck::kScales);
  Status status = weights.status();
  if (status.ok()) {
    auto made = dispatch::ChainPolicy::create(model.config, *weights,
                                              {.tensor_parallel = options.ranks,
                                               .max_model_length = options.longest_tokens,
                                               .kv_cache = options.cache.kv,
                                               .index_cache = options.cache.index},
                                              options.path);
    status = made.status();
    if (status.ok()) policy = std::move(made).value();
  }
  if (status.ok()) status = rank.load(model, *weights, options, *policy, memory, number);
  if (!status.ok()) {
    if (rank.group != nullptr) rank.group->fail(status);
    send_reason(orders, status);
    return 1;
  }
  Message message;
  std::vector<float> logits;
  while (receive(orders, message)) {
    switch (static_cast<Order>(message[1])) {
      case Order::kStep: {
        const Received step(message);
        status = rank.native->step(step.sequences, *rank.pool, logits, nullptr);
        if (status.ok() || is_everybodys(status.code())) continue;
        rank.group->fail(status);
        return 1;
      }
      case Order::kPrepare: {
        const Received step(message);
        status = rank.native->prepare_for(step.sequences, *rank.pool);
        if (status.ok() || is_everybodys(status.code())) continue;
        rank.group->fail(status);
        return 1;
      }
      case Order::kCapture:
        if (!rank.native->capture(std::span(message).subspan(2)).ok()) return 1;
        continue;
      case Order::kClose:
        status = rank.native->close();
        return status.ok() && rank.group->close().ok() ? 0 : 1;
    }
    return 1;
  }
  return 0;  // rank 0's process is gone
}

class Processes final : public RankProcesses {
 public:
  Processes(const OpenModel& model, const RankProcessOptions& options)
      : model_(model), options_(options) {}

  ~Processes() override {
    for (const int fd : orders_) ::close(fd);  // whoever still waits for an order ends
    if (memory_ >= 0) ::close(memory_);
    // Ranks that were never met wait for this one where they hear nothing else.
    if (!met_)
      for (const pid_t child : children_) kill(child, SIGKILL);
    const auto limit = std::chrono::steady_clock::now() + seconds(5);
    for (const pid_t child : children_) {
      while (waitpid(child, nullptr, WNOHANG) == 0) {
        if (std::chrono::steady_clock::now() > limit) kill(child, SIGKILL);
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
    }
  }

  Status fork_all() {
    ML_ASSIGN_OR_RETURN(memory_, tp::create_group_memory());
    const pid_t parent = getpid();
    std::fflush(nullptr);  // or children would print it again
    for (int r = 1; r < options_.ranks; ++r) {
      int pair[2];
      if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return {Code::kIoError, "socketpair", std::strerror(errno)};
      const pid_t child = fork();
      if (child < 0) return {Code::kIoError, "fork", std::strerror(errno)};
      if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
        signal(SIGINT, SIG_IGN);
        signal(SIGTERM, SIG_IGN);
        ::close(pair[0]);
        for (const int fd : orders_) ::close(fd);
        int code = 1;
        try {
          code = serve_rank(model_, options_, memory_, pair[1], r);
        } catch (...) {
        }
        _exit(code);
      }
      ::close(pair[1]);
      orders_.push_back(pair[0]);
      children_.push_back(child);
    }
    return {};
  }

  Result<std::unique_ptr<cpu::Native>> join(const m3::ModelWeights& weights,
                                            dispatch::ChainPolicy& policy) override;
  int size() const override { return options_.ranks; }
  Status health() const override {
    const tp::Group* group = group_.load(std::memory_order_acquire);
    if (group != nullptr) return group->status();
    // Before the group is complete nobody else looks after its members.
    for (std::size_t i = 0; i < children_.size(); ++i) {
      siginfo_t ended{};
      if (waitid(P_PID, static_cast<id_t>(children_[i]), &ended, WEXITED | WNOHANG | WNOWAIT) ==
              0 &&
          ended.si_pid != 0) {
        ML_RETURN_IF_ERROR(sent_reason(orders_[i], static_cast<int>(i) + 1));
        return {Code::kDeadlineExceeded, "rank " + std::to_string(i + 1),
                "process " + std::to_string(children_[i]) + " ended while loading"};
      }
    }
    return {};
  }

  bool tell(const Message& message) const {
    const Deadline deadline(options_.order_timeout);
    return std::all_of(orders_.begin(), orders_.end(), [&](int fd) {
      return write_all(fd, message.data(), message.size() * sizeof(message[0]), deadline);
    });
  }

 private:
  friend class RankZero;
  const OpenModel& model_;
  const RankProcessOptions options_;
  int memory_ = -1;
  std::vector<int> orders_;
  std::vector<pid_t> children_;
  std::atomic<const tp::Group*> group_{nullptr};
  bool met_ = false;  // all ranks have loaded
};

class RankZero final : public cpu::Native {
 public:
  explicit RankZero(Processes& processes) : processes_(processes) {}
  ~RankZero() override {
    const Status closed = close();
    (void)closed;  // peers that are gone are why
    processes_.group_.store(nullptr, std::memory_order_release);
  }
  Status load(const m3::ModelWeights& weights, dispatch::ChainPolicy& policy) {
    ML_RETURN_IF_ERROR(
        rank_.load(processes_.model_, weights, processes_.options_, policy, processes_.memory_, 0));
    processes_.met_ = true;
    processes_.group_.store(rank_.group.get(), std::memory_order_release);
    return {};
  }

  Status step(std::span<const cpu::StepSequence> sequences, cpu::CachePool& /*cache*/,
              std::vector<float>& logits, m3::TraceSink* sink) override {
    ML_RETURN_IF_ERROR(rank_.group->status());
    if (!processes_.tell(step_message(Order::kStep, sequences))) return lost();
    Status status = rank_.native->step(sequences, *rank_.pool, logits, sink);
    if (!status.ok() && !is_everybodys(status.code())) rank_.group->fail(status);
    return status;
  }
  Status prepare_for(std::span<const cpu::StepSequence> largest,
                     cpu::CachePool& /*cache*/) override {
    ML_RETURN_IF_ERROR(rank_.group->status());
    if (!processes_.tell(step_message(Order::kPrepare, largest))) return lost();
    Status status = rank_.native->prepare_for(largest, *rank_.pool);
    if (!status.ok() && !is_everybodys(status.code())) rank_.group->fail(status);
    return status;
  }
  Status capture(std::span<const std::int64_t> layers) override {
    Message message{static_cast<std::int64_t>(layers.size()) + 2,
                    static_cast<std::int64_t>(Order::kCapture)};
    message.insert(message.end(), layers.begin(), layers.end());
    if (!processes_.tell(message)) return lost();
    return rank_.native->capture(layers);
  }
  std::span<const float> captured() const override { return rank_.native->captured(); }
  std::span<const std::int32_t> greedy_ids() const override { return rank_.native->greedy_ids(); }
  // Of this rank's share.
  const cpu::Traffic& last_traffic() const override { return rank_.native->last_traffic(); }
  const cpu::Traffic& total_traffic() const override { return rank_.native->total_traffic(); }
  const cpu::PathCounts& paths() const override { return rank_.native->paths(); }

  Status close() override {
    if (rank_.native == nullptr || rank_.group->closed()) return {};
    ML_RETURN_IF_ERROR(rank_.group->status());
    if (!processes_.tell({2, static_cast<std::int64_t>(Order::kClose)})) return lost();
    ML_RETURN_IF_ERROR(rank_.native->close());
    return rank_.group->close();
  }

 private:
  // The group knows who it was, a moment after the socket does.
  Status lost() const {
    for (int i = 0; i < 100 && rank_.group->status().ok(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (rank_.group->status().ok()) {
      // It lives but does not read. Part of an order may be out, so no other can follow.
      rank_.group->fail({Code::kDeadlineExceeded, "ranks", "one takes no orders any more"});
    }
    return rank_.group->status();
  }

  Processes& processes_;
  Rank rank_;
};

Result<std::unique_ptr<cpu::Native>> Processes::join(const m3::ModelWeights& weights,
                                                     dispatch::ChainPolicy& policy) {
  auto zero = std::make_unique<RankZero>(*this);
  ML_RETURN_IF_ERROR(zero->load(weights, policy));
  return std::unique_ptr<cpu::Native>(std::move(zero));
}

}  // namespace

Result<std::unique_ptr<RankProcesses>> RankProcesses::start(const OpenModel& model,
                                                            const RankProcessOptions& options) {
  ML_RETURN_IF_ERROR(m3::rank_shape(model.config, 0, options.ranks).status());
  auto processes = std::make_unique<Processes>(model, options);
  ML_RETURN_IF_ERROR(processes->fork_all());
  return std::unique_ptr<RankProcesses>(std::move(processes));
}

}  // namespace monolayer::engine
