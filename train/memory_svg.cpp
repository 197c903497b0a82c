#include <refrain/train/memory_svg.h>

#include <refrain/core/check.h>
#include <refrain/train/markup.h>
#include <refrain/train/report.h>

#include <algorithm>

namespace refrain {

namespace {

constexpr double kWidth = 860, kHeight = 320, kLeft = 76, kRight = 150, kTop = 34, kBottom = 34;
constexpr double kPlotWidth = kWidth - kLeft - kRight, kPlotHeight = kHeight - kTop - kBottom;

struct Layer {
  MemoryKind kind;
  const char* colour;
};
// From the bottom up: what stays longest first. The colours are those of report.html.
constexpr Layer kLayers[] = {{MemoryKind::parameter, "#0072b2"},     {MemoryKind::optimizer_state, "#56b4e9"},
                             {MemoryKind::input, "#f0e442"},         {MemoryKind::staging, "#b8a27e"},
                             {MemoryKind::communication, "#8f959c"}, {MemoryKind::gradient, "#d55e00"},
                             {MemoryKind::saved, "#e69f00"},         {MemoryKind::temporary, "#009e73"},
                             {MemoryKind::workspace, "#cc79a7"}};

std::string number(double value) { return fixed(value, 1); }

std::string text_at(double x, double y, const char* anchor, const std::string& text, const char* more = "") {
  return concat("<text x=\"", number(x), "\" y=\"", number(y), "\" text-anchor=\"", anchor, "\"", more, ">", escaped(text), "</text>\n");
}

// A round number of bytes for the lines of the grid.
std::int64_t grid_step(std::int64_t highest) {
  double step = 1;
  while (step * 5 < double(highest)) step *= 2;
  return std::int64_t(step);
}

}  // namespace

std::string memory_svg(const Timeline& timeline, const std::string& title) {
  const std::optional<TickRange> step = last_step(timeline);
  const TickRange shown = step.value_or(TickRange{timeline.first_tick(), timeline.end_tick()});
  const MemoryCurve curve = memory_curve(timeline, shown.begin, shown.end, 500);
  std::vector<std::int64_t> total(curve.size(), 0);
  for (const auto& bytes : curve.bytes)
    for (std::size_t i = 0; i < total.size(); ++i) total[i] += bytes[i];
  const std::int64_t highest = total.empty() ? 1 : std::max<std::int64_t>(*std::max_element(total.begin(), total.end()), 1);
  const double top = double(highest) * 1.06;
  const auto x = [&](std::size_t i) {
    const std::int64_t width = std::max<std::int64_t>(curve.ticks.back() - curve.ticks.front(), 1);
    return kLeft + kPlotWidth * double(curve.ticks[i] - curve.ticks.front()) / double(width);
  };
  const auto y = [&](std::int64_t bytes) { return kTop + kPlotHeight * (1 - double(bytes) / top); };

  std::string svg =
      concat("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", number(kWidth), " ", number(kHeight),
             "\" font-family=\"system-ui, sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n");
  svg += text_at(kLeft, 20, "start", title, " font-size=\"14\" font-weight=\"600\"");
  std::vector<std::int64_t> base(curve.size(), 0);
  double legend = kTop + 10;
  std::string legend_text;
  for (const Layer& layer : kLayers) {
    const std::vector<std::int64_t>& bytes = curve.bytes[std::size_t(layer.kind)];
    const std::int64_t most = bytes.empty() ? 0 : *std::max_element(bytes.begin(), bytes.end());
    if (most == 0) continue;
    svg += concat("<path d=\"M", number(x(0)), ",", number(y(base[0])));
    std::vector<std::int64_t> next = base;
    for (std::size_t i = 0; i < curve.size(); ++i) next[i] += bytes[i];
    // Memory changes at once, so the outlines are made of steps: the upper one to the right, the lower one back.
    double height = y(base[0]);
    const auto go = [&](double to_x, std::int64_t level) {
      const std::string old = number(height), now = number(y(level));
      if (old != now) svg += concat("H", number(to_x), "V", now);
      height = y(level);
    };
    for (std::size_t i = 0; i < curve.size(); ++i) go(x(i), next[i]);
    svg += concat("H", number(x(curve.size() - 1)));
    for (std::size_t i = curve.size(); i-- > 0;) go(x(std::min(i + 1, curve.size() - 1)), base[i]);
    svg += concat("Z\" fill=\"", layer.colour, "\"/>\n");
    base = std::move(next);
    legend_text = concat("<rect x=\"", number(kWidth - kRight + 14), "\" y=\"", number(legend - 9),
                         "\" width=\"10\" height=\"10\" fill=\"", layer.colour, "\"/>\n",
                         text_at(kWidth - kRight + 29, legend, "start", std::string(name_of(layer.kind))), legend_text);
    legend += 18;
  }
  svg += legend_text;
  const std::int64_t grid = grid_step(highest);
  for (std::int64_t bytes = 0; double(bytes) <= top; bytes += grid) {
    svg += concat("<path d=\"M", number(kLeft), ",", number(y(bytes)), "H", number(kLeft + kPlotWidth),
                  "\" stroke=\"#000\" stroke-opacity=\"0.15\"/>\n");
    svg += text_at(kLeft - 6, y(bytes) + 4, "end", bytes_text(bytes));
  }
  svg += text_at(kLeft, kHeight - 12, "start", concat(step ? "one step: " : "", "allocations and releases in their order"));
  svg += text_at(kLeft + kPlotWidth, kHeight - 12, "end", concat("highest ", bytes_text(highest)));
  return svg + "</svg>\n";
}

}  // namespace refrain
