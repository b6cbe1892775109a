// SPDX-License-Identifier: Apache-2.0
// Inside a property: caches of slots of any shape, what becomes of their entries, and choices between types.
#pragma once

#include "layout/slot_cache.hpp"
#include "support/test.hpp"

namespace kvpolicy_test {

/// Up to so many layers, heads and sequences, which have a table each or one list for all, and any seed.
inline slot_options any_slots(bool by_lane, int most = 2) {
  slot_options made;
  made.model.layers = *rc::gen::inRange(1, most + 1);
  made.model.kv_heads = made.model.query_heads = *rc::gen::inRange(1, most + 1);
  made.sequences = *rc::gen::inRange(1, most + 1);
  made.by_lane = by_lane;
  made.one_list = any_bool();
  made.seed = *rc::gen::inRange<std::uint64_t>(1, 1u << 20);
  return made;
}

/// Appends any number of tokens to each sequence, from a position on; of two and more the last one is a draft.
template <class Executor, class State>
void append_any(Executor& exec, slot_cache& cache, kv::cache& view, State& state, dice& random, int position) {
  for (int s = 0; s < cache.options.sequences; ++s) {
    cache.in_flight[as_size(s)] = 0;
    int const tokens = random.below(cache.options.bound - cache.held({s, 0, 0}) + 1);
    for (int t = 0; t < tokens; ++t) kv::append(exec, view, state, {s, 1, position + t, t + 1 == tokens && tokens > 1});
  }
}

/// The entries of a lane that stay: those that are kept, and the drafts behind them.
inline std::vector<int> staying(slot_cache const& cache, kv::keep_set const& keep, int lane) {
  auto const listed = keep.listed(kv::segment_of(keep.lanes, keep.decides, lane));
  std::vector<int> kept(listed.begin(), listed.end());
  kv::lane const one = cache.lane_at(lane);
  for (int e = cache.committed(one); e < cache.held(one); ++e) kept.push_back(e);
  return kept;
}

/// Calls run(choice) with one of the choices.
template <class Run, class... Choices>
void with_one_of(Run const& run, Choices const&... choices) {
  int left = *rc::gen::inRange(0, static_cast<int>(sizeof...(Choices)));
  static_cast<void>(((left-- == 0 ? (run(choices), true) : false) || ...));
}

}  // namespace kvpolicy_test
