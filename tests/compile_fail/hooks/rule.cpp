// SPDX-License-Identifier: Apache-2.0
// The members of a rule and of a map's function in every wrong form. See cmake/expect_forms.py.
#include <kvpolicy/ops/argmin.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/ops/select_if.hpp>
#include <kvpolicy/ops/top_k.hpp>

#include "executor.hpp"

namespace kv = kvpolicy;

// clang-format off
// form BUDGET: double budget(kv::lane, int) const { return 64; }
//   this rule's member `budget` has another type, or returns one, but the verb calls `budget(kvpolicy::lane, int) const`
// form BUDGET: int budget = 64;
//   this rule's member `budget` is a data member, but the verb calls `budget(kvpolicy::lane, int) const`
// form BUDGET: int budget(kv::lane, int) { return 64; }
//   this rule's member `budget` is not const, but the verb calls `budget(kvpolicy::lane, int) const`
// form BUDGET: int budget(int) const { return 64; }
//   this rule's member `budget` takes other parameters, or is not public, but the verb calls `budget(kvpolicy::lane, int) const`
// form BUDGET:
//   this rule has no member `budget`, but the verb calls `budget(kvpolicy::lane, int) const`
#ifndef BUDGET
#define BUDGET int budget(kv::lane, int) const { return 64; }
#endif
// form TRIGGERS:
//   this rule has no member `triggers`, but the verb calls `triggers(int count, int budget) const`
// form TRIGGERS: bool triggers(int, int) { return true; }
//   this rule's member `triggers` is not const, but the verb calls `triggers(int count, int budget) const`
// form TRIGGERS: bool triggers = true;
//   this rule's member `triggers` is a data member, but the verb calls `triggers(int count, int budget) const`
// form TRIGGERS: bool triggers(int) const { return true; }
//   this rule's member `triggers` takes other parameters, or is not public, but the verb calls `triggers(int count, int budget) const`
#ifndef TRIGGERS
#define TRIGGERS bool triggers(int, int) const { return true; }
#endif
// form FORCES: bool forces(int) const { return true; }
//   this rule's member `forces` takes other parameters, or is not public, but the verb calls `forces(kvpolicy::entry) const`
// form FORCES: bool forces(kv::entry) { return true; }
//   this rule's member `forces` is not const, but the verb calls `forces(kvpolicy::entry) const`
// form FORCES: bool forces = true;
//   this rule's member `forces` is a data member, but the verb calls `forces(kvpolicy::entry) const`
#ifndef FORCES
#define FORCES bool forces(kv::entry) const { return true; }
#endif
// form MEMBER: kv::ordinal_range candidates(kv::lane_entries const&) { return {}; }
//   this rule's member `candidates` is not const, but the verb calls the hook `candidates(kvpolicy::lane_entries const&) const`
// form MEMBER: kv::budget_scope scope = kv::budget_scope::layer;
//   this rule's member `scope` is a data member, but the verb calls the hook `scope() const`
// form MEMBER: double floor(int) const { return 1; }
//   this rule's member `floor` has another type, or returns one, but the verb calls the hook `floor(int) const`
#ifndef MEMBER
#define MEMBER kv::budget_scope scope() const { return kv::budget_scope::layer; }
#endif

struct mine {
  BUDGET TRIGGERS FORCES MEMBER
};

// form PICKS: int picks(float) const { return 1; }
//   this rule's member `picks` has another type, or returns one, but the verb calls `picks(float) const`
// form PICKS: bool picks(float) { return true; }
//   this rule's member `picks` is not const, but the verb calls `picks(float) const`
// form PICKS: bool picks = true;
//   this rule's member `picks` is a data member, but the verb calls `picks(float) const`
#ifndef PICKS
#define PICKS bool picks(float) const { return true; }
#endif
struct picking {
  PICKS
  bool forces(kv::entry) const { return false; }
};

// form MAPS: float operator()(float, kv::entry) { return 1; }
//   this function of ops::map's member `operator()` is not const, but ... `operator()(float, kvpolicy::entry) const`, which returns a float
// form MAPS: double operator()(float, kv::entry) const { return 1; }
//   this function of ops::map's member `operator()` has another type, or returns one, but ... which returns a float
// form MAPS: float operator()(float) const { return 1; }
//   this function of ops::map's member `operator()` takes other parameters, or is not public, but ... `operator()(float, kvpolicy::entry) const`
#ifndef MAPS
#define MAPS float operator()(float, kv::entry) const { return 1; }
#endif
struct function {
  MAPS
};

void use(no_executor& exec, kv::score_view const& scores, kv::keep_set const& keep) {
  kv::ops::top_k(exec, scores, mine{}, keep);
  kv::ops::argmin(exec, scores, mine{}, keep);
  kv::ops::select_if(exec, scores, picking{}, keep);
  kv::ops::map(exec, scores, function{});
}
