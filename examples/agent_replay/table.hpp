// SPDX-License-Identifier: Apache-2.0
// The table of a run, and the same figures as JSON.
#pragma once

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "metrics.hpp"

namespace agent_replay {

struct column {
  char const* name;
  char const* unit;
  int width;
};

inline constexpr column columns[] = {
    {"policy", "", 20},     {"layout", "", 18},         {"right", "95 % interval", 18}, {"asked", "again", 7},
    {"prefix", "hits", 8},  {"peak", "slots", 7},       {"peak", "request", 9},         {"peak", "live", 6},
    {"raw", "reads", 9},    {"effective", "reads", 11}, {"first", "token ms", 10},      {"leaked", "slots", 8},
    {"double", "frees", 8},
};

[[nodiscard]] inline std::vector<std::string> cells(metrics const& one) {
  share const& right = one.answers;
  return {one.name,
          one.layout,
          fmt::format("{:.0f}% {:>3.0f} to {:.0f}%", 100 * right.value(), 100 * right.low(), 100 * right.high()),
          fmt::format("{:.0f}%", 100 * one.again.value()),
          fmt::format("{:.1f}%", 100 * one.hit_rate()),
          fmt::format("{}", one.peak_slots),
          fmt::format("{}", one.peak_request),
          fmt::format("{}", one.peak_live),
          fmt::format("{}", one.raw_reads),
          fmt::format("{}", one.effective_reads),
          fmt::format("{:.1f}", 1e3 * one.median_first_token()),
          fmt::format("{}", one.leaked),
          fmt::format("{}", one.double_frees)};
}

/// Prints one line for each row, with names aligned left and numbers aligned right.
inline void print_table(std::vector<metrics> const& rows) {
  auto const line = [](auto const& text_of) {
    int i = 0;
    std::string all;
    for (column const& one : columns) {
      all +=
          i < 2 ? fmt::format("{:<{}}", text_of(i, one), one.width) : fmt::format("{:>{}}", text_of(i, one), one.width);
      ++i;
    }
    fmt::print("{}\n", all);
  };
  line([](int, column const& one) { return std::string(one.name); });
  line([](int, column const& one) { return std::string(one.unit); });
  for (metrics const& one : rows) {
    auto const texts = cells(one);
    line([&](int i, column const&) { return texts[static_cast<std::size_t>(i)]; });
  }
}

[[nodiscard]] inline nlohmann::json as_json(share const& one) {
  return {{"right", one.right}, {"of", one.of}, {"share", one.value()}, {"low", one.low()}, {"high", one.high()}};
}

[[nodiscard]] inline nlohmann::json as_json(metrics const& one) {
  nlohmann::json live = nlohmann::json::array();
  for (std::size_t turn = 0; turn < one.live_of.size(); ++turn) live.push_back(one.mean_live(turn));
  return {{"name", one.name},
          {"layout", one.layout},
          {"policy", one.policy},
          {"answers", as_json(one.answers)},
          {"asked_again", as_json(one.again)},
          {"prompt_tokens", one.sent},
          {"prefix_hit_tokens", one.found},
          {"prefix_hit_rate", one.hit_rate()},
          {"peak_slots", one.peak_slots},
          {"peak_request_tokens", one.peak_request},
          {"effective_live_kv", one.peak_live},
          {"raw_kv_reads", one.raw_reads},
          {"effective_kv_reads", one.effective_reads},
          {"first_token_ms_median", 1e3 * one.median_first_token()},
          {"live_by_turn", live},
          {"refused_turns", one.refused},
          {"slots_leaked", one.leaked},
          {"double_frees", one.double_frees}};
}

}  // namespace agent_replay
