// SPDX-License-Identifier: Apache-2.0
// A scorer outside of the library that compares each key with a mean of keys.
#pragma once

#include <cstdint>
#include <kvpolicy/kvpolicy.hpp>

// example-begin scorer
namespace mine {

/// Keeps the entries whose keys have least in common with the mean key of their lane: s_j = -k_j . mean(k).
struct unlike_the_mean {
  static constexpr auto name = "unlike_the_mean";
  static constexpr auto fields() { return kvpolicy::make_fields(); }
  using needs = kvpolicy::needs<kvpolicy::keys>;
  using verbs = kvpolicy::verbs<kvpolicy::ops::mean_row_t, kvpolicy::ops::logits_t>;  // they need scratch
  static constexpr auto decides = kvpolicy::granularity::lane;

  // The plan has room for a mean key of each lane.
  [[nodiscard]] static constexpr int spare_rows(kvpolicy::lanes const& batch, kvpolicy::shape const& model) {
    return kvpolicy::rows_of_scores(batch, std::int64_t{batch.size()} * model.head_dim);
  }
  void score(auto& exec, auto const& in, kvpolicy::score_view const& out) const {
    kvpolicy::keys const& k = in.template get<kvpolicy::keys>();
    int const dims = k.rows.channels;
    auto const mean = kvpolicy::contiguous_scores(out.lanes, kvpolicy::granularity::lane, out.spare, dims).rows;
    kvpolicy::ops::mean_row(exec, out.lanes, k, {}, mean);
    kvpolicy::ops::logits(exec, k, kvpolicy::one_row_a_lane(mean, dims, out.lanes), {.scale = 1.0f},
                          kvpolicy::negated{}, out);
  }
  friend bool operator==(unlike_the_mean const&, unlike_the_mean const&) = default;
};

}  // namespace mine
// example-end scorer
static_assert(kvpolicy::scorer<mine::unlike_the_mean>);
