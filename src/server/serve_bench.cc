#include "server/serve_bench.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <future>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/error.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <nlohmann/json.hpp>

namespace monolayer::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using Addresses = asio::ip::tcp::resolver::results_type;
using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;
using Error = boost::system::error_code;

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A whole number of tokens, 0 where there is none; false for anything else.
bool count_of(const Json& usage, const char* key, std::int64_t& count) {
  const auto value = usage.find(key);
  count = 0;
  if (value == usage.end()) return true;
  if (!value->is_number_unsigned() || value->get<std::uint64_t>() > (1ULL << 40)) return false;
  count = value->get<std::int64_t>();
  return true;
}

// What one server-sent event says.
void take_event(const std::string& line, Clock::time_point start, StreamTimes& times, bool& done) {
  constexpr std::string_view kData = "data: ";
  if (line.rfind(kData, 0) != 0) return;
  if (line == "data: [DONE]") {
    done = true;
    return;
  }
  const Json event = Json::parse(line.substr(kData.size()), nullptr, false);
  if (!event.is_object()) {
    times.error = "an event that is no JSON";
    return;
  }
  if (event.contains("error")) times.error = event.at("error").dump();
  if (const auto usage = event.find("usage"); usage != event.end() && usage->is_object()) {
    if (!count_of(*usage, "completion_tokens", times.tokens) ||
        !count_of(*usage, "prompt_tokens", times.prompt_tokens))
      times.error = "a usage that holds no counts: " + usage->dump().substr(0, 100);
  }
  const auto choices = event.find("choices");
  if (choices == event.end() || !choices->is_array() || choices->empty()) return;
  const double now = since(start);
  // The first chunk counts even if its token has no text yet.
  if (times.first == 0) {
    times.first = now;
  } else if (!choices->front().value("text", std::string()).empty()) {
    times.gaps.push_back(now - times.last);
  } else {
    return;
  }
  times.last = now;
}

// One connection. Every call ends within the time limit, or sooner if bytes stop coming: an
// operation that waits on its socket alone would wait for ever on a server that says nothing.
class Connection {
 public:
  Connection(const Addresses& addresses, double limit_seconds)
      : limit_(std::chrono::duration_cast<std::chrono::milliseconds>(
            std::chrono::duration<double>(limit_seconds))),
        stream_(io_) {
    check(run([&](auto done) {
      stream_.async_connect(addresses, [done](Error error, const auto&) { done(error); });
    }));
    stream_.socket().set_option(asio::ip::tcp::no_delay(true));
  }

  Error write(const http::request<http::string_body>& request) {
    return run([&](auto done) {
      http::async_write(stream_, request, [done](Error error, std::size_t) { done(error); });
    });
  }
  Error read_header(http::response_parser<http::buffer_body>& parser) {
    return run([&](auto done) {
      http::async_read_header(stream_, buffer_, parser,
                              [done](Error error, std::size_t) { done(error); });
    });
  }
  Error read_some(http::response_parser<http::buffer_body>& parser) {
    return run([&](auto done) {
      http::async_read_some(stream_, buffer_, parser,
                            [done](Error error, std::size_t) { done(error); });
    });
  }
  // Whether any byte of an answer lies unread.
  bool holds_bytes() const { return buffer_.size() > 0; }
  // Throws what an operation gave.
  void check(Error error) const {
    if (error == beast::error::timeout)
      throw std::runtime_error("nothing moved for " + std::to_string(limit_.count()) + " ms");
    if (error) throw std::runtime_error(error.message());
  }

 private:
  template <typename Start>
  Error run(Start start) {
    Error result;
    stream_.expires_after(limit_);
    start([&result](Error error) { result = error; });
    io_.restart();
    io_.run();
    return result;
  }

  const std::chrono::milliseconds limit_;
  asio::io_context io_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
};

class Client {
 public:
  Client(const ServeBenchOptions& options, const Addresses& addresses, Clock::time_point start)
      : options_(options), addresses_(addresses), start_(start) {}

  // One stream from begin to end.
  void ask(std::uint64_t number, StreamTimes& times) {
    try {
      stream(number, times);
    } catch (const std::exception& e) {
      times.error = e.what();
    }
    if (!times.error.empty()) connection_.reset();
  }

