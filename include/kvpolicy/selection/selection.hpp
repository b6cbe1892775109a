// SPDX-License-Identifier: Apache-2.0
// `selection`: a policy that decides which pages of a lane attention reads in a step.
#pragma once

#include <kvpolicy/core/layer_runs.hpp>
#include <kvpolicy/decision/concepts.hpp>
#include <kvpolicy/decision/rule.hpp>

namespace KVPOLICY_NAMESPACE {

namespace detail {

inline void check_inherit(char const* call, int layers) {
  expects(layers >= 1, call, "inherit", layers, "the layer that chooses is one of those that read its pages");
}

}  // namespace detail

/// A policy that reads only the pages with the highest *scores*, up to a *budget* of tokens. It drops nothing. The last
/// page, to which new entries are appended, is always read, and so is every page with an entry that is *protected*; the
/// first `dense_layers` layers read all pages. With the *pick* `at_least` a lane reads every page whose score reaches a
/// threshold, however many they are, and the budget is not asked.
///
/// With `inherit` above 1 the layers behind the dense ones form runs of so many layers. The first layer of a run
/// chooses, and the others read the same pages: layer l those of layer l - (l - dense_layers) % inherit. Neighbouring
/// layers mostly attend to the same tokens, and a layer that inherits needs no scores.
///
///     kv::selection{.score = kv::quest{}, .budget = kv::per_lane{512}, .dense_layers = 2}
///     kv::selection{.score = kv::page_gates{}, .protect = kv::sinks{4}, .pick = kv::at_least{0.5f}}
///
/// A selection is a plain value that can be copied, compared and printed. It owns no memory, has no state and does not
/// depend on a backend.
template <class Score, class Budget = per_lane, class Protect = nothing, class Pick = top>
struct selection {
  Score score{};
  Budget budget{};       ///< in tokens; as many whole pages as fit into it are read, and at least the last one
  int dense_layers = 2;  ///< number of first layers that read all pages: their attention is spread too widely for pages
  Protect protect{};     ///< entries whose pages are always read; they count inside the budget
  Pick pick{};
  int inherit = 1;  ///< number of layers, from a choosing one on, that read the pages which that one chooses
  friend bool operator==(selection const&, selection const&) = default;

  static_assert(detail::page_decision_parts<Score, Budget>::check() && detail::protection_hooks<Protect>::check() &&
                detail::pick_hooks<Pick>::check());

  void check(char const* call) const {
    expects(score.page >= 1, call, "score.page", score.page, "a page holds at least one entry");
    expects(dense_layers >= 0, call, "dense_layers", dense_layers, "a count cannot be negative");
    detail::check_inherit(call, inherit);
    budget_scope const scope = detail::scope_of(budget);
    expects(scope == budget_scope::lane, call, "budget.scope", to_string(scope), "every lane reads for itself");
    detail::with_pick(pick, [&]<class One>(One const&) {
      expects(!std::same_as<One, lowest_one>, call, "pick", "lowest_one", "a selection drops nothing");
    });
  }
};

/// Prints "quest(page=16, group=max, bounds=f32) | budget(512) | dense(2)", and " | inherit(4)" if layers inherit
/// pages. The protection `nothing` and the pick `top` are left out.
template <class Score, class Budget, class Protect, class Pick>
[[nodiscard]] std::string print(selection<Score, Budget, Protect, Pick> const& policy) {
  std::string text = to_string(policy.score);
  std::string const kept = to_string(policy.protect);
  if (!std::same_as<Protect, nothing> && !kept.empty()) text += " | " + kept;
  text.append(" | ").append(to_string(policy.budget));
  detail::with_pick(policy.pick, [&]<class One>(One const&) {
    if (!std::same_as<One, top>) text += " | " + to_string(policy.pick);
  });
  text.append(" | dense(").append(to_string(policy.dense_layers)).append(")");
  if (policy.inherit != 1) text.append(" | inherit(").append(to_string(policy.inherit)).append(")");
  return text;
}

/// A selection, or a type with the same members. `select_pages` accepts it.
template <class P>
concept selection_policy = page_decision<P>;

namespace detail {

/// The rule of a selection, which `top_k` and `select_if` call. Its entries are pages; `entries` are the lanes whose
/// entries are in them. A lane that inherits its pages is asked about as the lane that chooses them.
template <class Budget, class Protect = nothing, class Pick = top>
struct selection_rule {
  Budget limit;
  int page;
  int dense_layers;
  lanes entries{};
  Protect protect{};
  Pick pick{};
  int inherit = 1;

  static constexpr bool constrains_hooks = true;

  [[nodiscard]] KVPOLICY_HD int budget(lane this_lane, int pages) const {
    if (this_lane.layer < dense_layers) return pages;
    std::int64_t const all = std::int64_t{pages} * page;
    int const allowed = limit(chooser_of(this_lane), all < 0x7FFFFFFF ? static_cast<int>(all) : 0x7FFFFFFF) / page;
    return allowed > 1 ? allowed : 1;
  }
  [[nodiscard]] KVPOLICY_HD bool triggers(int pages, int allowed) const { return pages > allowed; }
  [[nodiscard]] KVPOLICY_HD bool picks(float score, lane const& of) const
    requires threshold<Pick>
  {
    return detail::takes(pick, score, chooser_of(of));
  }
  [[nodiscard]] KVPOLICY_HD bool forces(entry at) const {
    if (at.ordinal == at.count - 1) return true;
    if constexpr (threshold<Pick>) {
      if (at.lane.layer < dense_layers) return true;  // it has no scores
    }
    if constexpr (std::same_as<Protect, nothing>) return false;
    lane const chooser = chooser_of(at.lane);
    int const count = entries.committed(chooser);
    int const begin = at.ordinal * page;
    int const end = count - begin < page ? count : begin + page;
    if constexpr (has_candidates<Protect>) {
      ordinal_range const free = protect.candidates(entries_of(chooser));
      return begin < free.begin || end > free.end;
    } else {
      int const* const position = entries.position.row(chooser);
      for (int e = begin; e < end; ++e) {
        if (protect(entry{chooser, e, count, position[e], 0})) return true;
      }
      return false;
    }
  }
  [[nodiscard]] KVPOLICY_HD ordinal_range candidates(lane_entries const& of) const
    requires has_candidates<Protect>
  {
    int const last = of.count > 0 ? of.count - 1 : 0;
    if constexpr (std::same_as<Protect, nothing>) return {0, last};
    ordinal_range const free = protect.candidates(entries_of(chooser_of(of.lane)));
    int const begin = (free.begin > 0 ? free.begin + page - 1 : 0) / page;
    int const end = free.end > 0 ? free.end / page : 0;
    return {begin < last ? begin : last, end < last ? end : last};
  }

 private:
  [[nodiscard]] KVPOLICY_HD lane chooser_of(lane one) const {
    return layer_runs{dense_layers, inherit}.chooser_of(one);
  }
  [[nodiscard]] KVPOLICY_HD lane_entries entries_of(lane this_lane) const {
    return {this_lane, entries.committed(this_lane), 0, entries.position.row(this_lane)};
  }
};
template <class Budget>
selection_rule(Budget, int, int) -> selection_rule<Budget>;

/// The protection of a selection, which may be a type of the user without one.
template <class Policy>
constexpr auto protection_of(Policy const& policy) {
  if constexpr (requires { policy.protect; }) {
    return policy.protect;
  } else {
    return nothing{};
  }
}

/// The runs of layers that read the same pages. A selection of the user may have no member `inherit`.
template <class Policy>
constexpr layer_runs runs_of(Policy const& policy) {
  if constexpr (requires { policy.inherit; }) {
    return {policy.dense_layers, policy.inherit};
  } else {
    return {policy.dense_layers, 1};
  }
}

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE
