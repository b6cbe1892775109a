// SPDX-License-Identifier: Apache-2.0
// The keys of a segment's entries: scores as integers in the same order, and a mark for entries that do not compete.
#pragma once

#include <cstdint>
#include <kvpolicy/core/contract/check_counts.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/ops/cuda/run/block.hpp>
#include <kvpolicy/ops/radix_key.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// A rule whose competing entries are one run, [begin, end), so that it need not be asked about each entry.
template <class Rule>
concept knows_run = requires(Rule const& rule, lane_entries const& of) { rule.candidates(of); };

/// Four neighbouring scores, which one load reads.
struct [[gnu::may_alias]] alignas(16) four_scores {
  static constexpr int count = 4;
  float of[count];
};
/// Their keys.
struct four_keys {
  std::uint32_t of[four_scores::count];
};

/// The entries of a segment as keys, or those of a slice of it. Entries outside of [begin, end) do not compete.
template <class Rule>
struct segment_keys {
  Rule const& rule;
  entry about;  ///< the lane, count and budget that all its entries have
  float const* score;
  int const* position;
  lane_order order;  ///< if positions do not ascend, the run is one of ranks
  int begin = 0;
  int end = 0;
  unsigned from;  ///< groups of the slice begin here: at first_group(), if the slice is the whole segment
  int upto;       ///< the slice ends here

  KVPOLICY_HD segment_keys(score_view const& scores, Rule const& by, int segment)
      : rule(by), score(scores.row(segment)) {
    about.lane = scores.lane_of(segment);
    about.count = scores.lanes.committed(about.lane);
    position = scores.lanes.position.row(about.lane);
    order = scores.lanes.order_of(about.lane);
    end = about.count;
    from = first_group();
    upto = about.count;
  }

  /// Keeps one of `blocks` slices: that of block `rank`. Slices follow one another, and each but the last is whole
  /// groups.
  KVPOLICY_HD void take_slice(int rank, int blocks) {
    unsigned const all = static_cast<unsigned>(about.count) - first_group();
    unsigned const groups = (all + four_scores::count - 1) / four_scores::count;
    unsigned const shares = static_cast<unsigned>(blocks);
    unsigned const each = (groups + shares - 1) / shares * four_scores::count;
    unsigned const before = static_cast<unsigned>(rank) * each;
    unsigned const rest = before < all ? all - before : 0;
    from = first_group() + all - rest;
    upto = static_cast<int>(from + (each < rest ? each : rest));
    begin = begin < lowest() ? lowest() : begin;
    end = end < upto ? end : upto;
    end = end < begin ? begin : end;
  }
  /// The first entry of the slice. The first group may begin before it.
  [[nodiscard]] KVPOLICY_HD int lowest() const { return static_cast<int>(from) < 0 ? 0 : static_cast<int>(from); }

  [[nodiscard]] KVPOLICY_HD int count() const { return about.count; }

  [[nodiscard]] KVPOLICY_HD std::uint32_t at(int ordinal) const {
    if constexpr (knows_run<Rule>) {
      return begin <= ordinal && ordinal < end ? radix_key(score[ordinal]) : forced_key;
    } else {
      return is_forced(ordinal) ? forced_key : radix_key(score[ordinal]);
    }
  }

  /// True if the rule forces an entry.
  [[nodiscard]] KVPOLICY_HD bool is_forced(int ordinal) const {
    entry one = about;
    one.ordinal = ordinal;
    one.position = position[ordinal];
    return rule.forces(one);
  }

  /// Sets [begin, end) to the run of competing entries, if the rule knows it.
  KVPOLICY_HD void find_run() {
    if constexpr (knows_run<Rule>) {
      ordinal_range const run = rule.candidates(lane_entries{about.lane, about.count, about.budget, position, order});
      begin = run.begin < 0 ? 0 : run.begin < about.count ? run.begin : about.count;
      end = run.end < begin ? begin : run.end < about.count ? run.end : about.count;
    }
  }

  /// Sets [begin, end) as `find_run`, and returns how many entries are forced. Collective. `storage` is used
  /// after a barrier.
  template <class Block>
  [[nodiscard]] KVPOLICY_HD int find_forced(Block& block, [[maybe_unused]] collective_storage* storage) {
    find_run();
    if constexpr (knows_run<Rule>) {
      return about.count - (end - begin);
    } else {
      int forced = 0;
      for (int e = block.thread(); e < about.count; e += block.threads()) forced += is_forced(e) ? 1 : 0;
      block.sync();
      return block.reduce(storage, forced, plus_op{});
    }
  }

