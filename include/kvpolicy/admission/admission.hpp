// SPDX-License-Identifier: Apache-2.0
// `admission`: a policy that decides which tokens are kept when they leave the window.
#pragma once

#include <kvpolicy/decision/concepts.hpp>
#include <kvpolicy/scorers/scorer_traits.hpp>
#include <span>

namespace KVPOLICY_NAMESPACE {

namespace detail {

/// The parts of an admission. `check` gives a compile error that names the part that does not fit.
template <class Score, class Protect, class Pick>
struct admission_parts {
  using parts = entry_decision_parts<Score, Protect, unlimited, Pick, over_budget>;
  using alone = hooks<Score, law<hook::scores_alone, !ranks_candidates<Score> && !has_blocks<Score>>>;
  using picks = hooks<Pick, law<hook::picks_alone, threshold<Pick>>>;
  static constexpr bool sound = parts::sound && alone::sound && picks::sound;
  static consteval bool check() {
    static_cast<void>(parts::check());
    if constexpr (parts::sound) return alone::check() && picks::check();
    return true;
  }
};

/// The members of an admission, which may be a type of the user.
template <class P>
using admission_members = hooks<P, required_hook<hook::policy_score, form_of_data<hook::policy_score, P>()>,
                                required_hook<hook::policy_protect, form_of_data<hook::policy_protect, P>()>,
                                required_hook<hook::policy_window, form_of_data<hook::policy_window, P>()>,
                                required_hook<hook::policy_pick, form_of_data<hook::policy_pick, P>()>,
                                required_hook<hook::policy_cap, form_of_data<hook::policy_cap, P>()>>;

template <class P, bool HasMembers = admission_members<P>::sound>
struct admission_hooks {
  static constexpr bool sound = false;
  static consteval bool check() { return admission_members<P>::check(); }
};
template <class P>
struct admission_hooks<P, true>
    : admission_parts<std::remove_cvref_t<decltype(P::score)>, std::remove_cvref_t<decltype(P::protect)>,
                      std::remove_cvref_t<decltype(P::pick)>> {};

template <class P>
inline constexpr bool is_sound_admission = admission_hooks<P>::sound;
template <class P>
concept unsound_admission = has_score<P> && !is_sound_admission<P>;

}  // namespace detail

/// A policy that decides which tokens are kept at all. When a token leaves its lane's window, the policy *scores* it,
/// and admits it to the lane's pages if the *pick* accepts the score. Tokens that are not admitted are dropped.
///
///     kv::admission{.score = kv::write_gate{}, .window = 256, .pick = kv::at_least{0.1f}}
///     kv::admission{.score = kv::head_table{}, .protect = kv::sinks{128}}     // in local heads only sinks are kept
///
/// The scorer must score each lane for itself, and it sees only the entries that leave. The score of an entry should
/// depend on that entry alone: whether tokens arrive one by one or in chunks changes which entries leave together, so
/// that `recent`, for example, would protect different entries. An admission is a plain value, as an eviction is.
/// `decide`, `make_state`, `make_plan` and `observe` accept both.
template <class Score, class Protect = nothing, class Pick = at_least>
struct admission {
  Score score{};
  Protect protect{};  ///< entries that are admitted whatever their score
  int window = 256;   ///< number of last tokens, the newest included, that every lane keeps whatever it admits
  Pick pick{};
  int cap = -1;  ///< a lane with so many admitted entries drops further ones, which `promotion_stats` counts; -1: none
  friend bool operator==(admission const&, admission const&) = default;

  static_assert(detail::admission_parts<Score, Protect, Pick>::check());

  static constexpr unlimited budget{};
  static constexpr over_budget trigger{};

  void check(char const* call) const {
    expects(window >= 1, call, "admission.window", window, "the newest token is always seen");
    expects(cap >= -1, call, "admission.cap", cap, "-1 is no cap");
    expects(score.decides == granularity::lane, call, "admission.score.decides", to_string(granularity{score.decides}),
            "every lane admits for itself");
  }
};

/// Prints "write_gate | at_least(least=0.1, strict=false, unbounded=false) | window(256)".
template <class Score, class Protect, class Pick>
[[nodiscard]] std::string print(admission<Score, Protect, Pick> const& policy) {
  std::string text = to_string(policy.score);
  std::string const kept = to_string(policy.protect);
  if (!std::same_as<Protect, nothing> && !kept.empty()) text += " | " + kept;
  text += " | " + to_string(policy.pick) + " | window(" + to_string(policy.window) + ")";
  if (policy.cap >= 0) text += " | cap(" + to_string(policy.cap) + ")";
  return text;
}

/// An admission, or a type with the same members. Its scorer must score each entry by itself, so a scorer that ranks
/// candidates does not fit.
template <class P>
concept admission_policy = detail::is_sound_admission<P> && requires(P const& policy) {
  { policy.window } -> std::convertible_to<int>;
  { policy.cap } -> std::convertible_to<int>;
};

/// True if query row i = `row` sees entry j = `entry` of its lane, both counted from the start of the sequence. This is
/// the exact vertical-slash mask: j <= i, and i - j < window or j is admitted. The row itself is part of the window.
[[nodiscard]] KVPOLICY_HD constexpr bool visible(int row, int entry, int window, bool admitted) {
  return entry <= row && (row - entry < window || admitted);
}

/// The columns that a block of rows reads in a sparse prefill kernel: the admitted columns of the lane before `slash`,
/// and every column from `slash` to the row itself. They are exact for the first row of the block. Later rows read a
/// few columns more than their window, as kernels that work on blocks do.
struct slash_columns {
  std::span<int const> vertical{};  ///< the admitted columns before `slash`, ascending
  int slash = 0;
};
/// The columns of a block that begins with row `first`. `admitted` has the lane's admitted ordinals, ascending.
[[nodiscard]] constexpr slash_columns columns_of(std::span<int const> admitted, int window, int first) {
  int const slash = first - window + 1 > 0 ? first - window + 1 : 0;
  std::size_t before = 0;
  std::size_t end = admitted.size();
  while (before < end) {
    std::size_t const middle = before + (end - before) / 2;
    (admitted[middle] < slash ? before : end) = admitted[middle] < slash ? middle + 1 : middle;
  }
  return {admitted.first(before), slash};
}

}  // namespace KVPOLICY_NAMESPACE
