// SPDX-License-Identifier: Apache-2.0
// Scores that are computed while a lane is searched for the lowest one.
#pragma once

#include <algorithm>
#include <concepts>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/vectors.hpp>
#include <limits>

namespace KVPOLICY_NAMESPACE::detail {

inline constexpr int scores_at_once = 1024;

/// A function of an entry whose values are the elements of a row.
template <class Function>
concept reads_row = requires(Function const& f, lane one) {
  { f.row(one) } -> std::same_as<float const*>;
};

/// A function of entries that has a shorter form for one lane: `in_lane(lane_entries)` returns it.
template <class Function>
concept has_lane_form = requires(Function const& f, lane_entries const& of) { f.in_lane(of); };

/// Writes the scores that a function gives to `count` entries from `first` on.
template <class Function>
[[gnu::always_inline]] inline void compute_scores(Function const& f, entry const& first, int count, int const* position,
                                                  float* __restrict to) {
  constexpr int step = 16;  // a constant number of calls, which compilers turn into vectors
  Function const call = f;
  entry const begin = first;
  int const whole = count / step * step;
  for (int e = 0; e < whole; e += step) {
    int const* const at = position + e;
    float* const made = to + e;
    int const ordinal = begin.ordinal + e;
    for (int i = 0; i < step; ++i) made[i] = call(0.0f, entry{begin.lane, ordinal + i, begin.count, at[i], 0});
  }
  for (int e = whole; e < count; ++e)
    to[e] = call(0.0f, entry{begin.lane, begin.ordinal + e, begin.count, position[e], 0});
}

#if defined(__x86_64__)
/// The same for AVX2 without its fused multiply-add, so that a function gives the same bits on every processor.
template <class Function>
KVPOLICY_VECTORIZED [[gnu::target("avx2")]] void compute_scores_avx2(Function const& f, entry const& first, int count,
                                                                     int const* position, float* __restrict to) {
  compute_scores(f, first, count, position, to);
}
#endif

/// The scores that a function gives, which are not written to a table: a source of scores for `lowest_entry`.
template <class Function>
struct computed_scores {
  Function const& f;
  isa simd_level;
  static constexpr int at_once = reads_row<Function> ? std::numeric_limits<int>::max() : scores_at_once;

  /// The scores of `count` entries of a lane, from `begin` on. The buffer has room for them.
  [[nodiscard]] float const* of(int, lane_entries const& all, int begin, int count, float* buffer) const {
    if constexpr (reads_row<Function>) {
      return f.row(all.lane) + begin;
    } else {
      entry const first{all.lane, begin, all.count, 0, 0};
      if constexpr (has_lane_form<Function>) {
        compute(f.in_lane(all), first, count, all.position + begin, buffer);
      } else {
        compute(f, first, count, all.position + begin, buffer);
      }
      return buffer;
    }
  }

 private:
  template <class Form>
  void compute(Form const& form, entry const& first, int count, int const* position, float* buffer) const {
#if defined(__x86_64__)
    if (simd_level >= isa::avx2) return compute_scores_avx2(form, first, count, position, buffer);
#endif
    compute_scores(form, first, count, position, buffer);
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail
