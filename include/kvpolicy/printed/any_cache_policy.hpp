// An admission, a selection and an eviction by name.
#pragma once

#include <kvpolicy/printed/any_admission.hpp>
#include <kvpolicy/printed/registry.hpp>
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
  std::optional<any_admission> admit{};
  std::optional<any_selection> select{};
  std::optional<basic_any_policy<Executor>> evict{};
  friend bool operator==(basic_any_cache_policy const&, basic_any_cache_policy const&) = default;

  /// Calls visit(policy) with a `cache_policy` of the sections that are there, and returns what it returns, which has
  /// one type. The admission has the type of its scorer and the eviction is erased, so that `visit` is compiled sixteen
  /// times.
  /// - throws: `invalid_argument` if pages are selected by another scorer than `quest`, whose signals every engine has.
  ///   `select->visit` gives such a selection.
  template <class Visit>
  decltype(auto) visit(Visit const& visit) const {
    bool const by_query = !select || std::holds_alternative<quest>(select->score);
    expects(by_query, "visit", "select", [&] { return to_string(*select); }, "a step selects pages by quest");
    return with_admission([&](auto const& admission) -> decltype(auto) {
      return with_selection([&](auto const& selection) -> decltype(auto) {
        return evict ? visit(cache_policy{admission, selection, *evict})
                     : visit(cache_policy{admission, selection, omitted{}});
      });
    });
  }

 private:
  template <class Visit>
  decltype(auto) with_selection(Visit const& visit) const {
    if (!select) return visit(omitted{});
    return visit(selection{std::get<quest>(select->score), select->budget, select->dense_layers});
  }
  template <class Visit>
  decltype(auto) with_admission(Visit const& visit) const {
    return admit ? admit->visit(visit) : visit(omitted{});
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
    if (each.name == "select") made.select = detail::read_selection(each.parts);
    if (each.name == "evict") made.evict = known.eviction_of(each.parts);
  }
  return made;
}

}  // namespace KVPOLICY_NAMESPACE
