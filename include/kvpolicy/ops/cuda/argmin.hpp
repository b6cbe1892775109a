// SPDX-License-Identifier: Apache-2.0
// Device implementation of argmin: one launch, one block for each segment.
#pragma once

#include <kvpolicy/core/observed.hpp>
#include <kvpolicy/ops/argmin.hpp>
#include <kvpolicy/ops/cuda/apply_stats.hpp>           // IWYU pragma: export
#include <kvpolicy/ops/cuda/lists/drop_listed.hpp>     // IWYU pragma: export
#include <kvpolicy/ops/cuda/lists/replace_listed.hpp>  // IWYU pragma: export
#include <kvpolicy/ops/cuda/lists/sort_entries.hpp>    // IWYU pragma: export
#include <kvpolicy/ops/cuda/map.hpp>
#include <kvpolicy/ops/cuda/select/competing_entries.hpp>
#include <kvpolicy/ops/cuda/select/emit.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Offsets and report of argmin. `listed` of a result is 1 + the ordinal to drop, or 0 for none; `aux_count` counts
/// NaN.
template <class Rule>
struct finalize_argmin {
  score_view const& scores;
  Rule const& rule;
  keep_set const& keep;
  [[nodiscard]] KVPOLICY_HD int number(packed_result result) const { return result.listed() > 0 ? 1 : 0; }
  KVPOLICY_HD void place(packed_result result, segment_place at, report& found) const {
    int const count = keep.entry_count[at.segment];
    found.nan_scores += result.aux_count();
    found.over_budget += count - number(result) > rule.budget(scores.lane_of(at.segment), count) ? 1 : 0;
    if (result.listed() > 0) {
      keep.indices[at.before] = result.listed() - 1;
    } else {
      found.forced_over_budget += result.triggered() ? 1 : 0;
    }
  }
};

/// `ByPosition`: the oldest candidate is dropped, and no score is read.
template <class Rule, bool ByPosition>
struct argmin_kernel {
  static constexpr int least_blocks = 3;
  score_view scores;
  Rule rule;
  keep_set keep;
  device_error faults;
  int* ticket;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    counting_storage const shared(block);
    packed_result const found = drop(block, block.index(), shared.collective);
    if (block.thread() == 0) {
      lane const first = scores.lane_of(block.index());
      keep.note(block.index(), first, scores.lanes.committed(first));
      keep.indptr[block.index() + 1] = found.word;
    }
    if (last_block(block, ticket, shared.last))
      finalize_segments(block, keep, shared.collective, finalize_argmin<Rule>{scores, rule, keep});
  }

 private:
  /// The lowest entry of a thread, and how many NaN it has met.
  struct lowest_entry {
    std::uint64_t key = ~std::uint64_t{0};
    int ordinal = -1;
    int nan = 0;
  };
  struct lower_of {
    [[nodiscard]] KVPOLICY_HD lowest_entry operator()(lowest_entry const& a, lowest_entry const& b) const {
      lowest_entry const& lower = b.key < a.key ? b : a;
      return {lower.key, lower.ordinal, a.nan + b.nan};
    }
  };

  /// Finds the entry with the lowest key; of equal keys, the newest one. If the lanes of the segment hold different
  /// tokens, none is dropped.
  template <class Block>
  [[nodiscard]] KVPOLICY_HD packed_result drop(Block& block, int segment, collective_storage* storage) const {
    segment_keys<Rule> keys(scores, rule, segment);
    int const count = keys.count();
    keys.about.budget = rule.budget(keys.about.lane, count);
    bool const differs = lanes_differ(block, scores, segment, faults, storage);
    if (differs || count == 0 || !rule.triggers(count, keys.about.budget)) return {0};
    keys.find_run();
    lane_entries const of{keys.about.lane, count, keys.about.budget, keys.position, keys.order};
    competing_entries const there = competing_entries_of(block, of, {keys.begin, keys.end}, storage);
    lowest_entry mine;
    for (int e = there.begin + block.thread(); e < there.end; e += at_once * block.threads()) {
      take(block, keys, there, e, mine);
    }
    block.sync();
    mine = block.reduce(storage, mine, lower_of{});
    bool const unobserved = block.thread() == 0 && decides_unobserved(rule, scores, segment);
    return packed_result::of(mine.ordinal + 1, mine.nan, true, unobserved);
  }

  static constexpr int at_once = 16;

  /// Takes entry `first` and those a block of threads apart, up to the last competitor. They are loaded together: in
  /// place of an entry after the last, the last is. In lanes in order no position is read, unless it is the key.
  template <class Block>
  KVPOLICY_HD static void take(Block& block, segment_keys<Rule> const& keys, competing_entries const& there, int first,
                               lowest_entry& to) {
    bool const ascends = keys.order.ascends();
    float score[at_once] = {};
    int position[at_once];
    for (int i = 0; i < at_once; ++i) {
      int const e = min_op{}(first + i * block.threads(), there.end - 1);
      position[i] = e;
      if (!ByPosition) score[i] = keys.score[e];
      if (ByPosition || !ascends) position[i] = keys.position[e];
    }
    for (int i = 0; i < at_once; ++i) {
      int const e = first + i * block.threads();
      if (e >= there.end || (!ascends && !there.have(position[i])) || (!knows_run<Rule> && keys.is_forced(e))) continue;
      std::uint32_t const key = ByPosition ? static_cast<std::uint32_t>(position[i]) : radix_key(score[i]);
      to.nan += !ByPosition && key == nan_key ? 1 : 0;
      auto const age = 0xFFFFFFFFu - static_cast<std::uint32_t>(ascends ? e : position[i]);
      std::uint64_t const now = std::uint64_t{key} << 32 | age;
      to.ordinal = now < to.key ? e : to.ordinal;
      to.key = min_op{}(to.key, now);
    }
  }
};

/// Three blocks of so many threads fit on a multiprocessor.
template <bool ByPosition, class Executor, class Rule>
void launch_argmin(Executor& exec, score_view const& scores, Rule const& rule, keep_set const& keep) {
  exec.launch(launch_shape{scores.segments(), at_most<256>(exec.threads().segment), counting_storage::bytes()},
              argmin_kernel<Rule, ByPosition>{scores, rule, keep, exec.faults(), exec.tickets()});
}

}  // namespace detail

/// Takes one launch. The result does not depend on the number of threads.
///
/// A fault is recorded for lanes that decide together and hold different tokens, and for counts out of their limits.
/// The segments of such lanes drop nothing.
template <kernel_backend Backend>
struct implementation<ops::argmin_t, Backend> {
  template <class Executor, class Rule>
  static void run(Executor& exec, score_view const& scores, Rule const& rule, keep_set const& keep) {
    detail::check_same_tokens(exec, scores);
    detail::launch_argmin<false>(exec, scores, rule, keep);
  }
};

/// Maps the scores into the table, and then takes one launch of argmin: two launches. One launch, if the function
/// ascends in position.
template <kernel_backend Backend>
struct implementation<ops::argmin_of_t, Backend> {
  template <class Executor, class Function, class Rule>
  static void run(Executor& exec, score_view const& scores, Function const& f, Rule const& rule, keep_set const& keep) {
    if constexpr (detail::ascends_in_position<Function>) {
      detail::launch_argmin<true>(exec, scores, rule, keep);
    } else {
      ops::map(exec, scores, f);
      ops::argmin(exec, scores, rule, keep);
    }
  }
};

}  // namespace KVPOLICY_NAMESPACE
