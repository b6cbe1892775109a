// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/scored_by.hpp"

namespace kvpolicy_test {

struct by_position {
  float operator()(float, kv::entry at) const { return static_cast<float>(at.position); }
};
/// Scores that a whole layer or token shares; its policies need lanes that hold equally many entries.
template <kv::granularity Decides>
using together = scored_by<by_position, Decides>;

/// A batch in the middle of its work: two sequences, two layers, two KV heads, H2O, ten tokens observed and decided
/// about. Every refused call must leave all of it as it was.
struct working_batch {
  using policy_type = kv::eviction<kv::h2o>;

  mock_cache cache{{.model = {.layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 4},
                    .sequences = 2,
                    .bound = 16,
                    .where = kv::locating::slot_map,
                    .rows = content::fingerprint}};
  mock_queries queries{cache, kv::codec::f32, 3, 3};
  policy_type policy{.budget = {6}};
  kv::host_executor exec;
  kv::cache view = cache.view();
  kv::state<kv::host_executor> state = kv::make_state(exec, policy, view);
  kv::plan<kv::host_executor> plan = kv::make_plan(exec, policy, view);

  working_batch() {
    for (int s = 0; s < 2; ++s) kv::append(exec, view, state, {.sequence = s, .tokens = 10, .position = 0});
    for (int i = 0; i < cache.lane_count(); ++i) cache.put(cache.lane_at(i), {0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
    fill_current(queries, cache, content::smooth);
    for (int s = 0; s < 2; ++s) {
      for (int r = 0; r < 3; ++r) queries.set_position(s, r, 7 + r);
    }
    kv::observe(exec, policy, signals(), state);
    for (int s = 0; s < 2; ++s) state.history().truncate(s, 1);  // tests show the same rows again
    kv::decide(exec, policy, signals(), state, plan);
  }

  [[nodiscard]] kv::signals<kv::keys, kv::queries> signals() const {
    return kv::signals(view.lanes, kv::keys_of(view), kv::queries{queries.view()});
  }

  /// Everything that a call could have written.
  struct snapshot {
    mock_cache::snapshot memory;
    std::vector<std::byte> columns;
    std::vector<int> kept;
    kv::lanes decided;
    kv::report report;
  };
  [[nodiscard]] snapshot save() const {
    snapshot all{cache.save(), {}, {}, plan.keep().lanes, plan.decided() ? plan.report() : kv::report{}};
    for (kv::recorded_column const& each : state.columns()) {
      auto const* const first = each.rows.row({0, state.lanes().layer_begin, 0});
      all.columns.insert(all.columns.end(), first, first + each.rows.sequence * state.lanes().sequences);
    }
    for (int i = 0; plan.keep().indices != nullptr && i < plan.keep().segments(); ++i) {
      auto const some = plan.keep().listed(i);
      all.kept.insert(all.kept.end(), some.begin(), some.end());
      all.kept.push_back(-1);
    }
    return all;
  }
  [[nodiscard]] bool is(snapshot const& before) const {
    snapshot const now = save();
    return now.memory == before.memory && now.columns == before.columns && now.kept == before.kept &&
           now.decided.layer_begin == before.decided.layer_begin && now.decided.layer_end == before.decided.layer_end &&
           now.report == before.report;
  }

  /// Checks that the call is refused with just this text, and that nothing was changed.
  template <class Call>
  void refuses(std::string const& text, Call const& call) {
    snapshot const before = save();
    CHECK(error_of(call) == text);
    INFO(text);
    CHECK(is(before));
  }
};

}  // namespace kvpolicy_test
