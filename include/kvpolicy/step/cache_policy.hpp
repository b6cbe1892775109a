// SPDX-License-Identifier: Apache-2.0
// `cache_policy`: an admission, a selection and an eviction of one cache, as one value.
#pragma once

#include <kvpolicy/admission/admission.hpp>
#include <kvpolicy/decision/eviction.hpp>
#include <kvpolicy/scorers/full.hpp>
#include <kvpolicy/scorers/with_recorders.hpp>
#include <kvpolicy/selection/selection.hpp>
#include <kvpolicy/step/in_window.hpp>

namespace KVPOLICY_NAMESPACE {

/// Stands for a part that a cache policy does not have.
struct omitted {
  static constexpr auto name = "omitted";
  static constexpr auto fields() { return make_fields(); }
  friend bool operator==(omitted const&, omitted const&) = default;
};

/// An admission, a selection and an eviction that work together on one cache. Each may be left out.
///
///     kv::cache_policy{.admit = kv::policies::wg_kv({.window = 256}),
///                      .select = kv::policies::quest({.budget = 512}),
///                      .evict = kv::policies::trim_kv({.budget = 4096})}
///
/// If there is an admission, the other two act on the pages only: entries of the window are always read and never
/// dropped, and the budgets of the others count entries of pages. A cache policy is a plain value, as its parts are.
template <class Admit = omitted, class Select = omitted, class Evict = omitted>
struct cache_policy {
  Admit admit{};
  Select select{};
  Evict evict{};
  friend bool operator==(cache_policy const&, cache_policy const&) = default;
};

/// Prints "admit: write_gate | ...; select: quest(...) | ...; evict: trim_kv(...) | ...".
template <class Admit, class Select, class Evict>
[[nodiscard]] std::string print(cache_policy<Admit, Select, Evict> const& policy) {
  std::string text;
  auto const part = [&](char const* name, auto const& each) {
    if (std::same_as<std::remove_cvref_t<decltype(each)>, omitted>) return;
    text.append(text.empty() ? "" : "; ").append(name).append(": ").append(to_string(each));
  };
  part("admit", policy.admit);
  part("select", policy.select);
  part("evict", policy.evict);
  return text;
}

namespace detail {

template <class Part>
inline constexpr bool is_there = !std::same_as<std::remove_cvref_t<Part>, omitted>;

template <class Part>
constexpr auto recorders_of_part(Part const& part) {
  if constexpr (is_there<Part>) {
    return recorders_of(part.score);
  } else {
    return std::tuple<>{};
  }
}

/// The recorders of the entries in pages are those of the eviction and of the selection. The recorders of the entries
/// in the window are those of the admission, and those of the other parts that record numbers of entries: what is known
/// when a token is appended, and what forwards change.
template <class Policy>
constexpr auto recorders_of_pages(Policy const& policy) {
  return std::tuple_cat(recorders_of_part(policy.evict), recorders_of_part(policy.select));
}
template <class Policy>
constexpr auto recorders_of_window(Policy const& policy) {
  return std::tuple_cat(recorders_of_part(policy.admit), recorders_in_window(recorders_of_pages(policy)));
}

/// The same policy with a scorer whose recorders are `all`.
template <class Policy, class... Recorders>
constexpr auto recording(Policy const& policy, std::tuple<Recorders...> const& all) {
  using score_type = std::remove_cvref_t<decltype(policy.score)>;
  with_recorders<score_type, Recorders...> const score(policy.score, all);
  if constexpr (admission_policy<Policy>) {
    return admission{score, policy.protect, policy.window, policy.pick, policy.cap};
  } else if constexpr (selection_policy<Policy>) {
    return selection{score,           policy.budget,         policy.dense_layers, protection_of(policy),
                     pick_of(policy), runs_of(policy).length};
  } else {
    return eviction{score, policy.protect, policy.budget, policy.pick, policy.trigger};
  }
}

/// The parts as they run. The admission uses the state of the window; selection and eviction share the state of the
/// pages.
template <class Policy>
constexpr auto admitting(Policy const& policy) {
  return recording(policy.admit, recorders_of_window(policy));
}
template <class Policy>
constexpr auto selecting(Policy const& policy) {
  return recording(policy.select, recorders_of_pages(policy));
}
/// If there is no eviction, this is one that drops nothing, because the selection's recorders still have to run.
template <class Policy>
constexpr auto evicting(Policy const& policy) {
  if constexpr (is_there<decltype(policy.evict)>) {
    return recording(policy.evict, recorders_of_pages(policy));
  } else {
    return recording(eviction{.score = full{}, .budget = unlimited{}}, recorders_of_pages(policy));
  }
}

}  // namespace detail

/// The admission of a cache policy, with every recorder of numbers of entries. Pass it to `make_state`, `observe`,
/// `decide` and `ingest` for a chunk whose rows are outside of the cache. There it records what is known when a token
/// is appended; the attention of the chunk is observed after `ingest`.
template <class... Parts>
[[nodiscard]] constexpr auto window_part(cache_policy<Parts...> const& policy) {
  return detail::admitting(policy);
}

}  // namespace KVPOLICY_NAMESPACE
