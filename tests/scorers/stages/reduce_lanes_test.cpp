// SPDX-License-Identifier: Apache-2.0
// reduce_lanes: a scorer of lanes decides for layers and tokens, through make_state, make_plan, observe and decide.

#include "reference/methods.hpp"
#include "support/scored_by.hpp"

namespace {

using namespace kvpolicy_test;

constexpr kv::reduction reductions[] = {kv::reduction::sum, kv::reduction::mean, kv::reduction::max};

/// A batch whose sequences hold the same entries in all lanes, at random ascending positions.
mock_options even_batch() {
  mock_options shape = any_mock();
  shape.shared_entries = true;
  shape.rows = *rc::gen::element(content::smooth, content::few);
  return shape;
}

/// Decides with a lowered scorer, and compares scores and keep sets with the lanes' scores reduced by the reference.
template <class Score, class LaneScores>
void lowers(mock_cache& cache, mock_queries& queries, Score const& score, LaneScores const& lane_scores) {
  auto const decides = *rc::gen::element(kv::granularity::sequence, kv::granularity::layer);
  auto const how = *rc::gen::elementOf(std::vector<kv::reduction>(std::begin(reductions), std::end(reductions)));
  int const budget = *rc::gen::inRange(0, cache.options().bound + 1);
  kv::eviction<kv::reduce_lanes<Score>> const policy{.score = {.score_of = score, .decides = decides, .how = how},
                                                     .budget = {budget}};
  kv::host_executor exec(*rc::gen::element(1, 3));
  auto [state, plan] = state_and_plan(exec, policy, cache.view());
  kv::signals const in{cache.lanes(), kv::keys_of(cache.view()), kv::queries{queries.view()}};
  observe_and_decide(exec, policy, in, state, plan);
  auto const before = listed(plan.keep(), 0);
  kv::decide(exec, policy, in, state, plan);  // the same again, from the same spare rows
  RC_ASSERT(listed(plan.keep(), 0) == before);

  kv::lanes const batch = cache.lanes();
  int const together = cache.lane_count() / kv::segments(batch, decides);
  RC_ASSERT(plan.keep().segments() == kv::segments(batch, decides));
  for (int segment = 0; segment < kv::segments(batch, decides); ++segment) {
    auto const count = as_size(cache.committed(cache.lane_at(segment * together)));
    reference::matrix rows;
    for (int lane = segment * together; lane < (segment + 1) * together; ++lane) rows.push_back(lane_scores(lane));
    auto const expected = reference::reduced(rows, static_cast<reference::reduction>(how), count);
    kv::score_view const scores = plan.scores(batch);
    comparison const result = compare({scores.row(segment), count}, expected);
    RC_LOG() << cache.options() << '\n' << "segment " << segment << ": " << result << '\n';
    RC_ASSERT(result.same);
    reference::flags forced(count, false);
    if constexpr (requires { score.window; }) forced = reference::ends(static_cast<int>(count), 0, score.window);
    RC_ASSERT(decided_by(listed(plan.keep(), segment), expected, forced, budget));
  }
}

/// Knorm's scores, by way of memory of the plan.
struct aside {
  using needs = kv::needs<kv::keys>;
  static constexpr kv::granularity decides = kv::granularity::lane;
  [[nodiscard]] static int spare_rows(kv::lanes const& batch, kv::shape const&) { return batch.size(); }
  void score(auto& exec, auto const& in, kv::score_view const& out) const {
    auto const made = kv::contiguous_scores(out.lanes, kv::granularity::lane, out.spare, out.lanes.capacity);
    kv::ops::row_norm(exec, in.template get<kv::keys>(), kv::negated{}, made);
    for (int i = 0; i < out.segments(); ++i) std::copy_n(made.row(i), out.lanes.capacity, out.row(i));
  }
  [[maybe_unused]] friend bool operator==(aside const&, aside const&) = default;
};

/// The score of an entry that competes is the number of those before it that do.
struct ranked_candidates {
  using needs = kv::needs<kv::keys>;
  static constexpr auto name = "ranked_candidates";
  static constexpr auto fields() { return kv::make_fields(); }
  static constexpr kv::granularity decides = kv::granularity::lane;
  static constexpr bool ranks_candidates = true;
  void score(auto&, auto const&, kv::score_view const& out) const {
    for (int i = 0; i < out.segments(); ++i) {
      float before = 0;
      for (int e = 0; e < out.lanes.committed(out.lane_of(i)); ++e) {
        if (!std::isinf(out.row(i)[e])) out.row(i)[e] = before++;
      }
    }
  }
  [[maybe_unused]] friend bool operator==(ranked_candidates const&, ranked_candidates const&) = default;
};

/// One score for every lane and position, by the position and the lane alone.
struct of_place {
  static float at(kv::lane this_lane, int position) {
    return static_cast<float>((position * 37 + this_lane.layer * 11 + this_lane.head * 5 + this_lane.sequence) % 17) /
           16.0f;
  }
  float operator()(float, kv::entry e) const { return at(e.lane, e.position); }
};
using by_place = scored_by<of_place>;

/// A scorer of layers: the position, and how much the layer likes it.
struct of_layer_place {
  float operator()(float, kv::entry e) const { return static_cast<float>(e.position % 5 * (e.lane.layer + 1)); }
};
using by_layer_place = scored_by<of_layer_place, kv::granularity::layer>;

/// Head 0 says 4, 0, 3 and head 1 says 0, 3.5, 3: the sums are 4, 3.5, 6 and the maxima 4, 3.5, 3.
struct of_two_heads {
  float operator()(float, kv::entry e) const {
    float const scores[2][3] = {{4, 0, 3}, {0, 3.5f, 3}};
    return scores[e.lane.head][e.ordinal];
  }
};
using two_heads = scored_by<of_two_heads>;

}  // namespace

