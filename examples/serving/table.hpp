// SPDX-License-Identifier: Apache-2.0
// The table of the engine's policies, for people and as JSON.
#pragma once

#include <fmt/core.h>

#include <demo/table.hpp>
#include <nlohmann/json.hpp>

#include "measure.hpp"

namespace serving {

/// The bounds of `--check`: requests at once over those with the full cache, and points of recall below it.
inline constexpr double least_at_once = 3;
inline constexpr double most_points_lost = 2;

[[nodiscard]] inline double times_at_once(measured const& one, measured const& full) {
  return one.counted.mean_running() / full.counted.mean_running();
}
[[nodiscard]] inline double points_lost(measured const& one, measured const& full) {
  return 100 * (full.recall.value() - one.recall.value());
}

inline void print_table(std::vector<measured> const& rows) {
  std::vector<demo::column> const columns = {
      {"policy", "", 9},     {"answers,", "tokens/s", 9}, {"served at", "once: mean", 11},
      {"", "peak", 5},       {"blocks:", "peak, of", 9},  {"prefix", "hits", 7},
      {"pre-", "empted", 7}, {"drafts", "accepted", 9},   {"recall", "", 20}};
  std::vector<std::vector<std::string>> cells;
  for (measured const& one : rows) {
    engine_counters const& counted = one.counted;
    auto const accepted = demo::row::per(100.0 * static_cast<double>(counted.accepted), counted.drafted);
    cells.push_back({one.name, fmt::format("{:.0f}", one.tokens_per_second()),
                     fmt::format("{:.1f}", counted.mean_running()), fmt::format("{}", counted.peak_running),
                     fmt::format("{}, {}", one.peak_blocks, one.blocks), fmt::format("{:.0f}%", 100 * one.hit_rate()),
                     fmt::format("{}", one.swaps + one.recomputations), fmt::format("{:.0f}%", accepted),
                     fmt::format("{}/{} ({} %)", one.recall.right, one.recall.of,
                                 demo::interval(one.recall.right, one.recall.of))});
  }
  demo::print_columns(columns, 1, cells);
}

/// Prints what each engine holds, in bytes: the parts and their sum.
inline void print_memory(std::vector<measured> const& rows, std::int64_t limit) {
  fmt::print("{:<30}", "bytes held by each engine");
  for (measured const& one : rows) fmt::print("{:>12}", one.name);
  for (memory_part const& each : memory_parts) {
    auto const held = [&](measured const& one) { return one.held.*each.bytes; };
    if (std::none_of(rows.begin(), rows.end(), [&](measured const& one) { return held(one) > 0; })) continue;
    fmt::print("\n{:<30}", each.title);
    for (measured const& one : rows) fmt::print("{:>12}", held(one));
  }
  fmt::print("\n{:<30}", fmt::format("together, of {}", limit));
  for (measured const& one : rows) fmt::print("{:>12}", one.held.total());
  fmt::print("\n{:<30}", "slots, and entries of a lane");
  for (measured const& one : rows) fmt::print("{:>12}", fmt::format("{} x {}", one.slots.wide, one.slots.wide_bound));
  fmt::print("\n{:<30}", "");
  for (measured const& one : rows) {
    fmt::print("{:>12}", one.slots.narrow > 0 ? fmt::format("{} x {}", one.slots.narrow, one.slots.narrow_bound) : "");
  }
  fmt::print("\n");
}

/// Prints how a row compares with the full cache. Returns false if a bound is missed.
inline bool print_ratios(std::vector<measured> const& rows) {
  bool met = true;
  for (std::size_t i = 1; i < rows.size(); ++i) {
    double const times = times_at_once(rows[i], rows[0]), lost = points_lost(rows[i], rows[0]);
    bool const here = times >= least_at_once && lost <= most_points_lost;
    met = met && here;
    fmt::print("{:<9} serves {:.1f} times as many requests at once as the full cache, {:.1f} points of recall {}: {}\n",
               rows[i].name, times, std::abs(lost), lost > 0 ? "below it" : "above it", here ? "met" : "MISSED");
  }
  return met;
}

[[nodiscard]] inline nlohmann::json as_json(measured const& one) {
  engine_counters const& counted = one.counted;
  nlohmann::json held = nlohmann::json::object();
  for (memory_part const& each : memory_parts) held[each.name] = one.held.*each.bytes;
  return {{"policy", one.name},
          {"spec", one.spec},
          {"seconds", one.seconds},
          {"tokens_per_second", one.tokens_per_second()},
          {"steps", counted.steps},
          {"answered_tokens", counted.answered},
          {"computed_tokens", counted.computed},
          {"mean_running", counted.mean_running()},
          {"peak_running", counted.peak_running},
          {"held_bytes", held},
          {"total_bytes", one.held.total()},
          {"blocks", one.blocks},
          {"peak_blocks", one.peak_blocks},
          {"hit_tokens", one.hit_tokens},
          {"prompt_tokens", one.asked_tokens},
          {"swaps", one.swaps},
          {"recomputations", one.recomputations},
          {"copied_blocks", one.copies},
          {"forks", counted.forks},
          {"cancelled", one.cancelled},
          {"drafted", counted.drafted},
          {"accepted", counted.accepted},
          {"right", one.recall.right},
          {"asked", one.recall.of}};
}

}  // namespace serving
