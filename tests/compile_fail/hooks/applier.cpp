// SPDX-License-Identifier: Apache-2.0
// An applier's members in every wrong form. See cmake/expect_forms.py.
#include <kvpolicy/layout/applier.hpp>

#include "executor.hpp"

namespace kv = kvpolicy;

// clang-format off
// form NAME: int name = 1;
//   this applier's member `name` is no static constant, but ... `static constexpr auto name`
// form NAME:
//   this applier has no member `name`, but ... `static constexpr auto name`
// form NAME: static constexpr auto name = "mine"; static constexpr int effects = 1;
//   this applier's member `effects` has another type, or returns one, but ... `static constexpr kvpolicy::applier_effects effects`
#ifndef NAME
#define NAME                            \
  static constexpr auto name = "mine"; \
  static constexpr kv::applier_effects effects{};
#endif

// form REFUSE:
//   this applier has no member `refuse`, but ... `refuse(exec, kvpolicy::keep_set const&, kvpolicy::cache const&) const`
// form REFUSE: int refuse = 1;
//   this applier's member `refuse` is a data member, but ... `refuse(exec, kvpolicy::keep_set const&, kvpolicy::cache const&) const`
// form REFUSE: void refuse(auto&, kv::keep_set const&, kv::cache const&) {}
//   this applier's member `refuse` is not const, but ... `refuse(exec, kvpolicy::keep_set const&, kvpolicy::cache const&) const`
// form REFUSE: void refuse(auto&, kv::cache const&) const {}
//   this applier's member `refuse` takes other parameters, or is not public, but ... `refuse(exec, kvpolicy::keep_set const&, kvpolicy::cache const&) const`
// form REFUSE: void refuse(auto&, kv::keep_set const&, kv::cache const&, auto const&) {}
//   this applier's member `refuse` is not const, but ... or the same with a `kvpolicy::state const&` behind
#ifndef REFUSE
#define REFUSE \
  void refuse(auto&, kv::keep_set const&, kv::cache const&) const {}
#endif

// form EDIT:
//   this applier has no member `edit`, but ... `edit(exec, kvpolicy::keep_set const&, kvpolicy::cache const&, state&, kvpolicy::apply_stats*) const`
// form EDIT: void edit(auto&, kv::keep_set const&, kv::cache const&, auto&, kv::apply_stats*) {}
//   this applier's member `edit` is not const, but ... kvpolicy::apply_stats*) const`
// form EDIT: void edit(auto&, kv::keep_set const&, kv::cache const&, auto&) const {}
//   this applier's member `edit` takes other parameters, or is not public, but ... kvpolicy::apply_stats*) const`
#ifndef EDIT
#define EDIT \
  void edit(auto&, kv::keep_set const&, kv::cache const&, auto&, kv::apply_stats*) const {}
#endif

// form COLUMNS: int columns = 2;
//   this applier's member `columns` is a data member, but ... `columns(kvpolicy::cache const&) const`
// form COLUMNS: std::vector<kv::column> columns(kv::cache const&) { return {}; }
//   this applier's member `columns` is not const, but ... `columns(kvpolicy::cache const&) const`
// form COLUMNS: std::vector<kv::column> columns(kv::shape const&, int) const { return {}; }
//   this applier's member `columns` takes other parameters, or is not public, but ... `columns(kvpolicy::cache const&) const`
// form COLUMNS: kv::column columns(kv::cache const&) const { return {}; }
//   this applier's member `columns` has another type, or returns one, but ... which returns a std::vector<kvpolicy::column>
#ifndef COLUMNS
#define COLUMNS \
  std::vector<kv::column> columns(kv::cache const&) const { return {}; }
#endif

// form TAKES: bool takes_dropped = true;
//   this applier's member `takes_dropped` is no static constant, but ... `static constexpr bool takes_dropped`
// form TAKES: static constexpr bool takes_dropped() { return true; }
//   this applier's member `takes_dropped` has another type, or returns one, but ... `static constexpr bool takes_dropped`
#ifndef TAKES
#define TAKES static constexpr bool takes_dropped = true;
#endif

struct mine {
  NAME
  REFUSE
  EDIT
  COLUMNS
  TAKES
};

void apply_once(no_executor& exec, kv::plan<no_executor> const& plan, kv::cache& cache,
                kv::state<no_executor>& state) {
  kv::apply(exec, mine{}, plan, cache, state);
}
