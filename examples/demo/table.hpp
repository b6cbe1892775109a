// What the demo measures, and how it prints.
#pragma once

#include <fmt/core.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

namespace demo {

/// Sums over cases; the table divides.
struct row {
  std::string policy;
  int share = 1;
  int budget = 0;
  double bits = 0;
  std::int64_t continued = 0;
  std::int64_t agreed = 0;
  std::int64_t compared = 0;
  int right_inside = 0;
  int right_later = 0;
  int asked = 0;
  double live_entries = 0;
  double live_bytes = 0;
  int measured = 0;
  double entries_read = 0;
  double decode_seconds = 0;
  std::int64_t steps = 0;
  double policy_seconds = 0;
  int prompts = 0;

  [[nodiscard]] double bits_per_byte() const { return continued > 0 ? bits / static_cast<double>(continued) : 0; }
  [[nodiscard]] double recall_inside() const { return asked > 0 ? static_cast<double>(right_inside) / asked : 0; }
  [[nodiscard]] double recall_later() const { return asked > 0 ? static_cast<double>(right_later) / asked : 0; }
};

/// Draws how far the work is, on a terminal; silent elsewhere.
class progress_bar {
 public:
  explicit progress_bar(int total) : total_(total), shown_(isatty(2) != 0) {}
  ~progress_bar() {
    if (shown_) fmt::print(stderr, "\r{:60}\r", "");
  }
  void advance(std::string const& what) {
    ++done_;
    if (!shown_) return;
    int const filled = total_ > 0 ? 30 * done_ / total_ : 30;
    fmt::print(stderr, "\r[{:=<{}}{:{}}] {:3}% {:<16}", "", filled, "", 30 - filled, 100 * done_ / std::max(1, total_),
               what);
    std::fflush(stderr);
  }

 private:
  int total_;
  int done_ = 0;
  bool shown_;
};

/// One line a policy and budget. A dash stands where nothing was measured.
inline void print_table(std::vector<row> const& rows, double lanes) {
  fmt::print("{:<14}{:>6}{:>11}{:>11}{:>9}{:>9}{:>14}{:>9}{:>12}{:>10}{:>11}\n", "policy", "budget", "bits/byte",
             "recall:", "recall:", "greedy", "live KV", "live KV", "KV read", "decode", "policy");
  fmt::print("{:<14}{:>6}{:>11}{:>11}{:>9}{:>9}{:>14}{:>9}{:>12}{:>10}{:>11}\n", "", "", "", "in prompt", "later",
             "as full", "entries/lane", "KiB", "rows/token", "ms/token", "ms/prompt");
  auto const or_dash = [](bool there, std::string const& text) { return there ? text : std::string("-"); };
  for (row const& one : rows) {
    auto const per = [](double sum, auto count) { return count > 0 ? sum / static_cast<double>(count) : 0.0; };
    fmt::print(
        "{:<14}{:>6}{:>11}{:>11}{:>9}{:>9}{:>14.0f}{:>9.0f}{:>12.0f}{:>10.2f}{:>11.1f}\n", one.policy,
        one.share == 1 ? "all" : fmt::format("1/{}", one.share),
        or_dash(one.continued > 0, fmt::format("{:.3f}", one.bits_per_byte())),
        or_dash(one.asked > 0, fmt::format("{:.0f}%", 100 * one.recall_inside())),
        or_dash(one.asked > 0, fmt::format("{:.0f}%", 100 * one.recall_later())),
        or_dash(one.compared > 0, fmt::format("{:.0f}%", 100 * per(static_cast<double>(one.agreed), one.compared))),
        per(one.live_entries, one.measured) / lanes, per(one.live_bytes, one.measured) / 1024,
        per(one.entries_read, one.steps) / lanes, 1e3 * per(one.decode_seconds, one.steps),
        1e3 * per(one.policy_seconds, one.prompts));
  }
}

}  // namespace demo
