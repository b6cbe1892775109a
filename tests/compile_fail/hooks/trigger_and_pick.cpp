// SPDX-License-Identifier: Apache-2.0
// A trigger's and a pick's members in every wrong form. See cmake/expect_forms.py.
#include <kvpolicy/decision/eviction.hpp>
#include <kvpolicy/scorers/full.hpp>

namespace kv = kvpolicy;

// clang-format off
// form FIRES: bool operator()(int, int) { return true; }
//   this trigger's member `operator()` is not const, but ... `operator()(int count, int budget) const`, which returns a bool
// form FIRES: bool operator()(int) const { return true; }
//   this trigger's member `operator()` takes other parameters, or is not public, but ... `operator()(int count, int budget) const`
// form FIRES: int operator()(int, int) const { return 1; }
//   this trigger's member `operator()` has another type, or returns one, but ... which returns a bool
// form FIRES:
//   this trigger has no member `operator()`, but ... `operator()(int count, int budget) const`, which returns a bool
#ifndef FIRES
#define FIRES bool operator()(int, int) const { return true; }
#endif

// form MEMBER: void check(char const*) {}
//   this trigger's member `check` is not const, but ... `check(char const*) const`
// form MEMBER: bool check = true;
//   this trigger's member `check` is a data member, but ... `check(char const*) const`
// form MEMBER: void check() const {}
//   this trigger's member `check` takes other parameters, or is not public, but ... `check(char const*) const`
#ifndef MEMBER
#define MEMBER void check(char const*) const {}
#endif

struct my_trigger {
  FIRES
  MEMBER
  friend bool operator==(my_trigger const&, my_trigger const&) = default;
};

// form PICKS: bool operator()(float) { return true; }
//   this pick's member `operator()` is not const, but a pick is kvpolicy::top, kvpolicy::lowest_one, or has `operator()(float) const`
// form PICKS: bool operator()(float, int) const { return true; }
//   this pick's member `operator()` takes other parameters, or is not public, but ... `operator()(float) const`
// form PICKS: double operator()(float) const { return 1; }
//   this pick's member `operator()` has another type, or returns one, but ... `operator()(float) const`, which returns a bool
// form PICKS:
//   this pick has no member `operator()`, but a pick is kvpolicy::top, kvpolicy::lowest_one, or has `operator()(float) const`
#ifndef PICKS
#define PICKS bool operator()(float) const { return true; }
#endif

// form CHECK: void check(char const*) {}
//   this pick's member `check` is not const, but ... `check(char const*) const`
#ifndef CHECK
#define CHECK
#endif

struct my_pick {
  PICKS
  CHECK
  friend bool operator==(my_pick const&, my_pick const&) = default;
};

// form TRIGGER: 0
//   this policy's trigger is a number, but it must be a trigger such as kvpolicy::over_budget{}
#ifndef TRIGGER
#define TRIGGER my_trigger{}
#endif
// form PICK: 0.5f
//   this policy's pick is a number, but it must be a pick such as kvpolicy::at_least{0.5f}
#ifndef PICK
#define PICK my_pick{}
#endif
auto const policy = kv::eviction{.score = kv::full{}, .pick = PICK, .trigger = TRIGGER};
