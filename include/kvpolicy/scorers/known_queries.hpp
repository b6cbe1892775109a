// SPDX-License-Identifier: Apache-2.0
// What scorers know of later queries: a profile of the model, or the prompt's rows before RoPE.
#pragma once

#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/ops/query_moments.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// Calls `profile` with the profile of queries, or `rows` with a prompt's rows where the engine gives no profile.
template <class SignalSet, class Profile, class Rows>
auto with_known_queries(SignalSet const& in, Profile const& profile, Rows const& rows) {
  if constexpr (!provides<SignalSet, pre_rope_queries>) {
    return profile(in.template get<query_model>());
  } else {
    if constexpr (provides<SignalSet, query_model>) {
      if (in.template gives<query_model>()) return profile(in.template get<query_model>());
    }
    return rows(in.template get<pre_rope_queries>());
  }
}

/// The number of query heads.
[[nodiscard]] int known_query_heads(auto const& in) {
  return with_known_queries(
      in, [](query_model const& of) { return of.mean.heads; }, [](pre_rope_queries const& of) { return of.heads; });
}

/// Which query head of each lane's group, and at which positions.
struct later_queries {
  int head, group;
  int sinks;   ///< rows at positions below do not count
  int future;  ///< positions after the newest entry; 0: queries are taken as they are
};

/// The moments of a query head at later positions, in the memory `to`: those of the profile if there is one.
query_model future_queries_of(auto& exec, auto const& in, lanes const& batch, later_queries const& which, int dims,
                              moments_of_queries const& to) {
  auto const given = [&](query_model const& of) { return one_of_group(of, which.head, which.group); };
  auto const computed = [&](pre_rope_queries const& rows) {
    ops::query_moments(exec, batch, one_of_group(rows, which.head, which.group), which.sinks, to);
    return to.model(batch, rows.dims, rows.rope);
  };
  query_model const now = with_known_queries(in, given, computed);
  ops::future_moments(exec, batch, now, which.future, to);
  return to.model(batch, dims, now.rope);
}

}  // namespace KVPOLICY_NAMESPACE::detail
