// SPDX-License-Identifier: Apache-2.0
// Finds the k-th largest of the scores of several segments, which share a budget. As for one segment, a sample brackets
// it; then all threads count the scores above the bracket and collect those inside. The result is exact, and depends
// neither on the sample nor on the number of threads.
#pragma once

#include <atomic>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/select.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// The candidates of one segment of a pool. `temp_storage` has as many elements.
struct candidate_row {
  float const* scores;
  int count;
  std::uint32_t* temp_storage;
};

/// The candidates of all segments of a pool: `row(of, segment)` for each segment below `rows`.
struct candidate_rows {
  void const* of;
  candidate_row (*row)(void const*, int segment);
  int rows;

  [[nodiscard]] candidate_row at(int segment) const { return row(of, segment); }
};

/// Estimates the bracket of the k-th largest of `total` >= 2048 scores, from pieces of neighbours that are evenly
/// spaced. A segment has pieces in proportion to its candidates.
inline bracket_keys bracket_of_pool(candidate_rows const& in, std::int64_t total, std::int64_t k) {
  constexpr int piece = 4;
  std::uint32_t keys[bracket_keys::most];
  std::int64_t const pieces = std::clamp<std::int64_t>(total / 64, 512, bracket_keys::most) / piece;
  std::uint32_t low = forced_key;
  std::uint32_t high = below_all_keys;
  std::size_t taken = 0;
  std::int64_t before = 0;
  for (int r = 0; r < in.rows; ++r) {
    candidate_row const row = in.at(r);
    std::int64_t const mine = (before + row.count) * pieces / total - before * pieces / total;
    before += row.count;
    if (row.count < piece) continue;
    for (std::int64_t i = 0; i < mine; ++i) {
      float const* const from = row.scores + (2 * i + 1) * (row.count - piece) / (2 * mine);
      for (int e = 0; e < piece; ++e) {
        std::uint32_t const key = radix_key(from[e]);
        keys[taken++] = key;
        low = std::min(low, key);
        high = std::max(high, key);
      }
    }
  }
  if (taken == 0) return {};
  return {{keys, taken}, {low, high}, static_cast<double>(k) / static_cast<double>(total), 4.0};
}

/// Like bracket_counts, but of all segments.
struct pool_counts {
  std::atomic<std::int64_t> above = 0;
  std::atomic<std::int64_t> inside = 0;
  std::atomic<std::int64_t> nan = 0;
};

/// Counts scores, and stores the keys of those inside of the bracket; `inside` is their number in each segment.
inline void bracket_pool(host_executor& exec, candidate_rows const& in, bracket_keys const& range, pool_counts& counts,
                         std::int64_t* inside) {
  select_kernels const& kernels = select_of_isa[exec.simd_level()];
  float const low = score_of_key(range.low);
  float const high = score_of_key(range.high);
  exec.for_each(in.rows, [&](int segment, int) {
    candidate_row const row = in.at(segment);
    bracket_counts const mine = kernels.bracket(row.scores, row.count, low, high, row.temp_storage);
    inside[segment] = mine.inside;
    for (int i = 0; range.low != range.high && i < mine.inside; ++i) {
      row.temp_storage[i] = radix_key(std::bit_cast<float>(row.temp_storage[i]));
    }
    counts.above += mine.above;
    counts.inside += mine.inside;
    counts.nan += mine.nan;
  });
}

/// Finds the cut that keeps `k` of the keys that are inside of the bracket. Each round divides the range by 2048.
inline cut narrow_pool(candidate_rows const& in, bracket_keys range, std::int64_t k, std::int64_t const* inside) {
  while (range.low < range.high) {
    key_bins<std::int64_t, 11> bins(range.low, range.high);
    for (int r = 0; r < in.rows; ++r) {
      std::uint32_t const* const keys = in.at(r).temp_storage;
      for (std::int64_t i = 0; i < inside[r]; ++i) {
        if (bins.has(keys[i])) bins.add(keys[i]);
      }
    }
    k = bins.choose(k);
    range.low = bins.low;
    range.high = bins.high;
  }
  return {range.low, k};
}

/// Finds the cut that keeps exactly `k` (1 <= k < total) of the candidates. If it is found, `ties` is the number of
/// scores equal to it in each segment.
inline found_cut find_cut_of_pool(host_executor& exec, candidate_rows const& in, std::int64_t total, std::int64_t k,
                                  std::int64_t* ties) {
  if (total < 2048) return {.found = false};
  bracket_keys range = bracket_of_pool(in, total, k);
  for (bool again = false;; again = true) {
    pool_counts counts;
    bracket_pool(exec, in, range, counts, ties);
    std::int64_t const left = k - counts.above;
    if (left > 0 && left <= counts.inside) {
      if (range.low == range.high) return {{range.low, left}, counts.nan, true};
      cut const at = narrow_pool(in, range, left, ties);
      exec.for_each(in.rows, [&](int segment, int) {
        std::uint32_t const* const keys = in.at(segment).temp_storage;
        ties[segment] = std::count(keys, keys + ties[segment], at.lowest);
      });
      return {at, counts.nan, true};
    }
    if (again) return {.found = false};
    std::uint32_t const edge = left <= 0 ? range.high : range.low;
    range.low = left <= 0 ? edge : bracket_keys::lowest;
    range.high = left <= 0 ? bracket_keys::highest : edge;
  }
}

}  // namespace KVPOLICY_NAMESPACE::detail
