// SPDX-License-Identifier: Apache-2.0
// The members of a policy that is none of the library's, and what each kind of policy asks of its scorer. See
// cmake/expect_forms.py.
#include <kvpolicy/accounting/explain.hpp>
#include <kvpolicy/scorers/head_table.hpp>
#include <kvpolicy/scorers/knorm.hpp>
#include <kvpolicy/scorers/quest.hpp>
#include <kvpolicy/selection/select.hpp>

#include "executor.hpp"

namespace kv = kvpolicy;

// clang-format off
// form SCORE: kv::quest score{};
//   this policy's scorer scores pages, but an eviction or an admission needs one of tokens
#ifndef SCORE
#define SCORE kv::head_table score{};
#endif
// form PROTECT:
//   this policy has no member `protect`, but a policy has a data member `protect`, a protection
// form PROTECT: kv::sinks protect() const { return {}; }
//   this policy's member `protect` has another type, or returns one, but a policy has a data member `protect`, a
//   protection
// form PROTECT: bool protect = true;
//   this policy's protect is a number, but it must be a protection such as kvpolicy::sinks{4}
#ifndef PROTECT
#define PROTECT kv::nothing protect{};
#endif
// form BUDGET:
//   this policy has no member `budget`, but a policy has a data member `budget`, a budget
// form BUDGET: int budget = 64;
//   this policy's budget is a number, but it must be a budget such as kvpolicy::per_lane{64}
#ifndef BUDGET
#define BUDGET kv::per_lane budget{};
#endif
// form TRIGGER: kv::over_budget triggers{};
//   this policy has no member `trigger`, but a policy has a data member `trigger`, a trigger
#ifndef TRIGGER
#define TRIGGER kv::over_budget trigger{};
#endif
// form PICK: kv::lowest_one picks{};
//   this policy has a member `picks`, but a decision reads the data member `pick`, a pick
// form PICK: kv::top pick() const { return {}; }
//   this policy's member `pick` has another type, or returns one, but a decision reads the data member `pick`, a pick
#ifndef PICK
#define PICK kv::lowest_one pick{};
#endif
// form CHECK: void check(char const*) {}
//   this policy's member `check` is not const, but every call calls the hook `check(char const*) const`
#ifndef CHECK
#define CHECK \
  void check(char const*) const {}
#endif

struct mine {
  SCORE PROTECT BUDGET TRIGGER PICK CHECK
};

void use(no_executor& exec, kv::cache const& cache, kv::plan<no_executor>& plan, kv::state<no_executor>& state) {
  kv::signals const in{cache.lanes};
  static_cast<void>(kv::make_plan(exec, mine{}, cache));
  static_cast<void>(kv::make_state(exec, mine{}, cache));
  static_cast<void>(kv::required_bytes<no_executor>(mine{}, cache));
  kv::observe(exec, mine{}, in, state);
  kv::decide(exec, mine{}, in, state, plan);
  static_cast<void>(kv::explain(mine{}, plan, 0, 0));
}

// form ADMIT: kv::quest{}, kv::nothing{}, 256, kv::at_least{}
//   this policy's scorer scores pages, but an eviction or an admission needs one of tokens
// form ADMIT: kv::head_table{}, kv::nothing{}, 256, kv::top{}
//   this policy's pick compares entries, but an admission asks about each by itself: `operator()(float) const`
// form ADMIT: kv::head_table{}, 4
//   this policy's protect is a number, but it must be a protection such as kvpolicy::sinks{4}
#ifndef ADMIT
#define ADMIT \
  kv::head_table{}, kv::nothing{}, 256, kv::at_least {}
#endif
kv::admission const admitting{ADMIT};

// form SELECT: kv::knorm{}, kv::per_lane{512}
//   this policy's scorer scores tokens, but a selection needs one of pages: `static constexpr auto scores_of =
//   kvpolicy::item::page`
// form SELECT: kv::quest{}, 512
//   this policy's budget is a number, but it must be a budget such as kvpolicy::per_lane{64}
#ifndef SELECT
#define SELECT kv::quest{}, kv::per_lane{512}
#endif
kv::selection const reading{SELECT};
auto plan_of(no_executor& exec, kv::cache const& cache) { return kv::make_plan(exec, reading, cache); }
