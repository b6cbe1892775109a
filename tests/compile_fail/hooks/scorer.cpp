// SPDX-License-Identifier: Apache-2.0
// A scorer's members in every wrong form. See cmake/expect_forms.py.
#include <kvpolicy/decision/eviction.hpp>

namespace kv = kvpolicy;

// clang-format off
// form MEMBER: kv::sinks forces() { return {}; }
//   this scorer's member `forces` is not const, but ... `forces() const` ... returns a protection
// form MEMBER: kv::sinks forces{};
//   this scorer's member `forces` is a data member, but ... `forces() const` ... returns a protection
// form MEMBER: static constexpr kv::sinks forces{};
//   this scorer's member `forces` is a data member, but ... `forces() const` ... returns a protection
// form MEMBER: kv::sinks forces(int) const { return {}; }
//   this scorer's member `forces` takes other parameters, or is not public, but ... `forces() const`
// form MEMBER: kv::sinks forces(auto const&) const { return {}; }
//   this scorer's member `forces` takes other parameters, or is not public, but ... `forces() const`
// form MEMBER: private: kv::sinks forces() const { return {}; } public:
//   this scorer's member `forces` takes other parameters, or is not public, but ... `forces() const`
// form MEMBER: int forces() const { return 4; }
//   this scorer's member `forces` has another type, or returns one, but ... `forces() const` ... returns a protection

// form MEMBER: kv::over_total triggers() { return {}; }
//   this scorer's member `triggers` is not const, but ... `triggers() const`, which returns a trigger
// form MEMBER: kv::over_total triggers{};
//   this scorer's member `triggers` is a data member, but ... `triggers() const`, which returns a trigger
// form MEMBER: kv::over_total triggers(int) const { return {}; }
//   this scorer's member `triggers` takes other parameters, or is not public, but ... `triggers() const`
// form MEMBER: bool triggers() const { return true; }
//   this scorer's member `triggers` has another type, or returns one, but ... `triggers() const`, which returns a trigger

// form MEMBER: void check(char const*) {}
//   this scorer's member `check` is not const, but ... `check(char const*) const`
// form MEMBER: void check(char const*, kv::shape const&) {}
//   this scorer's member `check` is not const, but ... `check(char const*, kvpolicy::shape const&) const`
// form MEMBER: bool check = true;
//   this scorer's member `check` is a data member, but ... `check(char const*) const`
// form MEMBER: void check() const {}
//   this scorer's member `check` takes other parameters, or is not public, but ... `check(char const*) const`

// form MEMBER: std::tuple<> recorders() { return {}; }
//   this scorer's member `recorders` is not const, but ... `recorders() const`, which returns a std::tuple
// form MEMBER: std::tuple<> recorders;
//   this scorer's member `recorders` is a data member, but ... `recorders() const`, which returns a std::tuple
// form MEMBER: std::tuple<> recorders(int) const { return {}; }
//   this scorer's member `recorders` takes other parameters, or is not public, but ... `recorders() const`
// form MEMBER: int recorders() const { return 1; }
//   this scorer's member `recorders` has another type, or returns one, but ... a std::tuple of recorders

// form MEMBER: int refuse = 1;
//   this scorer's member `refuse` is a data member, but ... `refuse(exec, in) const`
// form MEMBER: bool safe_across_ranks = true;
//   this scorer's member `safe_across_ranks` is a data member, but ... `safe_across_ranks() const`, which returns a bool
// form MEMBER: bool safe_across_ranks() { return true; }
//   this scorer's member `safe_across_ranks` is not const, but ... `safe_across_ranks() const`, which returns a bool
// form MEMBER: bool safe_across_ranks(int) const { return true; }
//   this scorer's member `safe_across_ranks` takes other parameters, or is not public, but ... `safe_across_ranks() const`
// form MEMBER: int spare_rows = 1;
//   this scorer's member `spare_rows` is a data member, but ... `spare_rows(kvpolicy::lanes const&, kvpolicy::shape const&) const`
// form MEMBER: int spare_rows(kv::lanes const&) const { return 1; }
//   this scorer's member `spare_rows` takes other parameters, or is not public, but ... `spare_rows(kvpolicy::lanes const&
// form MEMBER: double spare_rows(kv::lanes const&, kv::shape const&) const { return 1; }
//   this scorer's member `spare_rows` has another type, or returns one, but ... which returns an int
// form MEMBER: bool ranks_candidates = true;
//   this scorer's member `ranks_candidates` is no static constant, but ... `static constexpr bool ranks_candidates`
// form MEMBER: static bool ranks_candidates() { return true; }
//   this scorer's member `ranks_candidates` has another type, or returns one, but ... `static constexpr bool ranks_candidates`
// form MEMBER: kv::item scores_of = kv::item::page;
//   this scorer's member `scores_of` is no static constant, but ... `static constexpr kvpolicy::unit scores_of`
// form MEMBER: std::string name = "mine";
//   this part of a policy's member `name` is no static constant, but ... `static constexpr auto name`
// form MEMBER: static constexpr char const* name() { return "mine"; }
//   this part of a policy's member `name` has another type, or returns one, but ... `static constexpr auto name`
// form MEMBER: auto fields() const { return std::tuple{}; }
//   this part of a policy's member `fields` has another type, or returns one, but ... `static constexpr auto fields()`
// form MEMBER: static constexpr auto fields() { return std::tuple{}; }
//   this part of a policy has `fields()`, but no `static constexpr auto name`
#ifndef MEMBER
#define MEMBER kv::sinks forces() const { return {}; }
#endif

// form NEEDS:
//   this scorer has no member `needs`, but ... `using needs = kvpolicy::needs<...>`
// form NEEDS: int needs = 1;
//   this scorer's member `needs` is a data member, but ... `using needs = kvpolicy::needs<...>`
#ifndef NEEDS
#define NEEDS using needs = kv::needs<>;
#endif

// form DECIDES:
//   this scorer has no member `decides`, but ... `static constexpr kvpolicy::granularity decides`
// form DECIDES: static constexpr int decides = 0;
//   this scorer's member `decides` has another type, or returns one, but ... `static constexpr kvpolicy::granularity decides`
#ifndef DECIDES
#define DECIDES static constexpr kv::granularity decides = kv::granularity::lane;
#endif

// form SCORE:
//   this scorer has no member `score`, but a decision calls `score(exec, in, out) const`
// form SCORE: float score = 0;
//   this scorer's member `score` is a data member, but a decision calls `score(exec, in, out) const`
#ifndef SCORE
#define SCORE void score(auto&, auto const&, kv::score_view const&) const {}
#endif

// form EQUAL:
//   this part of a policy has no `operator==`, but parts are compared: friend bool operator==(T const&, T const&)
// form EQUAL: explicit mine(int) {} friend bool operator==(mine const&, mine const&) = default;
//   this part of a policy is no value, but ... it must be default-constructible and copyable
#ifndef EQUAL
#define EQUAL friend bool operator==(mine const&, mine const&) = default;
#endif

struct mine {
  NEEDS
  DECIDES
  SCORE
  MEMBER
  EQUAL
};

// form SCORER: int
//   this policy's score is a number, but it must be a scorer such as kvpolicy::snapkv{}
#ifndef SCORER
#define SCORER mine
#endif
using policy = kv::eviction<SCORER>;
policy* made(policy& from) { return &from; }
[[maybe_unused]] constexpr auto size = sizeof(policy);