 private:
  std::string body(std::uint64_t number) const {
    std::mt19937_64 random(options_.seed * 1'000'003 + number);
    Json prompt = Json::array();
    for (std::int64_t i = 0; i < options_.prompt_tokens; ++i)
      prompt.push_back(random() % static_cast<std::uint64_t>(options_.vocab));
    return Json{{"model", options_.model},
                {"prompt", std::move(prompt)},
                {"max_tokens", options_.max_tokens},
                {"temperature", 0},
                {"ignore_eos", true},
                {"stream", true},
                {"stream_options", {{"include_usage", true}}}}
        .dump();
  }
  void connect() {
    connection_ = std::make_unique<Connection>(addresses_, options_.timeout_seconds);
  }
  // Sends and reads the answer's head. A connection kept from the last answer may have been closed
  // by the server since; the request then goes out once more, on a new one.
  void begin(const http::request<http::string_body>& request,
             std::optional<http::response_parser<http::buffer_body>>& parser) {
    for (bool kept = connection_ != nullptr;; kept = false) {
      if (!kept) connect();
      parser.emplace();
      parser->body_limit(boost::none);
      Error error = connection_->write(request);
      if (!error) error = connection_->read_header(*parser);
      if (!error) return;
      const bool answered = parser->got_some() || connection_->holds_bytes();
      if (!kept || answered || error == beast::error::timeout) connection_->check(error);
    }
  }
  void stream(std::uint64_t number, StreamTimes& times) {
    const std::string payload = body(number);
    times.sent = since(start_);
    http::request<http::string_body> request(http::verb::post, "/v1/completions", 11);
    request.set(http::field::host, options_.host);
    request.set(http::field::content_type, "application/json");
    if (!options_.api_key.empty())
      request.set(http::field::authorization, "Bearer " + options_.api_key);
    request.body() = payload;
    request.prepare_payload();
    std::optional<http::response_parser<http::buffer_body>> made;
    begin(request, made);
    http::response_parser<http::buffer_body>& parser = *made;
    std::string pending, whole;
    bool done = false;
    char piece[16384];
    while (!parser.is_done()) {
      parser.get().body().data = piece;
      parser.get().body().size = sizeof piece;
      const Error error = connection_->read_some(parser);
      if (error != http::error::need_buffer) connection_->check(error);
      const std::size_t got = sizeof piece - parser.get().body().size;
      if (parser.get().result() != http::status::ok) {
        whole.append(piece, got);
        continue;
      }
      pending.append(piece, got);
      for (std::size_t end = 0; (end = pending.find('\n')) != std::string::npos;) {
        std::string line = pending.substr(0, end);
        pending.erase(0, end + 1);
        if (!line.empty() && line.back() == '\r') line.pop_back();
        take_event(line, start_, times, done);
      }
    }
    if (parser.get().result() != http::status::ok) {
      times.error = std::to_string(parser.get().result_int()) + ": " + whole.substr(0, 300);
    } else if (times.error.empty() && !done) {
      times.error = "the stream ended without [DONE]";
    } else if (times.error.empty() && times.first == 0) {
      times.error = "the stream held no choice";
    }
    if (!parser.keep_alive()) connection_.reset();
  }

  const ServeBenchOptions& options_;
  const Addresses& addresses_;
  const Clock::time_point start_;
  std::unique_ptr<Connection> connection_;
};

Json to_json(const Percentiles& p) {
  return {{"count", p.count}, {"mean", p.mean}, {"p50", p.p50},
          {"p90", p.p90},     {"p99", p.p99},   {"max", p.largest}};
}

}  // namespace

Percentiles percentiles(std::vector<double> values) {
  Percentiles p;
  if (values.empty()) return p;
  std::sort(values.begin(), values.end());
  p.count = static_cast<std::int64_t>(values.size());
  const auto rank = [&](double share) {
    const double at = std::ceil(share * static_cast<double>(values.size()));
    return values[static_cast<std::size_t>(std::max(at, 1.0)) - 1];
  };
  double sum = 0;
  for (const double v : values) sum += v;
  p.mean = sum / static_cast<double>(values.size());
  p.p50 = rank(0.5);
  p.p90 = rank(0.9);
  p.p99 = rank(0.99);
  p.largest = values.back();
  return p;
}

