// SPDX-License-Identifier: Apache-2.0
// TRIM-KV keeps the tokens with the highest predicted retention.
#pragma once

#include <cmath>
#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/ops/row_norm.hpp>
#include <kvpolicy/parts/protect.hpp>
#include <kvpolicy/parts/trigger.hpp>
#include <kvpolicy/recorders/record_retention.hpp>
#include <kvpolicy/scorers/concept.hpp>
#include <limits>

namespace KVPOLICY_NAMESPACE {

/// Scores each entry by its predicted retention, beta^age, where a gate has predicted beta when the token was appended
/// (arXiv:2512.03324). It reads no query.
///
///     score_j = (t - p_j) log beta_j          t: the position of the newest entry
///
/// The score is the log of beta^age, because beta^age itself underflows. The newest entry scores 0, which is the
/// highest score. The released code counts ages from 2 (`age_offset`); the order then differs, and the newest entry may
/// be dropped. It decides after every forward, once a lane exceeds its budget by `buffer` entries. Lanes that share a
/// budget wait until the pool exceeds it by `buffer` times the number of its lanes, as in the released code.
struct trim_kv {
  int age_offset = 0;  ///< 0 as in the paper, 2 as in the released code
  int buffer = 1;      ///< decide when a lane exceeds its budget by at least this many entries
  int window = 0;      ///< how many of the last entries are kept

  static constexpr auto name = "trim_kv";
  static constexpr auto fields() {
    return make_fields(field{"age_offset", &trim_kv::age_offset}, field{"buffer", &trim_kv::buffer},
                       field{"window", &trim_kv::window});
  }
  using needs = kvpolicy::needs<retention>;
  static constexpr granularity decides = granularity::lane;

  /// The score of an entry is its age times its log beta. The column stores a log beta of 0 as -0 to tell it from an
  /// empty one; adding 0 makes such a score +0.
  struct decayed {
    by_lane<float const> log_beta;
    kvpolicy::lanes lanes;
    int age_offset;

    /// The score in one lane. It is written so that compilers make vectors of it.
    struct of_lane {
      static constexpr int oldest = std::numeric_limits<int>::max();  ///< the greatest age
      float const* log_beta;
      std::uint32_t now;  ///< an entry's age is this minus its position
      int earliest;       ///< positions before this one have the greatest age, too
      KVPOLICY_HD float operator()(float, entry at) const {
        int const since = at.position > earliest ? at.position : earliest;
        auto const age = static_cast<int>(now - static_cast<std::uint32_t>(since));
        float const score = static_cast<float>(age) * log_beta[at.ordinal] + 0.0f;
        return detail::same_bits<float>(detail::same_bits<std::uint32_t>(score) & (age == 0 ? 0u : ~0u));
      }
    };
    [[nodiscard]] KVPOLICY_HD of_lane in_lane(lane_entries const& of) const {
      int const newest = of.order.newest_of(of.position, of.count);
      std::uint32_t const now = static_cast<std::uint32_t>(newest) + static_cast<std::uint32_t>(age_offset);
      return {log_beta.row(of.lane), now, newest - (of_lane::oldest - age_offset)};
    }
    KVPOLICY_HD float operator()(float old, entry at) const {
      return in_lane({.lane = at.lane,
                      .count = at.count,
                      .position = lanes.position.row(at.lane),
                      .order = lanes.order_of(at.lane)})(old, at);
    }
  };

  void check(char const* call) const {
    expects(age_offset >= 0, call, "trim_kv.age_offset", age_offset, "an age is not negative");
    expects(buffer >= 1, call, "trim_kv.buffer", buffer, "at the budget nothing moves");
    expects(window >= 0, call, "trim_kv.window", window, "a count cannot be negative");
  }
  [[nodiscard]] constexpr recent forces() const { return {window}; }
  [[nodiscard]] constexpr full_buffer triggers() const { return {buffer}; }
  [[nodiscard]] constexpr auto recorders() const { return std::tuple{record_retention{}}; }

  [[nodiscard]] decayed entry_scores(auto const& in) const {
    return {in.template get<retention>().log_beta, in.lanes, age_offset};
  }
  void score(auto& exec, auto const& in, score_view const& out) const { ops::map(exec, out, entry_scores(in)); }

  friend bool operator==(trim_kv const&, trim_kv const&) = default;
};

/// Scores as `trim_kv` and adds a term that grows with the norm of the key, as an option of the released code does:
///
///     score_j = (t - p_j) log beta_j + alpha log max(|k_j|, 1e-12)
struct trim_kv_norm {
  trim_kv retained{};
  float alpha = 1;

  static constexpr auto name = "trim_kv_norm";
  static constexpr auto fields() {
    return make_fields(field{"retained", &trim_kv_norm::retained}, field{"alpha", &trim_kv_norm::alpha});
  }
  using needs = kvpolicy::needs<retention, keys>;
  static constexpr granularity decides = granularity::lane;

  /// Adds the weighted log of the key's norm to a score.
  struct longer {
    float alpha;
    KVPOLICY_HD float operator()(float score, float norm) const {
      return score + alpha * std::log(norm > 1e-12f ? norm : 1e-12f);
    }
  };

  void check(char const* call) const {
    retained.check(call);
    expects(std::isfinite(alpha), call, "trim_kv_norm.alpha", alpha, "it weighs a logarithm");
  }
  [[nodiscard]] constexpr recent forces() const { return retained.forces(); }
  [[nodiscard]] constexpr full_buffer triggers() const { return retained.triggers(); }
  [[nodiscard]] constexpr auto recorders() const { return retained.recorders(); }

  void score(auto& exec, auto const& in, score_view const& out) const {
    retained.score(exec, in, out);
    ops::row_norm(exec, in.template get<keys>(), longer{alpha}, out);
  }

  friend bool operator==(trim_kv_norm const&, trim_kv_norm const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
