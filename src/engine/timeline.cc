#include "engine/timeline.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace monolayer::engine {
namespace {

constexpr double kWidth = 1600, kLeft = 70, kLine = 26, kTop = 30;

constexpr std::array<const char*, mono::kStages> kColours = {
    "#9e9e9e", "#1f77b4", "#17becf", "#bcbd22", "#8c564b", "#ff7f0e", "#e8b87a",
    "#2ca02c", "#7f7f7f", "#e377c2", "#c49c94", "#9467bd", "#d62728"};
constexpr const char* kWait = "#e0e0e0";

void box(std::string& out, double x, double y, double width, double height, const char* colour,
         const std::string& title) {
  char text[256];
  std::snprintf(text, sizeof text,
                "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" fill=\"%s\">", x, y,
                std::max(width, 0.1), height, colour);
  out += text;
  out += "<title>" + title + "</title></rect>\n";
}

void label(std::string& out, double x, double y, const std::string& words) {
  char text[96];
  std::snprintf(text, sizeof text, "<text x=\"%.1f\" y=\"%.1f\">", x, y);
  out += text;
  out += words + "</text>\n";
}

std::string microseconds(double seconds) {
  char text[48];
  std::snprintf(text, sizeof text, "%.1f us", seconds * 1e6);
  return text;
}

}  // namespace

std::string timeline_svg(const std::vector<cpu::TaskTime>& times, int workers, int layers) {
  std::int32_t last = 0;
  for (const cpu::TaskTime& t : times) last = std::max(last, t.layer);
  double begin = 1e300, end = 0;
  for (const cpu::TaskTime& t : times) {
    if (t.layer <= last - layers) continue;
    begin = std::min(begin, t.wait_begin);
    end = std::max(end, t.end);
  }
  const double span = std::max(end - begin, 1e-9);
  const auto x_of = [&](double seconds) { return kLeft + (seconds - begin) / span * kWidth; };

  const double legend = kTop + workers * kLine + 30;
  char head[200];
  std::snprintf(head, sizeof head,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
                "font-family=\"sans-serif\" font-size=\"12\">\n",
                kLeft + kWidth + 20, legend + 60);
  std::string out = head;
  label(out, kLeft, 18,
        "fused layers " + std::to_string(std::max(0, last - layers + 1)) + " to " +
            std::to_string(last) + ": " + microseconds(span) + " from left to right");
  std::array<double, mono::kStages> spent{};
  double waited = 0;
  for (const cpu::TaskTime& t : times) {
    if (t.layer <= last - layers) continue;
    const double y = kTop + t.worker * kLine;
    const std::string where = "fused layer " + std::to_string(t.layer) + ", " +
                              std::string(mono::stage_name(t.stage)) + ", worker " +
                              std::to_string(t.worker) + ": ";
    if (t.begin > t.wait_begin) {
      box(out, x_of(t.wait_begin), y + 6, x_of(t.begin) - x_of(t.wait_begin), kLine - 16, kWait,
          where + "waits " + microseconds(t.begin - t.wait_begin));
    }
    box(out, x_of(t.begin), y, x_of(t.end) - x_of(t.begin), kLine - 4,
        kColours[static_cast<std::size_t>(t.stage)], where + microseconds(t.end - t.begin));
    spent[static_cast<std::size_t>(t.stage)] += t.end - t.begin;
    waited += t.begin - t.wait_begin;
  }
  for (int w = 0; w < workers; ++w) {
    label(out, 4, kTop + w * kLine + 15, "worker " + std::to_string(w));
  }
  const double total = span * workers;
  for (int s = 0; s <= mono::kStages; ++s) {
    const int column = s % 7;
    const int row = s / 7;
    const double x = kLeft + column * 225, y = legend + row * 22;
    const bool wait = s == mono::kStages;
    const double share = (wait ? waited : spent[static_cast<std::size_t>(s)]) / total;
    char text[64];
    std::snprintf(text, sizeof text, " %.1f %%", 100 * share);
    box(out, x, y - 11, 14, 14, wait ? kWait : kColours[static_cast<std::size_t>(s)], "");
    label(
        out, x + 20, y,
        (wait ? std::string("waits") : std::string(mono::stage_name(static_cast<mono::Stage>(s)))) +
            text);
  }
  return out + "</svg>\n";
}

}  // namespace monolayer::engine
