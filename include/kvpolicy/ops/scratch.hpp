// SPDX-License-Identifier: Apache-2.0
// Computes how much scratch memory an executor must have before a decision runs.
#pragma once

#include <algorithm>
#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/ops/verb.hpp>
#include <string>

namespace KVPOLICY_NAMESPACE {

/// A list of verbs. A scorer, a recorder or an applier lists the verbs that it runs and that need scratch, so that
/// `make_state` and `make_plan` reserve enough:
///
///     using verbs = kvpolicy::verbs<ops::compute_attention_mass_t, ops::pool_t>;
///
/// Verbs without scratch, such as `map`, need not be listed. Verbs of your own may be listed: their `implementation`
/// states how much scratch they need.
template <class... Verbs>
struct verbs {};

namespace detail {

template <class... A, class... B>
constexpr verbs<A..., B...> joined(verbs<A...>, verbs<B...>) {
  return {};
}

/// The verbs that a part of a policy lists; an empty list if it has none.
template <class Part>
constexpr auto verbs_of() {
  if constexpr (requires { typename Part::verbs; }) {
    return typename Part::verbs{};
  } else {
    return verbs<>{};
  }
}

/// The concatenation of two lists of verbs.
template <class A, class B>
using joined_verbs = decltype(joined(A{}, B{}));

/// True if the backend's code for a verb was included. It is an error if it was not, because the reserved size must not
/// depend on the headers that a source file happens to include.
template <class Verb, class Backend>
consteval bool has_code() {
  static_assert(is_implemented<Verb, Backend>,
                "kvpolicy: this policy runs a verb that this executor's backend has no implementation of; include "
                "<kvpolicy/ops/BACKEND/FILE.hpp>, where FILE.hpp is the header in ops/ that declares the verb, or the "
                "umbrella header of the backend");
  return is_implemented<Verb, Backend>;
}

/// Bytes of scratch that one verb needs for lanes of a model: per worker on the host, and for all lanes together on a
/// device.
template <class Verb, class Backend>
std::size_t scratch_of_verb(shape const& model, lanes const& batch) {
  if constexpr (has_code<Verb, Backend>()) {
    using code = implementation<Verb, Backend>;
    if constexpr (requires { code::scratch(model, batch); }) {
      return code::scratch(model, batch);
    } else if constexpr (requires { code::scratch(model, batch.capacity); }) {
      return code::scratch(model, batch.capacity);
    }
  }
  static_cast<void>(model), static_cast<void>(batch);
  return 0;
}

/// Bytes of scratch that one verb needs for a cache; it may depend on the layout of the cache's memory.
template <class Verb, class Backend>
std::size_t scratch_of_verb(cache const& in) {
  if constexpr (has_code<Verb, Backend>()) {
    if constexpr (requires { implementation<Verb, Backend>::scratch(in); }) {
      return implementation<Verb, Backend>::scratch(in);
    }
  }
  return scratch_of_verb<Verb, Backend>(in.shape, in.lanes);
}

/// Verbs run one after another, so a list needs as much scratch as its most demanding verb.
template <class Backend, class... Verbs, class... Args>
std::size_t scratch_of_verbs(verbs<Verbs...>, Args const&... args) {
  std::size_t most = 0;
  ((most = std::max(most, scratch_of_verb<Verbs, Backend>(args...))), ...);
  return most;
}

/// Throws if an executor has reserved less scratch than a call needs.
template <executor Executor>
void check_reserved(char const* call, Executor const& exec, std::size_t needed) {
  expects(exec.reserved() >= needed, call, "exec", "an executor without scratch for this batch",
          "plan and state are made on the executor that runs them");
}

/// Throws unless the caller has reserved scratch on the executor that runs the gates.
template <executor Executor>
void check_gate_scratch(char const* call, Executor const& exec, std::size_t needed) {
  expects(exec.reserved() >= needed, call, "exec", "an executor without scratch for these weights",
          [&] { return std::string(call) + ".reserve comes first"; });
}

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE
