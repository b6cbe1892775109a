// SPDX-License-Identifier: Apache-2.0
// Budgets that depend on what is there: a decision asks them for the share of every lane before it picks.
#pragma once

#include <kvpolicy/core/executor.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/parts/budget.hpp>

namespace KVPOLICY_NAMESPACE {

/// How many entries a keep set keeps of each lane, or of the lanes that decide together.
struct kept_of_lanes {
  keep_set from{};
  KVPOLICY_HD int operator()(lane of) const {
    int const segment = segment_of(from.lanes, from.decides, from.lanes.index(of));
    return static_cast<int>(from.indptr[segment + 1] - from.indptr[segment]);
  }
  KVPOLICY_HD int operator()(lane_entries const& of) const { return (*this)(of.lane); }
};

/// The number of entries that each lane would have if all lanes had the same, or the same part of their entries.
struct average_share {
  int tokens = 0;
  drop_ratio part{};
  bool by_ratio = false;
  bool of_seen = false;  ///< a ratio is one of the tokens that a sequence has had
  lanes batch{};
  KVPOLICY_HD constexpr int operator()(lane one, int count) const {
    return by_ratio ? part(one, of_seen ? batch.newest(one) + 1 : count) : tokens;
  }
};

/// Which entries stay whatever their score, where it is asked what lanes would keep: those that a policy forces and
/// protects, or only those that its scorer forces.
enum class forced_by { policy, scorer };

/// What a lane of a pool is sure of: a part of its own budget, or a number of entries if they are more.
struct sure_part {
  double part = 0;
  int tokens = 0;
  [[nodiscard]] KVPOLICY_HD constexpr int of(int share) const {
    return detail::greater_floor(detail::cut_part_of(part, share), tokens);
  }
  friend bool operator==(sure_part const&, sure_part const&) = default;
};

/// What a decision shows to an allotter: the scores that entries have, and what lanes would keep by them.
template <executor Executor>
class allotting {
 public:
  score_view scores{};      ///< of all entries, as the scorer wrote them
  average_share average{};  ///< what is shared out
  float* spare = nullptr;   ///< memory of the plan: as many rows as the allotter's `spare_rows` says

  /// How many entries each lane would keep if the lanes of `scope` shared the budget, and each were sure of
  /// `least`. Forced entries count. The numbers are in memory of the plan until the next call, or until the
  /// entries are picked.
  [[nodiscard]] virtual kept_of_lanes kept(budget_scope scope, sure_part least, forced_by forced) = 0;

 protected:
  allotting() = default;
  allotting(allotting const&) = default;
  allotting& operator=(allotting const&) = default;
  ~allotting() = default;
};

/// How the lanes' shares of a budget differ: a described value whose `allot(exec, of, shares)` writes the number of
/// entries that each lane may keep. `of` is an `allotting<Executor>&`, and `shares` a `by_lane<int>`.
///
/// Optional members:
///
/// - `compares_layers()`: true if a lane's share depends on lanes of other layers, so that all layers decide at once.
/// - `shared_by()`: `budget_scope::layer` if the lanes of a layer share what it gives to them.
/// - `one_by_one(layers)`: the same allotter for decisions about the first of so many layers, which come one by one.
/// - `with_window(w)`: the same allotter where the scorer forces the last w entries of every lane.
/// - `lane_numbers`: how many numbers of each lane it reads that the scorer computes: see `numbers_of_lanes`.
/// - `spare_rows(lanes)`: how many rows of floats it needs, `capacity` floats each.
template <class A>
concept allotter = std::regular<A> && described<A> && detail::hook::budget_allot::names<A> && !budget<A>;

namespace detail {

/// A budget with the member `allot`. It is found by its name, because its arguments are known in a decision only.
template <class Budget>
concept allots = std::is_class_v<Budget> && hook::budget_allot::names<Budget>;

/// A budget whose shares an allotter may write: it has `share_out(exec, in, of, shares)`, and `pooled(scope, least)` is
/// the same budget for lanes that share it.
template <class Budget>
concept shares_out = requires(Budget const& limit) { limit.pooled(budget_scope::lane, sure_part{}); };

/// The hook `allot` of a budget, in a decision.
template <class Budget, class Executor, class SignalSet>
using allotting_hooks =
    hooks<Budget,
          optional_hook<hook::budget_allot, form_of_call<hook::budget_allot, Budget, anything, Executor&,
                                                         SignalSet const&, score_view const&, by_lane<int> const&>()>>;

/// A budget that is chosen at run time, and may be one of those.
template <class Budget>
concept may_allot = requires(Budget const& limit) {
  { limit.is_allotted() } -> std::same_as<bool>;
};

/// True if a decision asks the budget for the share of every lane.
template <class Budget>
constexpr bool is_allotted([[maybe_unused]] Budget const& limit) {
  if constexpr (may_allot<Budget>) {
    return limit.is_allotted();
  } else {
    return allots<Budget>;
  }
}

/// True if a lane's share depends on lanes of other layers, so that all layers decide in one call.
template <class Budget>
constexpr bool compares_layers([[maybe_unused]] Budget const& limit) {
  if constexpr (requires { limit.compares_layers(); }) {
    return limit.compares_layers();
  } else {
    return false;
  }
}

/// Which lanes share what an allotter gives to them.
template <class By>
[[nodiscard]] KVPOLICY_HD constexpr budget_scope scope_of_shares() {
  if constexpr (requires { By::shared_by(); }) {
    return By::shared_by();
  } else {
    return budget_scope::lane;
  }
}

/// The rows of floats that the allotter of a budget needs.
template <class Budget>
constexpr int spare_rows_of_budget([[maybe_unused]] Budget const& limit, [[maybe_unused]] lanes const& batch) {
  if constexpr (requires { limit.spare_rows(batch); }) {
    return limit.spare_rows(batch);
  } else {
    return 0;
  }
}

/// The lanes that must be in one decision because of a budget.
template <class Budget>
constexpr budget_scope scope_at_once(Budget const& limit) {
  return compares_layers(limit) ? budget_scope::sequence : scope_of(limit);
}

/// The shares that a budget has allotted.
template <class Budget>
struct allotted_budget {
  by_lane<int> shares{};
  Budget limit{};

  KVPOLICY_HD constexpr int operator()(lane this_lane, int) const { return *shares.row(this_lane); }
  [[nodiscard]] KVPOLICY_HD constexpr budget_scope scope() const { return scope_of(limit); }
  [[nodiscard]] KVPOLICY_HD constexpr int floor(int share) const { return floor_of(limit, share); }
};

/// What a decision shows to the allotter of a budget. `count_kept(budget, forced)` returns what lanes would
/// keep of one.
template <class Executor, class Budget, class CountKept>
class allotting_by final : public allotting<Executor> {
 public:
  allotting_by(Budget const& limit, CountKept const& count_kept, score_view const& of, float* memory)
      : limit_(limit), count_kept_(count_kept) {
    this->scores = of;
    this->average = limit.average(of.lanes);
    this->spare = memory;
  }
  [[nodiscard]] kept_of_lanes kept(budget_scope scope, sure_part least, forced_by forced) override {
    return {count_kept_(limit_.pooled(scope, least), forced)};
  }

 private:
  Budget const& limit_;
  CountKept const& count_kept_;
};

/// The budget that a decision reads: `limit`, or the shares that it allots now. `shares` is memory for a number of each
/// lane, and `spare` has the rows of the budget's allotter.
template <class Executor, class Budget, class SignalSet, class CountKept>
auto allotted(Executor& exec, Budget const& limit, SignalSet const& in, score_view const& scores,
              by_lane<int> const& shares, [[maybe_unused]] float* spare, [[maybe_unused]] CountKept const& count_kept) {
  if constexpr (may_allot<Budget>) {
    if (!limit.is_allotted()) return limit;
    if constexpr (shares_out<Budget>) {
      allotting_by<Executor, Budget, CountKept> of(limit, count_kept, scores, spare);
      limit.share_out(exec, in, of, shares);
    } else {
      limit.allot(exec, in, scores, shares);
    }
    return limit.with_shares(shares);
  } else if constexpr (allots<Budget>) {
    if constexpr (fits<allotting_hooks<Budget, Executor, SignalSet>>()) limit.allot(exec, in, scores, shares);
    return allotted_budget<Budget>{shares, limit};
  } else {
    return limit;
  }
}

}  // namespace detail
}  // namespace KVPOLICY_NAMESPACE
