// TRIM-KV: what was born to last, less what time has taken.
#pragma once

#include <cmath>
#include <kvpolicy/core/fields.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/ops/row_norm.hpp>
#include <kvpolicy/protect/protect.hpp>
#include <kvpolicy/recorders/record_retention.hpp>
#include <kvpolicy/scorers/concept.hpp>
#include <kvpolicy/trigger/trigger.hpp>

namespace KVPOLICY_NAMESPACE {

/// Retention gates (arXiv:2512.03324): no query is looked at.
///
///     score_j = (t - p_j) log beta_j          t: the newest entry's position; in log space, where beta^age does not
///                                             vanish
///
/// The newest entry scores 0, the highest. The released code counts ages from 2 (`age_offset`), which is another order
/// and may drop the newest. Decides after every forward, once `buffer` entries a lane are over the budget; lanes that
/// share a budget wait until the pool is over it by `buffer` times its lanes, as the code does.
struct trim_kv {
  int age_offset = 0;  ///< 0 as the paper, 2 as the code
  int buffer = 1;      ///< decide when at least so many entries a lane are over the budget
  int window = 0;      ///< the last entries are kept

  static constexpr auto name = "trim_kv";
  static constexpr auto fields() {
    return std::tuple{field{"age_offset", &trim_kv::age_offset}, field{"buffer", &trim_kv::buffer},
                      field{"window", &trim_kv::window}};
  }
  using needs = kvpolicy::needs<retention>;
  static constexpr granularity decides = granularity::lane;

  /// The score of an entry: its age times its log beta. One of 0 is kept as -0, and a score of 0 is +0.
  struct decayed {
    by_lane<float const> log_beta;
    by_lane<int> position;
    int age_offset;
    KVPOLICY_HD float operator()(float, entry at) const {
      std::int64_t const age = std::int64_t{position.row(at.lane)[at.count - 1]} - at.position + age_offset;
      return age == 0 ? 0.0f : static_cast<float>(age) * log_beta.row(at.lane)[at.ordinal] + 0.0f;
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

  void score(auto& exec, auto const& in, score_view const& out) const {
    ops::map(exec, out, decayed{in.template get<retention>().log_beta, in.lanes.position, age_offset});
  }

  friend bool operator==(trim_kv const&, trim_kv const&) = default;
};
static_assert(scorer<trim_kv>);

/// The same, and longer keys are worth more, as an option of the released code has it:
///
///     score_j = (t - p_j) log beta_j + alpha log max(|k_j|, 1e-12)
struct trim_kv_norm {
  trim_kv retained{};
  float alpha = 1;

  static constexpr auto name = "trim_kv_norm";
  static constexpr auto fields() {
    return std::tuple{field{"retained", &trim_kv_norm::retained}, field{"alpha", &trim_kv_norm::alpha}};
  }
  using needs = kvpolicy::needs<retention, keys>;
  static constexpr granularity decides = granularity::lane;

  /// A score, and the norm of the entry's key.
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
static_assert(scorer<trim_kv_norm>);

}  // namespace KVPOLICY_NAMESPACE
