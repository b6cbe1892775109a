// SPDX-License-Identifier: Apache-2.0
// Scissorhands: the attention of the last rows, as it was when they came.
#pragma once

#include "reference/methods.hpp"
#include "support/method.hpp"

namespace kvpolicy_test::methods {

struct scissorhands {
  using scorer = kv::scissorhands;
  static constexpr auto header = "scissorhands.hpp";
  static constexpr refusal refusals[] = {
      {"scissorhands(history=0)", "parse: column 1: scissorhands.history = 0, but 1 to 4,096 rows are remembered"},
      {"scissorhands(recent=-1)", "parse: column 1: scissorhands.recent = -1, but a count cannot be negative"}};

  static scorer any() {
    return {.history = *rc::gen::element(1, 2, 5, 32, 100),
            .recent = *rc::gen::inRange(0, 12),
            .group = *rc::gen::element(kv::reduction::sum, kv::reduction::mean, kv::reduction::max)};
  }
  static int last(scorer const& with) { return with.recent; }
  static reference::row scores(scorer const& with, told_of_lane const& lane) {
    auto const group = static_cast<reference::reduction>(with.group);
    return reference::last_rows_of(reference::rows_of_group(lane.attention(), group), with.history);
  }

  static void worked() {
    reference::matrix const rows{{0.6, 0.4, 0, 0}, {0.2, 0.3, 0.5, 0}, {0.1, 0.1, 0.2, 0.6}};
    reference::row const two = reference::last_rows_of(rows, 2), all = reference::last_rows_of(rows, 3);
    double const of_two[] = {0.3, 0.4, 0.7, 0.6}, of_all[] = {0.9, 0.8, 0.7, 0.6};
    for (std::size_t e = 0; e < 4; ++e) {
      CHECK(two[e] == doctest::Approx(of_two[e]));
      CHECK(all[e] == doctest::Approx(of_all[e]));
    }
    rows_of_drafts_have_no_place();
  }

  /// Of four rows at positions 1 to 4 in a lane whose newest token is at 2, two move the ring on.
  static void rows_of_drafts_have_no_place() {
    float memory[16] = {};
    int count = 3, next = 6, positions[] = {0, 1, 2}, rows[] = {1, 2, 3, 4};
    kv::cache const cache = kv::contiguous_cache(memory, memory, {1, 1, 1, 4}, 3, &count, positions);
    kv::query_view const view{.dims = 4, .heads = 1, .rows = 4, .position = {rows}};
    kv::record_mass_ring::advance const advance{{&next}, view, cache.lanes, 7};
    CHECK(advance({{}, 3, 0, positions, {}}) == 1);
  }
};

}  // namespace kvpolicy_test::methods
