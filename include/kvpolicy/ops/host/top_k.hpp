// SPDX-License-Identifier: Apache-2.0
// Host implementation of top_k: it finds the lowest key that is kept, and then writes ordinals in order.
#pragma once

#include <algorithm>
#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/core/observed.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/pooled_runs.hpp>
#include <kvpolicy/ops/host/segment_keys.hpp>
#include <kvpolicy/ops/host/segment_runs.hpp>
#include <kvpolicy/ops/host/segments.hpp>
#include <kvpolicy/ops/host/select.hpp>
#include <kvpolicy/ops/top_k.hpp>
#include <mutex>

namespace KVPOLICY_NAMESPACE {
namespace detail {

template <class Rule>
budget_scope scope_of_rule(Rule const& rule) {
  if constexpr (requires { rule.scope(); }) {
    return rule.scope();
  } else {
    return budget_scope::lane;
  }
}

template <class Rule>
int floor_of_rule(Rule const& rule, int budget) {
  if constexpr (requires { rule.floor(budget); }) {
    return rule.floor(budget);
  } else {
    return 0;
  }
}

}  // namespace detail

template <>
struct implementation<ops::top_k_t, host> {
  static std::size_t scratch(shape const&, int bound) {
    return detail::scratch_of<std::int64_t>(2048) + (is_long(bound) ? keys_bytes(bound) : 0);
  }

  template <class Rule>
  static void run(host_executor& exec, score_view const& scores, Rule const& rule, keep_set const& keep) {
    if (!scores.same_tokens) detail::refuse_other_tokens("top_k", scores);
    int const pool = segments_of_a_pool(scores, detail::scope_of_rule(rule));
    detail::unfinished_keep written(keep);
    *keep.report = {};
    for (int segment = 0; segment < scores.segments(); ++segment) {
      keep.note(segment, scores.lane_of(segment), scores.lanes.committed(scores.lane_of(segment)));
    }
    if constexpr (has_runs<Rule>) {
      if (pool == 1 && has_memory_for_a_row(exec, scores)) {
        decide_in_place(exec, scores, rule, keep);
        return written.finish();
      }
    }
    std::mutex counting;
    auto const decide_one = [&](int which, int worker) {
      report const found = pool == 1 ? decide_alone(exec, scores, rule, which, worker, keep)
                                     : decide_pooled(exec, scores, rule, {which * pool, pool}, keep);
      std::lock_guard const lock(counting);
      *keep.report += found;
    };
    int const pools = scores.segments() / pool;
    if (pool > 1 && pools < exec.threads()) {  // the threads share the segments of each pool
      for (int which = 0; which < pools; ++which) decide_one(which, 0);
    } else {
      exec.for_each(pools, decide_one);
    }
    detail::close_gaps(scores, keep);
    written.finish();
  }

 private:
  /// The candidates of a segment are one range of entries.
  template <class Rule>
  static constexpr bool has_runs = requires(Rule const& rule, lane_entries const& of) { rule.candidates(of); };

  /// True if moving the ordinals of a segment takes longer than asking the rule twice about it.
  static constexpr bool is_long(int bound) { return bound >= 512; }
  static constexpr std::size_t keys_bytes(int bound) {
    return detail::scratch_of<std::uint32_t>(static_cast<std::size_t>(bound));
  }

  /// True if segments are long, and the scratch of a worker holds a number for each entry of one.
  static bool has_memory_for_a_row(host_executor const& exec, score_view const& scores) {
    return is_long(scores.lanes.capacity) && exec.reserved() >= keys_bytes(scores.lanes.capacity);
  }

  static int segments_of_a_pool(score_view const& scores, budget_scope scope) {
    if (scope == budget_scope::lane) return 1;
    expects(scores.decides == granularity::lane, "top_k", "budget.scope", to_string(scope),
            [&] { return "what decides by " + to_string(scores.decides) + " has one budget already"; });
    return scope == budget_scope::layer ? scores.lanes.heads : scores.lanes.heads * scores.lanes.layers();
  }

  /// The keys of a segment are stored where its ordinals will be written. The ordinal of entry e is written at index e
  /// or before, so it never overwrites a key that is still read.
  static std::uint32_t* keys_of(score_view const& scores, int segment, keep_set const& keep) {
    return reinterpret_cast<std::uint32_t*>(detail::ordinals_of(scores, segment, keep));
  }

  static std::int64_t* histogram_of(std::span<std::byte> memory) {
    return detail::scratch_arena(memory).take<std::int64_t>(2048);
  }

