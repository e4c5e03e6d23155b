#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "server/serve_bench.h"

namespace monolayer::server {
namespace {

std::string number(double value, const char* format = "%.1f") {
  char text[32];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string label(double x, double y, const std::string& text, const char* more = "") {
  return "<text x=\"" + number(x) + "\" y=\"" + number(y) + "\" " + more + ">" + text + "</text>\n";
}

// Share of values up to each value.
std::string curve(double x, double y, double width, double height, const std::string& name,
                  std::vector<double> values) {
  std::string out = "<rect x=\"" + number(x) + "\" y=\"" + number(y) + "\" width=\"" +
                    number(width) + "\" height=\"" + number(height) +
                    "\" fill=\"none\" stroke=\"#999\"/>\n" + label(x, y - 6, name);
  if (values.empty()) return out + label(x + 8, y + height / 2, "no values");
  std::sort(values.begin(), values.end());
  const double largest = std::max(values.back(), 1e-9);
  out += label(x, y + height + 14, "0") +
         label(x + width, y + height + 14, number(largest * 1e3, "%.1f ms"), "text-anchor=\"end\"");
  out += "<polyline fill=\"none\" stroke=\"#1f6feb\" stroke-width=\"1.5\" points=\"";
  const std::size_t stride = std::max<std::size_t>(values.size() / 400, 1);
  for (std::size_t i = 0; i < values.size(); i += stride) {
    const double share = static_cast<double>(i + 1) / static_cast<double>(values.size());
    out += number(x + values[i] / largest * width) + "," + number(y + height * (1 - share)) + " ";
  }
  out += number(x + width) + "," + number(y) + "\"/>\n";
  const auto mark = [&](double share, const char* color) {
    const auto at = static_cast<std::size_t>(share * static_cast<double>(values.size() - 1));
    const double px = x + values[at] / largest * width;
    out += "<line x1=\"" + number(px) + "\" x2=\"" + number(px) + "\" y1=\"" + number(y) +
           "\" y2=\"" + number(y + height) + "\" stroke=\"" + color +
           "\" stroke-dasharray=\"3 3\"/>\n";
  };
  mark(0.5, "#2da44e");
  mark(0.99, "#cf222e");
  return out;
}

}  // namespace

std::string report_svg(const ServeBenchOptions& options, const ServeBenchReport& report) {
  std::vector<double> ttft, itl, tpot, e2e;
  for (const StreamTimes& s : report.streams) {
    if (!s.error.empty()) continue;
    ttft.push_back(s.first - s.planned);
    e2e.push_back(s.last - s.planned);
    itl.insert(itl.end(), s.gaps.begin(), s.gaps.end());
    if (s.tokens > 1) tpot.push_back((s.last - s.first) / static_cast<double>(s.tokens - 1));
  }
  const double rows = static_cast<double>(std::min<std::size_t>(report.streams.size(), 200));
  const double height = 420 + rows * 3;
  std::string out = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"820\" height=\"" +
                    number(height) + "\" font-family=\"sans-serif\" font-size=\"12\">\n" +
                    "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n";
  out += label(20, 20,
               std::to_string(report.completed) + " of " + std::to_string(options.requests) +
                   " requests, " +
                   (options.rate > 0 ? number(options.rate, "%.2f") + " a second"
                                     : std::to_string(options.concurrency) + " streams") +
                   ": " + number(static_cast<double>(report.tokens) / report.seconds) +
                   " tokens/s; shares up to a time, green: half, red: 99 of 100");
  out += curve(20, 50, 360, 130, "time to first token", std::move(ttft));
  out += curve(430, 50, 360, 130, "between chunks", std::move(itl));
  out += curve(20, 230, 360, 130, "per token after the first", std::move(tpot));
  out += curve(430, 230, 360, 130, "whole request", std::move(e2e));
  out += label(20, 398,
               "streams over " + number(report.seconds, "%.2f s") +
                   ": grey until the first token, blue after");
  for (std::size_t i = 0; i < static_cast<std::size_t>(rows); ++i) {
    const StreamTimes& s = report.streams[i];
    const double y = 408 + static_cast<double>(i) * 3;
    const auto bar = [&](double from, double to, const char* color) {
      out += "<rect x=\"" + number(20 + from / report.seconds * 770) + "\" y=\"" + number(y) +
             "\" width=\"" + number(std::max((to - from) / report.seconds * 770, 0.5)) +
             "\" height=\"2\" fill=\"" + color + "\"/>\n";
    };
    if (!s.error.empty()) {
      bar(s.planned, std::max(s.planned, s.sent), "#cf222e");
      continue;
    }
    bar(s.planned, s.first, "#bbb");
    bar(s.first, s.last, "#1f6feb");
  }
  return out + "</svg>\n";
}

}  // namespace monolayer::server
