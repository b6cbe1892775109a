// SPDX-License-Identifier: Apache-2.0
// Stage: reduces the scores of lanes, so that a layer or a sequence decides as one.
#pragma once

#include <kvpolicy/core/contract/fields.hpp>
#include <kvpolicy/ops/all_reduce.hpp>
#include <kvpolicy/ops/fold.hpp>
#include <kvpolicy/ops/map.hpp>
#include <kvpolicy/scorers/concept.hpp>
#include <kvpolicy/scorers/scorer_traits.hpp>

namespace KVPOLICY_NAMESPACE {

/// Makes a scorer decide at a coarser granularity: it reduces the scores of all lanes that then decide together. An
/// engine with one slot map for all layers and heads can only drop a token for all of them at once, so a scorer of
/// lanes needs this step there. (IntentKV's appendices C.2 and E run SnapKV and H2O like this, without naming the
/// reduction.)
///
///     kv::reduce_lanes{.score_of = kv::snapkv{}, .decides = kv::granularity::sequence, .how = kv::reduction::sum}
///
/// With tensor parallelism sums and maxima are those of the lanes of all ranks. A maximum needs an executor that finds
/// one (`ops::all_reduce`), and is the same for any number of ranks.
///
/// A sum weighs lanes equally only if each lane's scores are normalised, as those of attention are. The plan provides
/// spare rows for the scores of one layer.
template <scorer Score>
struct reduce_lanes {
  Score score_of{};
  granularity decides = granularity::sequence;
  reduction how = reduction::sum;

  static constexpr auto name = "reduce_lanes";
  static constexpr auto fields() {
    return make_fields(field{"decides", &reduce_lanes::decides}, field{"how", &reduce_lanes::how});
  }
  using needs = typename Score::needs;
  using wraps = Score;
  static constexpr bool ranks_candidates = detail::ranks_candidates<Score>;
  static constexpr bool rows_see_every_entry = detail::rows_see_every_entry<Score>;

  /// The same reduction around another scorer.
  template <scorer Other>
  [[nodiscard]] constexpr reduce_lanes<Other> around(Other const& other) const {
    return {other, decides, how};
  }
  void check(char const* call) const {
    expects(how != reduction::last, call, "reduce_lanes.how", "last", "lanes have no order");
    detail::refuse_rest_in_plan(call, "reduce_lanes.score_of", score_of);
    expects(decides >= score_of.decides, call, "reduce_lanes.decides", to_string(decides), [&] {
      return "the scorer decides by " + to_string(granularity{score_of.decides}) + " already, which is coarser";
    });
  }
  /// True if there is nothing to reduce.
  [[nodiscard]] constexpr bool changes_nothing() const { return decides == score_of.decides; }
  /// A sum or maximum of lanes is also that of all tensor-parallel ranks. Means are not reduced over ranks.
  [[nodiscard]] constexpr bool safe_across_ranks() const {
    if (decides != score_of.decides) return over_ranks() && score_of.decides == granularity::lane;
    return detail::facts_of(score_of).safe_across_ranks;
  }
  /// If there is something to reduce, it needs the rows of one layer, otherwise those that `score_of` asks for.
  [[nodiscard]] constexpr int spare_rows(lanes const& batch, shape const& model) const {
    if (decides == score_of.decides) return detail::spare_rows(score_of, batch, model);
    lanes const one_layer = batch.layers_only(batch.layer_begin, batch.layer_begin + 1);
    return one_layer.size() + detail::spare_rows(score_of, one_layer, model);
  }

  /// Refuses a maximum over ranks whose executor can only sum.
  void refuse(auto& exec, auto const& in) const {
    if (!changes_nothing() && over_ranks()) ops::all_reduce_t::refuse("decide", exec, how);
    detail::refuse_data(score_of, exec, in);
  }
  void score(auto& exec, auto const& in, score_view const& out) const {
    if (decides == score_of.decides) return score_of.score(exec, in, out);
    for (int layer = out.lanes.layer_begin; layer < out.lanes.layer_end; ++layer) {
      auto here = in;
      here.lanes = in.lanes.layers_only(layer, layer + 1);
      score_view part =
          contiguous_scores(out.lanes.layers_only(layer, layer + 1), score_of.decides, out.spare, out.lanes.capacity);
      part.spare = out.spare + std::int64_t{part.segments()} * out.lanes.capacity;
      if (detail::facts_of(score_of).ranks_candidates) ops::map(exec, part, competing{out.rows});
      score_of.score(exec, here, part);
      ops::fold(exec, part, step(out.lanes, layer), out);
    }
    if (over_ranks()) ops::all_reduce(exec, out, how);
  }

  friend bool operator==(reduce_lanes const&, reduce_lanes const&) = default;

 private:
  [[nodiscard]] constexpr bool over_ranks() const { return how == reduction::sum || how == reduction::max; }
  [[nodiscard]] constexpr ops::fold_step step(lanes const& batch, int layer) const {
    bool const by_layer = decides == granularity::layer;
    bool const last = by_layer || layer + 1 == batch.layer_end;
    int const rows = (score_of.decides == granularity::lane ? batch.heads : 1) * (by_layer ? 1 : batch.layers());
    return {how, by_layer || layer == batch.layer_begin, how == reduction::mean && last ? rows : 1};
  }
};

/// "snapkv(window=32, ...) | reduce_lanes(token, sum)"
template <class Score>
[[nodiscard]] std::string print(reduce_lanes<Score> const& lowered) {
  std::string text = to_string(lowered.score_of);
  if (lowered.decides == lowered.score_of.decides) return text;
  return text + " | reduce_lanes(" + to_string(lowered.decides) + ", " + to_string(lowered.how) + ")";
}

}  // namespace KVPOLICY_NAMESPACE
