// Scores as a device compares them: numbers in the same order, and what of a segment competes.
#pragma once

#include <cstdint>
#include <kvpolicy/core/check_counts.hpp>
#include <kvpolicy/core/codec.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/ops/cuda/block.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// Keys order as scores do: NaN lowest, then -inf, ..., +inf. No score has the others.
inline constexpr std::uint32_t order_below = 0;  ///< below every key
inline constexpr std::uint32_t order_nan = 1;
inline constexpr std::uint32_t order_above = 0xFFFFFFFEu;   ///< above every key
inline constexpr std::uint32_t order_forced = 0xFFFFFFFFu;  ///< of an entry that does not compete

/// The key of a score. -0 is +0.
[[nodiscard]] KVPOLICY_HD inline std::uint32_t device_radix_key(float score) {
  auto const bits = same_bits<std::uint32_t>(score);
  std::uint32_t const key = bits ^ ((0u - (bits >> 31)) | 0x80000000u);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return order_nan;
  return key == 0x7FFFFFFFu ? 0x80000000u : key;
}

/// A rule that knows the run of entries that compete, so that none need be asked.
template <class Rule>
concept knows_run = requires(Rule const& rule, lane_entries const& of) { rule.candidates(of); };

/// A segment's entries as keys. Those outside of [begin, end) do not compete.
template <class Rule>
struct segment_keys {
  Rule const& rule;
  entry about;  ///< of any of its entries: lane, count, budget
  float const* score;
  int const* position;
  int begin = 0;
  int end = 0;

  KVPOLICY_HD segment_keys(score_view const& scores, Rule const& by, int segment)
      : rule(by), score(scores.row(segment)) {
    about.lane = scores.lane_of(segment);
    about.count = scores.lanes.committed(about.lane);
    position = scores.lanes.position.row(about.lane);
    end = about.count;
  }

  [[nodiscard]] KVPOLICY_HD int count() const { return about.count; }

  [[nodiscard]] KVPOLICY_HD std::uint32_t at(int ordinal) const {
    if constexpr (knows_run<Rule>) {
      return begin <= ordinal && ordinal < end ? device_radix_key(score[ordinal]) : order_forced;
    } else {
      return asks(ordinal) ? order_forced : device_radix_key(score[ordinal]);
    }
  }

  /// True if the rule forces an entry.
  [[nodiscard]] KVPOLICY_HD bool asks(int ordinal) const {
    entry one = about;
    one.ordinal = ordinal;
    one.position = position[ordinal];
    return rule.forces(one);
  }

  /// Finds the run, if the rule knows it.
  KVPOLICY_HD void find_run() {
    if constexpr (knows_run<Rule>) {
      ordinal_range const run = rule.candidates(lane_entries{about.lane, about.count, about.budget, position});
      begin = run.begin < 0 ? 0 : run.begin < about.count ? run.begin : about.count;
      end = run.end < begin ? begin : run.end < about.count ? run.end : about.count;
    }
  }

  /// Finds the run, and how many entries do not compete. Collective; `temp_storage`: warp_size + 1 ints of shared
  /// memory.
  template <class Block>
  [[nodiscard]] KVPOLICY_HD int find_forced(Block& block, [[maybe_unused]] int* temp_storage) {
    find_run();
    if constexpr (knows_run<Rule>) {
      return about.count - (end - begin);
    } else {
      int forced = 0;
      for (int e = block.thread(); e < about.count; e += block.threads()) forced += asks(e) ? 1 : 0;
      return block_reduce(block, forced, temp_storage, add_up{});
    }
  }

  /// visit(key) for the run, a key a thread; once more for some threads at its end, with `order_forced`, so that the
  /// visit may be collective. Loads are issued a few at a time.
  template <class Block, class Visit>
  KVPOLICY_HD void for_each(Block& block, Visit const& visit) const {
    constexpr int at_once = 4;
    int const step = block.threads();
    for (std::int64_t first = begin; first < end; first += std::int64_t{at_once} * step) {
      std::uint32_t keys[at_once];
      for (int j = 0; j < at_once; ++j) {
        std::int64_t const e = first + std::int64_t{j} * step + block.thread();
        keys[j] = e < end ? at(static_cast<int>(e)) : order_forced;
      }
      for (int j = 0; j < at_once; ++j) visit(keys[j]);
    }
  }
};

