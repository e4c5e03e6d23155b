// Listens, accepts and stops; what a connection does is in http_connection.cc.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <utility>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>

#include "server/http.h"
#include "server/http_connection.h"

namespace monolayer::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using Error = boost::system::error_code;

// Files, logs and the like beside the connections.
constexpr rlim_t kOtherDescriptors = 256;

// The connections that the process may have open: its limit is raised as far as it allows (login
// shells and containers often start programs with 1024), and where that is too low a connection too
// many is closed at once instead of running into it.
std::int64_t allowed_connections(std::int64_t wanted) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return wanted;
  const auto needed = static_cast<rlim_t>(wanted) + kOtherDescriptors;
  if (limit.rlim_cur < needed) {
    const rlimit raised{std::min(needed, limit.rlim_max), limit.rlim_max};
    if (setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  }
  if (limit.rlim_cur >= needed) return wanted;
  return static_cast<std::int64_t>(limit.rlim_cur -
                                   std::min(kOtherDescriptors, limit.rlim_cur / 2));
}

class BeastServer : public HttpServer {
 public:
  explicit BeastServer(const HttpOptions& options) : acceptor_(shared_.io), signals_(shared_.io) {
    shared_.options = options;
    shared_.options.connections = allowed_connections(options.connections);
  }

  Status open() {
    const auto fail = [&](const std::string& what) {
      return Status(Code::kIoError,
                    shared_.options.host + ":" + std::to_string(shared_.options.port), what);
    };
    Error error;
    const auto address = asio::ip::make_address(
        shared_.options.host == "localhost" ? "127.0.0.1" : shared_.options.host, error);
    if (error) return fail("is not an address: " + error.message());
    const tcp::endpoint endpoint(address, shared_.options.port);
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(4096, error);
    if (error) return fail("cannot be listened on: " + error.message());
    port_ = acceptor_.local_endpoint(error).port();
    return ok_status();
  }

  std::uint16_t port() const override { return port_; }
  std::int64_t connections() const override { return shared_.open; }

  void run(Handler handler, std::function<void(int)> on_signal) override {
    shared_.handler = std::move(handler);
    on_signal_ = std::move(on_signal);
    Error ignored;
    signals_.add(SIGTERM, ignored);
    signals_.add(SIGINT, ignored);
    wait_signal();
    accept();
    shared_.io.run();
    for (const auto& weak : live_)
      if (const auto connection = weak.lock()) connection->abandon();
  }
  void post(std::function<void()> work) override { asio::post(shared_.io, std::move(work)); }
  void after(int milliseconds, std::function<void()> work) override {
    auto timer =
        std::make_shared<asio::steady_timer>(shared_.io, std::chrono::milliseconds(milliseconds));
    timer->async_wait([timer, work = std::move(work)](Error error) {
      if (!error) work();
    });
  }
  void stop_accepting() override {
    shared_.closing = true;
    Error ignored;
    acceptor_.close(ignored);
    for (const auto& weak : live_)
      if (const auto connection = weak.lock()) connection->close_if_idle();
  }
  void stop() override { shared_.io.stop(); }

 private:
  void wait_signal() {
    signals_.async_wait([this](Error error, int signal) {
      if (error) return;
      if (on_signal_) on_signal_(signal);
      wait_signal();
    });
  }
  void accept() {
    acceptor_.async_accept([this](Error error, tcp::socket socket) {
      if (shared_.closing) return;
      if (error) return after(50, [this] { accept(); });  // out of descriptors: try again
      if (shared_.open < shared_.options.connections) {
        const auto connection = std::make_shared<Connection>(std::move(socket), shared_);
        remember(connection);
        connection->read();
      }
      accept();
    });
  }
  void remember(const std::shared_ptr<Connection>& connection) {
    if (live_.size() > 64 && static_cast<std::int64_t>(live_.size()) > 2 * shared_.open)
      std::erase_if(live_, [](const auto& weak) { return weak.expired(); });
    live_.push_back(connection);
  }

  HttpShared shared_;
  tcp::acceptor acceptor_;
  asio::signal_set signals_;
  std::function<void(int)> on_signal_;
  std::vector<std::weak_ptr<Connection>> live_;
  std::uint16_t port_ = 0;
};

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::listen(const HttpOptions& options) {
  auto server = std::make_unique<BeastServer>(options);
  ML_RETURN_IF_ERROR(server->open());
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace monolayer::server
