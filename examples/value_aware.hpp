// SPDX-License-Identifier: Apache-2.0
// An example of a scorer of your own, which the library does not ship.
#pragma once

#include <kvpolicy/kvpolicy.hpp>

// example-begin scorer
/// Multiplies the attention each key received by the norm of its value (after Guo et al. 2024, arXiv:2406.12335, with
/// the Euclidean norm instead of their L1 norm).
struct value_aware {
  static constexpr auto name = "value_aware";
  using needs = kvpolicy::needs<kvpolicy::keys, kvpolicy::values, kvpolicy::queries>;
  using verbs = kvpolicy::verbs<kvpolicy::ops::compute_attention_mass_t, kvpolicy::ops::pool_t>;  // they need scratch
  static constexpr auto decides = kvpolicy::granularity::lane;
  void score(auto& exec, auto const& in, kvpolicy::score_view const& out) const {
    kvpolicy::ops::compute_attention_mass(exec, in.template get<kvpolicy::keys>(), in.template get<kvpolicy::queries>(),
                                          {.last_rows = 16}, out);
    kvpolicy::ops::row_norm(exec, in.template get<kvpolicy::values>(), kvpolicy::multiplied{}, out);
    kvpolicy::ops::pool(exec, kvpolicy::max_pool{15}, out, 16);
  }
  friend bool operator==(value_aware const&, value_aware const&) = default;
};
// example-end scorer
