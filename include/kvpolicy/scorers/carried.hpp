// SPDX-License-Identifier: Apache-2.0
// Scorers by a number that the engine gives when it appends an entry.
#pragma once

#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/parts/forced.hpp>
#include <kvpolicy/parts/protect.hpp>
#include <kvpolicy/recorders/record_birth_score.hpp>
#include <kvpolicy/scorers/concept.hpp>
#include <kvpolicy/scorers/external.hpp>

namespace KVPOLICY_NAMESPACE {

namespace detail {

/// The score of an entry is the number that came with it. The column stores a 0 as -0 to tell it from an empty one;
/// adding 0 makes such a score +0.
struct copy_birth_score {
  by_lane<float const> score;
  KVPOLICY_HD float operator()(float, entry at) const { return score.row(at.lane)[at.ordinal] + 0.0f; }
};

}  // namespace detail

/// Keeps the entries with the highest numbers, of which the engine gives one when it appends an entry. If an engine
/// offers several, `of` names the one that it must give; the scorer itself does not read `of`.
struct carried {
  label of{};
  float decay = 1;  ///< of the numbers of older entries at every `observe`, which is then one of a turn

  static constexpr auto name = "carried";
  static constexpr auto fields() { return make_fields(field{"name", &carried::of}, field{"decay", &carried::decay}); }
  using needs = kvpolicy::needs<carried_score>;
  static constexpr granularity decides = granularity::lane;

  void check(char const* call) const {
    expects(decay > 0 && decay <= 1, call, "carried.decay", decay, "older numbers count less, and not nothing: 0 to 1");
  }
  [[nodiscard]] constexpr auto recorders() const { return std::tuple{record_birth_score{decay}}; }
  [[nodiscard]] detail::copy_birth_score entry_scores(auto const& in) const {
    return {in.template get<carried_score>().score};
  }
  void score(auto& exec, auto const& in, score_view const& out) const { ops::map(exec, out, entry_scores(in)); }

  friend bool operator==(carried const&, carried const&) = default;
};

/// FastKVzip (2026): a trained gate predicts when an entry is appended how much it will be attended to. All lanes share
/// one budget. The first `sinks` and the last `window` entries are forced; a window of -1 is 2 % of the entries, and
/// 4,096 from 32,000 entries on. Decide once, at the end of the prefill.
struct fast_kvzip {
  label source{{"fast_kvzip"}};
  int sinks = 4;
  int window = -1;

  static constexpr auto name = "fast_kvzip";
  static constexpr auto fields() {
    return make_fields(field{"name", &fast_kvzip::source}, field{"sinks", &fast_kvzip::sinks},
                       field{"window", &fast_kvzip::window});
  }
  using needs = kvpolicy::needs<carried_score>;
  static constexpr granularity decides = granularity::lane;
  static constexpr budget_scope pools = budget_scope::sequence;
  static constexpr bool prompts_only = true;

  void check(char const* call) const {
    expects(sinks >= 0, call, "fast_kvzip.sinks", sinks, "a count cannot be negative");
    expects(window >= -1, call, "fast_kvzip.window", window, "a count, or -1 for 2 % of the entries");
  }
  [[nodiscard]] constexpr ends_of_count forces() const { return {sinks, window}; }
  [[nodiscard]] constexpr auto recorders() const { return std::tuple{record_birth_score{}}; }
  [[nodiscard]] detail::copy_birth_score entry_scores(auto const& in) const {
    return {in.template get<carried_score>().score};
  }
  void score(auto& exec, auto const& in, score_view const& out) const { ops::map(exec, out, entry_scores(in)); }

  friend bool operator==(fast_kvzip const&, fast_kvzip const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
