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

/// A score's key in selections: as radix_key, but negative ones are one higher. Thus -0 has the key of +0 without being
/// asked for. A NaN has any key.
[[nodiscard]] KVPOLICY_HD inline std::uint32_t number_key(float score) {
  auto const bits = same_bits<std::uint32_t>(score);
  auto const sign = static_cast<std::uint32_t>(static_cast<std::int32_t>(bits) >> 31);
  return (bits ^ (sign | 0x80000000u)) - sign;
}
[[nodiscard]] KVPOLICY_HD inline std::uint32_t score_key(float score) {
  return (same_bits<std::uint32_t>(score) & 0x7FFFFFFFu) > 0x7F800000u ? nan_key : number_key(score);
}

/// The entries of a segment as keys. Entries outside of [begin, end) do not compete.
template <class Rule>
struct segment_keys {
  Rule const& rule;
  entry about;  ///< the lane, count and budget that all its entries have
  float const* score;
  int const* position;
  lane_order order;  ///< if positions do not ascend, the run is one of ranks
  int begin = 0;
  int end = 0;

  KVPOLICY_HD segment_keys(score_view const& scores, Rule const& by, int segment)
      : segment_keys(scores, by, scores.lane_of(segment)) {}
  /// Of the segment whose first lane this is.
  KVPOLICY_HD segment_keys(score_view const& scores, Rule const& by, lane first)
      : rule(by), score(scores.rows.row(first)) {
    about.lane = first;
    about.count = scores.lanes.committed(about.lane);
    position = scores.lanes.position.row(about.lane);
    order = scores.lanes.order_of(about.lane);
    end = about.count;
  }

  [[nodiscard]] KVPOLICY_HD int count() const { return about.count; }

  [[nodiscard]] KVPOLICY_HD std::uint32_t at(int ordinal) const {
    if constexpr (knows_run<Rule>) {
      return begin <= ordinal && ordinal < end ? score_key(score[ordinal]) : forced_key;
    } else {
      return is_forced(ordinal) ? forced_key : score_key(score[ordinal]);
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
};

/// True if the recorded fault makes keep sets unsound: it was found before this decision, or it is unequal positions of
/// lanes that decide together. Faults of the kinds that a decision's own kernels record are left out, whenever they
/// were recorded, since the result must not depend on which block comes first.
[[nodiscard]] KVPOLICY_HD inline bool found_before(device_error faults) {
  std::uint64_t const word = *faults.data;
  auto const kind = static_cast<fault>(word >> 56);
  return word != device_error::nothing && kind != fault::unequal_counts && kind != fault::decide_count;
}

/// True if the counts of a lane, which has this index, are within their limits; otherwise records a fault. Every thread
/// of the block calls it.
template <class Block>
[[nodiscard]] KVPOLICY_HD bool count_fits(Block& block, lanes const& batch, lane one, int index, device_error faults) {
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
    return !count_fits(block, scores.lanes, scores.lanes.at(first), first, faults) || found_before(faults);
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
