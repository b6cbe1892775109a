// SPDX-License-Identifier: Apache-2.0
// The bytes of scratch memory that a policy and its applier need. They follow from the verbs that their parts declare.
#pragma once

#include <algorithm>
#include <kvpolicy/decision/concepts.hpp>
#include <kvpolicy/decision/record.hpp>
#include <kvpolicy/decision/rule.hpp>
#include <kvpolicy/ops/argmin.hpp>
#include <kvpolicy/ops/scratch.hpp>
#include <kvpolicy/ops/select_if.hpp>
#include <kvpolicy/ops/top_k.hpp>

namespace KVPOLICY_NAMESPACE::detail {

template <class Pick>
constexpr auto verb_that_picks() {
  if constexpr (threshold<Pick>) {
    return ops::select_if;
  } else if constexpr (std::same_as<Pick, lowest_one>) {
    return ops::argmin;
  } else {
    return ops::top_k;
  }
}

/// The verb that carries out a pick.
template <class Pick>
using picking_verb = decltype(verb_that_picks<Pick>());

/// The bytes of scratch that `observe` of these recorders needs. Erased recorders say it themselves.
template <class Backend, class... Recorders>
std::size_t scratch_to_observe(std::tuple<Recorders...> const& recorders, shape const& model, lanes const& batch) {
  [[maybe_unused]] auto const one = [&]<class Recorder>(Recorder const& keeps) {
    if constexpr (requires { keeps.scratch(model, batch); }) {
      return keeps.scratch(model, batch);
    } else {
      static_cast<void>(keeps);
      return scratch_of_verbs<Backend>(verbs_of<Recorder>(), model, batch);
    }
  };
  return std::apply([&](auto const&... each) { return std::max({std::size_t{0}, one(each)...}); }, recorders);
}

/// The bytes of scratch that `decide` or `select_pages` needs.
template <class Backend, class Policy>
std::size_t scratch_to_decide(Policy const& policy, shape const& model, lanes const& batch) {
  std::size_t most = scratch_of_scorer<Backend>(policy.score, model, batch);
  with_pick(pick_of(policy), [&]<class Pick>(Pick const&) {
    most = std::max(most, scratch_of_verbs<Backend>(verbs<picking_verb<Pick>>{}, model, batch));
  });
  return most;
}

/// The bytes of scratch that `apply` of any of these appliers needs.
template <class Backend, class... Appliers>
std::size_t scratch_to_apply(cache const& in) {
  return std::max({std::size_t{0}, scratch_of_verbs<Backend>(verbs_of<Appliers>(), in)...});
}

}  // namespace KVPOLICY_NAMESPACE::detail
