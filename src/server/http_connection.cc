#include "server/http_connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <utility>

#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>

#include "server/api_error.h"

namespace monolayer::server {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using Error = boost::system::error_code;
using std::chrono::seconds;

std::string_view reason(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 413:
      return "Payload Too Large";
    case 431:
      return "Request Header Fields Too Large";
    case 503:
      return "Service Unavailable";
    default:
      return status >= 500 ? "Internal Server Error" : "Status";
  }
}

}  // namespace

// The answer to the connection's present request.
class Exchange : public Responder {
 public:
  Exchange(std::shared_ptr<Connection> connection, bool http10, std::string method = {},
           std::string path = {})
      : connection_(std::move(connection)), http10_(http10) {
    access_.method = std::move(method);
    access_.path = std::move(path);
  }

  void respond(int status, const std::string& type, std::string body,
               const Headers& headers) override {
    if (!connection_) return;
    std::string head = line(status, type, headers);
    head += "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n";
    if (head_only_) body.clear();
    send(head + body);
    access_.status = status;
    done();
  }
  void begin(const std::string& type, const Headers& headers) override {
    if (!connection_) return;
    chunked_ = !http10_;
    if (!chunked_) connection_->keep_alive_ = false;
    std::string head = line(200, type, headers);
    head += chunked_ ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n";
    access_.status = 200;
    send(std::move(head));
  }
  void write(std::string piece) override {
    if (!connection_ || piece.empty()) return;
    if (chunked_) {
      char size[24];
      std::snprintf(size, sizeof(size), "%zx\r\n", piece.size());
      piece = size + piece + "\r\n";
    }
    send(std::move(piece));
  }
  void end() override {
    if (!connection_) return;
    if (chunked_) send("0\r\n\r\n");
    done();
  }
  bool busy() const override { return connection_ && connection_->writing_; }

  void lost() {
    const auto connection = std::exchange(connection_, nullptr);
    on_idle = nullptr;
    if (auto callback = std::exchange(on_gone, nullptr)) callback();
    access_.status = 499;
    if (connection) log(*connection);
  }
  void forget() {
    connection_.reset();
    on_gone = nullptr;
    on_idle = nullptr;
  }
  void idle() {
    if (connection_ && on_idle) on_idle();
  }
  bool head_only_ = false;

 private:
  std::string line(int status, const std::string& type, const Headers& headers) const {
    std::string head = "HTTP/1.1 " + std::to_string(status) + " " + std::string(reason(status)) +
                       "\r\nServer: monolayer\r\nContent-Type: " + type + "\r\n";
    const auto add = [&head](const Headers& some) {
      for (const auto& [name, value] : some)
        head.append(name).append(": ").append(value).append("\r\n");
    };
    add(connection_->shared_.options.always);
    add(headers);
    head += connection_->keep_alive_ ? "Connection: keep-alive\r\n" : "Connection: close\r\n";
    return head;
  }
  void send(std::string bytes) {
    access_.bytes += static_cast<std::int64_t>(bytes.size());
    connection_->send(std::move(bytes));
  }
  void log(const Connection& connection) {
    if (!connection.shared_.options.on_answered) return;
    access_.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begun_).count();
    access_.note = std::move(note);
    connection.shared_.options.on_answered(std::move(access_));
  }
  void done() {
    const auto connection = std::exchange(connection_, nullptr);
    on_gone = nullptr;
    on_idle = nullptr;
    log(*connection);
    connection->answered_ = true;
    connection->finish_answer();
  }

  std::shared_ptr<Connection> connection_;
  bool http10_, chunked_ = false;
  Access access_;
  const std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
};

Connection::Connection(tcp::socket socket, HttpShared& shared)
    : socket_(std::move(socket)), timer_(shared.io), shared_(shared) {
  ++shared_.open;
  Error ignored;
  socket_.set_option(tcp::no_delay(true), ignored);
}

void Connection::arm(int limit_seconds) {
  const std::uint64_t use = ++timer_use_;
  if (limit_seconds == 0) {
    timer_.cancel();
    return;
  }
  timer_.expires_after(seconds(limit_seconds));
  timer_.async_wait([self = shared_from_this(), use](Error error) {
    if (!error && use == self->timer_use_) self->gone();
  });
}

void Connection::read() {
  if (closed_) return;
  parser_.emplace();
  parser_->body_limit(shared_.options.body_bytes);
  parser_->header_limit(static_cast<std::uint32_t>(shared_.options.header_bytes));
  answering_ = answered_ = reading_body_ = false;
  arm(shared_.options.idle_seconds);
  http::async_read_header(socket_, buffer_, *parser_,
                          [self = shared_from_this()](Error error, std::size_t) {
                            self->watching_ = false;
                            self->on_header(error);
                          });
}

void Connection::on_header(Error error) {
  if (error == http::error::header_limit)
    return refuse(431, "headers: larger than the limit of " +
                           std::to_string(shared_.options.header_bytes) + " bytes");
  if (error == http::error::body_limit)
    return refuse(413, "body: has more than the limit of " +
                           std::to_string(shared_.options.body_bytes) + " bytes");
  if (error == http::error::end_of_stream || error == asio::error::eof ||
      error == asio::error::connection_reset || error == asio::error::operation_aborted)
    return close();
  if (error) return refuse(400, "request: is not HTTP/1.1: " + error.message());
  reading_body_ = true;
  keep_alive_ = parser_->get().keep_alive();
  if (parser_->get()[http::field::expect] == "100-continue" && !parser_->is_done())
    send("HTTP/1.1 100 Continue\r\n\r\n");
  read_body();
}

