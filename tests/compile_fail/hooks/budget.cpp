// SPDX-License-Identifier: Apache-2.0
// A budget's members in every wrong form. See cmake/expect_forms.py.
#include <kvpolicy/decision/eviction.hpp>
#include <kvpolicy/scorers/full.hpp>

namespace kv = kvpolicy;

// clang-format off
// form CALL: double operator()(kv::lane, int) const { return 64; }
//   this budget's member `operator()` has another type, or returns one, but ... `operator()(kvpolicy::lane, int) const`, which returns an int
// form CALL: int operator()(kv::lane, int) { return 64; }
//   this budget's member `operator()` is not const, but ... `operator()(kvpolicy::lane, int) const`, which returns an int
// form CALL: int operator()(int) const { return 64; }
//   this budget's member `operator()` takes other parameters, or is not public, but ... `operator()(kvpolicy::lane, int) const`
// form CALL:
//   this budget has no member `operator()`, but ... `operator()(kvpolicy::lane, int) const`, which returns an int
#ifndef CALL
#define CALL int operator()(kv::lane, int) const { return 64; }
#endif

// form MEMBER: kv::budget_scope scope() { return kv::budget_scope::layer; }
//   this budget's member `scope` is not const, but ... `scope() const`, which returns a kvpolicy::budget_scope
// form MEMBER: kv::budget_scope scope = kv::budget_scope::layer;
//   this budget's member `scope` is a data member, but ... `scope() const`, which returns a kvpolicy::budget_scope
// form MEMBER: kv::budget_scope scope(int) const { return kv::budget_scope::layer; }
//   this budget's member `scope` takes other parameters, or is not public, but ... `scope() const`
// form MEMBER: int scope() const { return 1; }
//   this budget's member `scope` has another type, or returns one, but ... which returns a kvpolicy::budget_scope
// form MEMBER: int floor(int) { return 1; }
//   this budget's member `floor` is not const, but ... `floor(int) const`, which returns an int
// form MEMBER: double floor = 0.2;
//   this budget's member `floor` is a data member, but ... `floor(int) const`, which returns an int
// form MEMBER: int floor() const { return 1; }
//   this budget's member `floor` takes other parameters, or is not public, but ... `floor(int) const`
// form MEMBER: double floor(int share) const { return 0.2 * share; }
//   this budget's member `floor` has another type, or returns one, but ... `floor(int) const`, which returns an int
// form MEMBER: kv::per_lane in_entries(kv::shape const&, std::int64_t) { return {}; }
//   this budget's member `in_entries` is not const, but ... `in_entries(kvpolicy::shape const&, std::int64_t) const`
// form MEMBER: int in_entries = 1;
//   this budget's member `in_entries` is a data member, but ... `in_entries(kvpolicy::shape const&, std::int64_t) const`
// form MEMBER: kv::per_lane in_entries(kv::shape const&) const { return {}; }
//   this budget's member `in_entries` takes other parameters, or is not public, but ... `in_entries(kvpolicy::shape const&
// form MEMBER: int in_entries(kv::shape const&, std::int64_t) const { return 1; }
//   this budget's member `in_entries` has another type, or returns one, but ... which returns a budget
// form MEMBER: int allot = 1;
//   this budget's member `allot` is a data member, but a decision calls the hook `allot(exec, in, kvpolicy::score_view
// form MEMBER: void check(char const*) {}
//   this budget's member `check` is not const, but ... `check(char const*) const`
// form MEMBER: bool check = true;
//   this budget's member `check` is a data member, but ... `check(char const*) const`
// form MEMBER: void check(char const*, kv::shape const&) const {}
//   this budget's member `check` takes other parameters, or is not public, but ... `check(char const*) const`
#ifndef MEMBER
#define MEMBER kv::budget_scope scope() const { return kv::budget_scope::layer; }
#endif

// form EQUAL:
//   this part of a policy has no `operator==`, but parts are compared
#ifndef EQUAL
#define EQUAL friend bool operator==(mine const&, mine const&) = default;
#endif

struct mine {
  CALL
  MEMBER
  EQUAL
};

// form BUDGET: 64
//   this policy's budget is a number, but it must be a budget such as kvpolicy::per_lane{64}
#ifndef BUDGET
#define BUDGET mine{}
#endif
auto const policy = kv::eviction{.score = kv::full{}, .budget = BUDGET};
