// SPDX-License-Identifier: Apache-2.0
// Lists what a segment keeps by a cluster of blocks, where segments are few and long. Each block reads its slice of the
// entries, and all of them find the same threshold:
//
// - All blocks draw the same sample, so that they have the same bracket (select_threshold.hpp). Each counts the keys of
//   its slice, and collects those inside the bracket. The blocks add up the counts. If the collected keys of all blocks
//   fit in the shared memory of one, every block copies those of the others, and finds the threshold among them alone.
//   Otherwise the blocks add up histograms of their slices.
// - Each block counts what its slice keeps, and tells the others. So it knows which of the ties its slice may keep, and
//   where its ordinals begin.
#pragma once

#include <kvpolicy/ops/cuda/select/emit.hpp>

namespace KVPOLICY_NAMESPACE::detail {

inline constexpr int most_cluster_blocks = 8;

/// How many keys of a block's slice are relative to a bracket: see key_bracket.
struct cluster_counts {
  int above, at_high, inside, at_low;
};

/// How many entries a slice keeps in any case, and how many have the threshold's key.
struct slice_counts {
  int sure, ties;
};

/// The shared memory of a block of a cluster.
struct cluster_storage {
  select_storage select;
  std::uint32_t* sums;      ///< histogram_bins, added up over the cluster
  cluster_counts* bracket;  ///< of each block
  slice_counts* slices;     ///< of each block

  template <class Block>
  KVPOLICY_HD cluster_storage(Block& block, int keys_at_most) : select(block, keys_at_most) {
    shared_arena arena(block);
    static_cast<void>(arena.take<std::byte>(static_cast<int>(select_storage::bytes(keys_at_most))));
    sums = arena.take<std::uint32_t>(histogram_bins);
    bracket = arena.take<cluster_counts>(most_cluster_blocks);
    slices = arena.take<slice_counts>(most_cluster_blocks);
  }
  /// The bytes that other kernels of a selection do not need.
  [[nodiscard]] KVPOLICY_HD static constexpr std::size_t more_bytes() {
    return shared_arena::bytes_of_piece<std::uint32_t>(histogram_bins) +
           shared_arena::bytes_of_piece<cluster_counts>(most_cluster_blocks) +
           shared_arena::bytes_of_piece<slice_counts>(most_cluster_blocks);
  }
};

/// The keys of a segment, of which each block of the cluster reads its slice.
template <class Rule>
struct keys_of_slices {
  using of_cluster = void;
  segment_keys<Rule> const& slice;
  std::uint32_t* sums;

  template <class Block, class Visit>
  KVPOLICY_HD void for_each(Block& block, Visit const& visit) const {
    slice.for_each(block, visit);
  }
  template <class Block>
  [[nodiscard]] KVPOLICY_HD std::uint32_t const* merged(Block& block, std::uint32_t* histogram) const {
    block.sync_cluster();
    for (int bin = block.thread(); bin < histogram_bins; bin += block.threads()) {
      std::uint32_t sum = 0;
      for (int rank = 0; rank < block.cluster_blocks(); ++rank) sum += block.of_block(rank, histogram)[bin];
      sums[bin] = sum;
    }
    block.sync_cluster();
    return sums;
  }
};

/// Adds up the counts of a bracket over the cluster. Afterwards `temp_storage.bracket` has those of each block.
/// Collective for the cluster, and the cluster's first barrier.
template <class Block>
[[nodiscard]] KVPOLICY_HD key_bracket add_up_brackets(Block& block, key_bracket const& mine,
                                                      cluster_storage const& temp_storage) {
  int const rank = block.cluster_rank();
  cluster_counts* const of = temp_storage.bracket;
  if (block.thread() == 0) of[rank] = {mine.above, mine.at_high, mine.inside, mine.at_low};
  block.sync_cluster();
  int const other = block.thread();
  if (other < block.cluster_blocks() && other != rank) of[other] = *block.of_block(other, of + other);
  block.sync();
  key_bracket all{mine.low, mine.high};
  for (int i = 0; i < block.cluster_blocks(); ++i) {
    all.above += of[i].above;
    all.at_high += of[i].at_high;
    all.inside += of[i].inside;
    all.at_low += of[i].at_low;
  }
  return all;
}

/// How many keys a block has for the others. Itself it needs none.
template <class Block>
[[nodiscard]] KVPOLICY_HD int given_keys(Block& block, cluster_counts const* of, int rank) {
  return rank < block.cluster_blocks() && rank != block.cluster_rank() ? of[rank].inside : 0;
}

/// Copies the keys that the other blocks have collected, behind those of this block. All of them fit. Loads from all
/// blocks are issued together. The keys are visible after a barrier.
template <class Block>
KVPOLICY_HD void gather_keys(Block& block, cluster_storage const& temp_storage) {
  cluster_counts const* const of = temp_storage.bracket;
  std::uint32_t* const to = temp_storage.select.keys;
  int longest = 0;
  for (int i = 0; i < block.cluster_blocks(); ++i) longest = max_op{}(longest, given_keys(block, of, i));
  for (int at = block.thread(); at < longest; at += block.threads()) {
    std::uint32_t keys[most_cluster_blocks];
    for (int i = 0; i < most_cluster_blocks; ++i) {
      keys[i] = at < given_keys(block, of, i) ? block.of_block(i, to)[at] : 0;
    }
    int place = of[block.cluster_rank()].inside;
    for (int i = 0; i < most_cluster_blocks; ++i) {
      int const given = given_keys(block, of, i);
      if (at < given) to[place + at] = keys[i];
      place += given;
    }
  }
}

/// The threshold of a segment's choice, the same in all blocks. `found_nan` is how many competing entries of the slice
/// are NaN. Collective for the cluster. Its last collective is followed by a barrier.
template <class Block, class Rule>
[[nodiscard]] KVPOLICY_HD key_threshold threshold_of_cluster(Block& block, segment_keys<Rule> const& keys,
                                                             segment_keys<Rule> const& slice,
                                                             segment_choice const& choice,
                                                             cluster_storage const& temp_storage, int& found_nan) {
  select_storage const& select = temp_storage.select;
  key_bracket guess{below_all_keys, above_all_keys};
  if (choice.k <= 0) {
    guess.low = above_all_keys;
  } else if (keys.end - keys.begin > select.capacity) {
    guess = sample_bracket(block, keys, {choice.k, choice.competing}, select);
  }
  key_bracket const mine = count_bracket(block, slice, guess, select);
  found_nan = mine.nan;
  key_bracket const all = add_up_brackets(block, mine, temp_storage);
  if (choice.k <= 0) return {above_all_keys, 0};
  if (all.inside <= select.capacity) gather_keys(block, temp_storage);
  return threshold_in_bracket(block, keys_of_slices<Rule>{slice, temp_storage.sums}, all, choice.k, select);
}

struct count_in_slice {
  std::uint32_t threshold;
  slice_counts& found;  ///< `sure` counts down: what is below the threshold, or at it
  KVPOLICY_HD void operator()(std::uint32_t key) const {
    found.sure -= key <= threshold ? 1 : 0;
    found.ties += key == threshold ? 1 : 0;
  }
};
struct add_slice_counts {
  [[nodiscard]] KVPOLICY_HD slice_counts operator()(slice_counts const& a, slice_counts const& b) const {
    return {a.sure + b.sure, a.ties + b.ties};
  }
};

/// What a block lists of its slice: the entries above the threshold and the first ties, at a place behind what the
/// lower slices list.
struct slice_list {
  key_threshold kept;
  int before;
};

/// Tells all blocks of the cluster what each slice keeps. Collective for the cluster, after a barrier of it. Afterwards
/// no block accesses another one's memory.
template <class Block, class Rule>
[[nodiscard]] KVPOLICY_HD slice_list list_of_slice(Block& block, segment_keys<Rule> const& slice,
                                                   key_threshold const& threshold,
                                                   cluster_storage const& temp_storage) {
  slice_counts mine{};
  slice.for_each(block, count_in_slice{threshold.key, mine});
  mine = block.reduce(temp_storage.select.collective, mine, add_slice_counts{});
  mine.sure += slice.upto - slice.lowest();
  int const rank = block.cluster_rank();
  if (block.thread() < block.cluster_blocks()) *block.of_block(block.thread(), temp_storage.slices + rank) = mine;
  block.sync_cluster();
  slice_list made{threshold, 0};
  int& left = made.kept.ties;
  for (int i = 0; i < rank; ++i) {
    slice_counts const lower = temp_storage.slices[i];
    int const ties = min_op{}(lower.ties, left);
    made.before += lower.sure + ties;
    left -= ties;
  }
  if (left >= mine.ties) left = all_ties;
  return made;
}

/// Writes the ordinals that a segment keeps, ascending, from `to` on. `keys` has the run and the budget of the choice.
/// Collective for the cluster.
template <class Block, class Rule>
KVPOLICY_HD void emit_by_cluster(Block& block, segment_keys<Rule> const& keys, segment_choice const& choice,
                                 report& found, int* to, int capacity) {
  segment_keys<Rule> slice = keys;
  slice.take_slice(block.cluster_rank(), block.cluster_blocks());
  if (choice.k < 0) return emit_all(block, slice.upto, to, slice.lowest());
  cluster_storage const temp_storage(block, capacity);
  if (choice.k == choice.competing) {
    int const nan = count_bracket(block, slice, {above_all_keys, above_all_keys}, temp_storage.select).nan;
    if (block.thread() == 0) add_to_report(block, found.nan_scores, nan);
    return emit_all(block, slice.upto, to, slice.lowest());
  }
  int nan = 0;
  key_threshold const threshold = threshold_of_cluster(block, keys, slice, choice, temp_storage, nan);
  if (block.thread() == 0) add_to_report(block, found.nan_scores, nan);
  slice_list const list = list_of_slice(block, slice, threshold, temp_storage);
  key_cut const cut = cut_at(block, slice, list.kept, temp_storage.select);
  emit_kept(block, slice, cut, to + list.before, temp_storage.select);
}

/// emit_kernel with a cluster of blocks for each segment.
template <class Rule>
struct emit_cluster_kernel {
  score_view scores;
  Rule rule;
  keep_set keep;
  segment_choice const* choices;
  int capacity;  ///< keys that fit in the shared memory of a block

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    int const segment = block.index() / block.cluster_blocks();
    segment_choice const choice = choices[segment];
    segment_keys<Rule> keys(scores, rule, segment);
    keys.about.budget = rule.budget(keys.about.lane, keys.count());
    keys.begin = choice.begin;
    keys.end = choice.end;
    emit_by_cluster(block, keys, choice, *keep.report, keep.indices + keep.indptr[segment], capacity);
  }
};

