#include "server/serve_bench.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <random>
#include <thread>
#include <utility>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <nlohmann/json.hpp>

namespace monolayer::server {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;
using Error = boost::system::error_code;

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
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
    times.tokens = usage->value("completion_tokens", std::int64_t{0});
    times.prompt_tokens = usage->value("prompt_tokens", std::int64_t{0});
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

class Client {
 public:
  Client(const ServeBenchOptions& options, Clock::time_point start)
      : options_(options), start_(start) {}

  // One stream from begin to end.
  void ask(std::uint64_t number, StreamTimes& times) {
    try {
      stream(number, times);
    } catch (const std::exception& e) {
      times.error = e.what();
    }
    if (!times.error.empty()) socket_.reset();
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
    if (socket_) return;
    asio::ip::tcp::resolver resolver(io_);
    auto socket = std::make_unique<asio::ip::tcp::socket>(io_);
    asio::connect(*socket, resolver.resolve(options_.host, std::to_string(options_.port)));
    socket->set_option(asio::ip::tcp::no_delay(true));
    socket_ = std::move(socket);
    buffer_.clear();
  }
  void stream(std::uint64_t number, StreamTimes& times) {
    const std::string payload = body(number);
    times.sent = since(start_);
    connect();
    http::request<http::string_body> request(http::verb::post, "/v1/completions", 11);
    request.set(http::field::host, options_.host);
    request.set(http::field::content_type, "application/json");
    if (!options_.api_key.empty())
      request.set(http::field::authorization, "Bearer " + options_.api_key);
    request.body() = payload;
    request.prepare_payload();
    http::write(*socket_, request);

    http::response_parser<http::buffer_body> parser;
    parser.body_limit(boost::none);
    http::read_header(*socket_, buffer_, parser);
    std::string pending, whole;
    bool done = false;
    char piece[16384];
    while (!parser.is_done()) {
      parser.get().body().data = piece;
      parser.get().body().size = sizeof piece;
      Error error;
      http::read_some(*socket_, buffer_, parser, error);
      if (error && error != http::error::need_buffer) throw boost::system::system_error(error);
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
    }
    if (!parser.keep_alive()) socket_.reset();
  }

  const ServeBenchOptions& options_;
  const Clock::time_point start_;
  asio::io_context io_;
  std::unique_ptr<asio::ip::tcp::socket> socket_;
  boost::beast::flat_buffer buffer_;
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

Result<ServeBenchReport> bench_serve(const ServeBenchOptions& options) {
  try {
    asio::io_context io;
    asio::ip::tcp::socket probe(io);
    asio::ip::tcp::resolver resolver(io);
    asio::connect(probe, resolver.resolve(options.host, std::to_string(options.port)));
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
  const auto start = Clock::now();
  std::vector<std::thread> threads;
  for (std::int64_t t = 0; t < std::min(options.concurrency, options.requests); ++t) {
    threads.emplace_back([&] {
      Client client(options, start);
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
    });
  }
  for (std::thread& thread : threads) thread.join();
  return summarize(std::move(streams), since(start));
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
