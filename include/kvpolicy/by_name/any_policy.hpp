// SPDX-License-Identifier: Apache-2.0
// An eviction whose parts are chosen at run time.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <kvpolicy/accounting/explain.hpp>
#include <kvpolicy/by_name/any_budget.hpp>
#include <kvpolicy/by_name/any_scorer.hpp>
#include <kvpolicy/decision/decide.hpp>
#include <kvpolicy/decision/eviction.hpp>
#include <kvpolicy/ops/host/argmin.hpp>
#include <kvpolicy/ops/host/gather_rows.hpp>
#include <kvpolicy/ops/host/map_lanes.hpp>
#include <kvpolicy/ops/host/select_if.hpp>
#include <kvpolicy/ops/host/sort_scores.hpp>
#include <kvpolicy/ops/host/top_k.hpp>
#include <kvpolicy/scorers/stages/reduce_lanes.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace KVPOLICY_NAMESPACE {

/// Any eviction for one kind of executor: an `eviction` of erased parts. `make_state`, `make_plan`, `observe`, `decide`
/// and every other call take it as they take a typed one, and its state and plan have the same types. It is compiled
/// once, whatever scorers there are. Construct it from a typed eviction, or call `parse`.
///
/// It can hold every eviction that a spec can describe: any scorer and stage, the shipped protections, budgets and
/// triggers, and the picks `top`, `at_least` and `lowest_one`.
template <executor Executor>
class basic_any_policy
    : public eviction<basic_any_scorer<Executor>, any_protection, any_budget, any_pick, any_trigger> {
 public:
  using parts = eviction<basic_any_scorer<Executor>, any_protection, any_budget, any_pick, any_trigger>;

  /// The full cache, which drops nothing.
  basic_any_policy() : basic_any_policy(eviction<full, nothing, unlimited>{}) {}

  template <scorer Score, class Protect, class Budget, class Pick, class Trigger>
    requires std::convertible_to<Pick, any_pick> && std::convertible_to<Trigger, any_trigger> &&
             std::constructible_from<any_protection, Protect> && std::constructible_from<any_budget, Budget>
  basic_any_policy(eviction<Score, Protect, Budget, Pick, Trigger> const& from)
      : basic_any_policy(basic_any_scorer<Executor>(from.score), any_protection(from.protect),
                         any_budget::on<Executor>(from.budget), from.pick, from.trigger) {}

  basic_any_policy(basic_any_scorer<Executor> const& scorer, any_protection const& protection, any_budget const& limit,
                   any_pick picking, any_trigger firing)
      : parts{scorer, protection, said_by(scorer, limit), picking, firing}, when(scorer.facts().when) {}

  phase when = phase::step;  ///< after which part of its work an engine lets it decide: see `phase`

  /// Which lanes decide together.
  [[nodiscard]] granularity decides() const { return this->score.decides; }
  /// Which lanes share a budget. If it is more than decide together, lanes may keep different numbers of entries.
  [[nodiscard]] budget_scope scope() const { return this->budget.scope(); }
  /// The names of the signals that the engine gives: those from which recorders record, in `observe`, and those that
  /// the scorer reads and no recorder keeps, in `decide`.
  [[nodiscard]] std::vector<std::string> needs() const { return this->score.signals(); }

  friend bool operator==(basic_any_policy const& a, basic_any_policy const& b) {
    return static_cast<parts const&>(a) == static_cast<parts const&>(b) && a.when == b.when;
  }
  friend std::string print(basic_any_policy const& policy) {
    std::string const text = to_string(static_cast<parts const&>(policy));
    return policy.when == policy.score.facts().when ? text : text + " | when(" + to_string(policy.when) + ")";
  }

 private:
  /// Of a scorer whose budgets are shared, or shared out, unless a spec says otherwise, a budget says that it is not.
  static any_budget said_by(basic_any_scorer<Executor> const& scorer, any_budget limit) {
    limit.says_lane =
        scorer.facts().shares.has_value() && limit.may_be_shared() && limit.shared_by == budget_scope::lane;
    limit.says_fixed = scorer.facts().shares_out && limit.may_be_shared();
    return limit;
  }
};

/// Such a policy for the host.
using any_policy = basic_any_policy<host_executor>;

/// Observes a step with signals that are found by name.
///
/// - throws: also `invalid_argument` that names the signal, if a recorder needs a signal that is not given.
template <executor Executor>
void observe(Executor& exec, basic_any_policy<Executor> const& policy, any_signals const& in, state<Executor>& state) {
  detail::observe_given(exec, policy, in, state);
}

/// Decides with signals that are found by name.
///
/// - throws: also `invalid_argument` that names the signal, if the scorer needs a signal that is not given.
template <executor Executor>
void decide(Executor& exec, basic_any_policy<Executor> const& policy, any_signals const& in,
            state<Executor> const& state, plan<Executor>& into) {
  detail::decide_given(exec, policy, in, state, into);
}

namespace detail {

/// Refuses a policy that needs a signal which an interface does not have. `offered` are those that it has.
template <executor Executor>
void refuse_needs_beyond(char const* call, basic_any_policy<Executor> const& policy,
                         std::initializer_list<std::string_view> offered, char const* interface) {
  for (std::string const& need : policy.needs()) {  // "keys", or "queries or attention_probabilities"
    bool const has = std::any_of(offered.begin(), offered.end(), [&](std::string_view one) {
      return need == one || need.starts_with(std::string(one) + " or ") || need.ends_with(" or " + std::string(one));
    });
    expects(has, call, "policy", policy.score.name_inside(),
            [&] { return "it needs the signal " + need + ", which " + interface + " not have"; });
  }
}

/// Why a decision is refused of which the report says that it rests on nothing; empty if it rests on something.
template <executor Executor>
std::string why_unobserved(char const* call, basic_any_policy<Executor> const& policy, report const& of) {
  if (of.unobserved == 0) return {};
  std::string read;
  std::vector<std::string> recorded = std::get<0>(policy.score.recorders()).signals();
  for (std::string const& each : recorded.empty() ? policy.needs() : recorded)
    read += (read.empty() ? "" : ", ") + each;
  return std::string(call) + ": signals = nothing observed for " + std::to_string(of.unobserved) + " of " +
         std::to_string(of.triggered) + " decisions, but " + std::string(policy.score.name_inside()) +
         " decides by what observe was shown: " + read;
}

}  // namespace detail

/// Computes the bytes that the policy needs, as for a typed policy. Its type says for which executor.
template <executor Executor, class... Sizes>
[[nodiscard]] required required_bytes(basic_any_policy<Executor> const& policy, cache const& in,
                                      Sizes const&... sizes) {
  return kvpolicy::required_bytes<Executor, basic_any_policy<Executor>>(policy, in, sizes...);
}

}  // namespace KVPOLICY_NAMESPACE
