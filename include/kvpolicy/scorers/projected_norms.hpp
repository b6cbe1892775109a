// SPDX-License-Identifier: Apache-2.0
// Norms of projected values for scorers: given by the engine, or computed of its values and its output projection.
#pragma once

#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/ops/projected_norm.hpp>

namespace KVPOLICY_NAMESPACE {

/// What a scorer needs that calls `apply_projected_norms`: `value_norms`, or else `values` and `output_projection`.
using norms_or_projection = any_signal_of<value_norms, output_projection>;
/// The other part of it.
using norms_or_values = any_signal_of<value_norms, values>;

namespace detail {

/// A function for `map`: combines a score with the number of its entry in a table.
template <class Combine>
struct combined_with {
  by_lane<float const> table;
  Combine combine;
  KVPOLICY_HD float operator()(float old, entry at) const { return combine(old, table.row(at.lane)[at.ordinal]); }
};

/// Which norms of projected values: those of query head `head` of `group` ones of a lane, or the mean over them.
struct which_norm {
  norm_of_row norm;
  int head = 0;
  int group = 0;  ///< 0: the mean
};

/// out[e] = combine(out[e], norm of the entry's projected value). Norms that the engine gives come first, and are the
/// same for all query heads of a lane.
template <class Executor, class SignalSet, class Combine>
void apply_projected_norms(Executor& exec, SignalSet const& in, which_norm const& which, Combine const& combine,
                           score_view const& out) {
  if constexpr (SignalSet::template provides<value_norms>) {
    if (in.template gives<value_norms>()) {
      auto const given = in.template get<value_norms>();
      return ops::map(exec, out, combined_with<Combine>{given.norm, combine});
    }
  }
  if constexpr (SignalSet::template provides<output_projection> && SignalSet::template provides<values>) {
    auto by = in.template get<output_projection>();
    if (which.group > 0) by = one_of_group(by, which.head, which.group);
    ops::projected_norm(exec, in.template get<values>(), by, {which.norm}, combine, out);
  }
}

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE
