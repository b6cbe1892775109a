// SPDX-License-Identifier: Apache-2.0
// A scorer with more recorders than it needs, so that several policies can share one state.
#pragma once

#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/scorers/concept.hpp>
#include <tuple>

namespace KVPOLICY_NAMESPACE {

/// Scores as `Score` does and has the recorders `all`, which include those of `Score`. Policies whose scorers have the
/// same recorders can share a state.
template <scorer Score, class... Recorders>
struct with_recorders : Score {
  std::tuple<Recorders...> all{};

  constexpr with_recorders() = default;
  constexpr with_recorders(Score const& score, std::tuple<Recorders...> const& recorders)
      : Score(score), all(recorders) {}

  [[nodiscard]] constexpr auto recorders() const { return all; }
  /// The recorders that `Score` itself reads.
  [[nodiscard]] constexpr auto own_recorders() const { return recorders_of(static_cast<Score const&>(*this)); }

  /// The fields of `Score`, so that it prints as `Score` does.
  static constexpr auto fields()
    requires detail::has_fields<Score>
  {
    auto const own = []<class Owner, class Value>(field<Owner, Value> const& of) {
      return field<with_recorders, Value>{of.name, of.member};
    };
    return detail::with_fields<Score>([&](auto const&... each) { return make_fields(own(each)...); });
  }
  static constexpr bool constrains_hooks = true;
  using wraps = Score;

  friend bool operator==(with_recorders const&, with_recorders const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
