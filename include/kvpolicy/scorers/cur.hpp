// SPDX-License-Identifier: Apache-2.0
// CurDKV keeps the entries whose keys and values are long among their neighbours.
#pragma once

#include <array>
#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/ops/normalise.hpp>
#include <kvpolicy/ops/row_norm.hpp>
#include <kvpolicy/parts/protect.hpp>
#include <kvpolicy/scorers/concept.hpp>

namespace KVPOLICY_NAMESPACE {

/// Which leverages a score is made of: their product, that of the key, that of the value, or their mean.
enum class leverage_of { product, key, value, mean };

[[nodiscard]] constexpr std::array<char const*, 4> names(leverage_of) { return {"product", "key", "value", "mean"}; }

/// Scores each entry by approximate leverages of its key and of its value, as CUR decompositions choose rows (Sengupta
/// et al. 2025, arXiv:2509.15038, as kvpress computes them).
///
///     a_j = ||k_j||^2 / sum of ||k||^2     b_j = ||v_j||^2 / sum of ||v||^2      sums over the block of entry j
///     s_j = a_j b_j / sum of a b over the lane
///
/// Blocks are `block` entries long, the first one begins at the lane's first entry, and the last one may be shorter. A
/// block of zeros has leverages of 0. The first positions are forced. The plan has N floats more for each lane.
struct cur {
  int sinks = 4;   ///< the first positions, which are kept
  int block = 16;  ///< entries among which leverages are shares; 0: they are squares of norms
  leverage_of of = leverage_of::product;

  static constexpr auto name = "cur";
  static constexpr auto fields() {
    return make_fields(field{"sinks", &cur::sinks}, field{"block", &cur::block}, field{"of", &cur::of});
  }
  using needs = kvpolicy::needs<keys, values>;
  static constexpr granularity decides = granularity::lane;
  static constexpr bool prompts_only = true;

  void check(char const* call) const {
    expects(sinks >= 0, call, "cur.sinks", sinks, "a count cannot be negative");
    expects(block >= 0, call, "cur.block", block, "a count cannot be negative; 0 is no blocks");
  }
  [[nodiscard]] constexpr kvpolicy::sinks forces() const { return {sinks}; }
  [[nodiscard]] static constexpr int spare_rows(lanes const& batch, shape const&) { return batch.size(); }

  /// The square of a norm.
  struct squared {
    KVPOLICY_HD float operator()(float, float norm) const { return norm * norm; }
  };
  /// The product of an entry's two leverages, or their mean.
  struct joined {
    bool product;
    by_lane<float> other;
    KVPOLICY_HD float operator()(float one, entry at) const {
      float const more = other.row(at.lane)[at.ordinal];
      return product ? one * more : 0.5f * (one + more);
    }
  };

  void score(auto& exec, auto const& in, score_view const& out) const {
    auto const leverages = [&](row_view const& rows, score_view const& to) {
      ops::row_norm(exec, rows, squared{}, to);
      if (block > 0) ops::normalise(exec, normalising::sum, to, {block, 0});
    };
    if (of == leverage_of::value) {
      leverages(in.template get<values>(), out);
    } else {
      leverages(in.template get<keys>(), out);
    }
    if (of == leverage_of::product || of == leverage_of::mean) {
      score_view const other = contiguous_scores(out.lanes, granularity::lane, out.spare, out.lanes.capacity);
      leverages(in.template get<values>(), other);
      ops::map(exec, out, joined{of == leverage_of::product, other.rows});
    }
    ops::normalise(exec, normalising::sum, out);
  }

  friend bool operator==(cur const&, cur const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
