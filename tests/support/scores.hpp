// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <kvpolicy/kvpolicy.hpp>
#include <ostream>
#include <span>

#include "reference/basics.hpp"
#include "reference/selection.hpp"
#include "support/dice.hpp"

namespace kvpolicy_test {

namespace kv = kvpolicy;
namespace reference = kvpolicy_reference;

/// How far a float result may be from the reference in double.
inline constexpr double relative_tolerance = 1e-5;
inline constexpr double absolute_tolerance = 1e-7;

/// `scale`: how large the numbers were whose sum this is, where they cancel.
inline bool close(double actual, double expected, double scale = 0) {
  if (std::isnan(expected)) return std::isnan(actual);
  if (std::isinf(expected)) return actual == expected;
  return std::abs(actual - expected) <= relative_tolerance * std::max(std::abs(expected), scale) + absolute_tolerance;
}

/// A failed comparison of rows prints the first entry that differs.
struct comparison {
  bool same = true;
  std::size_t entry = 0;
  double actual = 0;
  double expected = 0;
  explicit operator bool() const { return same; }
};

inline std::ostream& operator<<(std::ostream& out, comparison const& of) {
  if (of.same) return out << "same";
  return out << "entry " << of.entry << ": " << of.actual << ", the reference says " << of.expected;
}

inline comparison compare(std::span<float const> actual, reference::row const& expected, double scale = 0) {
  if (actual.size() != expected.size()) return {false, expected.size(), static_cast<double>(actual.size()), -1};
  for (std::size_t e = 0; e < expected.size(); ++e) {
    if (!close(static_cast<double>(actual[e]), expected[e], scale)) {
      return {false, e, static_cast<double>(actual[e]), expected[e]};
    }
  }
  return {};
}

/// Bit for bit the same, but that any NaN is like any other.
inline bool same_bits(std::span<float const> a, std::span<float const> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) {
    return std::memcmp(&x, &y, sizeof x) == 0 || (std::isnan(x) && std::isnan(y));
  });
}

/// True if a keep set is what `scores` (in double) say, but for pairs of scores closer than the tolerance: every forced
/// entry, the right number, ascending, and no kept candidate clearly below a dropped one.
inline bool decided_by(std::vector<int> const& kept, reference::row const& scores, reference::flags const& forced,
                       int budget, int slack = 0) {
  reference::selection const expected = reference::select(scores, forced, budget, slack);
  if (kept.size() != expected.kept.size()) return false;
  reference::flags is_kept(scores.size(), false);
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (i > 0 && kept[i] <= kept[i - 1]) return false;
    is_kept[as_size(kept[i])] = true;
  }
  for (std::size_t a = 0; a < scores.size(); ++a) {
    if (forced[a] && !is_kept[a]) return false;
    for (std::size_t b = 0; b < scores.size(); ++b) {
      bool const wrong = is_kept[a] && !forced[a] && !is_kept[b] && reference::outranks(scores[b], scores[a]);
      if (wrong && !close(scores[b], scores[a])) return false;
    }
  }
  return true;
}

/// Scores of `lanes` in memory of their own: `stride` floats a segment, all of them `filler` at first.
class owned_scores {
 public:
  explicit owned_scores(kv::lanes const& batch, kv::granularity decides = kv::granularity::lane, int more = 3,
                        float filler = 0.5f)
      : stride_(batch.capacity + more),
        values_(as_size(kv::segments(batch, decides) * stride_), filler),
        view_(kv::contiguous_scores(batch, decides, values_.data(), stride_)) {}
  owned_scores(owned_scores const&) = delete;
  owned_scores& operator=(owned_scores const&) = delete;

  [[nodiscard]] kv::score_view const& view() const { return view_; }
  [[nodiscard]] std::span<float> row(int segment, int count) { return {view_.row(segment), as_size(count)}; }
  [[nodiscard]] int stride() const { return static_cast<int>(stride_); }
  [[nodiscard]] std::vector<float>& all() { return values_; }

 private:
  std::int64_t stride_;
  std::vector<float> values_;
  kv::score_view view_;
};

/// One listed segment as a vector.
inline std::vector<int> listed(kv::keep_set const& keep, int segment) {
  auto const some = keep.listed(segment);
  return {some.begin(), some.end()};
}

}  // namespace kvpolicy_test
