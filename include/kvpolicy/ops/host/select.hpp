// SPDX-License-Identifier: Apache-2.0
// Finds the k-th largest of many scores. A sample brackets it, one pass counts the scores above the bracket and
// collects those inside, and these are narrowed down. The result is exact: if the bracket misses, all scores are
// narrowed down.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <kvpolicy/ops/host/kernels/select.hpp>
#include <kvpolicy/ops/host/segment_keys.hpp>
#include <span>
#include <utility>

namespace KVPOLICY_NAMESPACE::detail {

/// The cut of some scores, and their number of NaNs.
struct found_cut {
  cut at{};
  std::int64_t nan = 0;
  bool found = true;  ///< false, of a pool only: the cut is that of a NaN, or the candidates are too few for a sample
};

/// Keys in several rows, one after another.
struct key_rows {
  std::uint32_t const* keys;
  std::int64_t stride;
  int const* counts;  ///< number of keys in each row
  int rows;

  template <class Visit>
  void for_each(Visit const& visit) const {
    for (int r = 0; r < rows; ++r) {
      std::uint32_t const* const row = keys + r * stride;
      for (int e = 0; e < counts[r]; ++e) visit(row[e]);
    }
  }
};

/// Counts of keys in [low, high] in 2^Bits bins of equal width.
template <class Count, int Bits>
struct key_bins {
  std::uint32_t low;
  std::uint32_t high;
  int shift;
  Count count[1 << Bits] = {};

  key_bins(std::uint32_t from, std::uint32_t to)
      : low(from), high(to), shift(std::max(0, static_cast<int>(std::bit_width(to - from)) - Bits)) {}

  [[nodiscard]] bool has(std::uint32_t key) const { return key - low <= high - low; }
  void add(std::uint32_t key) { ++count[(key - low) >> shift]; }

  /// Narrows [low, high] to the bin of the k-th largest key, and returns its rank within the bin.
  Count choose(Count k) {
    std::uint32_t bin = (high - low) >> shift;
    while (count[bin] < k) k -= count[bin--];
    low += bin << shift;
    high = low + std::min(high - low, (1u << shift) - 1);
    return k;
  }
};

using bins_of_256 = key_bins<int, 8>;

/// Copies the keys that are in the range of some bins to the front of `to`, which may be `keys`, and returns their
/// number. It calls meanwhile(i) for every key.
template <class Meanwhile>
int keep_in_range(bins_of_256 const& range, std::uint32_t const* keys, int n, std::uint32_t* to,
                  Meanwhile const& meanwhile) {
  std::uint32_t const low = range.low, width = range.high - range.low;
  int kept = 0;
  for (int i = 0; i < n; ++i) {
    std::uint32_t const key = keys[i];
    to[kept] = key;
    kept += key - low <= width ? 1 : 0;
    meanwhile(i);
  }
  return kept;
}

/// Finds the cut that keeps `k` (1 <= k <= n) of the keys in [low, high], and permutes them. Each round divides the
/// range by 256.
inline cut narrow(std::uint32_t* keys, int n, int k, std::uint32_t low, std::uint32_t high) {
  while (n > 48 && low < high) {
    bins_of_256 bins(low, high);
    for (int i = 0; i < n; ++i) bins.add(keys[i]);
    k = bins.choose(k);
    low = bins.low;
    high = bins.high;
    n = keep_in_range(bins, keys, n, keys, [](int) {});
  }
  if (low == high) return {low, k};
  std::nth_element(keys, keys + (k - 1), keys + n, std::greater<>{});
  std::uint32_t const lowest = keys[k - 1];
  return {lowest, k - std::count_if(keys, keys + k, [&](std::uint32_t key) { return key > lowest; })};
}

/// Finds the cut that keeps exactly `k` (1 <= k <= count) scores. `temp_storage` has `count` elements.
inline found_cut narrow_all(float const* scores, int count, int k, std::uint32_t* temp_storage) {
  found_cut found;
  std::uint32_t low = forced_key;
  std::uint32_t high = below_all_keys;
  for (int e = 0; e < count; ++e) {
    temp_storage[e] = radix_key(scores[e]);
    found.nan += temp_storage[e] == nan_key ? 1 : 0;
    low = std::min(low, temp_storage[e]);
    high = std::max(high, temp_storage[e]);
  }
  found.at = narrow(temp_storage, count, k, low, high);
  return found;
}

[[nodiscard]] inline int count_nan(float const* scores, int count) {
  int nan = 0;
  for (int e = 0; e < count; ++e) nan += radix_key(scores[e]) == nan_key ? 1 : 0;
  return nan;
}

/// Keys between which the k-th largest of many scores probably lies, estimated from a sample. Neither key is that of a
/// NaN.
struct bracket_keys {
  static constexpr std::uint32_t lowest = 0x007FFFFFu;  ///< the key of -inf
  static constexpr std::uint32_t highest = infinite_key;

