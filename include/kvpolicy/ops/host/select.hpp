// The k-th best of many scores: a sample brackets it, one pass counts what is above the bracket and collects what is
// inside, and the collected are narrowed down. Exact: where the bracket misses, all scores are narrowed down.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <kvpolicy/ops/host/select_kernels.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// The cut that keeps `k` (1 <= k <= n) of keys in [low, high]; shuffles them. Each round divides the range by 256.
inline cut narrow(std::uint32_t* keys, int n, int k, std::uint32_t low, std::uint32_t high) {
  while (n > 48 && low < high) {
    int const shift = std::max(0, static_cast<int>(std::bit_width(high - low)) - 8);
    int bins[256] = {};
    for (int i = 0; i < n; ++i) ++bins[(keys[i] - low) >> shift];
    std::uint32_t bin = (high - low) >> shift;
    while (bins[bin] < k) k -= bins[bin--];
    low += bin << shift;
    high = std::min(high, low + ((1u << shift) - 1));
    n = bins[bin];
    for (int i = 0, kept = 0; kept < n; ++i) {
      std::uint32_t const key = keys[i];
      keys[kept] = key;
      kept += key - low <= high - low ? 1 : 0;
    }
  }
  if (low == high) return {low, k};
  std::nth_element(keys, keys + (k - 1), keys + n, std::greater<>{});
  std::uint32_t const lowest = keys[k - 1];
  return {lowest, k - std::count_if(keys, keys + k, [&](std::uint32_t key) { return key > lowest; })};
}

/// A sample of scores, spread evenly, in pieces of a few neighbours.
class score_sample {
 public:
  static constexpr int size = 1024;
  static constexpr int least = 2048;  ///< entries that are worth sampling

  score_sample(float const* scores, int count) {
    for (int i = 0; i < size; i += piece) {
      std::int64_t const from = static_cast<std::int64_t>(i) * (count - piece) / (size - piece);
      for (int j = 0; j < piece; ++j) keys_[i + j] = sort_key(scores[from + j]);
    }
    for (std::uint32_t const key : keys_) {
      low_ = std::min(low_, key);
      high_ = std::max(high_, key);
    }
  }

  /// The key of which about `rank` of the sample's are larger or equal; 0 or less: above all; over its size: below all.
  [[nodiscard]] std::uint32_t at(int rank) const {
    if (rank < 1) return forced_key - 1;
    if (rank > size) return nan_key;
    std::uint32_t some[size];
    std::copy_n(keys_, size, some);
    return narrow(some, size, rank, low_, high_).lowest;
  }

 private:
  static constexpr int piece = 4;
  std::uint32_t keys_[size];
  std::uint32_t low_ = forced_key;
  std::uint32_t high_ = out_key;
};

/// What is found of a run of scores.
struct found_cut {
  cut at{};
  int nan = 0;
};

/// The cut that keeps exactly `k` (1 <= k <= count) of them. `room` has place for `count` keys.
inline found_cut narrow_all(float const* scores, int count, int k, std::uint32_t* room) {
  found_cut found;
  std::uint32_t low = forced_key;
  std::uint32_t high = out_key;
  for (int e = 0; e < count; ++e) {
    room[e] = sort_key(scores[e]);
    found.nan += room[e] == nan_key ? 1 : 0;
    low = std::min(low, room[e]);
    high = std::max(high, room[e]);
  }
  found.at = narrow(room, count, k, low, high);
  return found;
}

[[nodiscard]] inline int count_nan(float const* scores, int count) {
  int nan = 0;
  for (int e = 0; e < count; ++e) nan += sort_key(scores[e]) == nan_key ? 1 : 0;
  return nan;
}

/// As narrow_all, from a sample first.
inline found_cut find_cut(select_kernels const& kernels, float const* scores, int count, int k, std::uint32_t* room) {
  if (count < score_sample::least) return narrow_all(scores, count, k, room);
  score_sample const sample(scores, count);
  double const share = static_cast<double>(k) / count;
  int const rank = static_cast<int>(share * score_sample::size);
  int const doubt = static_cast<int>(3.5 * std::sqrt(score_sample::size * share * (1 - share))) + 4;
  std::uint32_t const low = std::max(sample.at(rank + doubt), nan_key + 1);
  std::uint32_t const high = std::max(sample.at(rank - doubt), low);
  float const from = score_of_key(std::min(low, sort_key(HUGE_VALF)));
  float const to = score_of_key(std::min(high, sort_key(HUGE_VALF)));
  bracket_counts const counts = kernels.bracket(scores, count, from, to, room);
  if (k <= counts.above || k > counts.above + counts.inside) return narrow_all(scores, count, k, room);
  int const left = k - counts.above;
  if (from == to) return {{sort_key(from), left}, counts.nan};
  for (int i = 0; i < counts.inside; ++i) room[i] = sort_key(std::bit_cast<float>(room[i]));
  return {narrow(room, counts.inside, left, sort_key(from), sort_key(to)), counts.nan};
}

/// Keys that lie in several rows, one after another.
struct key_rows {
  std::uint32_t const* keys;
  std::int64_t stride;
  int const* counts;  ///< of each row
  int rows;

  template <class Visit>
  void for_each(Visit const& visit) const {
    for (int r = 0; r < rows; ++r) {
      std::uint32_t const* const row = keys + r * stride;
      for (int e = 0; e < counts[r]; ++e) visit(row[e]);
    }
  }
};

/// By three histograms of their digits: the cut that keeps exactly `k` (1 <= k <= candidates) of the keys that are
/// below `forced_key`.
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
