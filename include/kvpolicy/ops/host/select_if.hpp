// SPDX-License-Identifier: Apache-2.0
// Host implementation of select_if.
#pragma once

#include <kvpolicy/core/observed.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/kernels/listing.hpp>
#include <kvpolicy/ops/host/segment_keys.hpp>
#include <kvpolicy/ops/host/segments.hpp>
#include <kvpolicy/ops/select_if.hpp>
#include <mutex>
#include <type_traits>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// How many entries were picked or forced, and how many others have a NaN as their score.
struct picked_entries {
  int kept = 0;
  int nan = 0;
};

/// The entries of one segment: their scores and positions, and what they have in common.
struct scored_entries {
  float const* score;
  int const* position;
  lane of;
  int count;
};

/// The words of 32 bits that hold a bit for each of `count` entries.
[[nodiscard]] constexpr int words_of_entries(int count) { return count / 32 + (count % 32 != 0 ? 1 : 0); }

/// Sets a bit for each entry that a rule picks, and, unless its forced entries are visited afterwards, for each that it
/// forces. Loops of a constant length, which compilers turn into vectors, first mark them with -1.
template <class Rule>
[[gnu::always_inline]] inline picked_entries pick_entries(listing_kernels const& kernels, Rule const& rule,
                                                          scored_entries const& in, std::uint32_t* bits) {
  constexpr int step = 64;
  std::conditional_t<std::is_trivially_copyable_v<Rule>, Rule const, Rule const&> call = rule;
  scored_entries const from = in;
  picked_entries found;
  int mark[step] = {};
  int e = 0;
  for (; e + step <= from.count; e += step) {
    float const* const score = from.score + e;
    for (int i = 0; i < step; ++i) mark[i] = picks_score(call, score[i], from.of) ? -1 : 0;
    if constexpr (!visits_forced<Rule>) {
      int const* const position = from.position + e;
      for (int i = 0; i < step; ++i) {
        mark[i] |= call.forces(entry{from.of, e + i, from.count, position[i], 0}) ? -1 : 0;
      }
    }
    int nan = 0;
    for (int i = 0; i < step; ++i) nan |= score[i] != score[i] ? -1 : 0;
    for (int i = 0; i < step; i += 32) {
      std::uint32_t const stays = kernels.signs(mark + i);
      bits[(e + i) / 32] = stays;
      found.kept += __builtin_popcount(stays);
    }
    for (int i = 0; nan != 0 && i < step; ++i) found.nan += mark[i] == 0 && score[i] != score[i] ? 1 : 0;
  }
  for (std::uint32_t word = 0; e < from.count; ++e) {
    bool stays = false;
    if constexpr (!visits_forced<Rule>) stays = call.forces(entry{from.of, e, from.count, from.position[e], 0});
    stays = stays || picks_score(call, from.score[e], from.of);
    found.nan += !stays && from.score[e] != from.score[e] ? 1 : 0;
    found.kept += stays ? 1 : 0;
    word |= (stays ? 1u : 0u) << (e & 31);
    if ((e & 31) != 31 && e + 1 < from.count) continue;
    bits[e / 32] = word;
    word = 0;
  }
  return found;
}

/// Sets the bits of the forced entries that a rule did not pick.
template <class Rule>
void add_forced(score_view const& scores, Rule const& rule, scored_entries const& in, std::uint32_t* bits,
                picked_entries& found) {
  visit_forced_of(scores, rule, {in.of, in.count, 0, in.position}, [&](int e) {
    std::uint32_t const bit = 1u << (e & 31);
    if ((bits[e / 32] & bit) != 0) return;
    bits[e / 32] |= bit;
    ++found.kept;
    found.nan -= in.score[e] != in.score[e] ? 1 : 0;
  });
}

/// The same for AVX2 without its fused multiply-add, so that a rule decides the same on every processor.
template <class Rule>
KVPOLICY_VECTORIZED
#if defined(__x86_64__)
    [[gnu::target("avx2,popcnt")]]
#endif
    picked_entries pick_entries_avx2(listing_kernels const& kernels, Rule const& rule, scored_entries const& in,
                                     std::uint32_t* bits) {
  return pick_entries(kernels, rule, in, bits);
}

}  // namespace detail

/// Bits say which entries stay. They are at the end of the memory of the ordinals, so that a segment's ordinals are
/// written once, to their place, when the numbers of all segments before it are known.
template <>
struct implementation<ops::select_if_t, host> {
  template <class Rule>
  static void run(host_executor& exec, score_view const& scores, Rule const& rule, keep_set const& keep) {
    if (!scores.same_tokens) detail::refuse_other_tokens("select_if", scores);
    detail::unfinished_keep written(keep);
    *keep.report = {};
    std::mutex counting;
    exec.for_each(scores.segments(), [&](int segment, int) {
      report found{.nan_scores = pick(exec, scores, rule, segment, keep)};
      found.triggered = keep.indptr[segment + 1] < keep.entry_count[segment] ? 1 : 0;
      found.unobserved = found.triggered > 0 && detail::decides_unobserved(rule, scores, segment) ? 1 : 0;
      found.emptied =
          detail::counts_emptied(rule) && keep.entry_count[segment] > 0 && keep.indptr[segment + 1] == 0 ? 1 : 0;
      if (found == report{}) return;
      std::lock_guard const lock(counting);
      *keep.report += found;
    });
    list(exec, scores, keep);
    written.finish();
  }

 private:
  /// The bits of a segment. The ordinals of this segment and of those before it end before the bits of the next one,
  /// and no ordinal of an entry overwrites the bit of a later entry of its segment.
  static std::uint32_t* bits_of(score_view const& scores, int segment, keep_set const& keep) {
    std::int64_t const words = detail::words_of_entries(scores.lanes.capacity);
    std::int64_t const end = static_cast<std::int64_t>(scores.segments()) * scores.lanes.capacity;
    return reinterpret_cast<std::uint32_t*>(keep.indices) + (end - (scores.segments() - segment) * words);
  }

  template <class Rule>
  static std::int64_t pick(host_executor const& exec, score_view const& scores, Rule const& rule, int segment,
                           keep_set const& keep) {
    lane const this_lane = scores.lane_of(segment);
    detail::scored_entries const in{scores.row(segment), scores.lanes.position.row(this_lane), this_lane,
                                    scores.lanes.committed(this_lane)};
    std::uint32_t* const bits = bits_of(scores, segment, keep);
    detail::listing_kernels const& kernels = detail::listing_of_isa[exec.simd_level()];
    detail::picked_entries found = exec.simd_level() >= isa::avx2 ? detail::pick_entries_avx2(kernels, rule, in, bits)
                                                                  : detail::pick_entries(kernels, rule, in, bits);
    if constexpr (detail::visits_forced<Rule>) detail::add_forced(scores, rule, in, bits, found);
    keep.note(segment, this_lane, in.count);
    keep.indptr[segment + 1] = found.kept;
    return found.nan;
  }

  /// Lists the ordinals of every segment. Those that reach into the memory of the bits are written in order.
  static void list(host_executor& exec, score_view const& scores, keep_set const& keep) {
    keep.indptr[0] = 0;
    for (int i = 0; i < scores.segments(); ++i) keep.indptr[i + 1] += keep.indptr[i];
    std::int64_t const free = reinterpret_cast<int const*>(bits_of(scores, 0, keep)) - keep.indices;
    int apart = 0;
    while (apart < scores.segments() && keep.indptr[apart + 1] <= free) ++apart;
    auto const one = [&](int segment, int) {
      auto const listed = static_cast<int>(keep.indptr[segment + 1] - keep.indptr[segment]);
      detail::listing_of_isa[exec.simd_level()].bits(bits_of(scores, segment, keep), keep.entry_count[segment], listed,
                                                     keep.indices + keep.indptr[segment]);
    };
    exec.for_each(apart, one);
    for (int segment = apart; segment < scores.segments(); ++segment) one(segment, 0);
  }
};

}  // namespace KVPOLICY_NAMESPACE
