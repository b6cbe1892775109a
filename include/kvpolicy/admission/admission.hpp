// Admission as a value: which tokens stay when they leave the window.
#pragma once

#include <kvpolicy/decision/concepts.hpp>
#include <span>

namespace KVPOLICY_NAMESPACE {

namespace detail {

/// The parts of an admission; `check` says which one does not fit.
template <class Score, class Protect, class Pick>
struct admission_parts {
  using parts = entry_decision_parts<Score, Protect, unlimited, Pick, over_budget>;
  using alone = hooks<Score, law<hook::scores_alone, !ranks_candidates<Score>>>;
  using picks = hooks<Pick, law<hook::picks_alone, threshold<Pick>>>;
  static constexpr bool sound = parts::sound && alone::sound && picks::sound;
  static consteval bool check() {
    static_cast<void>(parts::check());
    if constexpr (parts::sound) return alone::check() && picks::check();
    return true;
  }
};

/// The members of an admission, which need not be one of the library's.
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

/// *When* a token leaves its lane's window, *score* it, and admit it to the lane's pages if the score is *picked*.
///
///     kv::admission{.score = kv::write_gate{}, .window = 256, .pick = kv::at_least{0.1f}}
///     kv::admission{.score = kv::head_table{}, .protect = kv::sinks{128}}     // local attention: sinks alone stay
///
/// Any scorer of lanes serves: it sees the entries that leave, and never knows that they do. What it says of an entry
/// should depend on that entry alone: by token or by chunk, other entries leave with it (so `recent` protects nothing
/// here that is the same in both). A plain value, as an eviction is; `decide`, `make_state`, `make_plan` and `observe`
/// take it like one.
template <class Score, class Protect = nothing, class Pick = at_least>
struct admission {
  Score score{};
  Protect protect{};  ///< admitted whatever their score
  int window = 256;   ///< the last tokens, the newest among them, that every lane sees whatever it admits
  Pick pick{};
  int cap = -1;  ///< a lane that holds so many admitted entries drops further ones, and the tally says so; -1: no cap
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

/// "write_gate | at_least(least=0.1, strict=false, unbounded=false) | window(256)"
template <class Score, class Protect, class Pick>
[[nodiscard]] std::string print(admission<Score, Protect, Pick> const& policy) {
  std::string text = to_string(policy.score);
  std::string const kept = to_string(policy.protect);
  if (!std::same_as<Protect, nothing> && !kept.empty()) text += " | " + kept;
  text += " | " + to_string(policy.pick) + " | window(" + to_string(policy.window) + ")";
  if (policy.cap >= 0) text += " | cap(" + to_string(policy.cap) + ")";
  return text;
}

/// Something that lets a window's oldest entries go on or not: an admission, or a type with the same members. Its scorer
/// judges each entry by itself: one that ranks candidates has nothing to say about what leaves.
template <class P>
concept admission_policy = detail::is_sound_admission<P> && requires(P const& policy) {
  { policy.window } -> std::convertible_to<int>;
  { policy.cap } -> std::convertible_to<int>;
};

/// True if a query row sees an entry of its lane, both counted from the start of the sequence: the exact vertical-slash
/// mask, i - j < window or admitted; the row itself is one of the window.
[[nodiscard]] KVPOLICY_HD constexpr bool visible(int row, int entry, int window, bool admitted) {
  return entry <= row && (row - entry < window || admitted);
}

/// What a block of rows reads, for sparse prefill kernels: of a lane's admitted columns those before `slash`, and every
/// column from `slash` to the row itself. Exact for the block's first row; for the others a few more than their window,
/// as kernels of blocks read it.
struct slash_columns {
  std::span<int const> vertical{};  ///< ascending
  int slash = 0;
};
/// Those columns for a block that begins with row `first`; `admitted`: a lane's admitted ordinals, ascending.
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