  /// Groups of four entries begin at this ordinal and at every fourth one behind it, so that they are aligned to 16
  /// bytes. It is 0, or negative: then no entry is before ordinal 0. Ordinals of groups are unsigned, because they may
  /// be behind the last that an int can hold.
  [[nodiscard]] KVPOLICY_HD unsigned first_group() const {
    return 0u - static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(score) / sizeof(float) % four_scores::count);
  }
  /// The first group of which all entries are in the run, if `inner_groups()` is not 0.
  [[nodiscard]] KVPOLICY_HD unsigned first_inner() const {
    unsigned const behind = (static_cast<unsigned>(begin) - first_group()) % four_scores::count;
    return static_cast<unsigned>(begin) + (four_scores::count - behind) % four_scores::count;
  }
  /// How many groups have all their entries in the run.
  [[nodiscard]] KVPOLICY_HD unsigned inner_groups() const {
    unsigned const before = first_inner() - static_cast<unsigned>(begin);
    auto const all = static_cast<unsigned>(end > begin ? end - begin : 0);
    return all > before ? (all - before) / four_scores::count : 0;
  }
  /// The scores of the group that begins at this ordinal, which is inner.
  [[nodiscard]] KVPOLICY_HD four_scores load(unsigned first) const {
    return *reinterpret_cast<four_scores const*>(score + static_cast<int>(first));
  }

  /// Calls visit(keys) for groups of keys that have all keys of the run, each on one thread. Other keys are
  /// `forced_key`. All threads make the same number of calls, so that `visit` may be collective. A thread without a
  /// group loads the last one: loads under a condition would wait for one another.
  template <class Block, class Visit>
  KVPOLICY_HD void for_each_group(Block& block, Visit const& visit) const {
    constexpr unsigned of_group = four_scores::count;
    constexpr unsigned at_once = 2;
    auto const threads = static_cast<unsigned>(block.threads());
    unsigned const lowest = first_inner();
    unsigned const all = inner_groups();
    for (unsigned tile = 0; tile < all; tile += at_once * threads) {
      unsigned first[at_once];
      bool inner[at_once];
      four_scores scores[at_once];
      for (unsigned i = 0; i < at_once; ++i) {
        unsigned const group = tile + i * threads + static_cast<unsigned>(block.thread());
        inner[i] = group < all;
        first[i] = lowest + (inner[i] ? group : all - 1) * of_group;
        scores[i] = load(first[i]);
      }
      for (unsigned i = 0; i < at_once; ++i) visit(keys_of(scores[i], first[i], inner[i]));
    }
    visit_edges(block, visit);
  }

  /// Calls visit(key) for each key of the run, each on one thread, and for more keys that are `forced_key`.
  template <class Block, class Visit>
  KVPOLICY_HD void for_each(Block& block, Visit const& visit) const {
    for_each_group(block, each_of_group<Visit>{visit});
  }

 private:
  template <class Visit>
  struct each_of_group {
    Visit const& visit;
    KVPOLICY_HD void operator()(four_keys const& keys) const {
      for (int j = 0; j < four_scores::count; ++j) visit(keys.of[j]);
    }
  };

  [[nodiscard]] KVPOLICY_HD four_keys keys_of(four_scores const& scores, unsigned first, bool inner) const {
    four_keys keys;
    for (int j = 0; j < four_scores::count; ++j) {
      bool const competes = inner && (knows_run<Rule> || !is_forced(static_cast<int>(first) + j));
      keys.of[j] = radix_key(scores.of[j]) | (competes ? 0 : forced_key);
    }
    return keys;
  }

  /// The entries of the run that are in no inner group: up to three at either end.
  template <class Block, class Visit>
  KVPOLICY_HD void visit_edges(Block& block, Visit const& visit) const {
    constexpr int of_group = four_scores::count;
    auto const behind = static_cast<int>((static_cast<unsigned>(begin) - first_group()) % of_group);
    int const before = behind == 0 ? 0 : of_group - behind;  // entries before the first inner group
    int const low = end - begin < before ? end : begin + before;
    int const after = (end - low) % of_group;
    int const edges = low - begin + after;
    if (edges == 0) return;
    four_keys keys;
    for (int j = 0; j < of_group; ++j) {
      int const i = block.thread() * of_group + j;
      int const e = i < low - begin ? begin + i : end - edges + i;
      keys.of[j] = i < edges ? at(e) : forced_key;
    }
    visit(keys);
  }
};

