// SPDX-License-Identifier: Apache-2.0
// A protection's members in every wrong form. See cmake/expect_forms.py.
#include <kvpolicy/decision/eviction.hpp>
#include <kvpolicy/scorers/full.hpp>

namespace kv = kvpolicy;

// clang-format off
// form CALL: bool operator()(kv::entry) { return true; }
//   this protection's member `operator()` is not const, but ... `operator()(kvpolicy::entry) const`, which returns a bool
// form CALL: bool operator()(int) const { return true; }
//   this protection's member `operator()` takes other parameters, or is not public, but ... `operator()(kvpolicy::entry) const`
// form CALL: int operator()(kv::entry) const { return 1; }
//   this protection's member `operator()` has another type, or returns one, but ... `operator()(kvpolicy::entry) const`, which returns a bool
// form CALL:
//   this protection has no member `operator()`, but ... `operator()(kvpolicy::entry) const`, which returns a bool
#ifndef CALL
#define CALL bool operator()(kv::entry) const { return true; }
#endif

// form MEMBER: kv::ordinal_range candidates(kv::lane_entries const&) { return {}; }
//   this protection's member `candidates` is not const, but ... `candidates(kvpolicy::lane_entries const&) const`
// form MEMBER: int candidates = 1;
//   this protection's member `candidates` is a data member, but ... `candidates(kvpolicy::lane_entries const&) const`
// form MEMBER: kv::ordinal_range candidates(kv::lane) const { return {}; }
//   this protection's member `candidates` takes other parameters, or is not public, but ... `candidates(kvpolicy::lane_entries const&) const`
// form MEMBER: int candidates(kv::lane_entries const&) const { return 1; }
//   this protection's member `candidates` has another type, or returns one, but ... which returns a kvpolicy::ordinal_range
// form MEMBER: void pick(auto const&) {}
//   this protection's member `pick` is not const, but ... `pick(visit) const`
// form MEMBER: int pick = 1;
//   this protection's member `pick` is a data member, but ... `pick(visit) const`
// form MEMBER: void pick(int) const {}
//   this protection's member `pick` takes other parameters, or is not public, but ... `pick(visit) const`
// form MEMBER: void visit_protected(kv::lane_entries const&, auto const&) {}
//   this protection's member `visit_protected` is not const, but ... `visit_protected(kvpolicy::lane_entries const&, visit) const`
// form MEMBER: int visit_protected = 1;
//   this protection's member `visit_protected` is a data member, but ... `visit_protected(kvpolicy::lane_entries const&, visit) const`
// form MEMBER: void visit_protected(auto const&) const {}
//   this protection's member `visit_protected` takes other parameters, or is not public, but ... `visit_protected(kvpolicy::lane_entries const&, visit) const`
// form MEMBER: void check(char const*) {}
//   this protection's member `check` is not const, but ... `check(char const*) const`
// form MEMBER: bool check = true;
//   this protection's member `check` is a data member, but ... `check(char const*) const`
// form MEMBER: void check(char const*, kv::shape const&) const {}
//   this protection's member `check` takes other parameters, or is not public, but ... `check(char const*) const`
#ifndef MEMBER
#define MEMBER kv::ordinal_range candidates(kv::lane_entries const& of) const { return {of.count, of.count}; }
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

// form PROTECT: 4
//   this policy's protect is a number, but it must be a protection such as kvpolicy::sinks{4}
#ifndef PROTECT
#define PROTECT mine{}
#endif
auto const policy = kv::eviction{.score = kv::full{}, .protect = PROTECT};