  /// Decides segments with budgets of their own. How many ordinals each lists is known before, and so is their place:
  /// they need not be moved.
  template <class Rule>
  static void decide_in_place(host_executor& exec, score_view const& scores, Rule const& rule, keep_set const& keep) {
    keep.indptr[0] = 0;
    for (int segment = 0; segment < scores.segments(); ++segment) {
      keep.indptr[segment + 1] =
          keep.indptr[segment] + detail::run_of(scores, rule, segment, keep.entry_count[segment]).kept();
    }
    std::mutex counting;
    exec.for_each(scores.segments(), [&](int segment, int worker) {
      detail::scratch_arena arena(exec.scratch(worker));
      auto* const keys = arena.take<std::uint32_t>(static_cast<std::size_t>(scores.lanes.capacity));
      detail::segment_run const run = detail::run_of(scores, rule, segment, keep.entry_count[segment]);
      report const found = list_run(exec, scores, rule, segment, run, keys, keep.indices + keep.indptr[segment], keep);
      std::lock_guard const lock(counting);
      *keep.report += found;
    });
  }

  /// Lists what one segment keeps at `to`.
  template <class Rule>
  static report list_run(host_executor& exec, score_view const& scores, Rule const& rule, int segment,
                         detail::segment_run const& run, std::uint32_t* keys, int* to, keep_set const& keep) {
    report found;
    if (run.triggered) found.unobserved = detail::decides_unobserved(rule, scores, segment) ? 1 : 0;
    run.list(detail::select_of_isa[exec.simd_level()], scores.row(segment), keys, to,
             detail::row_after(scores, segment, exec.threads(), keep.entry_count), found);
    return found;
  }

  /// Decides one segment with a budget of its own.
  template <class Rule>
  static report decide_alone(host_executor& exec, score_view const& scores, Rule const& rule, int segment, int worker,
                             keep_set const& keep) {
    int const count = keep.entry_count[segment];
    int* const to = detail::ordinals_of(scores, segment, keep);
    std::uint32_t* const keys = keys_of(scores, segment, keep);
    if constexpr (has_runs<Rule>) {
      detail::segment_run const run = detail::run_of(scores, rule, segment, count);
      keep.indptr[segment + 1] = run.kept();
      return list_run(exec, scores, rule, segment, run, keys + run.free.begin, to, keep);
    } else {
      report found;
      int const budget = rule.budget(scores.lane_of(segment), count);
      keep.indptr[segment + 1] = count;
      if (!rule.triggers(count, budget)) {
        detail::list_range({0, count}, to);
        found.over_budget = count > budget ? 1 : 0;
        return found;
      }
      found.triggered = 1;
      found.unobserved = detail::decides_unobserved(rule, scores, segment) ? 1 : 0;
      if (has_memory_for_a_row(exec, scores) &&
          detail::list_forced(exec, scores, rule, segment, budget, keep.entry_count, exec.scratch(worker), to, found)) {
        keep.indptr[segment + 1] = budget;
        return found;
      }
      int const forced = detail::make_keys(scores, rule, segment, budget, keys, found);
      found.forced_over_budget = forced > budget ? 1 : 0;
      int const k = std::clamp(budget - forced, 0, count - forced);
      detail::cut at = cut_at({keys, 0, &count, 1}, k, exec.scratch(worker));
      keep.indptr[segment + 1] = detail::emit_above(keys, count, at, to);
      found.over_budget = keep.indptr[segment + 1] > budget ? 1 : 0;
      return found;
    }
  }

  /// Segments that share the sum of their budgets.
  struct segment_pool {
    int first;
    int count;
    std::int64_t entries = 0;
    std::int64_t budget = 0;
    std::int64_t forced = 0;
    std::int64_t within = 0;  ///< entries that are forced or within a floor
  };

