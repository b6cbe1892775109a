// SPDX-License-Identifier: Apache-2.0
// A recorder's members in every wrong form. See cmake/expect_forms.py.
#include <kvpolicy/decision/decide.hpp>
#include <kvpolicy/decision/eviction.hpp>

#include "executor.hpp"

namespace kv = kvpolicy;

struct kept {};

// clang-format off
// form NEEDS:
//   this recorder has no member `needs`, but ... `using needs = kvpolicy::needs<...>`
#ifndef NEEDS
#define NEEDS using needs = kv::needs<>;
#endif
// form PROVIDES:
//   this recorder has no member `provides`, but ... `using provides = ...`
#ifndef PROVIDES
#define PROVIDES using provides = kept;
#endif

// form COLUMNS: std::array<kv::column, 1> columns(kv::shape const&, int) { return {}; }
//   this recorder's member `columns` is not const, but ... `columns(kvpolicy::shape const&, int bound) const`
// form COLUMNS: std::array<kv::column, 1> columns{};
//   this recorder's member `columns` is a data member, but ... `columns(kvpolicy::shape const&, int bound) const`
// form COLUMNS: std::array<kv::column, 1> columns(int) const { return {}; }
//   this recorder's member `columns` takes other parameters, or is not public, but ... `columns(kvpolicy::shape const&,
//   int bound) const`
// form COLUMNS: int columns(kv::shape const&, int) const { return 1; }
//   this recorder's member `columns` has another type, or returns one, but ... an array of kvpolicy::column
// form COLUMNS:
//   this recorder has no member `columns`, but ... `columns(kvpolicy::shape const&, int bound) const`
#ifndef COLUMNS
#define COLUMNS \
  std::array<kv::column, 1> columns(kv::shape const&, int) const { return {}; }
#endif

// form VIEW: kept view(kv::recorded_columns const&) { return {}; }
//   this recorder's member `view` is not const, but ... `view(kvpolicy::recorded_columns const&) const`
// form VIEW: kept view() const { return {}; }
//   this recorder's member `view` takes other parameters, or is not public, but ... `view(kvpolicy::recorded_columns
//   const&) const`
// form VIEW: int view(kv::recorded_columns const&) const { return 1; }
//   this recorder's member `view` has another type, or returns one, but ... returns the signal that it provides
#ifndef VIEW
#define VIEW \
  kept view(kv::recorded_columns const&) const { return {}; }
#endif

// form OBSERVE: void observe(auto&, auto const&, kv::recorded_columns const&) {}
//   this recorder's member `observe` is not const, but ... `observe(exec, in, kvpolicy::recorded_columns const&) const`
// form OBSERVE: int observe = 1;
//   this recorder's member `observe` is a data member, but ... `observe(exec, in, kvpolicy::recorded_columns const&)
//   const`
// form OBSERVE: void observe(auto&, auto const&) const {}
//   this recorder's member `observe` takes other parameters, or is not public, but ... `observe(exec, in,
//   kvpolicy::recorded_columns const&) const`
// form OBSERVE:
//   this recorder has no member `observe`, but ... `observe(exec, in, kvpolicy::recorded_columns const&) const`
// form OBSERVE: void observe(auto&, auto const& in, kv::recorded_columns const&) const { (void)in.template
// get<kv::keys>(); }
//   this recorder reads a signal that its `needs` does not list, and that is not given
#ifndef OBSERVE
#define OBSERVE \
  void observe(auto&, auto const&, kv::recorded_columns const&) const {}
#endif

// form FORGET: void forget(auto&, kv::lanes const&, kv::recorded_columns const&, int, int) {}
//   this recorder's member `forget` is not const, but ... `forget(exec, kvpolicy::lanes const&,
//   kvpolicy::recorded_columns const&, int sequence, int position) const`
// form FORGET: int forget = 1;
//   this recorder's member `forget` is a data member, but ... `forget(exec, kvpolicy::lanes const&
// form FORGET: void forget(auto&, kv::lanes const&, kv::recorded_columns const&, int) const {}
//   this recorder's member `forget` takes other parameters, or is not public, but ... `forget(exec, kvpolicy::lanes
//   const&
#ifndef FORGET
#define FORGET \
  void forget(auto&, kv::lanes const&, kv::recorded_columns const&, int, int) const {}
#endif

// form BORN: bool known_at_append = true;
//   this recorder's member `known_at_append` is no static constant, but ... `static constexpr bool known_at_append`
#ifndef BORN
#define BORN static constexpr bool known_at_append = true;
#endif

// form ENTRIES: bool of_entries = true;
//   this recorder's member `of_entries` is no static constant, but ... `static constexpr bool of_entries`
#ifndef ENTRIES
#define ENTRIES static constexpr bool of_entries = true;
#endif

// form PART: int refuse_part = 1;
//   this recorder's member `refuse_part` is a data member, but ... `refuse_part(char const*, in) const`
#ifndef PART
#define PART \
  void refuse_part(char const*, auto const&) const {}
#endif

// form EQUAL:
//   this recorder is no regular value
#ifndef EQUAL
#define EQUAL friend bool operator==(mine const&, mine const&) = default;
#endif

struct mine {
  NEEDS PROVIDES COLUMNS VIEW OBSERVE FORGET BORN ENTRIES PART EQUAL
};

// form DERIVED: struct wider : mine { int more = 1; };
//   this recorder inherits `operator==`, so what it adds is not compared, but a state compares its recorders
#ifndef DERIVED
#define DERIVED using wider = mine;
#endif
DERIVED

struct by_mine {
  using needs = kv::needs<kept>;
  static constexpr kv::granularity decides = kv::granularity::lane;
  std::tuple<wider> recorders() const { return {}; }
  void score(auto&, auto const&, kv::score_view const&) const {}
  friend bool operator==(by_mine const&, by_mine const&) = default;
};

void observe_once(no_executor& exec, kv::cache const& cache) {
  kv::eviction const policy{.score = by_mine{}};
  auto state = kv::make_state(exec, policy, cache);
  kv::observe(exec, policy, kv::signals{cache.lanes}, state);
}