// Piece by piece, so that the limit is on a pause and not on a large body.
void Connection::read_body() {
  if (parser_->is_done()) return on_request({});
  arm(shared_.options.request_seconds);
  http::async_read_some(socket_, buffer_, *parser_,
                        [self = shared_from_this()](Error error, std::size_t) {
                          if (error) return self->on_request(error);
                          self->read_body();
                        });
}

void Connection::on_request(Error error) {
  if (error == http::error::body_limit)
    return refuse(413, "body: has more than the limit of " +
                           std::to_string(shared_.options.body_bytes) + " bytes");
  if (error == asio::error::eof || error == http::error::partial_message ||
      error == asio::error::connection_reset || error == asio::error::operation_aborted)
    return close();
  if (error) return refuse(400, "request: is not HTTP/1.1: " + error.message());
  arm(0);
  auto message = parser_->release();
  HttpRequest request;
  request.method = std::string(message.method_string());
  const std::string target(message.target());
  const std::size_t query = target.find('?');
  request.path = target.substr(0, query);
  if (query != std::string::npos) request.query = target.substr(query + 1);
  for (const auto& field : message) {
    std::string name(field.name_string());
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    request.headers[std::move(name)] = std::string(field.value());
  }
  request.body = std::move(message.body());
  reading_body_ = false;
  answering_ = true;
  exchange_ = std::make_shared<Exchange>(shared_from_this(), message.version() < 11, request.method,
                                         request.path);
  exchange_->head_only_ = request.method == "HEAD";
  keep_alive_ = keep_alive_ && !shared_.closing;
  watch();
  shared_.handler(std::move(request), exchange_);
}

void Connection::refuse(int status, const std::string& message) {
  ApiError error;
  error.status = status;
  error.message = message;
  keep_alive_ = false;
  answering_ = true;
  exchange_ = std::make_shared<Exchange>(shared_from_this(), false);
  exchange_->respond(status, "application/json", error.openai(), {});
}

// While an answer is made nothing is read, but the client's end of the connection is watched.
void Connection::watch() {
  if (watching_ || closed_) return;
  watching_ = true;
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](Error error) {
    self->watching_ = false;
    if (error || self->closed_ || !self->answering_) return;
    char byte = 0;
    const ssize_t got = ::recv(self->socket_.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (got == 0) return self->gone();
    if (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) return self->gone();
    if (got < 0) return self->watch();
    // The next request came early: it stays in the kernel, and looking again must not spin.
    auto timer =
        std::make_shared<asio::steady_timer>(self->shared_.io, std::chrono::milliseconds(100));
    timer->async_wait([self, timer](Error) {
      if (self->answering_) self->watch();
    });
  });
}

void Connection::send(std::string bytes) {
  if (closed_) return;
  out_.push_back(std::move(bytes));
  flush();
}

void Connection::flush() {
  if (writing_ || closed_ || out_.empty()) return;
  writing_ = true;
  // Everything that waits goes out in one call.
  auto bytes = std::make_shared<std::string>();
  for (const std::string& piece : out_) *bytes += piece;
  out_.clear();
  arm(shared_.options.write_seconds);
  asio::async_write(socket_, asio::buffer(*bytes),
                    [self = shared_from_this(), bytes](Error error, std::size_t done) {
                      (void)done;
                      self->writing_ = false;
                      if (self->closed_) return;
                      if (error) return self->gone();
                      self->arm(0);
                      if (!self->out_.empty()) return self->flush();
                      if (self->answered_) return self->finish_answer();
                      if (self->exchange_) self->exchange_->idle();
                    });
}

void Connection::finish_answer() {
  if (closed_ || writing_ || !out_.empty() || !answered_) return;
  exchange_.reset();
  answering_ = false;
  if (keep_alive_ && !shared_.closing) {
    Error ignored;
    socket_.cancel(ignored);
    asio::post(shared_.io, [self = shared_from_this()] { self->read(); });
    answered_ = false;
    return;
  }
  // Half a close lets the client read the answer even if it still sends.
  Error ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  arm(2);
  auto scratch = std::make_shared<std::string>(4096, '\0');
  answered_ = false;
  drain(scratch);
}

// Reads what a client still sends after its answer, for a bounded time: closing at once would reset
// the connection under the answer.
void Connection::drain(const std::shared_ptr<std::string>& scratch) {
  socket_.async_read_some(asio::buffer(*scratch),
                          [self = shared_from_this(), scratch](Error error, std::size_t) {
                            if (self->closed_) return;
                            if (error) return self->close();
                            self->drain(scratch);
                          });
}

void Connection::gone() {
  if (closed_) return;
  close();
  if (const auto exchange = std::exchange(exchange_, nullptr)) exchange->lost();
}

void Connection::abandon() {
  close();
  if (const auto exchange = std::exchange(exchange_, nullptr)) exchange->forget();
}

void Connection::close() {
  if (closed_) return;
  closed_ = true;
  ++timer_use_;
  timer_.cancel();
  Error ignored;
  socket_.shutdown(tcp::socket::shutdown_both, ignored);
  socket_.close(ignored);
}

}  // namespace monolayer::server
