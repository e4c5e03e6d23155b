// The end of an HTTP server with an answer still in the making.
#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>

#include "server/http.h"

namespace monolayer::server {
namespace {

int connect_to(std::uint16_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  const timeval most{.tv_sec = 5, .tv_usec = 0};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  ::inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return fd;
  ::close(fd);
  return -1;
}

// An answer and its connection hold each other: the end of the server lets both go, and whoever
// still has the answer may go on calling it.
TEST(HttpServer, LetsUnfinishedAnswersGoAtItsEnd) {
  HttpOptions options;
  options.host = "127.0.0.1";
  options.port = 0;
  options.body_bytes = options.header_bytes = 65536;
  for (const bool held : {false, true}) {
    auto server = HttpServer::listen(options);
    ASSERT_TRUE(server.ok()) << server.status().to_string();
    std::weak_ptr<Responder> answer;
    std::shared_ptr<Responder> owner;
    bool gone = false;
    std::thread client([port = (*server)->port()] {
      const int fd = connect_to(port);
      ASSERT_GE(fd, 0);
      const std::string request = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
      ASSERT_EQ(::send(fd, request.data(), request.size(), 0),
                static_cast<ssize_t>(request.size()));
      char byte = 0;
      while (::recv(fd, &byte, 1, 0) > 0) {
      }
      ::close(fd);
    });
    (*server)->run(
        [&](const HttpRequest&, const std::shared_ptr<Responder>& out) {
          answer = out;
          out->on_gone = [&gone] { gone = true; };
          out->begin("text/plain");
          if (held) owner = out;
          (*server)->stop();
        },
        [](int) {});
    client.join();
    if (held) {
      owner->write("late");
      owner->end();
      EXPECT_FALSE(owner->busy());
    }
    server->reset();
    EXPECT_EQ(answer.expired(), !held);
    owner.reset();
    EXPECT_TRUE(answer.expired());
    EXPECT_FALSE(gone);
  }
}

}  // namespace
}  // namespace monolayer::server
