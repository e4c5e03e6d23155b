// One client's connection: requests read one after the other, each answered through a Responder.
// With http_server.cc the only place that knows the HTTP library.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include "server/http.h"

namespace monolayer::server {

// What all connections of a server share; on its thread.
struct HttpShared {
  HttpOptions options;
  Handler handler;
  boost::asio::io_context io{1};
  bool closing = false;
  std::int64_t open = 0;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(boost::asio::ip::tcp::socket socket, HttpShared& shared);
  ~Connection() { --shared_.open; }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // The next request, if one comes in time.
  void read();
  void close();
  // The server is at its end: closes, without a word to whoever was asked for an answer, which is
  // left without an effect. An answer in the making and its connection hold each other.
  void abandon();
  void close_if_idle() {
    if (!answering_ && !reading_body_) close();
  }

 private:
  friend class Exchange;
  void on_header(boost::system::error_code error);
  void read_body();
  void on_request(boost::system::error_code error);
  void refuse(int status, const std::string& message);
  void watch();
  void arm(int limit_seconds);
  void send(std::string bytes);
  void flush();
  void finish_answer();
  void drain(const std::shared_ptr<std::string>& scratch);
  void gone();

  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer timer_;
  HttpShared& shared_;
  boost::beast::flat_buffer buffer_;
  std::optional<boost::beast::http::request_parser<boost::beast::http::string_body>> parser_;
  std::shared_ptr<class Exchange> exchange_;
  std::deque<std::string> out_;
  bool writing_ = false, keep_alive_ = false, answering_ = false, answered_ = false;
  bool reading_body_ = false, closed_ = false, watching_ = false;
  std::uint64_t timer_use_ = 0;
};

}  // namespace monolayer::server
