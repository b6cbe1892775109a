// SPDX-License-Identifier: Apache-2.0
// An allotter that compares the lanes of a layer rank by rank, so that all of them have the same share.
#pragma once

#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/ops/radix_key.hpp>
#include <kvpolicy/ops/sort_scores.hpp>
#include <kvpolicy/parts/shared_out.hpp>
#include <limits>

namespace KVPOLICY_NAMESPACE {

namespace detail {

/// The scores by which lanes are compared: those of a table, and +inf for the last `window` entries.
struct score_or_forced {
  static constexpr float infinity = std::numeric_limits<float>::infinity();  // device code may not call the function
  by_lane<float> scores;
  int window;
  KVPOLICY_HD float operator()(float, entry at) const {
    return at.ordinal >= std::int64_t{at.count} - window ? infinity : scores.row(at.lane)[at.ordinal];
  }
};

/// The composite scores of layers: place r has the mean of the scores of rank r over the layer's lanes. They stand in
/// the row of the layer's longest lane, which has as many as that lane has entries.
struct composites {
  by_lane<float> rows;
  lanes batch;

  /// The longest lane of a layer, the first of equal ones.
  [[nodiscard]] KVPOLICY_HD lane longest(int sequence, int layer) const {
    lane found{sequence, layer, 0};
    for (int h = 1; h < batch.heads; ++h) {
      lane const other{sequence, layer, h};
      if (batch.committed(other) > batch.committed(found)) found = other;
    }
    return found;
  }
  [[nodiscard]] KVPOLICY_HD bool is_longest(lane one) const {
    return longest(one.sequence, one.layer).head == one.head;
  }
};

/// The mean of a rank over the lanes of a layer; NaN if one of them has no such rank. Rows are sorted before. Only the
/// row of the longest lane changes, and a place is read for its own rank only.
struct mean_of_rank {
  composites of;
  KVPOLICY_HD float operator()(float old, entry at) const {
    if (!of.is_longest(at.lane)) return old;
    double sum = 0;
    for (int h = 0; h < of.batch.heads; ++h) {
      lane const one{at.lane.sequence, at.lane.layer, h};
      if (of.batch.committed(one) <= at.ordinal) return same_bits<float>(0x7FC00000u);  // behind all others
      sum += static_cast<double>(of.rows.row(one)[at.ordinal]);
    }
    return static_cast<float>(sum / of.batch.heads);
  }
};

/// Gives the first layer the highest composite of each rank.
struct highest_of_layers {
  composites of;
  KVPOLICY_HD float operator()(float high, entry at) const {
    if (at.lane.layer != of.batch.layer_begin || !of.is_longest(at.lane)) return high;
    for (int l = of.batch.layer_begin + 1; l < of.batch.layer_end; ++l) {
      lane const other = of.longest(at.lane.sequence, l);
      if (of.batch.committed(other) <= at.ordinal) continue;
      float const now = of.rows.row(other)[at.ordinal];
      high = radix_key(now) > radix_key(high) ? now : high;
    }
    return high;
  }
};

/// How many composites of a lane's layer are among the best of all layers, of which there are as many as the layers'
/// averages together. Of equal ones those of lower layers are better.
struct best_of_layers {
  composites of;
  average_share average;

  KVPOLICY_HD int operator()(lane_entries const& asked) const {
    int const sequence = asked.lane.sequence;
    std::int64_t total = 0;
    for (int l = of.batch.layer_begin; l < of.batch.layer_end; ++l) {
      lane const one = of.longest(sequence, l);
      total += average(one, of.batch.committed(one));
    }
    lane const mine = of.longest(sequence, asked.lane.layer);
    int const best = first_place(mine, [&](int rank) { return better_than(mine, rank) >= total; });
    return best > 1 ? best : 1;
  }

 private:
  [[nodiscard]] KVPOLICY_HD std::uint32_t key(lane one, int rank) const { return radix_key(of.rows.row(one)[rank]); }

  /// The first rank for which `is_behind` is true, as it is for all ranks after it.
  template <class IsBehind>
  [[nodiscard]] KVPOLICY_HD int first_place(lane one, IsBehind const& is_behind) const {
    int begin = 0, end = of.batch.committed(one);
    while (begin < end) {
      int const middle = begin + (end - begin) / 2;
      (is_behind(middle) ? end : begin) = is_behind(middle) ? middle : middle + 1;
    }
    return begin;
  }
  /// How many composites of all layers are better than that of a rank.
  [[nodiscard]] KVPOLICY_HD std::int64_t better_than(lane mine, int rank) const {
    std::uint32_t const score = key(mine, rank);
    std::int64_t all = rank;
    for (int l = of.batch.layer_begin; l < of.batch.layer_end; ++l) {
      if (l == mine.layer) continue;
      lane const other = of.longest(mine.sequence, l);
      all += first_place(other, [&](int r) { return l < mine.layer ? key(other, r) < score : key(other, r) <= score; });
    }
    return all;
  }
};

}  // namespace detail

/// Shares by composite entries (KVCompose; Akulov et al. 2025, arXiv:2509.05165): the best entries of the lanes of a
/// layer are taken together, then the second best, and so on, whatever their places, and these composites compete with
/// those of all layers. So all lanes of a layer have the same share, and each keeps its own best entries.
///
///     X[l, r] = mean over the layer's lanes of their score of rank r
///     share   = how many X[l, .] are among the L B best        B: the average, L: layers; at least 1
///
/// With `first_layer` the first layer has the highest X of each rank. Entries that the scorer forces at the end of a
/// lane have the first ranks. The plan has N floats more for each lane.
struct ranks {
  bool first_layer = true;
  int window = 0;  ///< the last entries, which the scorer forces; a policy by name has that of its scorer

  static constexpr auto name = "ranks";
  static constexpr auto fields() { return make_fields(field{"first_layer", &ranks::first_layer}); }
  void check(char const* call) const {
    expects(window >= 0, call, "ranks.window", window, "a count cannot be negative");
  }
  [[nodiscard]] static constexpr bool compares_layers() { return true; }
  [[nodiscard]] constexpr ranks with_window(int w) const { return {first_layer, w}; }
  [[nodiscard]] static constexpr int spare_rows(lanes const& batch) { return batch.size(); }

  /// - cost: a sort of each lane, and O(layers log^2 entries) for each lane.
  template <class Executor>
  void allot(Executor& exec, allotting<Executor>& of, by_lane<int> const& shares) const {
    lanes const& batch = of.scores.lanes;
    score_view const sorted = contiguous_scores(batch, granularity::lane, of.spare, batch.capacity);
    ops::map(exec, sorted, detail::score_or_forced{of.scores.rows, window});
    ops::sort_scores(exec, sorted);
    detail::composites const all{sorted.rows, batch};
    ops::map(exec, sorted, detail::mean_of_rank{all});
    if (first_layer) ops::map(exec, sorted, detail::highest_of_layers{all});
    ops::map_lanes(exec, batch, detail::best_of_layers{all, of.average}, shares);
  }
  friend bool operator==(ranks const&, ranks const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
