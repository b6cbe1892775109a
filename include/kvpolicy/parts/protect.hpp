// SPDX-License-Identifier: Apache-2.0
// Protections: entries that are kept whatever their score. The budget includes them.
#pragma once

#include <concepts>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/core/contract/hook_checks.hpp>
#include <kvpolicy/core/scores.hpp>

namespace KVPOLICY_NAMESPACE {

/// A protection is a regular function object that returns true for an entry that must be kept. Two of them compose
/// with `|`.
///
/// Optional: `candidates(lane_entries)`, for a protection whose unprotected entries are one contiguous range of
/// ordinals. It returns this range, so that `top_k` need not call the protection for every entry.
///
/// Optional: `visit_protected(lane_entries, visit)`, on the host, which calls visit(ordinal) for each protected entry
/// of a lane whose entries are in the order of their positions. It may visit an entry twice.
template <class P>
concept protection = std::regular<P> && requires(P const& p, entry at) {
  { p(at) } -> std::same_as<bool>;
};

/// A protection with the optional member `candidates`. A range that ends before it begins is empty.
template <class P>
concept has_candidates = requires(P const& p, lane_entries const& of) {
  { p.candidates(of) } -> std::same_as<ordinal_range>;
};

namespace detail {

/// Accepts a result that can be called with an entry, as the one of `forces`. Unlike a protection of a policy it need
/// not be copyable or comparable.
struct a_protection {
  template <class Result>
  static constexpr bool accepts = requires(std::remove_cvref_t<Result> const& made, entry at) {
    { made(at) } -> std::same_as<bool>;
  };
};
/// The argument with which the form of the hook `pick` of a protection is checked.
struct protection_visitor {
  template <class Protect>
  void operator()(Protect const&) const;
};

/// A protection whose entries can be visited without asking about each one: they are those around its candidates, or it
/// has `visit_protected(lane_entries, visit)`, which calls visit(ordinal) for each, perhaps more than once. The lane's
/// entries must be in the order of their positions. It is for the host.
template <class P>
concept lists_protected = has_candidates<P> || requires(P const& p, lane_entries const& of, ordinal_visitor visit) {
  p.visit_protected(of, visit);
};

template <class Visit>
void visit_ordinals(int begin, int end, Visit const& visit) {
  for (int e = begin; e < end; ++e) visit(e);
}

/// Calls visit(ordinal) for each protected entry of a lane.
template <lists_protected Protect, class Visit>
void visit_protected(Protect const& protect, lane_entries const& of, Visit const& visit) {
  if constexpr (has_candidates<Protect>) {
    ordinal_range const free = protect.candidates(of);
    int const begin = free.begin > 0 ? free.begin : 0;
    visit_ordinals(0, begin < of.count ? begin : of.count, visit);
    visit_ordinals(free.end > begin ? free.end : begin, of.count, visit);
  } else {
    protect.visit_protected(of, [&](int e) {
      expects(e >= 0 && e < of.count, "decide", "visit_protected", e,
              [&] { return "the lane has " + std::to_string(of.count) + " entries, numbered from 0"; });
      visit(e);
    });
  }
}

/// The hooks of a protection. `check()` gives the one compile error for a protection that does not fit.
template <class P>
using protection_hooks = part_hooks<
    P, law<hook::protect_is_number, !std::is_arithmetic_v<P>>,
    required_hook<hook::protection_call,
                  protection<P> ? hook_form::fits : form_of_call<hook::protection_call, P, exactly<bool>, entry>()>,
    optional_hook<hook::protection_candidates,
                  form_of_call<hook::protection_candidates, P, exactly<ordinal_range>, lane_entries const&>()>,
    optional_hook<hook::protection_pick, form_of_call<hook::protection_pick, P, anything, protection_visitor const&>()>,
    optional_hook<hook::protection_visit,
                  form_of_call<hook::protection_visit, P, anything, lane_entries const&, ordinal_visitor const&>()>,
    optional_hook<hook::protection_check, form_of_call<hook::protection_check, P, anything, char const*>()>>;

}  // namespace detail

/// Protects nothing.
struct nothing {
  static constexpr auto name = "nothing";
  static constexpr auto fields() { return make_fields(); }
  KVPOLICY_HD constexpr bool operator()(entry) const { return false; }
  KVPOLICY_HD constexpr ordinal_range candidates(lane_entries const& of) const { return {0, of.count}; }
  friend bool operator==(nothing const&, nothing const&) = default;
};

/// Protects every entry.
struct everything {
  static constexpr auto name = "everything";
  static constexpr auto fields() { return make_fields(); }
  KVPOLICY_HD constexpr bool operator()(entry) const { return true; }
  KVPOLICY_HD constexpr ordinal_range candidates(lane_entries const& of) const { return {of.count, of.count}; }
  friend bool operator==(everything const&, everything const&) = default;
};

/// Protects the first `tokens` positions of the sequence (attention sinks).
struct sinks {
  int tokens = 4;
  static constexpr auto name = "sinks";
  static constexpr auto fields() { return make_fields(field{"", &sinks::tokens}); }
  void check(char const* call) const {
    expects(tokens >= 0, call, "sinks.tokens", tokens, "a count cannot be negative");
  }
  KVPOLICY_HD constexpr bool operator()(entry at) const { return at.position < tokens; }
  KVPOLICY_HD constexpr ordinal_range candidates(lane_entries const& of) const {
    return {of.first_at(tokens), of.count};
  }
  friend bool operator==(sinks const&, sinks const&) = default;
};

/// Protects the last `tokens` entries of a lane.
struct recent {
  int tokens = 32;
  static constexpr auto name = "recent";
  static constexpr auto fields() { return make_fields(field{"", &recent::tokens}); }
  void check(char const* call) const {
    expects(tokens >= 0, call, "recent.tokens", tokens, "a count cannot be negative");
  }
  KVPOLICY_HD constexpr bool operator()(entry at) const { return at.count - at.ordinal <= tokens; }
  KVPOLICY_HD constexpr ordinal_range candidates(lane_entries const& of) const { return {0, of.count - tokens}; }
  friend bool operator==(recent const&, recent const&) = default;
};

/// Protects the positions [begin, end), such as a prompt prefix or the span of a query.
struct position_span {
  int begin = 0;
  int end = 0;
  static constexpr auto name = "span";
  static constexpr auto fields() {
    return make_fields(field{"", &position_span::begin}, field{"", &position_span::end});
  }
  void check(char const* call) const {
    expects(begin >= 0, call, "span.begin", begin, "positions start at 0");
    expects(end >= begin, call, "span.end", end,
            [&] { return "a span does not end before it begins (" + std::to_string(begin) + ")"; });
  }
  KVPOLICY_HD constexpr bool operator()(entry at) const { return at.position >= begin && at.position < end; }
  template <class Visit>
  void visit_protected(lane_entries const& of, Visit const& visit) const {
    detail::visit_ordinals(of.first_at(begin), of.first_at(end), visit);
  }
  friend bool operator==(position_span const&, position_span const&) = default;
};

/// Protects the first `sinks` positions and the last `recent` entries. Use it with a scorer that forces neither,
/// because the quality of nearly every eviction method collapses without them. Attention sinks: Xiao et al. 2024,
/// arXiv:2309.17453.
struct safe {
  int sinks = 4;
  int recent = 32;
  static constexpr auto name = "safe";
  static constexpr auto fields() { return make_fields(field{"sinks", &safe::sinks}, field{"recent", &safe::recent}); }
  void check(char const* call) const {
    expects(sinks >= 0, call, "safe.sinks", sinks, "a count cannot be negative");
    expects(recent >= 0, call, "safe.recent", recent, "a count cannot be negative");
  }
  KVPOLICY_HD constexpr bool operator()(entry at) const {
    return at.position < sinks || at.count - at.ordinal <= recent;
  }
  KVPOLICY_HD constexpr ordinal_range candidates(lane_entries const& of) const {
    return {of.first_at(sinks), of.count - recent};
  }
  friend bool operator==(safe const&, safe const&) = default;
};

/// Protects the entries that at least one of two protections protects.
template <protection First, protection Second>
struct either {
  First first{};
  Second second{};

