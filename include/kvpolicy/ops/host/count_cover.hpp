// SPDX-License-Identifier: Apache-2.0
// Host implementation of count_cover: a worker counts a segment.
#pragma once

#include <kvpolicy/ops/count_cover.hpp>
#include <kvpolicy/ops/host/executor.hpp>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::count_cover_t, host> {
  template <class Among, class Limit>
  static void run(host_executor& exec, score_view const& scores, Among const& among, Limit const& limit,
                  by_lane<float> const& out) {
    exec.for_each(scores.segments(), [&](int segment, int) {
      lane const one = scores.lane_of(segment);
      int const count = scores.lanes.committed(one);
      int const* const position = scores.lanes.position.row(one);
      float const* const row = scores.row(segment);
      auto const each = [&](auto const& visit) {
        for (int e = 0; e < count; ++e) {
          if (among(entry{one, e, count, position[e], 0})) visit(row[e]);
        }
      };
      detail::cover_search<8> search{.limit = limit(one)};
      *out.row(one) = 0;
      if (!(search.limit > 0)) return;
      do {
        each([&](float score) { search.add(score); });
      } while (search.advance());
      int above = 0, equal = 0;
      each([&](float score) {
        above += score > search.score() ? 1 : 0;
        equal += score == search.score() ? 1 : 0;
      });
      *out.row(one) = static_cast<float>(search.count(above, equal));
    });
  }
};

}  // namespace KVPOLICY_NAMESPACE
