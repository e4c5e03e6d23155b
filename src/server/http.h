// What handlers see of HTTP: a request, and a way to answer it. No library's types.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/status.h"

namespace monolayer::server {

struct HttpRequest {
  std::string method, path, query, body;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string header(const std::string& name) const {
    const auto at = headers.find(name);
    return at == headers.end() ? std::string() : at->second;
  }
};

using Headers = std::vector<std::pair<std::string, std::string>>;

// An answered request, for a log. `note`: JSON members that whoever answered it added.
struct Access {
  std::string method, path, note;
  int status = 0;  // 499: the client left before the answer was complete
  double seconds = 0;
  std::int64_t bytes = 0;  // of the answer, as far as it was given
};

// The answer to one request. All calls and callbacks on the server's own thread.
class Responder {
 public:
  virtual ~Responder() = default;
  // A whole answer; or a 200 whose body comes in pieces until end(). One of them, once.
  virtual void respond(int status, const std::string& type, std::string body,
                       const Headers& headers = {}) = 0;
  virtual void begin(const std::string& type, const Headers& headers = {}) = 0;
  virtual void write(std::string piece) = 0;
  virtual void end() = 0;
  // Whether something given is still on its way out.
  virtual bool busy() const = 0;
  // The client went away before the answer was complete. Called at most once; no call of this
  // object has an effect afterwards.
  std::function<void()> on_gone;
  // Everything given so far is out.
  std::function<void()> on_idle;
  std::string note;  // of the request's Access; set before the answer's end
};

using Handler = std::function<void(HttpRequest, std::shared_ptr<Responder>)>;

struct HttpOptions {
  std::string host = "0.0.0.0";
  std::uint16_t port = 8000;  // 0: any
  std::size_t body_bytes = 0, header_bytes = 0;
  Headers always;                           // of every answer
  std::function<void(Access)> on_answered;  // server's thread; must not block
  std::int64_t connections = 8192;
  int idle_seconds = 330;    // of a connection between requests
  int request_seconds = 60;  // for a request to arrive without a pause of this length
  int write_seconds = 120;   // for a client to take anything at all
};

class HttpServer {
 public:
  // Listens; answers nothing before run(). kIoError naming the address.
  static Result<std::unique_ptr<HttpServer>> listen(const HttpOptions& options);
  virtual ~HttpServer() = default;

  virtual std::uint16_t port() const = 0;
  // Serves on the calling thread until stop(). `on_signal` gets SIGTERM and SIGINT.
  virtual void run(Handler handler, std::function<void(int)> on_signal) = 0;
  // Any thread: has `work` done on the server's thread.
  virtual void post(std::function<void()> work) = 0;
  // Server's thread: has `work` done there after a while.
  virtual void after(int milliseconds, std::function<void()> work) = 0;
  // Server's thread: no new connections from now on; the present ones close after their answer.
  virtual void stop_accepting() = 0;
  // Any thread: closes everything and lets run() return.
  virtual void stop() = 0;
  virtual std::int64_t connections() const = 0;
};

}  // namespace monolayer::server
