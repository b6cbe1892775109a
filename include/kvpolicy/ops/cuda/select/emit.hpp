// SPDX-License-Identifier: Apache-2.0
// Writes the offsets of a keep set, and its report.
#pragma once

#include <kvpolicy/ops/cuda/select/keys.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// Calls place(segment, before, number(segment)) for every segment, where `before` is the sum of the numbers of lower
/// segments. Every thread gets the sum of all. Each thread handles neighbouring segments, and calls `number` and
/// `place` for those only. Collective.
template <class Block, class Number, class Place>
KVPOLICY_HD std::int64_t place_segments(Block& block, int segments, collective_storage* storage, Number const& number,
                                        Place const& place) {
  int const each = (segments + block.threads() - 1) / block.threads();
  int const begin = block.thread() * each < segments ? block.thread() * each : segments;
  int const end = segments - begin < each ? segments : begin + each;
  std::int64_t sum = 0;
  for (int segment = begin; segment < end; ++segment) sum += number(segment);
  auto const [lower, all] = block.exclusive_sum(storage, sum);
  std::int64_t before = lower;
  for (int segment = begin; segment < end; ++segment) {
    std::int64_t const here = number(segment);
    place(segment, before, here);
    before += here;
  }
  return all;
}

/// The counts of a segment, packed into 64 bits. They are stored in the segment's element of `keep.indptr` until the
/// last block replaces them by the offset.
struct packed_result {
  std::int64_t word;

  /// `listed` is how many ordinals the segment lists, `aux` a second number with the meaning that a verb gives it.
  /// `unobserved` says that the segment triggered although nothing of it was observed.
  [[nodiscard]] KVPOLICY_HD static packed_result of(int listed, int aux, bool triggered, bool unobserved) {
    std::int64_t const packed = std::int64_t{triggered} << 62 | std::int64_t{aux} << 31 | std::int64_t{listed};
    return {unobserved ? ~packed : packed};
  }
  [[nodiscard]] KVPOLICY_HD int listed() const { return static_cast<int>(bits() & 0x7FFFFFFF); }
  [[nodiscard]] KVPOLICY_HD int aux_count() const { return static_cast<int>(bits() >> 31 & 0x7FFFFFFF); }
  [[nodiscard]] KVPOLICY_HD bool triggered() const { return (bits() >> 62) != 0; }
  [[nodiscard]] KVPOLICY_HD bool unobserved() const { return word < 0; }

 private:
  [[nodiscard]] KVPOLICY_HD std::int64_t bits() const { return word < 0 ? ~word : word; }
};

/// Adds to a count of a report, which any thread may.
template <class Block>
KVPOLICY_HD void add_to_report(Block& block, std::int64_t& count, std::int64_t more) {
  if (more != 0) block.atomic_add(reinterpret_cast<std::uint64_t*>(&count), static_cast<std::uint64_t>(more));
}

/// A segment, and how many ordinals the lower segments list.
struct segment_place {
  int segment;
  std::int64_t before;
};

/// Turns the packed results of all segments into offsets, and writes the report. `verb.number(result)` is how many
/// ordinals a segment lists; `verb.place(result, {segment, before}, report)` does what else the verb needs. Collective;
/// called by the last block only.
template <class Block, class Verb>
KVPOLICY_HD void finalize_segments(Block& block, keep_set const& keep, collective_storage* storage, Verb const& verb) {
  if (block.thread() == 0) {
    keep.indptr[0] = 0;
    *keep.report = report{};
  }
  block.sync();
  report found{};
  auto const result_of = [&](int segment) { return packed_result{keep.indptr[segment + 1]}; };
  place_segments(
      block, keep.segments(), storage, [&](int segment) { return verb.number(result_of(segment)); },
      [&](int segment, std::int64_t before, std::int64_t number) {
        packed_result const result = result_of(segment);
        found.triggered += result.triggered() ? 1 : 0;
        found.unobserved += result.unobserved() ? 1 : 0;
        verb.place(result, {segment, before}, found);
        keep.indptr[segment + 1] = before + number;
      });
  add_to_report(block, keep.report->nan_scores, found.nan_scores);
  add_to_report(block, keep.report->forced_over_budget, found.forced_over_budget);
  add_to_report(block, keep.report->triggered, found.triggered);
  add_to_report(block, keep.report->unobserved, found.unobserved);
  add_to_report(block, keep.report->over_budget, found.over_budget);
  add_to_report(block, keep.report->emptied, found.emptied);
}

}  // namespace KVPOLICY_NAMESPACE::detail
