// Host implementation of top_k: three histogram passes find the lowest kept key, one pass emits in order.
#pragma once

#include <algorithm>
#include <bit>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/top_k.hpp>
#include <mutex>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Keys order as scores do: NaN lowest (0), then -inf, ..., +inf. No score has the key `forced_key`.
inline constexpr std::uint32_t nan_key = 0;
inline constexpr std::uint32_t forced_key = 0xFFFFFFFFu;

[[nodiscard]] inline std::uint32_t sort_key(float score) {
  auto bits = std::bit_cast<std::uint32_t>(score);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return nan_key;  // by its bits: true under -ffast-math too
  if (bits == 0x80000000u) bits = 0;                       // -0 is +0
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/// The cut of a segment: keys above `lowest` stay, and the first `ties` of those equal to it.
struct cut {
  std::uint32_t lowest = 0;
  int ties = 0;
};

/// Finds the cut that keeps exactly `k` (1 <= k <= candidates) of the keys that are not forced.
inline cut find_cut(std::uint32_t const* keys, int count, int k, int* histogram) {
  std::uint32_t prefix = 0;
  std::uint32_t known = 0;  // mask of the bits decided so far
  for (int const shift : {21, 10, 0}) {
    int const bits = shift == 0 ? 10 : 11;
    std::uint32_t const digits = (1u << bits) - 1;
    std::fill_n(histogram, digits + 1, 0);
    for (int e = 0; e < count; ++e) {
      if ((keys[e] & known) == prefix && keys[e] != forced_key) ++histogram[keys[e] >> shift & digits];
    }
    std::uint32_t digit = digits;
    while (histogram[digit] < k) k -= histogram[digit--];
    prefix |= digit << shift;
    known |= digits << shift;
  }
  return {prefix, k};
}

}  // namespace detail

template <>
struct implementation<ops::top_k_t, host> {
  static constexpr bool provided = true;

  static std::size_t scratch(shape const&, int bound) {
    return detail::scratch_of<std::uint32_t>(static_cast<std::size_t>(bound)) + detail::scratch_of<int>(2048);
  }

  template <class Rule>
  static void run(host_executor& exec, score_view const& scores, Rule const& rule, keep_set const& keep) {
    refuse_unequal_counts(scores);
    *keep.report = {};
    std::mutex counting;
    keep.offset[0] = 0;
    exec.for_each(scores.segments(), [&](int segment, int worker) {
      report found;
      int* const to = keep.ordinal + static_cast<std::int64_t>(segment) * scores.who.bound;
      keep.seen[segment] = scores.who.committed(scores.lane_of(segment));
      keep.offset[segment + 1] = select(scores, rule, segment, exec.scratch(worker), to, found);
      std::lock_guard const lock(counting);
      keep.report->nan_scores += found.nan_scores;
      keep.report->forced_over_budget += found.forced_over_budget;
      keep.report->triggered += found.triggered;
    });
    close_gaps(scores, keep);
  }

 private:
  static void refuse_unequal_counts(score_view const& scores) {
    if (scores.decides == granularity::lane) return;
    for (int i = 0; i < scores.who.size(); ++i) {
      lane const first = scores.lane_of(segment_of(scores.who, scores.decides, i));
      expects(scores.who.committed(scores.who.at(i)) == scores.who.committed(first), "top_k", "count",
              scores.who.committed(scores.who.at(i)), "lanes that decide together hold equally many entries");
    }
  }

  /// Writes one segment's kept ordinals and returns how many.
  template <class Rule>
  static int select(score_view const& scores, Rule const& rule, int segment, std::span<std::byte> memory, int* to,
                    report& found) {
    lane const who = scores.lane_of(segment);
    int const count = scores.who.committed(who);
    int const budget = rule.budget(who, count);
    if (!rule.triggers(count, budget)) {
      for (int e = 0; e < count; ++e) to[e] = e;
      return count;
    }
    found.triggered = 1;
    detail::scratch_arena arena(memory);
    auto* const keys = arena.take<std::uint32_t>(static_cast<std::size_t>(count));
    int forced = 0;
    int const* const position = scores.who.position.row(who);
    float const* const score = scores.row(segment);
    for (int e = 0; e < count; ++e) {
      bool const must = rule.forces(entry{who, e, count, position[e], budget});
      keys[e] = must ? detail::forced_key : detail::sort_key(score[e]);
      forced += must ? 1 : 0;
      found.nan_scores += keys[e] == detail::nan_key ? 1 : 0;
    }
    found.forced_over_budget = forced > budget ? 1 : 0;
    int const k = std::clamp(budget - forced, 0, count - forced);
    return emit(keys, count, k, arena.take<int>(2048), to);
  }

  static int emit(std::uint32_t const* keys, int count, int k, int* histogram, int* to) {
    detail::cut const at = k > 0 ? detail::find_cut(keys, count, k, histogram) : detail::cut{detail::forced_key, 0};
    int ties = at.ties;
    int kept = 0;
    for (int e = 0; e < count; ++e) {
      bool const above = keys[e] == detail::forced_key || keys[e] > at.lowest;
      bool const tied = !above && keys[e] == at.lowest && ties > 0;
      ties -= tied ? 1 : 0;
      if (above || tied) to[kept++] = e;
    }
    return kept;
  }

  /// Segments were written `bound` ordinals apart; moving them together never overtakes.
  static void close_gaps(score_view const& scores, keep_set const& keep) {
    for (int segment = 0; segment < scores.segments(); ++segment) {
      int const* const from = keep.ordinal + static_cast<std::int64_t>(segment) * scores.who.bound;
      auto const kept = keep.offset[segment + 1];
      int* const to = keep.ordinal + keep.offset[segment];
      if (to != from) std::copy_n(from, kept, to);
      keep.offset[segment + 1] = keep.offset[segment] + kept;
    }
  }
};

}  // namespace KVPOLICY_NAMESPACE
