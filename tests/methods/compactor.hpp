// SPDX-License-Identifier: Apache-2.0
// Compactor: leverages of keys, and what their chunk gives to entries.
#pragma once

#include "methods/leverage.hpp"
#include "reference/methods.hpp"

namespace kvpolicy_test::methods {

struct compactor {
  using scorer = kv::compactor;
  static constexpr auto header = "compactor.hpp";
  static constexpr double size = 40;
  static constexpr refusal refusals[] = {
      {"compactor(sinks=-1)", "parse: column 1: compactor.sinks = -1, but a count cannot be negative"},
      {"compactor(recent=-1)", "parse: column 1: compactor.recent = -1, but a count cannot be negative"},
      {"compactor(chunk=0)", "parse: column 1: compactor.chunk = 0, but a chunk has at least one entry"},
      {"compactor(blend=nan)", "parse: column 17 = nan, but compactor's blend is a number"},
      {"compactor(jitter=-1)", "parse: column 1: compactor.jitter = -1, but a finite number above 0"},
      {"compactor(padding=all)", "parse: column 19 = all, but compactor's padding is none or kvpress"}};

  static scorer any() {
    return {.sinks = *rc::gen::element(0, 1, 4),
            .recent = *rc::gen::element(0, 1, 3),
            .chunk = *rc::gen::element(1, 4, 7, 256),
            .blend = *rc::gen::element(0.0, 0.5, 2.0),
            .sketch = *rc::gen::element(0, 2, 48),
            .jitter = *rc::gen::element(0.01, 1.0),
            .padding = *rc::gen::element(kv::chunk_padding::none, kv::chunk_padding::kvpress)};
  }
  static int last(scorer const& with) { return with.recent; }
  static bool forces(scorer const& with, told_of_lane const&, int e) { return e < with.sinks; }

  static reference::row scores(scorer const& with, std::vector<told_of_lane> const& told, std::size_t which) {
    std::size_t const count = told[which].keys.size(), first = as_size(with.sinks), last = as_size(with.recent);
    reference::row made(count, std::nan(""));
    if (first + last >= count) return made;
    reference::matrix const of_keys = leverages_of_layer(told, which, with.sketch, with.seed, with.jitter, first, last);
    reference::matrix looked;
    for (std::size_t s = which / 2 * 2; s < which / 2 * 2 + 2; ++s) {
      reference::lane_attention lane = told[s].attention();
      lane.scale = 1;
      reference::row mass = reference::chunk_attention(lane, as_size(with.chunk), first, last,
                                                       with.padding == kv::chunk_padding::kvpress);
      for (std::size_t e = 0; e < count; ++e) mass[e] *= reference::row_norms(told[s].values)[e] / told_lanes::group;
      reference::row& to = looked.emplace_back();
      for (std::size_t e = first; e + last < count; ++e) {
        double const before = e > first ? mass[e - 1] : 0, after = e + 1 + last < count ? mass[e + 1] : 0;
        to.push_back((before + mass[e] + after) / 3);
      }
    }
    if (nearly_equal(looked) || (with.blend != 0 && nearly_equal(of_keys))) return {};
    for (std::size_t e = first; e + last < count; ++e) {
      double const leading = reference::sample_z_scores(of_keys)[which % 2][e - first];
      made[e] = with.blend * leading + reference::sample_z_scores(looked)[which % 2][e - first];
    }
    return made;
  }

  /// Queries of zeros look at all entries of their chunk alike.
  static void worked() {
    reference::lane_attention lane;
    lane.keys = {{1}, {2}, {3}, {4}, {5}};
    lane.queries = {{{0}, {0}, {0}, {0}, {0}}};
    CHECK(reference::chunk_attention(lane, 2, 1, 1, false) == reference::row{0, 1, 1, 1, 0});
    reference::row const padded = reference::chunk_attention(lane, 2, 1, 1, true);
    for (std::size_t e = 1; e < 4; ++e) CHECK(padded[e] == doctest::Approx(1));
    lane.queries[0][1] = {std::log(3.0)};
    lane.scale = 1;
    CHECK(reference::chunk_attention(lane, 2, 1, 1, false)[2] == doctest::Approx(0.75 + 0.5));
  }
};

}  // namespace kvpolicy_test::methods