  template <class Rule>
  static report decide_pooled(host_executor& exec, score_view const& scores, Rule const& rule, segment_pool pool,
                              keep_set const& keep) {
    report found;
    for (int segment = pool.first; segment < pool.first + pool.count; ++segment) {
      pool.entries += keep.entry_count[segment];
      pool.budget += rule.budget(scores.lane_of(segment), keep.entry_count[segment]);
    }
    auto const in_int = [](std::int64_t n) { return static_cast<int>(std::min<std::int64_t>(n, 0x7FFFFFFF)); };
    if (!detail::pool_triggers(rule, in_int(pool.entries), in_int(pool.budget), pool.count)) {
      exec.for_each(pool.count, [&](int which, int) {
        int const segment = pool.first + which;
        keep.indptr[segment + 1] = keep.entry_count[segment];
        detail::list_range({0, keep.entry_count[segment]}, detail::ordinals_of(scores, segment, keep));
      });
      found.over_budget = pool.entries > pool.budget ? 1 : 0;
      return found;
    }
    found.triggered = 1;
    found.unobserved = detail::decides_unobserved(rule, scores, pool.first, pool.count) ? 1 : 0;
    if constexpr (has_runs<Rule>) {
      auto const floor = [&](int segment) {
        return detail::floor_of_rule(rule, rule.budget(scores.lane_of(segment), keep.entry_count[segment]));
      };
      detail::pooled_runs<Rule> const runs{scores, rule, keep, pool.first, pool.count};
      if (runs.decide(exec, pool.budget, floor, found)) return found;
    }
    exec.for_each(1, [&](int, int worker) { decide_by_keys(scores, rule, pool, exec.scratch(worker), keep, found); });
    return found;
  }

  /// Decides segments whose forced entries, or those within a floor, are marked in their keys.
  template <class Rule>
  static void decide_by_keys(score_view const& scores, Rule const& rule, segment_pool pool, std::span<std::byte> memory,
                             keep_set const& keep, report& found) {
    for (int segment = pool.first; segment < pool.first + pool.count; ++segment) {
      int const count = keep.entry_count[segment];
      int const share = rule.budget(scores.lane_of(segment), count);
      int const must = detail::make_keys(scores, rule, segment, share, keys_of(scores, segment, keep), found);
      pool.forced += must;
      pool.within += std::max(must, std::min(count, detail::floor_of_rule(rule, share)));
    }
    found.forced_over_budget = pool.forced > pool.budget ? 1 : 0;
    found.over_budget = found.forced_over_budget;
    detail::cut at = cut_of_pool(scores, rule, pool, memory, keep);
    for (int segment = pool.first; segment < pool.first + pool.count; ++segment) {
      int* const to = detail::ordinals_of(scores, segment, keep);
      keep.indptr[segment + 1] = detail::emit_above(keys_of(scores, segment, keep), keep.entry_count[segment], at, to);
    }
  }

  /// Entries within their segment's floor come first: they are all kept, and the rest competes. If the budget is less
  /// than their number, only they compete.
  template <class Rule>
  static detail::cut cut_of_pool(score_view const& scores, Rule const& rule, segment_pool const& pool,
                                 std::span<std::byte> memory, keep_set const& keep) {
    bool const floors_fit = pool.within <= std::max(pool.budget, pool.forced);
    for (int segment = pool.first; pool.within > pool.forced && segment < pool.first + pool.count; ++segment) {
      std::uint32_t* const keys = keys_of(scores, segment, keep);
      int const count = keep.entry_count[segment];
      int const share = rule.budget(scores.lane_of(segment), count);
      mark_floor(keys, count, detail::floor_of_rule(rule, share), floors_fit, memory);
    }
    std::int64_t const settled = floors_fit ? pool.within : pool.forced;
    std::int64_t const most = floors_fit ? pool.entries : pool.within;
    std::int64_t const k = std::clamp<std::int64_t>(pool.budget - settled, 0, most - settled);
    detail::key_rows const all{keys_of(scores, pool.first, keep), scores.lanes.capacity, keep.entry_count + pool.first,
                               pool.count};
    return cut_at(all, k, memory);
  }

  /// Marks the `floor` highest entries of a segment as forced. If the floors do not fit into the shared budget, it
  /// marks every other entry as excluded instead, so that only those within floors compete.
  static void mark_floor(std::uint32_t* keys, int count, int floor, bool fits, std::span<std::byte> memory) {
    auto const forced = static_cast<int>(std::count(keys, keys + count, detail::forced_key));
    int const k = std::clamp(floor - forced, 0, count - forced);
    detail::cut at = cut_at({keys, 0, &count, 1}, k, memory);
    for (int e = 0; e < count; ++e) {
      if (keys[e] == detail::forced_key) continue;
      bool const tied = keys[e] == at.lowest && at.ties > 0;
      at.ties -= tied ? 1 : 0;
      bool const within = k > 0 && (keys[e] > at.lowest || tied);
      if (fits && within) keys[e] = detail::forced_key;
      if (!fits && !within) keys[e] = detail::below_all_keys;
    }
  }

  static detail::cut cut_at(detail::key_rows const& in, std::int64_t k, std::span<std::byte> memory) {
    return k > 0 ? detail::find_cut_of_rows(in, k, histogram_of(memory)) : detail::cut{detail::forced_key, 0};
  }
};

}  // namespace KVPOLICY_NAMESPACE