  static constexpr bool constrains_hooks = true;

  void check(char const* call) const {
    if constexpr (requires { first.check(call); }) first.check(call);
    if constexpr (requires { second.check(call); }) second.check(call);
  }
  KVPOLICY_HD constexpr bool operator()(entry at) const { return first(at) || second(at); }
  KVPOLICY_HD constexpr ordinal_range candidates(lane_entries const& of) const
    requires(has_candidates<First> && has_candidates<Second>)
  {
    ordinal_range const a = first.candidates(of);
    ordinal_range const b = second.candidates(of);
    return {a.begin > b.begin ? a.begin : b.begin, a.end < b.end ? a.end : b.end};
  }
  template <class Visit>
  void visit_protected(lane_entries const& of, Visit const& visit) const
    requires(detail::lists_protected<First> && detail::lists_protected<Second>)
  {
    detail::visit_protected(first, of, visit);
    detail::visit_protected(second, of, visit);
  }
  friend bool operator==(either const&, either const&) = default;
};

/// Composes two protections: see `either`.
template <protection First, protection Second>
[[nodiscard]] constexpr either<First, Second> operator|(First const& first, Second const& second) {
  return {first, second};
}

template <class First, class Second>
[[nodiscard]] std::string print(either<First, Second> const& both) {
  return to_string(both.first) + " | " + to_string(both.second);
}

}  // namespace KVPOLICY_NAMESPACE
