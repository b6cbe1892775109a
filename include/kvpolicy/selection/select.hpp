// SPDX-License-Identifier: Apache-2.0
// `make_plan` and `select_pages` of a selection. `make_state` and `observe` are those of every decision.
#pragma once

#include <algorithm>
#include <kvpolicy/core/contract/check_counts.hpp>
#include <kvpolicy/core/signal_set.hpp>
#include <kvpolicy/decision/make.hpp>
#include <kvpolicy/decision/observe.hpp>
#include <kvpolicy/decision/scratch.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/ops/page_scores.hpp>
#include <kvpolicy/ops/top_k.hpp>
#include <kvpolicy/selection/plan.hpp>
#include <kvpolicy/selection/selection.hpp>
#include <kvpolicy/selection/selection_refusals.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// The scores of a layer that inherits its pages: those of the layer that chooses.
struct scores_of_chooser {
  by_lane<float const> scores;
  int layer;
  KVPOLICY_HD float operator()(float, entry at) const {
    return scores.row({at.lane.sequence, layer, at.lane.head})[at.ordinal];
  }
};

/// Scores the pages of the layers that choose, and copies their scores to the layers that inherit. The scores of a run
/// that began in an earlier call are in the plan.
template <executor Executor, page_decision Policy, class Source>
void score_pages(Executor& exec, Policy const& policy, Source& all_signals, selection_plan<Executor>& into) {
  lanes const batch = all_signals.lanes;
  lanes const pages = into.pages_of(batch);
  layer_runs const runs = runs_of(policy);
  int const first = std::clamp(runs.dense, batch.layer_begin, batch.layer_end);
  auto const score = [&](int begin, int end) {
    all_signals.lanes = batch.layers_only(begin, end);
    policy.score.score(exec, all_signals, into.scores(pages.layers_only(begin, end)));
  };
  if (runs.length == 1 && first < batch.layer_end) return score(first, batch.layer_end);
  for (int layer = first; layer < batch.layer_end;) {
    int const chooser = runs.first_of(layer);
    if (layer == chooser) score(layer, layer + 1);
    int const begin = std::max(layer, chooser + 1);
    layer = runs.end_of(layer, batch.layer_end);
    score_view const inherited = into.scores(pages.layers_only(begin, layer));
    by_lane<float> const& from = inherited.rows;
    if (begin < layer) {
      ops::map(exec, inherited, scores_of_chooser{{from.data, from.sequence, from.layer, from.head}, chooser});
    }
  }
}

/// Refuses layers that inherit pages, if the call before did not choose for the layers of their run.
template <executor Executor, page_decision Policy>
void refuse_run_without_choice(Policy const& policy, lanes const& batch, selection_plan<Executor> const& into) {
  int const chooser = runs_of(policy).first_of(batch.layer_begin);
  for (int s = batch.sequence_begin; s < batch.sequence_end() && chooser != batch.layer_begin; ++s) {
    expects(into.chosen_until(s) == batch.layer_begin, "select", "signals.lanes.layer_begin", batch.layer_begin, [&] {
      return "it reads the pages of layer " + std::to_string(chooser) +
             ": choose for the layers from that one on first, in their order";
    });
  }
}

/// Chooses pages, after the caller has checked everything but the data in memory. `all_signals` is the set of given and
/// recorded signals.
template <executor Executor, page_decision Policy, class Source>
void choose(Executor& exec, Policy const& policy, Source all_signals, shape const& model,
            selection_plan<Executor>& into) {
  lanes const batch = all_signals.lanes;
  lanes const pages = into.pages_of(batch);
  keep_set const chosen = into.keep_storage(pages);
  refuse_data(policy.score, exec, all_signals);
  layer_runs const runs = runs_of(policy);
  ops::count_pages(exec, batch, policy.score.page, pages, runs);
  into.withdraw(batch);  // everything is checked: if anything throws from here on, the plan holds no choice
  score_pages(exec, policy, all_signals, into);
  with_pick(pick_of(policy), [&]<class Pick>(Pick const& pick) {
    with_protection(protection_of(policy), [&]<class Protect>(Protect const& protect) {
      auto const limit = in_entries(policy.budget, model, into.entry_bytes());
      selection_rule<std::remove_const_t<decltype(limit)>, Protect, Pick> const rule{
          limit, policy.score.page, policy.dense_layers, batch, protect, pick, runs.length};
      if constexpr (!std::same_as<Pick, lowest_one>) picking_verb<Pick>{}(exec, into.scores(pages), rule, chosen);
    });
  });
  into.publish(chosen);
}

