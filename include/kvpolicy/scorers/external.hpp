// SPDX-License-Identifier: Apache-2.0
// External: the scores come from outside of the library.
#pragma once

#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/core/label.hpp>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/scorers/concept.hpp>
#include <string_view>

namespace KVPOLICY_NAMESPACE {

/// Signal: one score for every entry, computed by the engine or by a model beside it. The library does not interpret
/// it.
struct external_scores {
  static constexpr auto name = "external";
  by_lane<float const> score{};
  void check(char const* call, shape const&) const { detail::check_numbers_given(call, name, score); }
  void check_strides(char const* call, lanes const& batch) const {
    detail::check_stride(call, "external.sequence", score.sequence, "sequences", batch.sequences);
  }
};

/// Keeps the entries with the highest external scores. If an engine offers several scores, `of` names the one it must
/// provide; the scorer itself does not read `of`.
struct external {
  label of{};

  static constexpr auto name = "external";
  static constexpr auto fields() { return make_fields(field{"name", &external::of}); }
  using needs = kvpolicy::needs<external_scores>;
  static constexpr granularity decides = granularity::lane;

  /// The score of an entry is its external score.
  struct copy_score {
    by_lane<float const> score;
    KVPOLICY_HD float operator()(float, entry at) const { return score.row(at.lane)[at.ordinal]; }
  };

  void score(auto& exec, auto const& in, score_view const& out) const {
    ops::map(exec, out, copy_score{in.template get<external_scores>().score});
  }

  friend bool operator==(external const&, external const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