TEST_SUITE("scorers/stages/reduce_lanes") {
  TEST_CASE("scores of lanes are summed, averaged or maximised as the reference does, and decided by") {
    holds("a score of places", 200, [] {
      filled_cache cache(even_batch());
      mock_queries queries(cache, kv::codec::f32, 0, 1);
      lowers(cache, queries, by_place{}, [&](int lane) {
        kv::lane const this_lane = cache.lane_at(lane);
        reference::row scores;
        for (int const p : cache.positions(this_lane, cache.committed(this_lane))) {
          scores.push_back(static_cast<double>(of_place::at(this_lane, p)));
        }
        return scores;
      });
    });
    holds("the norm of keys, which differ from lane to lane", [] {
      filled_cache cache(even_batch());
      mock_queries queries(cache, kv::codec::f32, 0, 1);
      lowers(cache, queries, kv::knorm{}, [&](int lane) {
        kv::lane const this_lane = cache.lane_at(lane);
        return reference::knorm_scores(cache.rows(of::keys, this_lane, cache.committed(this_lane)));
      });
    });
    holds("a score that is made in the memory of the plan", [] {
      filled_cache cache(even_batch());
      mock_queries queries(cache, kv::codec::f32, 0, 1);
      lowers(cache, queries, aside{}, [&](int lane) {
        kv::lane const this_lane = cache.lane_at(lane);
        return reference::knorm_scores(cache.rows(of::keys, this_lane, cache.committed(this_lane)));
      });
    });
    holds("SnapKV's window, whose queries were recorded", [] {
      filled_cache cache(even_batch());
      current_queries queries(cache, kv::codec::f32, *rc::gen::inRange(1, 6), 7);
      kv::snapkv const score{.window = 8, .pool = kv::no_pool{}};
      lowers(cache, queries, score, [&](int lane) {
        return reference::snapkv(reference_lane(cache, queries, cache.lane_at(lane)),
                                 {.window = 8, .pool = {}, .mass = {}})
            .scores;
      });
    });
  }

  TEST_CASE("a scorer of layers is lowered to tokens, and to layers unchanged") {
    mock_cache cache({.model = {.layers = 2, .query_heads = 3, .kv_heads = 3, .head_dim = 4}, .shared_entries = true});
    cache.put({0, 0, 0}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
    kv::host_executor exec;
    for (kv::reduction const how : reductions) {
      kv::eviction<kv::reduce_lanes<by_layer_place>> const policy{.score = {.how = how}, .budget = {4}};
      auto [state, plan] = decided(exec, kv::signals{cache.lanes()}, policy, cache.view());
      CHECK(listed(plan.keep(), 0) == std::vector<int>{3, 4, 8, 9});
      float const factor = how == kv::reduction::sum ? 3.0f : how == kv::reduction::mean ? 1.5f : 2.0f;
      for (int e = 0; e < 10; ++e) CHECK(plan.scores(cache.lanes()).row(0)[e] == factor * static_cast<float>(e % 5));
    }
    kv::eviction<kv::reduce_lanes<by_layer_place>> const same{.score = {.decides = kv::granularity::layer},
                                                              .budget = {4}};
    auto [state, plan] = decided(exec, kv::signals{cache.lanes()}, same, cache.view());
    CHECK(plan.keep().segments() == 2);
    CHECK(plan.scores(cache.lanes()).row(1)[4] == 8.0f);
  }

  TEST_CASE("which reduction it is decides who goes") {
    mock_cache cache({.model = {.layers = 1, .query_heads = 2, .kv_heads = 2, .head_dim = 4}, .shared_entries = true});
    cache.put({0, 0, 0}, {0, 1, 2});
    kv::host_executor exec;
    auto const kept = [&](kv::reduction how) {
      kv::eviction<kv::reduce_lanes<two_heads>> const policy{.score = {.how = how}, .budget = {1}};
      auto [state, plan] = decided(exec, kv::signals{cache.lanes()}, policy, cache.view());
      return listed(plan.keep(), 0);
    };
    CHECK(kept(kv::reduction::sum) == std::vector<int>{2});
    CHECK(kept(kv::reduction::mean) == std::vector<int>{2});
    CHECK(kept(kv::reduction::max) == std::vector<int>{0});
  }

  TEST_CASE("lanes of unequal counts cannot decide together") {
    mock_cache cache({.model = {.layers = 1, .query_heads = 2, .kv_heads = 2, .head_dim = 4}});
    cache.put({0, 0, 0}, {0, 1, 2});
    cache.put({0, 0, 1}, {0, 1});
    kv::host_executor exec;
    kv::eviction<kv::reduce_lanes<kv::random_scores>> const policy{.budget = {1}};
    auto [state, plan] = state_and_plan(exec, policy, cache.view());
    CHECK_THROWS_AS(kv::decide(exec, policy, kv::signals{cache.lanes()}, state, plan), kv::invalid_argument);
    CHECK(plan.keep().indices == nullptr);
  }

  TEST_CASE("a scorer that ranks candidates is told which they are, lane by lane") {
    mock_cache cache(
        {.model = {.layers = 3, .query_heads = 2, .kv_heads = 2, .head_dim = 4}, .bound = 12, .shared_entries = true});
    std::vector<int> every;
    for (int e = 0; e < 12; ++e) every.push_back(e);
    for (int i = 0; i < cache.lane_count(); ++i) cache.put(cache.lane_at(i), every);
    kv::eviction const policy{.score = kv::reduce_lanes{.score_of = ranked_candidates{}, .how = kv::reduction::sum},
                              .protect = kv::safe{2, 3},
                              .budget = kv::per_lane{7}};
    kv::host_executor exec;
    auto [state, plan] = decided(exec, kv::signals{cache.lanes(), kv::keys_of(cache.view())}, policy, cache.view());
    CHECK(listed(plan.keep(), 0) == std::vector<int>{0, 1, 7, 8, 9, 10, 11});
    CHECK(plan.scores(cache.lanes()).row(0)[8] == 36);  // six lanes, in each of which 6 come before it
  }

  TEST_CASE("what makes no sense is refused: a reduction by order, and lowering to what is finer") {
    mock_cache cache({.model = {.layers = 1, .query_heads = 2, .kv_heads = 2, .head_dim = 4}});
    kv::host_executor exec;
    kv::eviction<kv::reduce_lanes<kv::random_scores>> const last{.score = {.how = kv::reduction::last}};
    CHECK(error_of([&] { static_cast<void>(kv::make_plan(exec, last, cache.view())); }) ==
          "make_plan: reduce_lanes.how = last, but lanes have no order");
    kv::eviction<kv::reduce_lanes<kv::tova>> const finer{.score = {.decides = kv::granularity::lane}};
    CHECK(error_of([&] { static_cast<void>(kv::make_state(exec, finer, cache.view())); }) ==
          "make_state: reduce_lanes.decides = lane, but the scorer decides by layer already, which is coarser");
    kv::eviction<kv::reduce_lanes<kv::random_scores>> const lowered{};
    kv::eviction<kv::reduce_lanes<kv::random_scores>> const alone{.score = {.decides = kv::granularity::lane}};
    auto [state, plan] = state_and_plan(exec, alone, cache.view());
    CHECK_THROWS_AS(kv::decide(exec, lowered, kv::signals{cache.lanes()}, state, plan), kv::invalid_argument);
    kv::eviction<kv::reduce_lanes<kv::random_scores>> const layers{.score = {.decides = kv::granularity::layer}};
    CHECK_THROWS_AS(kv::decide(exec, layers, kv::signals{cache.lanes()}, state, plan), kv::invalid_argument);
  }

  TEST_CASE("it prints what it does") {
    CHECK(kv::to_string(kv::reduce_lanes<kv::random_scores>{}) == "random(seed=42) | reduce_lanes(token, sum)");
    CHECK(kv::to_string(kv::reduce_lanes<kv::random_scores>{.decides = kv::granularity::lane}) == "random(seed=42)");
  }
}
