// `selection`: a policy that decides which pages of a lane attention reads in a step.
#pragma once

#include <kvpolicy/decision/concepts.hpp>

namespace KVPOLICY_NAMESPACE {

/// A policy that reads only the pages with the highest *scores*, up to a *budget* of tokens. It drops nothing. The last
/// page, to which new entries are appended, is always read, and the first `dense_layers` layers read all pages.
///
///     kv::selection{.score = kv::quest{}, .budget = kv::per_lane{512}, .dense_layers = 2}
///
/// A selection is a plain value that can be copied, compared and printed. It owns no memory, has no state and does not
/// depend on a backend.
template <class Score, class Budget = per_lane>
struct selection {
  Score score{};
  Budget budget{};       ///< in tokens; as many whole pages as fit into it are read, and at least the last one
  int dense_layers = 2;  ///< number of first layers that read all pages: their attention is spread too widely for pages
  friend bool operator==(selection const&, selection const&) = default;

  static_assert(detail::page_decision_parts<Score, Budget>::check());

  void check(char const* call) const {
    expects(score.page >= 1, call, "score.page", score.page, "a page holds at least one entry");
    expects(dense_layers >= 0, call, "dense_layers", dense_layers, "a count cannot be negative");
    budget_scope const scope = detail::scope_of(budget);
    expects(scope == budget_scope::lane, call, "budget.scope", to_string(scope), "every lane reads for itself");
  }
};

/// Prints "quest(page=16, group=max, bounds=f32) | budget(512) | dense(2)".
template <class Score, class Budget>
[[nodiscard]] std::string print(selection<Score, Budget> const& policy) {
  std::string text = to_string(policy.score);
  text.append(" | ").append(to_string(policy.budget));
  return text.append(" | dense(").append(to_string(policy.dense_layers)).append(")");
}

/// A selection, or a type with the same members. `select_pages` accepts it.
template <class P>
concept selection_policy = page_decision<P>;

namespace detail {

/// The rule of a selection, which `top_k` calls. Its entries are pages.
template <class Budget>
struct selection_rule {
  Budget limit;
  int page;
  int dense_layers;
  [[nodiscard]] KVPOLICY_HD int budget(lane this_lane, int pages) const {
    if (this_lane.layer < dense_layers) return pages;
    std::int64_t const entries = std::int64_t{pages} * page;
    int const allowed = limit(this_lane, entries < 0x7FFFFFFF ? static_cast<int>(entries) : 0x7FFFFFFF) / page;
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