/// Checks everything and chooses.
template <executor Executor, page_decision Policy, class Given>
void select_given(Executor& exec, Policy const& policy, Given const& in, state<Executor> const& state,
                  selection_plan<Executor>& into) {
  using backend = typename Executor::backend;
  using score_type = score_of<Policy>;
  auto const recorders = recorders_of(policy.score);
  using signal_set_type = signal_set_of<Policy, Given, Executor>;
  if constexpr (signals_complete<score_type, signal_set_type>(typename score_type::needs{}) &&
                fits<deciding_hooks<score_type, Executor, signal_set_type, score_view>>()) {
    sole_use const in_use("select", exec);
    check_policy("select", policy, state.model());
    check_same_lanes("select", "signals.lanes", in.lanes, into.lanes());
    check_same_lanes("select", "signals.lanes", in.lanes, state.lanes());
    refuse_run_without_choice(policy, in.lanes, into);
    in.check("select", state.model());
    refuse_out_of_order<backend>("select", in.lanes, "a selection");
    expects(into.page() == policy.score.page, "select", "plan.page", into.page(),
            [&] { return "the policy reads pages of " + std::to_string(policy.score.page); });
    check_state("select", state, recorders);
    check_reserved("select", exec, scratch_to_decide<backend>(policy, state.model(), state.lanes()));
    refuse_counts<backend>("select", in.lanes);
    refuse_given<backend>("select", policy.score, in);
    refuse_smaller<backend>("select", in);
    counting_signals<Given> const counted("select", exec, in, into.counted());
    choose(exec, policy, signal_set_type(counted.get(), recorders, state), state.model(), into);
  }
}

}  // namespace detail

/// Makes the plan of one batch. Nothing allocates after this while counts stay below the bound.
///
/// - throws: as `make_state`.
/// - memory: 8 bytes x lanes x pages.
template <executor Executor, page_decision Policy>
[[nodiscard]] selection_plan<Executor> make_plan(Executor& exec, Policy const& policy, cache const& in) {
  detail::check_batch("make_plan", exec, policy, in);
  exec.reserve(detail::scratch_to_decide<typename Executor::backend>(policy, in.shape, in.lanes));
  selection_plan<Executor> made(exec, in.lanes, policy.score.page, entry_bytes(in));
  detail::visit_kinds_of_rows_of_scorer(
      policy.score, [&](int kind) { made.counted().add(exec, kind, in.lanes.sequences, in.lanes.capacity); });
  return made;
}

/// Chooses the pages that the lanes of `in`, of one layer or of several, read in this step. Nothing but the plan is
/// written.
///
/// - out: `into.keep()` is a keep set of ascending pages with one segment for each lane. It has as many whole pages as
///   fit into the budget, at least one, and the last page is always included. A lane with no more pages than that, and
///   a lane of a dense layer, lists all pages; a lane without entries lists none. Drafts in flight are in no page,
///   because an engine always reads them.
/// - ties go to the lower page. A NaN ranks below every number and is counted. A page whose bounds do not cover all of
///   its entries is read before others (see `ops::page_scores`).
/// - Layers that inherit pages read those of the first layer of their run, whose lanes hold the same entries. That
/// layer
///   is in this call, or the calls before were about the layers from it on, in their order.
/// - A page with a protected entry is always read, too. With the pick `at_least` every page is read whose score reaches
///   the threshold; the budget is not asked then.
/// - cost: that of the scorer, for the layers that choose, and of `top_k` or `select_if` over pages. Layers that
/// inherit
///   have their positions compared, unless layers share them. Nothing is allocated. A protection without `candidates`
///   is asked about every entry.
/// - throws: `invalid_argument` if the plan or the state was made for other lanes or another page size, if the policy
///   is not sound, if a count is out of its limits, if layers inherit pages that were not chosen, or if they hold other
///   entries than the layer that chooses (which a device reports by its `check`). Then nothing was changed. If the
///   scorer or the budget throws, the exception passes through and the plan holds no choice.
template <executor Executor, page_decision Policy, class... Given>
void select_pages(Executor& exec, Policy const& policy, signals<Given...> const& in, state<Executor> const& state,
                  selection_plan<Executor>& into) {
  if constexpr (detail::erased<detail::score_of<Policy>>) {
    detail::select_given(exec, policy, policy.score.by_name(in), state, into);
  } else {
    detail::select_given(exec, policy, in, state, into);
  }
}

}  // namespace KVPOLICY_NAMESPACE
