// Device implementation of select_if, one block for each segment: one launch counts the entries that each segment
// keeps, another writes their ordinals.
#pragma once

#include <kvpolicy/core/observed.hpp>
#include <kvpolicy/ops/cuda/select_emit.hpp>
#include <kvpolicy/ops/select_if.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Classifies entries by the rule: forced and picked ones are kept.
template <class Rule>
struct by_pick {
  segment_keys<Rule> const& keys;
  [[nodiscard]] KVPOLICY_HD threshold_side operator()(int ordinal) const {
    bool const stays = keys.is_forced(ordinal) || keys.rule.picks(keys.score[ordinal]);
    return stays ? threshold_side::above : threshold_side::below;
  }
};

/// Offsets and report of select_if. `aux_count` of a result counts NaN.
struct finalize_select_if {
  [[nodiscard]] KVPOLICY_HD int number(packed_result result) const { return result.listed(); }
  KVPOLICY_HD void place(packed_result result, segment_place, report& found) const {
    found.nan_scores += result.aux_count();
  }
};

/// Counts the entries that each segment keeps, one block for each segment. The last block turns the counts into
/// offsets.
template <class Rule>
struct count_picked_kernel {
  score_view scores;
  Rule rule;
  keep_set keep;
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
    for (int e = block.thread(); e < keys.count(); e += block.threads()) {
      bool const forced = keys.is_forced(e);
      kept += differs || forced || rule.picks(keys.score[e]) ? 1 : 0;
      nan += !forced && radix_key(keys.score[e]) == nan_key ? 1 : 0;
    }
    block.sync();
    kept = block.reduce(shared.collective, kept, plus_op{});
    block.sync();
    nan = block.reduce(shared.collective, nan, plus_op{});
    if (block.thread() == 0) {
      keep.seen[block.index()] = keys.count();
      bool const drops = kept < keys.count();
      bool const unobserved = drops && decides_unobserved(rule, scores, block.index());
      keep.indptr[block.index() + 1] = packed_result::of(kept, nan, drops, unobserved).word;
    }
    if (last_block(block, ticket, shared.last)) finalize_segments(block, keep, shared.collective, finalize_select_if{});
  }
};

/// Writes the ordinals that each segment keeps, one block for each segment.
template <class Rule>
struct list_picked_kernel {
  score_view scores;
  Rule rule;
  keep_set keep;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    segment_keys<Rule> const keys(scores, rule, block.index());
    std::int64_t const first = keep.indptr[block.index()];
    auto* const storage = shared_arena(block).template take<collective_storage>(1);
    if (keep.indptr[block.index() + 1] - first == keys.count()) {
      emit_all(block, keys.count(), keep.indices + first);
    } else {
      emit_kept(block, by_pick<Rule>{keys}, keys.count(), 0, keep.indices + first, storage);
    }
  }
};

}  // namespace detail

/// Takes two launches. A fault is recorded for lanes that decide together and hold different tokens, and for counts out
/// of their limits. The segments of such lanes keep all their entries.
template <kernel_backend Backend>
struct implementation<ops::select_if_t, Backend> {
  static constexpr bool provided = true;

  template <class Executor, class Rule>
  static void run(Executor& exec, score_view const& scores, Rule const& rule, keep_set const& keep) {
    using counting = detail::count_picked_kernel<Rule>;
    auto const threads = exec.threads().segment;
    detail::check_same_tokens(exec, scores);
    exec.launch(launch_shape{scores.segments(), threads, detail::counting_storage::bytes()},
                counting{scores, rule, keep, exec.faults(), exec.tickets()});
    exec.launch(launch_shape{scores.segments(), threads, detail::collective_bytes()},
                detail::list_picked_kernel<Rule>{scores, rule, keep});
  }
};

}  // namespace KVPOLICY_NAMESPACE
