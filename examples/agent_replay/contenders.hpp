// SPDX-License-Identifier: Apache-2.0
// The rows of the table: policies, and how each frees memory.
#pragma once

#include <functional>
#include <kvpolicy/kvpolicy.hpp>
#include <optional>
#include <string>
#include <tinylm/attention.hpp>
#include <vector>

#include "session_cache.hpp"

namespace agent_replay {

/// The inputs of a policy: the cache, the query rows of this forward, and the actionable span among them.
struct shown {
  kv::cache const& cache;
  tinylm::query_rows const& rows;
  int span_begin = 0;
  int span_end = 0;

  [[nodiscard]] auto signal_set() const {
    kv::turn_queries turn{rows.signal()};
    turn.span_begin = &span_begin;
    turn.span_end = &span_end;
    return kv::signals{cache.lanes, kv::keys_of(cache), rows.signal(), turn};
  }
};

/// A policy behind one interface, so that a loop can run all of them.
struct contender {
  std::string name;
  std::string policy;  ///< its text
  cache_options cache;
  bool prunes = true;
  bool each_forward = false;  ///< it also observes every decode step, not only the turn's message
  std::function<held_state(executor&, kv::cache const&)> make_state;
  std::function<held_plan(executor&, kv::cache const&)> make_plan;
  std::function<void(executor&, shown const&, held_state&)> observe;
  std::function<void(executor&, shown const&, held_state const&, held_plan&)> decide;
};

template <class Policy>
contender contestant(std::string name, cache_options const& cache, Policy const& policy, bool each_forward = false) {
  return {.name = std::move(name),
          .policy = kv::to_string(policy),
          .cache = cache,
          .prunes = true,
          .each_forward = each_forward,
          .make_state = [policy](executor& exec, kv::cache const& in) { return kv::make_state(exec, policy, in); },
          .make_plan = [policy](executor& exec, kv::cache const& in) { return kv::make_plan(exec, policy, in); },
          .observe = [policy](executor& exec, shown const& in,
                              held_state& state) { kv::observe(exec, policy, in.signal_set(), state); },
          .decide = [policy](executor& exec, shown const& in, held_state const& state,
                             held_plan& plan) { kv::decide(exec, policy, in.signal_set(), state, plan); }};
}

/// The settings that all rows share.
struct contest {
  int budget = 320;  ///< tokens of a session after its turn's decision
  int prefix = 0;    ///< tokens of the system prompt
  int bound = 1280;
  bool allow_holes = true;
  kv::intent_kv intent{};  ///< shared by IntentKV's rows; without trained weights there is no row `learnable`
};

/// Adds three rows for a scorer of lanes. The first moves rows from position 0 on, the second moves only those after
/// the shared prefix, and the third redirects dropped positions, with scores that are summed over all lanes.
template <class Score>
void add_baseline(std::vector<contender>& to, std::string const& name, contest const& with, Score const& score,
                  bool each_forward = false) {
  kv::per_lane const budget{with.budget};
  kv::sinks const spare{with.prefix};
  to.push_back(contestant(name, {substrate::compact, 0, false, with.bound},
                          kv::eviction{.score = score, .budget = budget}, each_forward));
  to.push_back(contestant(name, {substrate::compact, with.prefix, false, with.bound},
                          kv::eviction{.score = score, .protect = spare, .budget = budget}, each_forward));
  kv::reduce_lanes const summed{.score_of = score, .decides = kv::granularity::sequence, .how = kv::reduction::sum};
  to.push_back(contestant(name, {substrate::dead_slot, with.prefix, with.allow_holes, with.bound},
                          kv::eviction{.score = summed, .protect = spare, .budget = budget}, each_forward));
}

/// All rows. A fact has 17 bytes, so pools have a width of 15; a question has 10 bytes, so windows have 16.
inline std::vector<contender> all_contenders(contest const& with) {
  cache_options const redirects{substrate::dead_slot, with.prefix, with.allow_holes, with.bound};
  std::vector<contender> all{contestant("full", redirects, kv::policies::full())};
  all[0].prunes = false;
  add_baseline(all, "streaming_llm", with, kv::streaming_llm{});
  add_baseline(all, "snapkv", with, kv::snapkv{.window = 16, .pool = kv::max_pool{15}});
  add_baseline(all, "h2o", with, kv::h2o{}, true);
  for (auto const mode : {kv::intent_mode::query, kv::intent_mode::memory, kv::intent_mode::learnable}) {
    if (mode == kv::intent_mode::learnable && !with.intent.residual.there()) continue;
    kv::intent_kv score = with.intent;
    score.mode = mode;
    score.prefix = with.prefix;
    all.push_back(contestant(std::string("intent_kv ").append(kv::to_string(mode)), redirects,
                             kv::policies::intent_kv({.budget = with.budget, .score = score})));
  }
  return all;
}

}  // namespace agent_replay
