// SPDX-License-Identifier: Apache-2.0
// Device implementation of top_k, one block for each segment (a segment is the lanes that decide together).
//
// For budgets of their own, few segments take one launch where the rule knows its run of competing entries: every block
// counts by itself what the lower segments keep (select/segments.hpp). Otherwise they take two launches, after one that
// compares positions where lanes that decide together have positions of their own:
//
// - count_kept_kernel counts the forced entries of a segment and the entries that it keeps. Its last block turns the
//   counts into the offsets `keep.indptr` and writes the report.
// - select_kernel finds the threshold of a segment, which is the k-th highest key of its competing entries
//   (select/threshold.hpp), and writes the ordinals of the kept entries to `keep.indices`, ascending (select/list.hpp).
//
// For a budget that several segments share, see select/pools.hpp and select/pools_emit.hpp.
#pragma once

#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/core/observed.hpp>
#include <kvpolicy/ops/cuda/select/pools_emit.hpp>
#include <kvpolicy/ops/cuda/select/segments.hpp>
#include <kvpolicy/ops/top_k.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Counts the entries that each segment keeps, one block for each segment. The last block turns the counts into
/// offsets.
template <class Rule>
struct count_kept_kernel {
  score_view scores;
  Rule rule;
  keep_set keep;
  segment_choice* choices;
  device_error faults;
  int* ticket;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    counting_storage const shared(block);
    choose(block, block.index(), shared.collective);
    if (last_block(block, ticket, shared.last)) finalize_segments(block, keep, shared.collective, finalize_top_k{});
  }

 private:
  /// If the lanes of the segment hold different tokens, it keeps all its entries.
  template <class Block>
  KVPOLICY_HD void choose(Block& block, int segment, collective_storage* storage) const {
    segment_keys<Rule> keys(scores, rule, segment);
    keys.about.budget = rule.budget(keys.about.lane, keys.count());
    bool const differs = lanes_differ(block, scores, segment, faults, storage);
    bool const fires = !differs && rule.triggers(keys.count(), keys.about.budget);
    int const forced = fires ? keys.find_forced(block, storage) : 0;
    if (block.thread() != 0) return;
    segment_outcome const made = segment_outcome::of(keys, fires, forced);
    choices[segment] = made.choice;
    keep.note(segment, keys.about.lane, keys.count());
    keep.indptr[segment + 1] = made.packed(fires && decides_unobserved(rule, scores, segment));
  }
};

}  // namespace detail

/// Takes one launch for at most 512 lanes that decide for themselves and have memory for less than 2^31 entries, by a
/// rule that knows its run. Otherwise it takes two launches, three where lanes that decide together have positions of
/// their own, or seven for a budget that segments share. The result depends on the order of neither blocks nor threads.
///
/// A fault is recorded for lanes that decide together and hold different tokens, and for counts out of their limits.
/// With budgets of their own, segments whose counts are wrong keep all their entries, and once unequal positions are
/// found all segments do. With a shared budget the keep set is unspecified then. Appliers change nothing while a fault
/// is recorded.
template <kernel_backend Backend>
struct implementation<ops::top_k_t, Backend> {
  /// Bytes of scratch for all lanes: a few numbers for each lane, and a histogram for each pool that there can be.
  [[nodiscard]] static std::size_t scratch(shape const&, lanes const& batch) {
    std::size_t const choices = sizeof(detail::segment_choice) * static_cast<std::size_t>(batch.size());
    std::size_t const pools = detail::pool_scratch(batch.size(), batch.sequences * batch.layers());
    return choices < pools ? pools : choices;
  }

  template <class Executor, class Rule>
  static void run(Executor& exec, score_view const& scores, Rule const& rule, keep_set const& keep) {
    detail::check_scratch("top_k", exec, scratch({}, scores.lanes));
    if constexpr (detail::may_pool<Rule>) {
      budget_scope const scope = rule.scope();
      if (scope != budget_scope::lane) return run_pooled(exec, scores, rule, keep, scope);
    }
    run_alone(exec, scores, rule, keep);
  }

 private:
  template <class Executor, class Rule>
  static void run_pooled(Executor& exec, score_view const& scores, Rule const& rule, keep_set const& keep,
                         budget_scope scope) {
    expects(scores.decides == granularity::lane, "top_k", "budget.scope", to_string(scope),
            [&] { return "what decides by " + to_string(scores.decides) + " has one budget already"; });
    int const lanes = scope == budget_scope::layer ? scores.lanes.heads : scores.lanes.heads * scores.lanes.layers();
    detail::decide_pools(exec, scores, rule, keep, lanes);
  }

  /// A rule that knows its run asks about no entry.
  template <class Rule, class Executor>
  static auto threads_to_choose(Executor& exec) {
    if constexpr (detail::knows_run<Rule>) {
      return exec.threads().lane;
    } else {
      return exec.threads().segment;
    }
  }

  template <class Executor, class Rule>
  static void run_alone(Executor& exec, score_view const& scores, Rule const& rule, keep_set const& keep) {
    using choose = detail::count_kept_kernel<Rule>;
    if constexpr (detail::knows_run<Rule>) {
      if (detail::decides_at_once(scores)) return detail::launch_selection(exec, scores, rule, keep, nullptr);
    }
    detail::check_same_tokens(exec, scores);
    auto* const choices = reinterpret_cast<detail::segment_choice*>(exec.scratch());
    exec.launch(launch_shape{scores.segments(), threads_to_choose<Rule>(exec), detail::counting_storage::bytes()},
                choose{scores, rule, keep, choices, exec.faults(), exec.tickets()});
    detail::launch_selection(exec, scores, rule, keep, choices);
  }
};

}  // namespace KVPOLICY_NAMESPACE
