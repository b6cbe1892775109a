// SPDX-License-Identifier: Apache-2.0
// An admission, a selection and an eviction by name.
#pragma once

#include <kvpolicy/by_name/any_admission.hpp>
#include <kvpolicy/by_name/registry.hpp>
#include <kvpolicy/step/cache_policy.hpp>
#include <optional>

namespace KVPOLICY_NAMESPACE {

/// The three sections of a spec, each of which may be absent. It is what `cache_policy` is of typed parts, and prints
/// alike. `visit` gives the `cache_policy` of the sections that are there, which `make_state`, `make_plan` and `step`
/// accept.
///
///     policy.visit([&](auto const& typed) { run_engine(typed); });
template <executor Executor>
struct basic_any_cache_policy {
  std::optional<basic_any_admission<Executor>> admit{};
  std::optional<basic_any_selection<Executor>> select{};
  std::optional<basic_any_policy<Executor>> evict{};
  friend bool operator==(basic_any_cache_policy const&, basic_any_cache_policy const&) = default;

  /// Calls visit(policy) with a `cache_policy` of the sections that are there, and returns what it returns, which has
  /// one type. All parts are erased, so `visit` is compiled eight times, whatever scorers there are.
  template <class Visit>
  decltype(auto) visit(Visit const& visit) const {
    return with(admit, [&](auto const& admission) -> decltype(auto) {
      return with(select, [&](auto const& selection) -> decltype(auto) {
        return with(evict, [&](auto const& eviction) -> decltype(auto) {
          return visit(cache_policy{admission, selection, eviction});
        });
      });
    });
  }

 private:
  template <class Part, class Visit>
  static decltype(auto) with(std::optional<Part> const& part, Visit const& visit) {
    return part ? visit(*part) : visit(omitted{});
  }
};

/// Such a policy for the host.
using any_cache_policy = basic_any_cache_policy<host_executor>;

/// Prints "admit: write_gate | ...; select: quest(...) | ...; evict: trim_kv(...) | ...".
template <executor Executor>
[[nodiscard]] std::string print(basic_any_cache_policy<Executor> const& policy) {
  std::string text;
  auto const section = [&](char const* name, auto const& each) {
    if (each) text.append(text.empty() ? "" : "; ").append(name).append(": ").append(to_string(*each));
  };
  section("admit", policy.admit);
  section("select", policy.select);
  section("evict", policy.evict);
  return text;
}

/// Parses the sections of a spec. A section without a name is an eviction. Parsing the text that `print` returns gives
/// an equal policy.
///
///     auto const policy = kv::parse_cache_policy("admit: write_gate | window(256); evict: knorm | budget(4096)");
/// - throws: `invalid_argument` that names the column, the text that was found, and the texts that are accepted.
template <executor Executor = host_executor>
[[nodiscard]] basic_any_cache_policy<Executor> parse_cache_policy(
    std::string_view text, basic_registry<Executor> const& known = shipped<Executor>()) {
  basic_any_cache_policy<Executor> made;
  for (spec_section const& each : split_sections(text)) {
    if (each.name == "admit") made.admit = known.admission_of(each.parts);
    if (each.name == "select") made.select = known.selection_of(each.parts);
    if (each.name == "evict") made.evict = known.eviction_of(each.parts);
  }
  return made;
}

}  // namespace KVPOLICY_NAMESPACE
