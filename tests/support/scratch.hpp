// SPDX-License-Identifier: Apache-2.0
// Scratch for tests that run verbs themselves, without a plan that would reserve it.
#pragma once

#include <kvpolicy/kvpolicy.hpp>

/// Bytes that any verb about this cache needs.
template <class Backend>
std::size_t scratch_of_every_verb(kvpolicy::cache const& in) {
  namespace ops = kvpolicy::ops;
  using every =
      kvpolicy::verbs<ops::compute_attention_mass_t, ops::pool_t, ops::update_query_memory_t, ops::feature_sums_t,
                      ops::top_k_t, ops::select_if_t, ops::check_list_t, ops::rewrite_list_t, ops::hide_dropped_t,
                      ops::fill_holes_t, ops::drop_units_t, ops::rerotate_t>;
  return kvpolicy::detail::scratch_of_verbs<Backend>(every{}, in);
}