/// The blocks of the cluster that lists each segment: as many as leave every thread four entries to read, while there
/// are multiprocessors for them.
template <class Executor>
[[nodiscard]] int blocks_of_a_segment(Executor& exec, score_view const& scores) {
  constexpr int entries_of_a_thread = 4;
  std::int64_t const of_block = std::int64_t{entries_of_a_thread} * exec.threads().segment;
  int blocks = 1;
  while (2 * blocks <= exec.clusters() && 2 * blocks <= most_cluster_blocks &&
         std::int64_t{2 * blocks} * scores.segments() <= exec.config().processors &&
         2 * blocks * of_block <= scores.lanes.capacity) {
    blocks *= 2;
  }
  return blocks;
}

/// Launches emit_cluster_kernel, and returns true, where clusters are of use.
template <class Executor, class Rule>
[[nodiscard]] bool emitted_by_clusters(Executor& exec, score_view const& scores, Rule const& rule, keep_set const& keep,
                                       segment_choice const* choices) {
  int const blocks = blocks_of_a_segment(exec, scores);
  if (blocks == 1) return false;
  launch_config numbers = exec.config();
  numbers.shared_bytes -= static_cast<int>(cluster_storage::more_bytes());
  int const capacity = keys_to_collect(numbers, scores.lanes.capacity);
  std::size_t const shared = select_storage::bytes(capacity) + cluster_storage::more_bytes();
  exec.launch(launch_shape{scores.segments() * blocks, exec.threads().segment, shared, blocks},
              emit_cluster_kernel<Rule>{scores, rule, keep, choices, capacity});
  return true;
}

}  // namespace KVPOLICY_NAMESPACE::detail
