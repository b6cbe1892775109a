// The figures that the demo measures, and their table.
#pragma once

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace demo {

/// A row of the table. Its figures are sums over cases, which the table divides by their number.
struct row {
  std::string policy;
  int share = 1;
  int budget = 0;
  bool own = false;  ///< the policy's spec contains its budget
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

  [[nodiscard]] std::string budget_name() const {
    return own ? "own" : share == 1 ? "all" : fmt::format("1/{}", share);
  }
  [[nodiscard]] double bits_per_byte() const { return per(bits, continued); }
  [[nodiscard]] double recall_inside() const { return per(right_inside, asked); }
  [[nodiscard]] double recall_later() const { return per(right_later, asked); }
  [[nodiscard]] double agreement() const { return per(static_cast<double>(agreed), compared); }
  [[nodiscard]] double entries_per_lane(int lanes) const { return per(live_entries, measured) / lanes; }
  [[nodiscard]] double read_per_token(int lanes) const { return per(entries_read, steps) / lanes; }

  static double per(double sum, std::int64_t count) { return count > 0 ? sum / static_cast<double>(count) : 0; }
};

/// Draws the progress of the work on a terminal. It is silent elsewhere.
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

struct column {
  char const* name;
  char const* unit;
  int width;
};

inline constexpr column columns[] = {
    {"policy", "", 20},
    {"budget", "", 6},
    {"bits/byte", "", 11},
    {"recall:", "in prompt", 11},
    {"recall:", "later", 9},
    {"greedy", "as full", 9},
    {"live KV", "entries/lane", 14},
    {"live KV", "KiB", 9},
    {"KV read", "rows/token", 12},
    {"decode", "ms/token", 10},
    {"policy", "ms/prompt", 11},
};

/// The text of each column. A dash stands for a figure that was not measured.
inline std::vector<std::string> cells(row const& one, int lanes) {
  auto const or_dash = [](bool there, std::string const& text) { return there ? text : std::string("-"); };
  return {one.policy,
          one.budget_name(),
          or_dash(one.continued > 0, fmt::format("{:.3f}", one.bits_per_byte())),
          or_dash(one.asked > 0, fmt::format("{:.0f}%", 100 * one.recall_inside())),
          or_dash(one.asked > 0, fmt::format("{:.0f}%", 100 * one.recall_later())),
          or_dash(one.compared > 0, fmt::format("{:.0f}%", 100 * one.agreement())),
          fmt::format("{:.0f}", one.entries_per_lane(lanes)),
          fmt::format("{:.0f}", row::per(one.live_bytes, one.measured) / 1024),
          fmt::format("{:.0f}", one.read_per_token(lanes)),
          fmt::format("{:.2f}", 1e3 * row::per(one.decode_seconds, one.steps)),
          fmt::format("{:.1f}", 1e3 * row::per(one.policy_seconds, one.prompts))};
}

/// Prints one line for each policy and budget.
inline void print_table(std::vector<row> const& rows, int lanes) {
  auto const line = [](auto const& text_of) {
    int i = 0;
    for (column const& one : columns) {
      if (i == 0) {
        fmt::print("{:<{}}", text_of(i, one), one.width);
      } else {
        fmt::print("{:>{}}", text_of(i, one), one.width);
      }
      ++i;
    }
    fmt::print("\n");
  };
  line([](int, column const& one) { return one.name; });
  line([](int, column const& one) { return one.unit; });
  for (row const& one : rows) {
    auto const texts = cells(one, lanes);
    line([&](int i, column const&) { return texts[static_cast<std::size_t>(i)]; });
  }
}

}  // namespace demo