  std::uint32_t low = lowest;
  std::uint32_t high = highest;

  /// How many keys a sample may have.
  static constexpr int most = 4096;

  bracket_keys() = default;

  /// Of a sample whose keys are in `ends`: `fraction` is k over the number of scores, and `deviations` is how many
  /// standard deviations the bracket reaches to either side.
  bracket_keys(std::span<std::uint32_t const> sample, std::pair<std::uint32_t, std::uint32_t> ends, double fraction,
               double deviations) {
    int const size = static_cast<int>(sample.size());
    int const rank = static_cast<int>(fraction * size);
    int const doubt = static_cast<int>(deviations * std::sqrt(size * fraction * (1 - fraction))) + 4;
    bins_of_256 bins(ends.first, ends.second);
    for (std::uint32_t const key : sample) bins.add(key);
    if (rank + doubt <= size) low = at(sample, bins, rank + doubt);
    if (rank - doubt >= 1) high = at(sample, bins, rank - doubt);
    low = std::clamp(low, lowest, highest);
    high = std::clamp(high, low, highest);
  }

 private:
  static std::uint32_t at(std::span<std::uint32_t const> sample, bins_of_256 bins, int rank) {
    rank = bins.choose(rank);
    std::uint32_t some[most];
    int const kept = keep_in_range(bins, sample.data(), static_cast<int>(sample.size()), some, [](int) {});
    std::nth_element(some, some + (rank - 1), some + kept, std::greater<>{});
    return some[rank - 1];
  }
};

/// Like narrow_all, but a sample brackets the k-th largest key first. A bracket that misses shows on which side the cut
/// is; then that side is collected. This is selection by sampling, as Floyd and Rivest do it. While the bracket is
/// narrowed down, little is read from memory, so `ahead` prefetches the scores of the next segment.
inline found_cut find_cut(select_kernels const& kernels, float const* scores, int count, int k,
                          std::uint32_t* temp_storage, row_prefetcher& ahead) {
  if (count < 2 * sample_keys::size) return narrow_all(scores, count, k, temp_storage);
  sample_keys sample;
  kernels.sample(scores, count, sample);
  bracket_keys range(sample.keys, {sample.low, sample.high}, static_cast<double>(k) / count, 3.2);
  bracket_counts counts{};
  for (bool again = false;; again = true) {
    counts = kernels.bracket(scores, count, score_of_key(range.low), score_of_key(range.high), temp_storage);
    bool const is_above = k <= counts.above;
    if (!is_above && k <= counts.above + counts.inside) break;
    if (again) return narrow_all(scores, count, k, temp_storage);  // the cut is NaN
    (is_above ? range.low : range.high) = is_above ? range.high : range.low;
    (is_above ? range.high : range.low) = is_above ? bracket_keys::highest : bracket_keys::lowest;
  }
  int left = k - counts.above;
  if (range.low == range.high) return {{range.low, left}, counts.nan};
  auto const prefetch = [&](int i) {
    if (i % 4 == 0) ahead.next();
  };
  bins_of_256 bins(range.low, range.high);
  for (int i = 0; i < counts.inside; ++i) {
    temp_storage[i] = radix_key(std::bit_cast<float>(temp_storage[i]));
    bins.add(temp_storage[i]);
    prefetch(i);
  }
  left = bins.choose(left);
  int const kept = keep_in_range(bins, temp_storage, counts.inside, temp_storage, prefetch);
  return {narrow(temp_storage, kept, left, bins.low, bins.high), counts.nan};
}

/// Finds the cut that keeps exactly `k` (1 <= k <= candidates) of the keys that are below `forced_key`, with three
/// histograms of their digits.
inline cut find_cut_of_rows(key_rows const& in, std::int64_t k, std::int64_t* histogram) {
  std::uint32_t prefix = 0;
  std::uint32_t known = 0;  // mask of the bits decided so far
  for (int const shift : {21, 10, 0}) {
    int const bits = shift == 0 ? 10 : 11;
    std::uint32_t const digits = (1u << bits) - 1;
    std::fill_n(histogram, digits + 1, 0);
    in.for_each([&](std::uint32_t key) {
      if ((key & known) == prefix && key != forced_key) ++histogram[key >> shift & digits];
    });
    std::uint32_t digit = digits;
    while (histogram[digit] < k) k -= histogram[digit--];
    prefix |= digit << shift;
    known |= digits << shift;
  }
  return {prefix, k};
}

}  // namespace KVPOLICY_NAMESPACE::detail