ServeBenchReport summarize(std::vector<StreamTimes> streams, double seconds) {
  ServeBenchReport report;
  report.seconds = seconds;
  std::vector<double> ttft, itl, tpot, e2e;
  for (const StreamTimes& s : streams) {
    if (!s.error.empty()) {
      ++report.failed;
      continue;
    }
    ++report.completed;
    report.tokens += s.tokens;
    report.prompt_tokens += s.prompt_tokens;
    ttft.push_back(s.first - s.planned);
    e2e.push_back(s.last - s.planned);
    itl.insert(itl.end(), s.gaps.begin(), s.gaps.end());
    if (s.tokens > 1) tpot.push_back((s.last - s.first) / static_cast<double>(s.tokens - 1));
  }
  report.ttft = percentiles(std::move(ttft));
  report.itl = percentiles(std::move(itl));
  report.tpot = percentiles(std::move(tpot));
  report.e2e = percentiles(std::move(e2e));
  report.streams = std::move(streams);
  return report;
}

namespace {

Result<ServeBenchReport> run(const ServeBenchOptions& options) {
  Addresses addresses;
  try {
    asio::io_context io;
    asio::ip::tcp::resolver resolver(io);
    addresses = resolver.resolve(options.host, std::to_string(options.port));
    const Connection probe(addresses, options.timeout_seconds);
  } catch (const boost::system::system_error& e) {
    return Status(Code::kIoError, options.host + ":" + std::to_string(options.port),
                  e.code().message());
  } catch (const std::exception& e) {
    return Status(Code::kIoError, options.host + ":" + std::to_string(options.port), e.what());
  }
  std::vector<StreamTimes> streams(static_cast<std::size_t>(options.requests));
  if (options.rate > 0) {
    std::mt19937_64 random(options.seed + 1);
    std::exponential_distribution<double> gap(options.rate);
    double at = 0;
    for (StreamTimes& s : streams) s.planned = at += gap(random);
  }
  std::atomic<std::size_t> next{0};
  Clock::time_point start;
  // Nobody asks before all threads are there: if one cannot be started there is no load to stop.
  std::promise<bool> gate;
  const std::shared_future<bool> go = gate.get_future().share();
  const auto work = [&] {
    if (!go.get()) return;
    Client client(options, addresses, start);
    for (std::size_t i = next++; i < streams.size(); i = next++) {
      if (options.rate > 0) {
        std::this_thread::sleep_until(start +
                                      std::chrono::duration_cast<Clock::duration>(
                                          std::chrono::duration<double>(streams[i].planned)));
      } else {
        streams[i].planned = since(start);
      }
      client.ask(i, streams[i]);
    }
  };
  const std::int64_t count = std::min(options.concurrency, options.requests);
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(count));
  Status started = ok_status();
  try {
    while (static_cast<std::int64_t>(threads.size()) < count) threads.emplace_back(work);
  } catch (const std::exception& e) {  // not only for lack of a thread
    started = Status(Code::kResourceExhausted, "--concurrency",
                     "is " + std::to_string(options.concurrency) + ", but only " +
                         std::to_string(threads.size()) + " threads could be started: " + e.what());
  }
  start = Clock::now();
  gate.set_value(started.ok());
  for (std::thread& thread : threads) thread.join();
  ML_RETURN_IF_ERROR(started);
  return summarize(std::move(streams), since(start));
}

}  // namespace

Result<ServeBenchReport> bench_serve(const ServeBenchOptions& options) {
  try {
    return run(options);
  } catch (const std::exception& e) {
    return Status(Code::kResourceExhausted, "bench serve", e.what());
  }
}

Json report_json(const ServeBenchOptions& options, const ServeBenchReport& report) {
  Json errors = Json::array();
  for (const StreamTimes& s : report.streams)
    if (!s.error.empty() && errors.size() < 5) errors.push_back(s.error);
  return {{"host", options.host},
          {"port", options.port},
          {"model", options.model},
          {"loop", options.rate > 0 ? "open" : "closed"},
          {"rate", options.rate},
          {"concurrency", options.concurrency},
          {"requests", options.requests},
          {"prompt_tokens", options.prompt_tokens},
          {"max_tokens", options.max_tokens},
          {"seconds", report.seconds},
          {"completed", report.completed},
          {"failed", report.failed},
          {"errors", errors},
          {"output_tokens", report.tokens},
          {"output_tokens_per_second", static_cast<double>(report.tokens) / report.seconds},
          {"requests_per_second", static_cast<double>(report.completed) / report.seconds},
          {"ttft_seconds", to_json(report.ttft)},
          {"itl_seconds", to_json(report.itl)},
          {"tpot_seconds", to_json(report.tpot)},
          {"e2e_seconds", to_json(report.e2e)}};
}

}  // namespace monolayer::server
