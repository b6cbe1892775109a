// SPDX-License-Identifier: Apache-2.0
// LazyEviction keeps entries that will be attended to again, judged by how long they have rested before.
#pragma once

#include <array>
#include <cmath>
#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/parts/protect.hpp>
#include <kvpolicy/parts/trigger.hpp>
#include <kvpolicy/recorders/record_stamps.hpp>
#include <kvpolicy/scorers/concept.hpp>

namespace KVPOLICY_NAMESPACE {

/// How the two terms of LazyEviction are joined. The paper's reading could not be settled, so both are there.
enum class joined_terms { product, sum };

[[nodiscard]] constexpr std::array<char const*, 2> names(joined_terms) { return {"product", "sum"}; }

/// Scores each entry by when it was last attended to, against the longest time that it has rested before (Zhang et al.
/// 2025, arXiv:2506.15969), for models that reason at length and come back to what they wrote.
///
///     H1 = 2 sigma(-(p - last) / max(interval, 1))      H2 = 2 sigma(-1 / max(interval, 1))      p: the newest
///     position s  = H1 H2                                        or H1 + H2
///
/// It decides while decoding, each `window` positions, and the last `window` entries are forced.
struct lazy_eviction {
  float alpha = 0.01f;  ///< an entry is attended to by a row that gives it at least this much
  int window = 32;
  joined_terms combine = joined_terms::product;
  reduction group = reduction::mean;

  static constexpr auto name = "lazy_eviction";
  static constexpr auto fields() {
    return make_fields(field{"alpha", &lazy_eviction::alpha}, field{"window", &lazy_eviction::window},
                       field{"combine", &lazy_eviction::combine}, field{"group", &lazy_eviction::group});
  }
  using needs = kvpolicy::needs<stamps>;
  static constexpr granularity decides = granularity::lane;
  static constexpr bool decodes_only = true;

  /// The score of an entry by its stamps.
  struct of_stamps {
    stamps of;
    lanes batch;
    bool product;
    KVPOLICY_HD float operator()(float, entry at) const {
      int const interval = of.interval.row(at.lane)[at.ordinal];
      auto const longest = static_cast<float>(interval > 1 ? interval : 1);
      auto const rests = static_cast<float>(batch.newest(at.lane) + 1 - of.last.row(at.lane)[at.ordinal]);
      float const now = 2 / (1 + std::exp(rests / longest)), later = 2 / (1 + std::exp(1 / longest));
      return product ? now * later : now + later;
    }
  };

  void check(char const* call) const {
    expects(alpha >= 0 && alpha <= 1, call, "lazy_eviction.alpha", alpha, "it is a part of a row's attention, 0 to 1");
    expects(window >= 1, call, "lazy_eviction.window", window, "an interval is 1 or more");
    expects(group != reduction::last, call, "lazy_eviction.group", "last", "query heads have no order");
  }
  [[nodiscard]] constexpr recent forces() const { return {window}; }
  [[nodiscard]] constexpr every triggers() const { return {window}; }
  [[nodiscard]] constexpr auto recorders() const { return std::tuple{record_stamps{alpha, group}}; }

  [[nodiscard]] of_stamps entry_scores(auto const& in) const {
    return {in.template get<stamps>(), in.lanes, combine == joined_terms::product};
  }
  void score(auto& exec, auto const& in, score_view const& out) const { ops::map(exec, out, entry_scores(in)); }

  friend bool operator==(lazy_eviction const&, lazy_eviction const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