/// Some keys in shared memory.
struct listed_keys {
  std::uint32_t const* keys;
  int count;

  template <class Block, class Visit>
  KVPOLICY_HD void for_each(Block& block, Visit const& visit) const {
    for (int i = block.thread(); i < count; i += block.threads()) visit(keys[i]);
  }
};

/// True if the recorded fault makes keep sets unsound: it was found before this decision, or it is unequal positions of
/// lanes that decide together. Faults of the kinds that a decision's own kernels record are left out, whenever they
/// were recorded, since the result must not depend on which block comes first.
[[nodiscard]] KVPOLICY_HD inline bool found_before(device_error faults) {
  std::uint64_t const word = *faults.data;
  auto const kind = static_cast<fault>(word >> 56);
  return word != device_error::nothing && kind != fault::unequal_counts && kind != fault::decide_count;
}

/// True if the counts of a lane are within their limits; otherwise records a fault. Every thread of the block calls it.
template <class Block>
[[nodiscard]] KVPOLICY_HD bool count_fits(Block& block, lanes const& batch, int index, device_error faults) {
  lane const one = batch.at(index);
  bool const fits = counts_fit(batch, one);
  if (!fits && block.thread() == 0) report_fault(block, faults, fault::decide_count, index, *batch.count.row(one));
  return fits;
}

/// Records faults for lanes of a segment whose counts are out of their limits or differ from those of the first lane.
/// True in every thread if there is one, or if `found_before`: the segment must then drop nothing. Collective.
template <class Block>
[[nodiscard]] KVPOLICY_HD bool lanes_differ(Block& block, score_view const& scores, int segment, device_error faults,
                                            collective_storage* storage) {
  int const first = first_lane(scores.lanes, scores.decides, segment);
  if (scores.decides == granularity::lane)
    return !count_fits(block, scores.lanes, first, faults) || found_before(faults);
  int const lanes = scores.lanes.size() / scores.segments();
  int const count = scores.lanes.committed(scores.lanes.at(first));
  int differs = found_before(faults) ? 1 : 0;
  for (int i = first + block.thread(); i < first + lanes; i += block.threads()) {
    lane const one = scores.lanes.at(i);
    int const other = scores.lanes.committed(one);
    bool const fits = counts_fit(scores.lanes, one);
    if (fits && other == count) continue;
    report_fault(block, faults, fits ? fault::unequal_counts : fault::decide_count, i,
                 fits ? other : *scores.lanes.count.row(one));
    differs = 1;
  }
  return block.reduce(storage, differs, max_op{}) != 0;
}

/// Compares each entry of each lane with the first lane of its segment, one thread for each: they must be the same
/// token.
struct same_tokens_check {
  score_view scores;
  device_error faults;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block, std::int64_t i) const {
    lanes const& batch = scores.lanes;
    auto const index = static_cast<int>(i / batch.capacity);
    auto const e = static_cast<int>(i % batch.capacity);
    lane const one = batch.at(index);
    lane const first = scores.lane_of(segment_of(batch, scores.decides, index));
    if (e >= batch.committed(one) || e >= batch.committed(first)) return;
    int const mine = batch.position.row(one)[e];
    if (mine == batch.position.row(first)[e]) return;
    report_fault(block, faults, fault::unequal_positions, index, mine);
  }
};

/// Records a fault for lanes that decide together and hold different tokens, if their positions have memory of their
/// own. Takes one launch, which reads every position once.
template <class Executor>
void check_same_tokens(Executor& exec, score_view const& scores) {
  by_lane<int> const& position = scores.lanes.position;
  bool const of_heads = position.head != 0 && scores.lanes.heads > 1;
  bool const of_layers = position.layer != 0 && scores.lanes.layers() > 1 && scores.decides == granularity::sequence;
  if (scores.decides == granularity::lane || scores.same_tokens || (!of_heads && !of_layers)) return;
  launch_each(exec, std::int64_t{scores.lanes.size()} * scores.lanes.capacity,
              same_tokens_check{scores, exec.faults()});
}

}  // namespace KVPOLICY_NAMESPACE::detail