/// Keys in shared memory.
struct listed_keys {
  std::uint32_t const* keys;
  int count;

  template <class Block, class Visit>
  KVPOLICY_HD void for_each(Block& block, Visit const& visit) const {
    for (int i = block.thread(); i < count; i += block.threads()) visit(keys[i]);
  }
};

/// True if what was found before a decision's launches, or at the positions of lanes that decide together, makes its
/// keep set unsound. What a decision's kernels find themselves is not asked: which block came first must not matter.
[[nodiscard]] KVPOLICY_HD inline bool found_before(device_error faults) {
  std::uint64_t const word = *faults.data;
  auto const kind = static_cast<fault>(word >> 56);
  return word != device_error::nothing && kind != fault::unequal_counts && kind != fault::decide_count;
}

/// Tells of a lane that decides for itself and whose counts are out of their limits. All threads ask.
template <class Block>
[[nodiscard]] KVPOLICY_HD bool count_fits(Block& block, lanes const& batch, int index, device_error faults) {
  lane const one = batch.at(index);
  bool const fits = counts_fit(batch, one);
  if (!fits && block.thread() == 0) report_fault(block, faults, fault::decide_count, index, *batch.count.row(one));
  return fits;
}

/// Tells of lanes of a segment whose counts are out of their limits, or other than those of the first; true in every
/// thread if there are any, or if a fault was known before: then nothing may be dropped. Collective. `temp_storage`:
/// warp_size + 1 ints of shared memory.
template <class Block>
[[nodiscard]] KVPOLICY_HD bool lanes_differ(Block& block, score_view const& scores, int segment, device_error faults,
                                            int* temp_storage) {
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
  return block_reduce(block, differs, temp_storage, take_higher{}) != 0;
}

/// A thread for each entry of each lane: looks for lanes that hold other tokens than the first of their segment.
struct same_tokens_check {
  score_view scores;
  device_error faults;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block, std::int64_t i) const {
    lanes const& batch = scores.lanes;
    auto const index = static_cast<int>(i / batch.bound);
    auto const e = static_cast<int>(i % batch.bound);
    lane const one = batch.at(index);
    lane const first = scores.lane_of(segment_of(batch, scores.decides, index));
    if (e >= batch.committed(one) || e >= batch.committed(first)) return;
    int const mine = batch.position.row(one)[e];
    if (mine == batch.position.row(first)[e]) return;
    report_fault(block, faults, fault::unequal_positions, index, mine);
  }
};

/// Looks for lanes that decide together and hold other tokens, if their positions have memory of their own. One launch,
/// which reads every position once.
template <class Executor>
void check_same_tokens(Executor& exec, score_view const& scores) {
  by_lane<int> const& position = scores.lanes.position;
  bool const of_heads = position.head != 0 && scores.lanes.heads > 1;
  bool const of_layers = position.layer != 0 && scores.lanes.layers() > 1 && scores.decides == granularity::token;
  if (scores.decides == granularity::lane || scores.same_tokens || (!of_heads && !of_layers)) return;
  launch_each(exec, std::int64_t{scores.lanes.size()} * scores.lanes.bound, same_tokens_check{scores, exec.faults()});
}

/// Shared memory of a kernel that counts segments: for collectives of counts, and of offsets.
struct counting_storage {
  std::int64_t* sums;
  int* temp_storage;

  template <class Block>
  KVPOLICY_HD explicit counting_storage(Block& block) {
    shared_arena arena(block);
    sums = arena.take<std::int64_t>(warp_size + 1);
    temp_storage = arena.take<int>(warp_size + 1);
  }
  [[nodiscard]] static constexpr std::size_t bytes() {
    return collective_bytes<std::int64_t>() + collective_bytes<int>();
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail
