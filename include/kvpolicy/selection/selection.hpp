// Selection as a value: which pages of a lane are read now.
#pragma once

#include <kvpolicy/budget/budget.hpp>
#include <kvpolicy/scorers/concept.hpp>

namespace KVPOLICY_NAMESPACE {

/// A scorer of pages: `scores_of` says so, and `page` how many entries one holds.
template <class S>
concept page_scorer = scorer<S> && requires(S const& score) {
  requires S::scores_of == unit::page;
  { score.page } -> std::convertible_to<int>;
};

namespace detail {

/// The parts of a selection; `check` says which one does not fit.
template <class Score, class Budget>
struct selection_parts {
  using pages = hooks<Score, law<hook::scores_pages, scores_pages<Score>>,
                      required_hook<hook::scorer_page, form_of_data<hook::scorer_page, Score>()>>;
  static constexpr bool sound = is_sound_scorer<Score> && pages::sound && budget_hooks<Budget>::sound;
  static consteval bool check() {
    static_cast<void>(check_scorer<Score>());
    if constexpr (is_sound_scorer<Score>) static_cast<void>(pages::check());
    return budget_hooks<Budget>::check();
  }
};

/// The members of a selection, which need not be one of the library's.
template <class P>
using selection_members = hooks<P, required_hook<hook::policy_score, form_of_data<hook::policy_score, P>()>,
                                required_hook<hook::policy_budget, form_of_data<hook::policy_budget, P>()>,
                                required_hook<hook::policy_dense_layers, form_of_data<hook::policy_dense_layers, P>()>>;

template <class P, bool HasMembers = selection_members<P>::sound>
struct selection_hooks {
  static constexpr bool sound = false;
  static consteval bool check() { return selection_members<P>::check(); }
};
template <class P>
struct selection_hooks<P, true>
    : selection_parts<std::remove_cvref_t<decltype(P::score)>, std::remove_cvref_t<decltype(P::budget)>> {};

template <class P>
inline constexpr bool is_sound_selection = selection_hooks<P>::sound;
template <class P>
concept no_selection = looks_like_selection<P> && !is_sound_selection<P>;

}  // namespace detail

/// Read the pages that *score* best, up to a *budget* of tokens; nothing is dropped. The last page, in which the lane
/// grows, is always read, and the first `dense_layers` layers read all.
///
///     kv::selection{.score = kv::quest{}, .budget = kv::per_lane{512}, .dense_layers = 2}
///
/// A plain value: copyable, comparable, printable. It owns no memory, holds no state, picks no backend.
template <class Score, class Budget = per_lane>
struct selection {
  Score score{};
  Budget budget{};       ///< tokens, of which whole pages are read; at least the last one
  int dense_layers = 2;  ///< attention of a model's first layers is spread too widely for pages
  friend bool operator==(selection const&, selection const&) = default;

  static_assert(detail::selection_parts<Score, Budget>::check());
};

/// "quest(page=16, group=max, bounds=f32) | budget(512) | dense(2)"
template <class Score, class Budget>
[[nodiscard]] std::string print(selection<Score, Budget> const& policy) {
  std::string text = to_string(policy.score);
  text.append(" | ").append(to_string(policy.budget));
  return text.append(" | dense(").append(to_string(policy.dense_layers)).append(")");
}

/// Something that `select` takes: a selection, or a type that offers the same members.
template <class P>
concept selection_policy = detail::is_sound_selection<P> && requires(P const& policy) {
  { policy.dense_layers } -> std::convertible_to<int>;
};

namespace detail {

/// What top_k asks of a selection: its entries are pages.
template <class Budget>
struct selection_rule {
  Budget limit;
  int page;
  int dense_layers;
  [[nodiscard]] KVPOLICY_HD int budget(lane who, int pages) const {
    if (who.layer < dense_layers) return pages;
    std::int64_t const entries = std::int64_t{pages} * page;
    int const allowed = limit(who, entries < 0x7FFFFFFF ? static_cast<int>(entries) : 0x7FFFFFFF) / page;
    return allowed > 1 ? allowed : 1;
  }
  [[nodiscard]] KVPOLICY_HD bool triggers(int pages, int allowed) const { return pages > allowed; }
  [[nodiscard]] KVPOLICY_HD bool forces(entry at) const { return at.ordinal == at.count - 1; }
  [[nodiscard]] KVPOLICY_HD ordinal_range candidates(lane_entries const& of) const {
    return {0, of.count > 0 ? of.count - 1 : 0};
  }
};
template <class Budget>
selection_rule(Budget, int, int) -> selection_rule<Budget>;

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE
