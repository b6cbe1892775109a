// H2O: heavy hitters of the attention received so far, and the most recent entries.
#pragma once

#include <kvpolicy/core/fields.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/recorders/record_attention_mass.hpp>
#include <kvpolicy/scorers/concept.hpp>

namespace KVPOLICY_NAMESPACE {

/// Accumulated attention (Zhang et al. 2023, arXiv:2306.14048), real-drop reading: what is dropped is gone, and its
/// mass with it; attention is normalised over what is still there.
///
///     acc_j += sum over this forward's rows of p_ij         over the query heads of the lane (`group`)
///     keep   = the heaviest `heavy` before the recent window, and the `recent` last
///
/// With -1, -1 the budget N is split: heavy = N / 2, recent = N - heavy; one given, the other is what it leaves. Both
/// given, the recent window is forced and hitters fill the rest of the budget.
struct h2o {
  int heavy = -1;
  int recent = -1;
  reduction group = reduction::sum;

  static constexpr auto name = "h2o";
  static constexpr auto fields() {
    return std::tuple{field{"heavy", &h2o::heavy}, field{"recent", &h2o::recent}, field{"group", &h2o::group}};
  }
  using needs = kvpolicy::needs<attention_mass>;
  static constexpr granularity decides = granularity::lane;

  /// The recent window, whose size may follow from the budget.
  struct recent_window {
    int heavy;
    int recent;
    KVPOLICY_HD std::int64_t window(int budget) const {
      std::int64_t const hitters = heavy >= 0 ? heavy : budget / 2;
      return recent >= 0 ? recent : budget - hitters;
    }
    KVPOLICY_HD bool operator()(entry at) const { return at.ordinal >= at.count - window(at.budget); }
    KVPOLICY_HD ordinal_range candidates(lane_entries const& of) const {
      std::int64_t const end = of.count - window(of.budget);
      return {0, static_cast<int>(end < 0 ? 0 : end < of.count ? end : of.count)};
    }
    friend bool operator==(recent_window const&, recent_window const&) = default;
  };

  /// The score: the mass received so far.
  struct copy_mass {
    by_lane<float const> mass;
    KVPOLICY_HD float operator()(float, entry at) const { return mass.row(at.lane)[at.ordinal]; }
  };

  void check(char const* call) const {
    expects(heavy >= -1, call, "h2o.heavy", heavy, "a count, or -1 for what the budget leaves");
    expects(recent >= -1, call, "h2o.recent", recent, "a count, or -1 for what the budget leaves");
    expects(group != reduction::last, call, "h2o.group", "last", "query heads have no order");
  }
  [[nodiscard]] constexpr recent_window forces() const { return {heavy, recent}; }
  [[nodiscard]] constexpr auto recorders() const { return std::tuple{record_attention_mass{group}}; }

  void score(auto& exec, auto const& in, score_view const& out) const {
    ops::map(exec, out, copy_mass{in.template get<attention_mass>().mass});
  }

  friend bool operator==(h2o const&, h2o const&) = default;
};
static_assert(scorer<h2o>);

}  // namespace KVPOLICY_NAMESPACE
