// SPDX-License-Identifier: Apache-2.0
// The last two of the seven launches of a shared budget, once the pool's threshold is known: how many entries each
// segment keeps, and which. Ties at the threshold go to the lower segment, then to the lower ordinal.
#pragma once

#include <kvpolicy/ops/cuda/select/pools.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// Which threshold decides what a segment keeps: that of its floor, that of its pool, or both, where they are the same
/// key.
enum class decided_by : int { floor, pool, both };

[[nodiscard]] KVPOLICY_HD inline decided_by deciding_threshold(pool_segment const& one, pool_state const& pool) {
  if (one.floor.key == pool.low) return decided_by::both;
  bool const is_stricter = one.floor.key > pool.low;
  return is_stricter == (pool.floors_fit != 0) ? decided_by::pool : decided_by::floor;
}

/// What a segment keeps.
struct kept_of_segment {
  pools_in const& in;

  /// How many entries.
  [[nodiscard]] KVPOLICY_HD int operator()(int segment) const {
    pool_segment const& one = in.segments[segment];
    pool_state const& pool = in.pool_of(segment);
    if (pool.fires == 0) return in.keep.entry_count[segment];
    bool const by_floor = deciding_threshold(one, pool) == decided_by::floor;
    return by_floor ? one.within : one.forced + one.above + ties(segment);
  }
  /// The threshold of these entries.
  [[nodiscard]] KVPOLICY_HD key_threshold threshold(int segment) const {
    pool_segment const& one = in.segments[segment];
    pool_state const& pool = in.pool_of(segment);
    if (deciding_threshold(one, pool) == decided_by::floor) return one.floor;
    int const kept = ties(segment);
    return {pool.low, kept < one.equal ? kept : all_ties};
  }
  /// How many of the segment's keys compete for the ties of its pool.
  [[nodiscard]] KVPOLICY_HD int competing_ties(int segment) const {
    pool_segment const& one = in.segments[segment];
    pool_state const& pool = in.pool_of(segment);
    if (pool.fires == 0) return 0;
    decided_by const decider = deciding_threshold(one, pool);
    if (decider != decided_by::both) return decider == decided_by::pool ? one.equal : 0;
    return pool.floors_fit != 0 ? one.equal - first_at_floor(one) : first_at_floor(one);
  }

 private:
  /// Where the floor's threshold is the pool's: how many of the segment's keys at it are within the floor.
  [[nodiscard]] KVPOLICY_HD static int first_at_floor(pool_segment const& one) {
    return min_op{}(one.equal, one.floor.ties);
  }
  /// How many keys at the pool's threshold stay: those of the pool's ties that this segment gets, and those within a
  /// floor that fits.
  [[nodiscard]] KVPOLICY_HD int ties(int segment) const {
    pool_segment const& one = in.segments[segment];
    pool_state const& pool = in.pool_of(segment);
    std::int64_t const before = one.before - in.segments[in.first_of(segment)].before;
    std::int64_t const left = pool.k - before;
    int const competing = competing_ties(segment);
    int const got = left <= 0 ? 0 : left < competing ? static_cast<int>(left) : competing;
    bool const floor_too = deciding_threshold(one, pool) == decided_by::both && pool.floors_fit != 0;
    return got + (floor_too ? first_at_floor(one) : 0);
  }
};

/// The sixth launch: counts each segment's keys above the pool's threshold and at it. From these the last block divides
/// the ties among segments and writes the offsets.
template <class Rule>
struct count_at_threshold_kernel {
  pools_in in;
  Rule rule;
  int* ticket;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    counting_storage const shared(block);
    pool_state const& pool = in.pool_of(block.index());
    if (pool.fires != 0 && deciding_threshold(in.segments[block.index()], pool) != decided_by::floor) {
      count(block, block.index(), pool.low, shared.collective);
    }
    if (!last_block(block, ticket, shared.last)) return;
    kept_of_segment const kept{in};
    place_segments(
        block, in.keep.segments(), shared.collective, [&](int segment) { return kept.competing_ties(segment); },
        [&](int segment, std::int64_t before, std::int64_t) { in.segments[segment].before = before; });
    block.sync();
    place_segments(block, in.keep.segments(), shared.collective, kept,
                   [&](int segment, std::int64_t before, std::int64_t here) {
                     in.segments[segment].at = kept.threshold(segment);
                     in.keep.indptr[segment + 1] = before + here;
                   });
    if (block.thread() == 0) in.keep.indptr[0] = 0;
  }

 private:
  template <class Block>
  KVPOLICY_HD void count(Block& block, int segment, std::uint32_t threshold, collective_storage* storage) const {
    int above = 0;
    int equal = 0;
    segment_keys<Rule> const keys = in.keys_of(rule, segment);
    for_each_key(block, key_slice<Rule>(keys, in.scores.lanes.capacity), [&](std::uint32_t key) {
      above += key != forced_key && key > threshold ? 1 : 0;
      equal += key == threshold ? 1 : 0;
    });
    above = block.reduce(storage, above, plus_op{});
    block.sync();
    equal = block.reduce(storage, equal, plus_op{});
    if (block.thread() != 0) return;
    in.segments[segment].above = above;
    in.segments[segment].equal = equal;
  }
};

/// The last launch: writes the ordinals that each segment keeps.
template <class Rule>
struct emit_pool_kernel {
  pools_in in;
  Rule rule;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    int const segment = block.index();
    int* const to = in.keep.indices + in.keep.indptr[segment];
    if (in.pool_of(segment).fires == 0) return list_all(block, 0, in.keep.entry_count[segment], to);
    segment_keys<Rule> const keys = in.keys_of(rule, segment);
    key_slice<Rule> const slice(keys, in.scores.lanes.capacity);
    select_storage const temp_storage(block, 0);
    slice_list<selects::again, Block, Rule>(block, slice, temp_storage, in.segments[segment].at).write(to);
  }
};

/// Decides with one budget for each `size` neighbouring segments. Takes seven launches.
template <class Executor, class Rule>
void decide_pools(Executor& exec, score_view const& scores, Rule const& rule, keep_set const& keep, int size) {
  int const segments = scores.segments();
  auto const threads = selecting_threads(exec);
  int const tiles = selection_shape::of(exec, scores, 1).tiles;
  auto* const of_segments = reinterpret_cast<pool_segment*>(exec.scratch());
  auto* const pools = reinterpret_cast<pool_state*>(of_segments + segments);
  auto* const histograms = reinterpret_cast<std::uint32_t*>(pools + segments / size);
  pools_in const in{scores, keep, size, of_segments, pools, histograms};
  launch_each(exec, std::int64_t{segments / size} * histogram_bins, clear_pools{in});
  exec.launch(launch_shape{segments, threads, select_storage::bytes(threads, tiles)},
              survey_kernel<Rule>{in, rule, tiles, exec.faults()});
  for (int digits = 0; digits < 3; ++digits) {  // 11 bits each
    exec.launch(launch_shape{segments, threads, select_storage::bytes_without_keys()},
                pool_histogram_kernel<Rule>{in, rule});
  }
  using counting = count_at_threshold_kernel<Rule>;
  exec.launch(launch_shape{segments, threads, counting_storage::bytes()}, counting{in, rule, exec.tickets()});
  exec.launch(launch_shape{segments, threads, select_storage::bytes(threads, 0)}, emit_pool_kernel<Rule>{in, rule});
}

}  // namespace KVPOLICY_NAMESPACE::detail
