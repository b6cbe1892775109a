// SPDX-License-Identifier: Apache-2.0
// What only a decision can tell: what a scorer makes of its executor and its signals. See cmake/expect_forms.py.
#include <kvpolicy/decision/decide.hpp>
#include <kvpolicy/decision/eviction.hpp>
#include <kvpolicy/scorers/streaming_llm.hpp>

#include "executor.hpp"

namespace kv = kvpolicy;

// clang-format off
// form SCORE: void score(auto&, auto const&, kv::score_view const&) {}
//   this scorer's member `score` is not const, but a decision calls `score(exec, in, out) const`
// form SCORE: void score(auto&, auto const&) const {}
//   this scorer's member `score` takes other parameters, or is not public, but a decision calls `score(exec, in, out)
//   const`
// form SCORE: void score(auto&, auto const& in, kv::score_view const&) const { (void)in.template get<kv::keys>(); }
//   this scorer reads a signal that its `needs` does not list, and that is neither given nor recorded
#ifndef SCORE
#define SCORE \
  void score(auto&, auto const&, kv::score_view const&) const {}
#endif

// form MEMBER: kv::sinks forces(auto const&) { return {}; }
//   this scorer's member `forces` is not const, but ... `forces(in) const`), which returns a protection
// form MEMBER: kv::sinks forces(auto const&, int) const { return {}; }
//   this scorer's member `forces` takes other parameters, or is not public, but ... `forces(in) const`)
// form MEMBER: int forces(auto const&) const { return 1; }
//   this scorer's member `forces` has another type, or returns one, but ... `forces(in) const`), which returns a
//   protection
// form MEMBER: auto entry_scores(auto const&) { return kv::streaming_llm::recency{}; }
//   this scorer's member `entry_scores` is not const, but a decision calls the hook `entry_scores(in) const`
// form MEMBER: auto entry_scores(auto const&, int) const { return kv::streaming_llm::recency{}; }
//   this scorer's member `entry_scores` takes other parameters, or is not public, but ... `entry_scores(in) const`
// form MEMBER: float entry_scores(auto const&) const { return 1; }
//   this scorer's member `entry_scores` has another type, or returns one, but ... `entry_scores(in) const`, which returns a function
// form MEMBER: auto entry_scores(auto const&) const { return [](float, kv::entry) { return 1.0; }; }
//   this scorer's member `entry_scores` has another type, or returns one, but ... `float operator()(float, kvpolicy::entry) const`
// form MEMBER: void refuse(auto&, auto const&) {}
//   this scorer's member `refuse` is not const, but a decision calls the hook `refuse(exec, in) const`
// form MEMBER: void refuse(auto&) const {}
//   this scorer's member `refuse` takes other parameters, or is not public, but ... `refuse(exec, in) const`
#ifndef MEMBER
#define MEMBER \
  kv::sinks forces(auto const&) const { return {}; }
#endif

struct mine {
  using needs = kv::needs<>;
  static constexpr kv::granularity decides = kv::granularity::lane;
  static constexpr bool ranks_candidates = true;
  SCORE
  MEMBER
  friend bool operator==(mine const&, mine const&) = default;
};

// form SIGNAL: void check(char const*, kv::shape const&) {}
//   this signal's member `check` is not const, but ... `check(char const*, kvpolicy::shape const&) const`
// form SIGNAL: void check(char const*) const {}
//   this signal's member `check` takes other parameters, or is not public, but ... `check(char const*, kvpolicy::shape
//   const&) const`
// form SIGNAL: bool check = true;
//   this signal's member `check` is a data member, but ... `check(char const*, kvpolicy::shape const&) const`
// form SIGNAL: void check_strides(char const*, kv::lanes const&) {}
//   this signal's member `check_strides` is not const, but ... `check_strides(char const*, kvpolicy::lanes const&) const`
// form SIGNAL: void check_strides(char const*, kv::shape const&) const {}
//   this signal's member `check_strides` takes other parameters, or is not public, but ... `check_strides(char const*,
//   kvpolicy::lanes const&) const`
// form SIGNAL: void check_rows(char const*, kv::lanes const&) {}
//   this signal's member `check_rows` is not const, but ... `check_rows(char const*, kvpolicy::lanes const&) const`
// form SIGNAL: bool check_rows = true;
//   this signal's member `check_rows` is a data member, but ... `check_rows(char const*, kvpolicy::lanes const&) const`
#ifndef SIGNAL
#define SIGNAL \
  void check(char const*, kv::shape const&) const {}
#endif
struct my_signal {
  SIGNAL
};

// form ALLOT: void allot(auto&, auto const&, kv::score_view const&, kv::by_lane<int> const&) {}
//   this budget's member `allot` is not const, but a decision calls the hook `allot(exec, in, kvpolicy::score_view
// form ALLOT: void allot(auto&, auto const&) const {}
//   this budget's member `allot` takes other parameters, or is not public, but a decision calls the hook `allot(exec,
#ifndef ALLOT
#define ALLOT \
  void allot(auto&, auto const&, kv::score_view const&, kv::by_lane<int> const&) const {}
#endif
struct my_budget {
  int operator()(kv::lane, int) const { return 4; }
  ALLOT
  friend bool operator==(my_budget const&, my_budget const&) = default;
};

void decide_once(no_executor& exec, kv::cache const& cache, kv::state<no_executor> const& state,
                 kv::plan<no_executor>& plan) {
  kv::decide(exec, kv::eviction{.score = mine{}, .budget = my_budget{}}, kv::signals{cache.lanes, my_signal{}}, state, plan);
}
