// Combinator: reduces the scores of lanes, so that a layer or a sequence decides as one.
#pragma once

#include <kvpolicy/core/fields.hpp>
#include <kvpolicy/core/observed.hpp>
#include <kvpolicy/ops/all_reduce.hpp>
#include <kvpolicy/ops/fold.hpp>
#include <kvpolicy/ops/scratch.hpp>
#include <kvpolicy/scorers/concept.hpp>

namespace KVPOLICY_NAMESPACE {

/// Makes a scorer decide at a coarser granularity: it reduces the scores of all lanes that then decide together. An
/// engine with one slot map for all layers and heads can only drop a token for all of them at once, so a scorer of
/// lanes needs this step there. (IntentKV's appendices C.2 and E run SnapKV and H2O like this, without naming the
/// reduction.)
///
///     kv::reduce_lanes{.score_of = kv::snapkv{}, .decides = kv::granularity::token, .how = kv::reduction::sum}
///
/// A sum weighs lanes equally only if each lane's scores are normalised, as those of attention are. The plan provides
/// spare rows for the scores of one layer.
template <scorer Score>
struct reduce_lanes {
  Score score_of{};
  granularity decides = granularity::token;
  reduction how = reduction::sum;

  using needs = typename Score::needs;
  using verbs = decltype(detail::verbs_of<Score>());
  static constexpr bool ranks_candidates = detail::ranks_candidates<Score>;
  static constexpr bool rows_see_every_entry = detail::rows_see_every_entry<Score>;
  static constexpr bool constrains_hooks = true;
  using wraps = Score;

  void check(char const* call) const {
    if constexpr (requires { score_of.check(call); }) score_of.check(call);
    check_lowering(call);
  }
  void check(char const* call, shape const& model) const {
    if constexpr (requires { score_of.check(call, model); }) {
      score_of.check(call, model);
      check_lowering(call);
    } else {
      check(call);
    }
  }
  void refuse(auto& exec, auto const& in) const
    requires requires(Score const& s) { s.refuse(exec, in); }
  {
    score_of.refuse(exec, in);
  }
  /// A sum of lanes is also summed over tensor-parallel ranks. Means and maxima are not reduced over ranks.
  [[nodiscard]] constexpr bool reduces_ranks() const {
    if (decides != score_of.decides) return how == reduction::sum && score_of.decides == granularity::lane;
    if constexpr (requires { score_of.reduces_ranks(); }) {
      return score_of.reduces_ranks();
    } else {
      return decides == granularity::lane;
    }
  }
  [[nodiscard]] constexpr auto forces() const
    requires requires(Score const& s) { s.forces(); }
  {
    return score_of.forces();
  }
  [[nodiscard]] constexpr auto forces(auto const& in) const
    requires requires(Score const& s) { s.forces(in); }
  {
    return score_of.forces(in);
  }
  [[nodiscard]] constexpr auto triggers() const
    requires requires(Score const& s) { s.triggers(); }
  {
    return score_of.triggers();
  }
  [[nodiscard]] constexpr auto recorders() const
    requires requires(Score const& s) { s.recorders(); }
  {
    return score_of.recorders();
  }
  /// Entries that are put first are so by the scores of those who decide together.
  [[nodiscard]] constexpr auto places() const
    requires requires(Score const& s) { s.places(); }
  {
    return score_of.places();
  }
  [[nodiscard]] auto rest_scores(auto const& in) const
    requires requires(Score const& s) { s.rest_scores(in); }
  {
    return score_of.rest_scores(in);
  }
  /// If there is something to reduce, it needs the rows of one layer, otherwise those that `score_of` asks for.
  [[nodiscard]] constexpr int spare_rows(lanes const& batch, shape const& model) const {
    if (decides != score_of.decides) return batch.sequences * batch.heads;
    if constexpr (requires { score_of.spare_rows(batch, model); }) {
      return score_of.spare_rows(batch, model);
    } else {
      return 0;
    }
  }

  void score(auto& exec, auto const& in, score_view const& out) const {
    if (decides == score_of.decides) return score_of.score(exec, in, out);
    for (int layer = out.lanes.layer_begin; layer < out.lanes.layer_end; ++layer) {
      auto here = in;
      here.lanes = in.lanes.layers_only(layer, layer + 1);
      score_view part =
          contiguous_scores(out.lanes.layers_only(layer, layer + 1), score_of.decides, out.spare, out.lanes.bound);
      score_of.score(exec, here, part);
      ops::fold(exec, part, step(out.lanes, layer), out);
    }
    if (how == reduction::sum) ops::all_reduce(exec, out);
  }

  friend bool operator==(reduce_lanes const&, reduce_lanes const&) = default;

 private:
  void check_lowering(char const* call) const {
    expects(how != reduction::last, call, "reduce_lanes.how", "last", "lanes have no order");
    expects(decides == score_of.decides || !ranks_candidates, call, "reduce_lanes.decides", to_string(decides), [&] {
      return to_string(score_of) + " ranks the candidates of a " + to_string(granularity{score_of.decides});
    });
    expects(decides >= score_of.decides, call, "reduce_lanes.decides", to_string(decides), [&] {
      return "the scorer decides by " + to_string(granularity{score_of.decides}) + " already, which is coarser";
    });
  }

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
