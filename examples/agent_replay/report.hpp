// SPDX-License-Identifier: Apache-2.0
// One HTML page with the live tokens of each row over the turns, and the table. It needs no network.
#pragma once

#include <fmt/core.h>

#include <sstream>
#include <string>
#include <vector>

#include "options.hpp"
#include "table.hpp"

namespace agent_replay {

/// Draws one line for each row into an SVG. The x axis is the turn, the y axis the mean number of live tokens after the
/// turn's decision.
class live_chart {
 public:
  explicit live_chart(std::vector<metrics> const& rows) : rows_(&rows) {
    for (metrics const& one : rows) {
      turns_ = std::max(turns_, one.live_of.size());
      for (std::size_t t = 0; t < one.live_of.size(); ++t) most_ = std::max(most_, one.mean_live(t));
    }
  }

  [[nodiscard]] std::string draw() const {
    std::string out = fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"live tokens over turns\">\n",
                                  width + 260, height + 50);
    for (int i = 0; i <= 4; ++i) {
      double const tokens = most_ * i / 4;
      out += fmt::format(
          "<line class=\"grid\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>"
          "<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{:.0f}</text>\n",
          left, width, y(tokens), y(tokens), left - 6, y(tokens) + 4, tokens);
    }
    for (std::size_t t = 0; t < turns_; ++t) {
      out += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", x(t), height + 18, t + 1);
    }
    out += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">turn</text>\n", (left + width) / 2, height + 40);
    for (std::size_t i = 0; i < rows_->size(); ++i) out += line(i);
    return out + "</svg>\n";
  }

 private:
  static constexpr int left = 60, width = 640, height = 340, top = 12;

  [[nodiscard]] double x(std::size_t turn) const {
    double const steps = static_cast<double>(std::max<std::size_t>(2, turns_) - 1);
    return left + 8 + (width - left - 16) * static_cast<double>(turn) / steps;
  }
  [[nodiscard]] double y(double tokens) const { return height - (height - top) * tokens / std::max(1.0, most_); }

  /// Rows have equally spaced hues. The line of a row that moves memory is dashed.
  [[nodiscard]] std::string line(std::size_t i) const {
    metrics const& one = (*rows_)[i];
    std::string points;
    for (std::size_t t = 0; t < one.live_of.size(); ++t) {
      points += fmt::format("{:.1f},{:.1f} ", x(t), y(one.mean_live(t)));
    }
    std::string const hue = fmt::format("hsl({} 70% 42%)", 360 * i / rows_->size());
    std::string const dash = one.layout.starts_with("compact") ? " stroke-dasharray=\"5 4\"" : "";
    double const at = top + 12 + 22.0 * static_cast<double>(i);
    return fmt::format(
        "<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{} points=\"{}\"/>"
        "<line x1=\"{}\" x2=\"{}\" y1=\"{}\" y2=\"{}\" stroke=\"{}\" stroke-width=\"2\"{}/>"
        "<text x=\"{}\" y=\"{}\">{}, {}</text>\n",
        hue, dash, points, width + 16, width + 40, at, at, hue, dash, width + 46, at + 4, one.name, one.layout);
  }

  std::vector<metrics> const* rows_;
  std::size_t turns_ = 0;
  double most_ = 0;
};

[[nodiscard]] inline std::string html_table(std::vector<metrics> const& rows) {
  std::string out = "<table>\n<tr>";
  for (column const& one : columns) out += fmt::format("<th>{}<br>{}</th>", one.name, one.unit);
  out += "</tr>\n";
  for (metrics const& one : rows) {
    out += "<tr>";
    for (std::string const& cell : cells(one)) out += fmt::format("<td>{}</td>", cell);
    out += "</tr>\n";
  }
  return out + "</table>\n";
}

inline void write_report(kv::atomic_file& to, options const& with, std::vector<metrics> const& rows) {
  std::ostringstream page;
  page << "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>kvpolicy: agent replay</title>\n"
          "<style>body{font:14px/1.5 system-ui,sans-serif;max-width:76rem;margin:2rem auto;padding:0 1rem}"
          "svg{max-width:60rem;width:100%;font-size:12px}.grid{stroke:#8884}text{fill:currentColor}"
          "table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:13px}"
          "td,th{padding:.2rem .5rem;text-align:right;border-bottom:1px solid #8884}"
          "td:nth-child(-n+2),th:nth-child(-n+2){text-align:left}:root{color-scheme:light dark}</style>\n"
       << fmt::format(
              "<h1>Agent replay</h1>\n<p>{} sessions of {} turns, {} side by side; budget {} tokens. Live tokens of "
              "a session after each turn's decision, mean over sessions.</p>\n",
              with.sessions * with.rounds, with.turns, with.sessions, with.budget)
       << live_chart(rows).draw() << html_table(rows) << "</html>\n";
  to.append(page.str().data(), page.str().size());
}

}  // namespace agent_replay
