// SPDX-License-Identifier: Apache-2.0
// The figures that the demo measures, and their tables.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "../agent_replay/metrics.hpp"

namespace demo {

/// A row of the table. Its figures are sums over cases, which the table divides by their number.
struct row {
  std::string policy;
  std::string title{};
  std::string decides{};
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

  /// Adds the sums of another row.
  void add(row const& more) {
    bits += more.bits;
    continued += more.continued;
    agreed += more.agreed;
    compared += more.compared;
    right_inside += more.right_inside;
    right_later += more.right_later;
    asked += more.asked;
    live_entries += more.live_entries;
    live_bytes += more.live_bytes;
    measured += more.measured;
    entries_read += more.entries_read;
    decode_seconds += more.decode_seconds;
    steps += more.steps;
    policy_seconds += more.policy_seconds;
    prompts += more.prompts;
  }

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

struct column {
  std::string name;
  std::string unit;
  int width;
};

/// The 95 % Wilson interval of a share, in percent: "95-100".
inline std::string interval(int right, int of) {
  agent_replay::share const share{right, of};
  return fmt::format("{:.0f}-{:.0f}", 100 * share.low(), 100 * share.high());
}

/// A number with a comma between its thousands.
inline std::string grouped(std::int64_t number) {
  std::string text = std::to_string(number);
  for (std::size_t at = text.size(); at > 3;) text.insert(at -= 3, ",");
  return text;
}

/// Prints two lines of names and units, then a line for each of `cells`. The first `left` columns are words, which are
/// aligned to the left.
inline void print_columns(std::vector<column> const& columns, std::size_t left,
                          std::vector<std::vector<std::string>> const& cells) {
  auto const line = [&](auto const& text_of) {
    std::string text;
    for (std::size_t i = 0; i < columns.size(); ++i) {
      text += i < left ? fmt::format("{:<{}}", text_of(i), columns[i].width)
                       : fmt::format("{:>{}}", text_of(i), columns[i].width);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    fmt::print("{}\n", text);
  };
  line([&](std::size_t i) { return columns[i].name; });
  line([&](std::size_t i) { return columns[i].unit; });
  for (std::vector<std::string> const& row : cells) line([&](std::size_t i) { return row[i]; });
}

/// The columns of the whole table.
inline std::vector<column> const& columns() {
  static std::vector<column> const all = {
      {"policy", "", 20},
      {"budget", "", 6},
      {"bits/byte", "", 11},
      {"recall:", "in prompt", 15},
      {"recall:", "later", 15},
      {"greedy", "as full", 9},
      {"live KV", "entries/lane", 14},
      {"live KV", "KiB", 9},
      {"KV read", "rows/token", 12},
      {"decode", "ms/token", 10},
      {"policy", "ms/prompt", 11},
  };
  return all;
}

/// The text of each column. A dash stands for a figure that was not measured.
inline std::vector<std::string> cells(row const& one, int lanes) {
  auto const or_dash = [](bool there, std::string const& text) { return there ? text : std::string("-"); };
  auto const recall = [&](int right) {
    double const share = row::per(right, one.asked);
    return or_dash(one.asked > 0, fmt::format("{:.0f}% {:>8}", 100 * share, "(" + interval(right, one.asked) + ")"));
  };
  return {one.policy,
          one.budget_name(),
          or_dash(one.continued > 0, fmt::format("{:.3f}", one.bits_per_byte())),
          recall(one.right_inside),
          recall(one.right_later),
          or_dash(one.compared > 0, fmt::format("{:.0f}%", 100 * one.agreement())),
          fmt::format("{:.0f}", one.entries_per_lane(lanes)),
          fmt::format("{:.0f}", row::per(one.live_bytes, one.measured) / 1024),
          fmt::format("{:.0f}", one.read_per_token(lanes)),
          fmt::format("{:.2f}", 1e3 * row::per(one.decode_seconds, one.steps)),
          fmt::format("{:.1f}", 1e3 * row::per(one.policy_seconds, one.prompts))};
}

/// Prints one line for each policy and budget.
inline void print_table(std::vector<row> const& rows, int lanes) {
  std::vector<std::vector<std::string>> all;
  for (row const& one : rows) all.push_back(cells(one, lanes));
  print_columns(columns(), 1, all);
}

/// Prints one line for each policy, with the columns that a first look needs. If there are several budgets, the policy
/// is followed by its own.
inline void print_small_table(std::vector<row> const& rows, int lanes, bool several_budgets) {
  std::int64_t const continued = rows.empty() ? 0 : rows.front().continued;
  std::vector<column> const small = {{"policy", "", several_budgets ? 18 : 13},
                                     {"when it decides", "", 33},
                                     {"recall:", "in prompt", 17},
                                     {"recall:", "later", 17},
                                     {"bits/byte,", grouped(continued) + " bytes", 12},
                                     {"entries", "a lane", 8},
                                     {"decode,", "ms/token", 10}};
  auto const recall = [](int right, int of) {
    return of > 0 ? fmt::format("{}/{} ({} %)", right, of, interval(right, of)) : std::string("-");
  };
  std::vector<std::vector<std::string>> all;
  for (row const& one : rows) {
    all.push_back({one.title + (several_budgets && one.share > 1 ? " " + one.budget_name() : ""), one.decides,
                   recall(one.right_inside, one.asked), recall(one.right_later, one.asked),
                   one.continued > 0 ? fmt::format("{:.3f}", one.bits_per_byte()) : "-",
                   grouped(static_cast<std::int64_t>(one.entries_per_lane(lanes) + 0.5)),
                   fmt::format("{:.2f}", 1e3 * row::per(one.decode_seconds, one.steps))});
  }
  print_columns(small, 2, all);
}

}  // namespace demo
