// SPDX-License-Identifier: Apache-2.0
// Device implementation of select_if: one launch marks and counts the entries that each segment keeps, one block for
// each; a selection, which is cub::DeviceSelect on CUDA, writes their ordinals.
#pragma once

#include <kvpolicy/core/observed.hpp>
#include <kvpolicy/ops/cuda/select/emit.hpp>
#include <kvpolicy/ops/cuda/select/marks.hpp>
#include <kvpolicy/ops/select_if.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Offsets and report of select_if. `aux_count` of a result counts NaN.
struct finalize_select_if {
  int const* seen;
  bool may_empty;
  [[nodiscard]] KVPOLICY_HD int number(packed_result result) const { return result.listed(); }
  KVPOLICY_HD void place(packed_result result, segment_place at, report& found) const {
    found.nan_scores += result.aux_count();
    found.emptied += may_empty && result.listed() == 0 && seen[at.segment] > 0 ? 1 : 0;
  }
};

/// Marks and counts the entries that each segment keeps, one block for each segment. The last block turns the counts
/// into offsets.
template <class Rule>
struct count_picked_kernel {
  score_view scores;
  Rule rule;
  keep_set keep;
  entry_marks marks;
  device_error faults;
  int* ticket;

  /// If the lanes of the segment hold different tokens, it keeps all its entries.
  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    counting_storage const shared(block);
    segment_keys<Rule> const keys(scores, rule, block.index());
    bool const differs = lanes_differ(block, scores, block.index(), faults, shared.collective);
    int kept = 0;
    int nan = 0;
    mark_entries(block, marks, block.index(), keys.count(), count_picked{keys, differs, kept, nan});
    block.sync();
    kept = block.reduce(shared.collective, kept, plus_op{});
    block.sync();
    nan = block.reduce(shared.collective, nan, plus_op{});
    if (block.thread() == 0) {
      keep.note(block.index(), keys.about.lane, keys.count());
      bool const drops = kept < keys.count();
      bool const unobserved = drops && decides_unobserved(rule, scores, block.index());
      keep.indptr[block.index() + 1] = packed_result::of(kept, nan, drops, unobserved).word;
    }
    if (last_block(block, ticket, shared.last)) {
      finalize_segments(block, keep, shared.collective, finalize_select_if{keep.entry_count, counts_emptied(rule)});
    }
  }

 private:
  /// True for entries that are kept, of which it counts those of a thread.
  struct count_picked {
    segment_keys<Rule> const& keys;
    bool all;
    int& kept;
    int& nan;
    [[nodiscard]] KVPOLICY_HD bool operator()(int ordinal) const {
      float const score = keys.score[ordinal];
      bool const forced = keys.is_forced(ordinal);
      bool const stays = all || forced || picks_score(keys.rule, score, keys.about.lane);
      kept += stays ? 1 : 0;
      nan += !forced && radix_key(score) == nan_key ? 1 : 0;
      return stays;
    }
  };
};

}  // namespace detail

/// Takes three launches. A fault is recorded for lanes that decide together and hold different tokens, and for counts
/// out of their limits. The segments of such lanes keep all their entries.
template <kernel_backend Backend>
struct implementation<ops::select_if_t, Backend> {
  /// Bytes of scratch for all lanes: a bit for each entry, and the storage of the selection.
  [[nodiscard]] static std::size_t scratch(shape const&, lanes const& batch) {
    return detail::marks_scratch::bytes(batch.size(), batch.capacity);
  }

  template <class Executor, class Rule>
  static void run(Executor& exec, score_view const& scores, Rule const& rule, keep_set const& keep) {
    using counting = detail::count_picked_kernel<Rule>;
    detail::check_scratch("select_if", exec, scratch({}, scores.lanes));
    detail::check_same_tokens(exec, scores);
    detail::marks_scratch const scratch(exec.scratch(), scores.segments(), scores.lanes.capacity);
    exec.launch(launch_shape{scores.segments(), exec.threads().segment, detail::counting_storage::bytes()},
                counting{scores, rule, keep, scratch.marks, exec.faults(), exec.tickets()});
    detail::list_marked(exec, keep, scratch);
  }
};

}  // namespace KVPOLICY_NAMESPACE
