// SPDX-License-Identifier: Apache-2.0
// Verb: pools scores over neighbouring entries.
#pragma once

#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/ops/verb.hpp>

namespace KVPOLICY_NAMESPACE {

/// The maximum of the scores within (width - 1) / 2 entries on either side. Places beyond an edge are ignored.
struct max_pool {
  int width = 7;
  friend bool operator==(max_pool const&, max_pool const&) = default;
};

/// The mean over `width` entries. Places beyond an edge count as zero, and the sum is divided by `width` there, too.
struct avg_pool {
  int width = 5;
  friend bool operator==(avg_pool const&, avg_pool const&) = default;
};

/// No pooling.
struct no_pool {
  friend bool operator==(no_pool const&, no_pool const&) = default;
};

/// Any of the three, as a parameter of a scorer. It is written `max:7`, `avg:5` or `none`.
struct pooling {
  enum class kind { none, avg, max };

  kind how = kind::none;
  int width = 1;

  constexpr pooling(no_pool = {}) {}
  constexpr pooling(max_pool by) : how(kind::max), width(by.width) {}
  constexpr pooling(avg_pool by) : how(kind::avg), width(by.width) {}
  friend bool operator==(pooling const&, pooling const&) = default;
};

[[nodiscard]] inline std::string print(pooling const& by) {
  if (by.how == pooling::kind::none) return "none";
  return (by.how == pooling::kind::max ? "max:" : "avg:") + to_string(by.width);
}

/// The forms in which a pooling can be written, for error messages.
[[nodiscard]] inline std::string wanted_text(pooling const*) { return "max:K, avg:K (K odd) or none"; }

/// Reads the text that `print` writes; returns false if the text is not a pooling.
[[nodiscard]] inline bool read_text(std::string_view text, pooling& to) {
  if (text == "none") {
    to = no_pool{};
    return true;
  }
  bool const is_max = text.substr(0, 4) == "max:";
  if (!is_max && text.substr(0, 4) != "avg:") return false;
  int width{};
  auto const end = text.data() + text.size();
  auto const [stopped, failed] = std::from_chars(text.data() + 4, end, width);
  if (failed != std::errc{} || stopped != end) return false;
  to = is_max ? pooling(max_pool{width}) : pooling(avg_pool{width});
  return true;
}

namespace ops {

/// `pool(exec, by, scores, tail)`: pools each segment's scores in place over neighbouring entries.
///
/// - in, out: `scores` [segments, entries]. The last `tail` entries do not change, and do not contribute to others.
/// - Neighbours are adjacent in the cache. After an eviction they need not be adjacent in the text.
/// - NaN: both `max` and `avg` propagate NaN.
/// - cost: O(entries * width) per segment; scratch of one row of floats per worker.
/// - throws: `invalid_argument` if the width is even or below 1, or if the tail is negative.
struct pool_t : verb<pool_t> {
  static constexpr auto name = "pool";
  static void check(pooling const& by, score_view const&, int tail) {
    expects(by.width % 2 == 1, "pool", "width", by.width, "a pool has an odd width");
    expects(tail >= 0, "pool", "tail", tail, "a count cannot be negative");
  }
};
inline constexpr pool_t pool{};

}  // namespace ops
}  // namespace KVPOLICY_NAMESPACE
