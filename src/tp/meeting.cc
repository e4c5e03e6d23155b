// How processes that share only a token find each other: an abstract socket, used once.
#include <fcntl.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <thread>

#include "tp/process_group.h"

namespace monolayer::tp {

namespace {

constexpr std::uint32_t kMagic = 0x4d4f5450;  // changes with the layout of the control block
constexpr std::chrono::milliseconds kRetry{2};

struct Hello {
  std::uint32_t magic;
  std::int32_t rank;
  std::int32_t size;
};

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

Status failure(const char* what) { return {Code::kIoError, what, std::strerror(errno)}; }

Status too_late(const std::string& what, const Deadline& deadline) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(deadline.timeout());
  return {Code::kDeadlineExceeded, "meeting of the ranks",
          what + " did not come within " + std::to_string(ms.count()) + " ms"};
}

struct Address {
  sockaddr_un name{};
  socklen_t length = 0;
};

Address address_of(const std::string& token) {
  Address address;
  address.name.sun_family = AF_UNIX;
  const std::string text = "monolayer-tp-" + token;
  std::memcpy(address.name.sun_path + 1, text.data(), text.size());  // byte 0 stays 0: abstract
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return address;
}

bool wait_readable(int fd, const Deadline& deadline) {
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline.remaining()).count();
    pollfd entry{fd, POLLIN, 0};
    const int ready = poll(&entry, 1, static_cast<int>(std::min<std::int64_t>(left, 60'000)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
    if (deadline.expired()) return false;
  }
}

bool same_user(int fd) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == geteuid();
}

bool send_descriptor(int socket, int fd) {
  char ok = 1;
  iovec data{&ok, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  return sendmsg(socket, &message, MSG_NOSIGNAL) == 1;
}

// The descriptor, or -1: refused or broken off.
int receive_descriptor(int socket) {
  char ok = 0;
  iovec data{&ok, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1 || ok != 1) return -1;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS ||
      header->cmsg_len != CMSG_LEN(sizeof(int))) {
    return -1;
  }
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return fd;
}

// Rank 0: hands the memory to ranks 1 .. size - 1.
Status host(const Address& address, int size, int memory, const Deadline& deadline) {
  const Descriptor listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (listener.get() < 0) return failure("socket of the meeting");
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address.name), address.length) != 0) {
    return failure("name of the meeting (is another rank 0 there?)");
  }
  if (listen(listener.get(), size) != 0) return failure("socket of the meeting");
  std::uint32_t met = 1;
  while (met != (1U << size) - 1) {
    if (!wait_readable(listener.get(), deadline)) {
      int missing = 0;
      while ((met >> missing & 1) != 0) ++missing;
      return too_late("rank " + std::to_string(missing), deadline);
    }
    const Descriptor peer(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (peer.get() < 0 || !same_user(peer.get())) continue;
    // Whoever connects and says nothing must not hold the others up for long.
    const Deadline patience(
        std::min<Deadline::Clock::duration>(deadline.remaining(), std::chrono::seconds(1)));
    Hello hello{};
    if (!wait_readable(peer.get(), patience) ||
        recv(peer.get(), &hello, sizeof hello, 0) != sizeof hello || hello.magic != kMagic) {
      continue;
    }
    if (hello.size != size || hello.rank < 1 || hello.rank >= size ||
        (met >> hello.rank & 1) != 0) {
      return {Code::kInvalidArgument, "meeting of the ranks",
              "rank " + std::to_string(hello.rank) + " of " + std::to_string(hello.size) +
                  " came to a group of " + std::to_string(size) + " (or came twice)"};
    }
    if (!send_descriptor(peer.get(), memory)) return failure("hand-over of the group's memory");
    met |= 1U << hello.rank;
  }
  return {};
}

Result<int> visit(const Address& address, int rank, int size, const Deadline& deadline) {
  while (true) {
    const Descriptor peer(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (peer.get() < 0) return failure("socket of the meeting");
    if (connect(peer.get(), reinterpret_cast<const sockaddr*>(&address.name), address.length) ==
        0) {
      if (!same_user(peer.get())) {
        return Status{Code::kIoError, "meeting of the ranks", "rank 0 is of another user"};
      }
      const Hello hello{kMagic, rank, size};
      if (send(peer.get(), &hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello) {
        return failure("meeting of the ranks");
      }
      if (!wait_readable(peer.get(), deadline)) return too_late("rank 0's answer", deadline);
      const int memory = receive_descriptor(peer.get());
      if (memory >= 0) return memory;
      return Status{Code::kPeerRefused, "meeting of the ranks",
                    "rank 0 refused rank " + std::to_string(rank) + " of " + std::to_string(size)};
    }
    if (errno != ECONNREFUSED && errno != EAGAIN && errno != EINTR) {
      return failure("meeting of the ranks");
    }
    if (deadline.expired()) return too_late("rank 0", deadline);
    std::this_thread::sleep_for(kRetry);
  }
}

bool valid(const std::string& token) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
  };
  return !token.empty() && token.size() <= 64 && std::all_of(token.begin(), token.end(), plain);
}

}  // namespace

std::string new_meeting_token() {
  std::array<unsigned char, 16> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) return {};
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string token;
  for (const unsigned char byte : bytes) {
    token += kDigits[byte >> 4];
    token += kDigits[byte & 15];
  }
  return token;
}

Result<std::unique_ptr<Group>> meet_process_group(const std::string& token, int rank, int size,
                                                  const Deadline& deadline) {
  if (!valid(token)) {
    return Status{Code::kInvalidArgument, "meeting token",
                  "1 to 64 letters, digits and dashes are needed"};
  }
  if (size < 1 || size > kMaxRanks || rank < 0 || rank >= size) {
    return Status{Code::kInvalidArgument, "rank",
                  std::to_string(rank) + " of " + std::to_string(size) + " ranks; at most " +
                      std::to_string(kMaxRanks)};
  }
  const Address address = address_of(token);
  Result<int> memory = rank == 0 ? create_group_memory() : visit(address, rank, size, deadline);
  ML_RETURN_IF_ERROR(memory.status());
  const Descriptor held(*memory);
  if (rank == 0 && size > 1) ML_RETURN_IF_ERROR(host(address, size, held.get(), deadline));
  return join_process_group(held.get(), rank, size, deadline);
}

}  // namespace monolayer::tp
