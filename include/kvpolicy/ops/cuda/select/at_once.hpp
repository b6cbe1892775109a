// SPDX-License-Identifier: Apache-2.0
// Decides about segments and lists what they keep, in one launch.
#pragma once

#include <kvpolicy/core/observed.hpp>
#include <kvpolicy/ops/cuda/select/choice.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// True if segments are listed in one launch. There are few of them, because each of their blocks counts what the lower
/// ones keep, and they are short, because more registers than those of `emit_kernel` leave room for fewer blocks.
template <class Executor>
[[nodiscard]] bool listed_at_once(Executor& exec, score_view const& scores) {
  constexpr int most_segments = 512;
  constexpr int entries_of_a_thread = 16;
  return scores.decides == granularity::lane && scores.segments() <= most_segments &&
         scores.lanes.capacity <= entries_of_a_thread * exec.threads().segment;
}

/// As finalize_top_k, with the number of NaN scores that each segment found.
struct finalize_at_once {
  int const* nan;
  [[nodiscard]] KVPOLICY_HD int number(packed_result result) const { return result.listed(); }
  KVPOLICY_HD void place(packed_result result, segment_place at, report& found) const {
    finalize_top_k{}.place(result, at, found);
    found.nan_scores += nan[at.segment];
  }
};

/// Decides and lists in one launch, one block for each segment, for lanes that decide for themselves by a rule that
/// knows its run. How many entries a segment keeps then follows from a few numbers, so a block need not wait for others
/// to know where its list begins. The last block writes offsets and report.
template <class Rule>
struct select_at_once_kernel {
  static constexpr int least_blocks = 2;
  score_view scores;
  Rule rule;
  keep_set keep;
  int* nan;  ///< out: the number of NaN scores of each segment
  int capacity;
  device_error faults;
  int* ticket;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    int const segment = block.index();
    select_storage const temp_storage(block, capacity);
    std::int64_t const before = listed_below(block, segment, temp_storage.collective);
    segment_keys<Rule> keys(scores, rule, segment);
    bool const differs = lanes_differ(block, scores, segment, faults, temp_storage.collective);
    segment_outcome const made = outcome(keys, differs);
    if (block.thread() == 0) {  // written now, so that no registers hold it during the selection
      keep.note(segment, keys.about.lane, keys.count());
      keep.indptr[segment + 1] = made.packed(made.fires && decides_unobserved(rule, scores, segment));
      *temp_storage.list_begin() = before;
    }
    block.sync();
    auto const to = [&] { return keep.indices + *temp_storage.list_begin(); };
    int const found = emit_choice(block, keys, made.choice, to, temp_storage);
    if (block.thread() == 0) nan[segment] = found;
    if (last_block(block, ticket, temp_storage.words)) {
      finalize_segments(block, keep, temp_storage.collective, finalize_at_once{nan});
    }
  }

 private:
  [[nodiscard]] KVPOLICY_HD segment_outcome outcome(segment_keys<Rule>& keys, bool differs) const {
    keys.about.budget = rule.budget(keys.about.lane, keys.count());
    keys.find_run();
    bool const fires = !differs && rule.triggers(keys.count(), keys.about.budget);
    return segment_outcome::of(keys, fires, keys.count() - (keys.end - keys.begin));
  }
  /// How many entries the segments below this one list. Collective.
  template <class Block>
  [[nodiscard]] KVPOLICY_HD std::int64_t listed_below(Block& block, int segment, collective_storage* storage) const {
    std::int64_t listed = 0;
    bool const all = found_before(faults);
    for (int s = block.thread(); s < segment; s += block.threads()) {
      segment_keys<Rule> keys(scores, rule, s);
      listed += outcome(keys, all || !counts_fit(scores.lanes, keys.about.lane)).kept;
    }
    listed = block.reduce(storage, listed, plus_op{});
    block.sync();
    return listed;
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail
