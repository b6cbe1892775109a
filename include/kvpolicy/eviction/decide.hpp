// The calls of an eviction: make_state, make_plan, observe, decide.
#pragma once

#include <algorithm>
#include <kvpolicy/budget/budget.hpp>
#include <kvpolicy/core/check.hpp>
#include <kvpolicy/core/plan.hpp>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/eviction/eviction.hpp>
#include <kvpolicy/eviction/refusals.hpp>
#include <kvpolicy/ops/all_reduce.hpp>
#include <kvpolicy/ops/argmin.hpp>
#include <kvpolicy/ops/attention_mass.hpp>
#include <kvpolicy/ops/lists.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/ops/pool.hpp>
#include <kvpolicy/ops/remember_rows.hpp>
#include <kvpolicy/ops/rerotate.hpp>
#include <kvpolicy/ops/residual.hpp>
#include <kvpolicy/ops/select_if.hpp>
#include <kvpolicy/ops/top_k.hpp>
#include <kvpolicy/recorders/recording.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Bytes of scratch for any verb, whatever the policy asks for.
template <class Backend>
std::size_t scratch_bytes(shape const& model, lanes const& who) {
  return std::max(
      {scratch_of_verb<ops::attention_mass_t, Backend>(model, who), scratch_of_verb<ops::pool_t, Backend>(model, who),
       scratch_of_verb<ops::remember_rows_t, Backend>(model, who),
       scratch_of_verb<ops::feature_sums_t, Backend>(model, who), scratch_of_verb<ops::top_k_t, Backend>(model, who)});
}

/// Rows of floats that a scorer needs beside its scores: `spare_rows(lanes, shape)`, where it has that member.
template <class Score>
int spare_rows(Score const& score, lanes const& who, shape const& model) {
  if constexpr (requires { score.spare_rows(who, model); }) {
    return score.spare_rows(who, model);
  } else {
    return 0;
  }
}

/// True if a scorer's scores are the same on all ranks, which hold other heads: of a lane they are its rank's own.
template <class Score>
bool reduces_ranks(Score const& score) {
  if constexpr (requires { score.reduces_ranks(); }) {
    return score.reduces_ranks();
  } else {
    return score.decides == granularity::lane;
  }
}

/// A budget that heads share is split by comparing their scores; ranks have other heads and would split it otherwise.
/// So would what decides for all heads by its own rank's.
template <executor Executor, class Policy>
void refuse_pool_of_ranks(char const* call, Executor const& exec, Policy const& policy) {
  budget_scope const scope = scope_of(policy.budget);
  expects(scope == budget_scope::lane || ranks_of(exec) == 1, call, "budget.scope", to_string(scope),
          [&] { return "the heads that share it are on " + std::to_string(ranks_of(exec)) + " ranks: gather first"; });
  expects(reduces_ranks(policy.score) || ranks_of(exec) == 1, call, "score.decides",
          to_string(granularity{policy.score.decides}), [&] {
            return "heads of " + std::to_string(ranks_of(exec)) + " ranks decide, and the scorer does not reduce";
          });
}

/// Scratch of a worker for decisions about this cache and for every applier of it.
template <class Backend>
std::size_t scratch_bytes(cache const& in) {
  return std::max({scratch_bytes<Backend>(in.shape, in.who), list_scratch<Backend>(in), rerotate_scratch<Backend>(in)});
}

/// Scratch belongs to the executor that plan and state were made on; another one may have none.
template <executor Executor, class State>
void check_scratch(char const* call, Executor const& exec, State const& held) {
  std::size_t const needed = scratch_bytes<typename Executor::backend>(held.model(), held.who());
  expects(exec.reserved() >= needed, call, "exec", "an executor without scratch for this batch",
          "plan and state are made on the executor that runs them");
}

template <class Policy>
void check_policy(char const* call, Policy const& policy, shape const& model) {
  check_part(call, policy.score, model);
  check_part(call, policy.protect);
  check_part(call, policy.budget);
  check_part(call, policy.trigger);
  check_part(call, pick_of(policy));
  if constexpr (requires { policy.check(call); }) policy.check(call);
}

}  // namespace detail

/// True iff `decide(exec, policy, in, state, plan)` compiles: every signal is given or recorded. For code that must
/// ask.
template <class Policy, class Given, class Executor>
concept decides =
    eviction_policy<Policy> &&
    detail::has_all<bag<Given, decltype(recorders_of(std::declval<Policy const&>().score)), state<Executor>>>(
        typename std::remove_cvref_t<decltype(Policy::score)>::needs{});

/// The state of one batch: the columns of the policy's recorders, for all the lanes of `in`, up to `in.who.bound`
/// entries.
///
/// - `slack`: entries by which rows of recorded numbers are longer, so that they can slide (see `state`).
/// - throws: `invalid_argument` if the cache or the policy is not sound. Memory: `columns x lanes x bound`.
template <executor Executor, eviction_policy Policy>
[[nodiscard]] state<Executor> make_state(Executor& exec, Policy const& policy, cache const& in, int slack = 0) {
  detail::check_policy("make_state", policy, in.shape);
  detail::check_cache("make_state", in);
  detail::check_reach("make_state", exec, in);
  state<Executor> made = detail::state_of(exec, recorders_of(policy.score), in, slack);
  exec.reserve(detail::scratch_bytes<typename Executor::backend>(in));
  return made;
}

/// The plan of one batch: room for its scores and keep sets. Nothing allocates after this while counts stay below the
/// bound.
///
/// - throws: as make_state. Memory: 8 bytes x segments x bound.
template <executor Executor, eviction_policy Policy>
[[nodiscard]] plan<Executor> make_plan(Executor& exec, Policy const& policy, cache const& in) {
  detail::check_policy("make_plan", policy, in.shape);
  detail::check_cache("make_plan", in);
  detail::check_reach("make_plan", exec, in);
  exec.reserve(detail::scratch_bytes<typename Executor::backend>(in));
  return plan<Executor>(exec, in.who, policy.score.decides, detail::spare_rows(policy.score, in.who, in.shape),
                        entry_bytes(in));
}

namespace detail {

template <executor Executor, eviction_policy Policy, class Given>
void observe_given(Executor& exec, Policy const& policy, Given const& in, state<Executor>& held) {
  check_same_lanes("observe", "signals.who", in.who, held.who());
  in.check("observe", held.model());
  auto const recorders = recorders_of(policy.score);
  check_policy("observe", policy, held.model());
  check_state("observe", held, recorders);
  check_scratch("observe", exec, held);
  record(exec, recorders, in, held);
}

template <executor Executor, eviction_policy Policy, class Given>
void decide_given(Executor& exec, Policy const& policy, Given const& in, state<Executor> const& held,
                  plan<Executor>& into) {
  using score_type = std::remove_cvref_t<decltype(policy.score)>;
  auto const recorders = recorders_of(policy.score);
  using bag_type = bag<Given, std::remove_cvref_t<decltype(recorders)>, state<Executor>>;
  if constexpr (signals_complete<score_type, bag_type>(typename score_type::needs{}) &&
                fits<deciding_hooks<score_type, Executor, bag_type>>()) {
    check_policy("decide", policy, held.model());
    check_same_lanes("decide", "signals.who", in.who, into.who());
    check_same_lanes("decide", "signals.who", in.who, held.who());
    in.check("decide", held.model());
    expects(into.decides() == policy.score.decides, "decide", "plan.decides", to_string(into.decides()),
            "the plan was made for another granularity");
    refuse_pool_of_ranks("decide", exec, policy);
    expects(spare_rows(policy.score, into.who(), held.model()) <= into.spare_rows(), "decide", "plan",
            "without the spare room that this policy needs", "make_plan makes it for the policy that decides");
    bool const all_pool = scope_of(policy.budget) == budget_scope::global;
    expects(!all_pool || in.who.layers() == held.model().layers, "decide", "signals.who.layers", in.who.layers(),
            [&] { return "all " + std::to_string(held.model().layers) + " layers share this budget"; });
    check_state("decide", held, recorders);
    check_scratch("decide", exec, held);
    score_view const scores = into.scores(in.who);
    keep_set made = into.room(in.who);
    if constexpr (std::same_as<decltype(pick_of(policy)), lowest_one>) {
      made.lists = side::dropped;
      expects(scope_of(policy.budget) == budget_scope::lane, "decide", "budget.scope",
              to_string(scope_of(policy.budget)), "every lane drops one of its own");
    }
    bag_type const told(in, recorders, held);
    if constexpr (requires { implementation<ops::top_k_t, typename Executor::backend>::refuse(scores); }) {
      implementation<ops::top_k_t, typename Executor::backend>::refuse(scores);
    }
    if constexpr (requires { policy.score.refuse(exec, told); }) policy.score.refuse(exec, told);
    if constexpr (!ranks_candidates<score_type>) policy.score.score(exec, told, scores);
    with_protection(policy.protect, [&](auto const& protect) {
      auto const rule = rule_of(policy, protect, told, held.model(), into.entry_bytes());
      if constexpr (ranks_candidates<score_type>) {
        ops::map(exec, scores, zero_if_candidate{rule});
        policy.score.score(exec, told, scores);
      }
      if constexpr (threshold<decltype(pick_of(policy))>) {
        ops::select_if(exec, scores, rule, made);
      } else if constexpr (std::same_as<decltype(pick_of(policy)), lowest_one>) {
        ops::argmin(exec, scores, rule, made);
      } else {
        ops::top_k(exec, scores, rule, made);
      }
    });
    into.publish(made);
  }
}

}  // namespace detail

/// Shows a forward's signals to the policy's recorders. Writes state only, from committed entries only.
///
/// Call it once for each forward and layer, after the new entries were appended; `in.who` says which layers.
/// - throws: `invalid_argument` if the state was made for other lanes.
template <executor Executor, eviction_policy Policy, class... Given>
void observe(Executor& exec, Policy const& policy, signals<Given...> const& in, state<Executor>& held) {
  detail::observe_given(exec, policy, in, held);
}

/// Decides for the lanes of `in`: an ascending keep set for every segment, in `into`. Reads only, apart from the plan.
///
/// - throws: `invalid_argument` if the plan or the state was made for other lanes, or the policy is not sound.
template <executor Executor, eviction_policy Policy, class... Given>
void decide(Executor& exec, Policy const& policy, signals<Given...> const& in, state<Executor> const& held,
            plan<Executor>& into) {
  detail::decide_given(exec, policy, in, held, into);
}

}  // namespace KVPOLICY_NAMESPACE
