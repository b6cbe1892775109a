// SPDX-License-Identifier: Apache-2.0
// DefensiveKV: worked numbers, who is put first, lanes that share the budget, and its specs.

#include "reference/pooled_attention.hpp"
#include "support/specs.hpp"

namespace {

using namespace kvpolicy_test;

/// One lane of two query heads whose two rows give stated probabilities to five entries, and the rest to their own.
struct stated_attention {
  static constexpr int entries = 7, dims = 8, rows = 2;
  static constexpr double given[2][rows][5] = {{{.50, .10, .05, .05, .10}, {.20, .30, .10, .05, .05}},
                                               {{.05, .05, .40, .10, .20}, {.10, .10, .10, .30, .20}}};
  kv::shape model{.layers = 1, .query_heads = 2, .kv_heads = 1, .head_dim = dims};
  std::vector<float> keys = std::vector<float>(entries * dims), values = keys;
  std::vector<int> count{entries}, position = up_to(entries);
  std::vector<float> query = std::vector<float>(2 * rows * dims), norms = std::vector<float>(entries, 9.0f);
  int row_positions[rows] = {5, 6};
  kv::cache cache;

  explicit stated_attention(std::vector<float> const& of_values)
      : cache(kv::contiguous_cache(keys.data(), values.data(), model, entries, count.data(), position.data())) {
    cache.logits.scale = 1;
    std::copy(of_values.begin(), of_values.end(), norms.begin());
    for (int e = 0; e < entries; ++e) keys[as_size(e * dims + e)] = 1;
    for (int h = 0; h < 2; ++h) {
      for (int r = 0; r < rows; ++r) {
        double left = 1;
        for (int e = 0; e < 5; ++e) left -= given[h][r][e];
        for (int e = 0; e < entries; ++e) {
          double const p = e < 5 ? given[h][r][e] : left / (r + 1);
          query[as_size((h * rows + r) * dims + e)] = static_cast<float>(std::log(p));
        }
      }
    }
  }
  stated_attention(stated_attention const&) = delete;

  [[nodiscard]] kv::recent_queries recent() const {
    kv::recent_queries made;
    made.base = reinterpret_cast<std::byte const*>(query.data());
    made.dims = dims;
    made.row = 4 * dims;
    made.head = made.row * rows;
    made.layer = made.head * 2;
    made.heads = 2;
    made.rows = rows;
    made.position = {row_positions};
    return made;
  }
  /// What stays, and the scores before the window.
  template <class Policy>
  std::pair<std::vector<int>, reference::row> decide(Policy const& policy) {
    kv::host_executor exec;
    auto [state, plan] = state_and_plan(exec, policy, cache);
    kv::value_norms const given_norms{{norms.data()}};
    kv::decide(exec, policy, kv::signals{cache.lanes, kv::keys_of(cache), recent(), given_norms}, state, plan);
    reference::row scores;
    for (int e = 0; e < 5; ++e) scores.push_back(static_cast<double>(plan.score(0, e)));
    return {listed(plan.keep(), 0), scores};
  }
};

kv::defensive_kv plain(double cover) {
  return {.window = 2, .pool = kv::avg_pool{3}, .cover = cover, .axis = kv::norm_axis::none};
}

constexpr double infinity = std::numeric_limits<double>::infinity();

TEST_SUITE("scorers/defensive_kv") {
  TEST_CASE("worked numbers: the most attention of any row, floored by its mean, times the norm") {
    stated_attention lane({1, 2, 0.5f, 1, 4});
    auto const run = [&](kv::defensive_kv const& score, int budget) {
      return lane.decide(kv::eviction{.score = score, .budget = kv::per_lane{budget}});
    };
    auto const [kept, scores] = run(plain(0), 5);
    check_digits(scores, {0.266667, 0.577778, 0.121115, 0.260465, 0.968918}, 5);
    CHECK(kept == std::vector<int>{0, 1, 4, 5, 6});
    CHECK(run(plain(0.6), 5).first == std::vector<int>{0, 1, 4, 5, 6});
  }

  TEST_CASE("worked numbers: who has most of the mean attention is put first, as far as there are places") {
    stated_attention lane({0.1f, 2, 0.5f, 1, 4});
    auto const run = [&](kv::defensive_kv const& score, int budget) {
      return lane.decide(kv::eviction{.score = score, .budget = kv::per_lane{budget}});
    };
    check_digits(run(plain(0), 5).second, {0.026667, 0.577778, 0.121115, 0.260465, 0.968918}, 5);
    CHECK(run(plain(0), 5).first == std::vector<int>{1, 3, 4, 5, 6});
    // The window has 0.225 of the attention, and the entries 0.274194, 0.209677, 0.177419, 0.177419 of the rest.
    auto const [kept, scores] = run(plain(0.6), 5);
    CHECK(kept == std::vector<int>{0, 1, 4, 5, 6});
    CHECK(scores[0] == infinity);
    CHECK(scores[2] == doctest::Approx(0.121115).epsilon(1e-4));
    CHECK(run(plain(0.4991), 5).first == std::vector<int>{1, 3, 4, 5, 6});  // the first one would cross 0.2741
    CHECK(run(plain(0.4993), 5).first == std::vector<int>{0, 1, 4, 5, 6});
    CHECK(run(plain(0.9), 5).first == std::vector<int>{0, 1, 2, 5, 6});  // the last of the equal ones would cross
    CHECK(run(plain(0.9), 4).first == std::vector<int>{0, 2, 5, 6});     // no more than there are places
    kv::defensive_kv release = plain(0.6);
    release.bias = kv::cover_bias::release;  // the entries 3 and 4 have 0.2625
    CHECK(run(release, 5).first == std::vector<int>{0, 1, 4, 5, 6});
    release.cover = 0.53;
    CHECK(run(release, 5).first == std::vector<int>{1, 3, 4, 5, 6});
  }

  TEST_CASE("norms over the sum of the heads of a layer are 1 where there is one, and 0 / 0 is 0") {
    stated_attention lane({0.25f, 0, 3, 1, 4});
    kv::defensive_kv score = plain(0);
    score.axis = kv::norm_axis::heads;
    reference::row const by_heads = lane.decide(kv::eviction{.score = score, .budget = kv::per_lane{5}}).second;
    check_digits(by_heads, {0.266667, 0, 0.242230, 0.260465, 0.242230}, 5);
    score.axis = kv::norm_axis::tokens;
    reference::row const by_tokens = lane.decide(kv::eviction{.score = score, .budget = kv::per_lane{5}}).second;
    for (std::size_t e = 0; e < 5; ++e) {
      CHECK(by_tokens[e] ==
            doctest::Approx((e == 1 ? 0.288889 : by_heads[e]) * static_cast<double>(lane.norms[e]) / 8.25));
    }
  }
}

/// Lanes of random rows and norms.
struct random_lanes {
  mock_cache cache;
  mock_queries queries;
  std::vector<float> norms;

  explicit random_lanes(int entries, int query_heads = 4, int heads = 2, int layers = 2)
      : cache({.model = {.layers = layers, .query_heads = query_heads, .kv_heads = heads, .head_dim = 8},
               .bound = entries,
               .seed = *rc::gen::inRange<std::uint64_t>(1, 1u << 20)}),
        queries(cache, kv::codec::f32, entries, entries) {
    for (int i = 0; i < cache.lane_count(); ++i) cache.put(cache.lane_at(i), up_to(entries));
    fill(queries, cache, content::smooth);
    for (int r = 0; r < entries; ++r) queries.set_position(0, r, r);
    for (int i = 0; i < cache.lane_count() * entries; ++i) norms.push_back(static_cast<float>(cache.random().below(9)));
  }
  template <class Policy>
  std::vector<std::vector<int>> kept(Policy const& policy) {
    kv::host_executor exec(2);
    kv::cache in = cache.view();
    auto [state, plan] = state_and_plan(exec, policy, in);
    int const stride = cache.options().bound;
    kv::value_norms const given{{norms.data(), 0, std::int64_t{cache.model().kv_heads} * stride, stride}};
    kv::recent_queries rows;
    static_cast<kv::query_view&>(rows) = queries.view();
    kv::decide(exec, policy, kv::signals{in.lanes, kv::keys_of(in), rows, given}, state, plan);
    std::vector<std::vector<int>> made;
    for (int s = 0; s < plan.keep().segments(); ++s) made.push_back(listed(plan.keep(), s));
    return made;
  }
};

TEST_SUITE("scorers/defensive_kv") {
  TEST_CASE("law: one row without pools keeps the order, down to its mean, which is a floor") {
    holds("one row", 50, [] {
      int const entries = *rc::gen::inRange(2, 40), budget = *rc::gen::inRange(1, 20);
      random_lanes of(entries, 2, 2);
      std::fill(of.norms.begin(), of.norms.end(), 1.0f);
      kv::defensive_kv const score{.window = 1, .pool = kv::no_pool{}, .cover = *rc::gen::element(0.0, 0.5, 1.0)};
      kv::snapkv const mass{.window = 1, .pool = kv::no_pool{}};
      auto const found = of.kept(kv::eviction{.score = score, .budget = kv::per_lane{budget}});
      for (std::size_t s = 0; s < found.size(); ++s) {
        kv::lane const one = of.cache.lane_at(static_cast<int>(s));
        reference::row p = reference::attention_of_last_rows(reference_lane(of.cache, of.queries, one), 1)[0][0];
        p.pop_back();
        double const mean = std::accumulate(p.begin(), p.end(), 0.0) / static_cast<double>(p.size());
        auto const above = std::count_if(p.begin(), p.end(), [&](double each) { return each > mean * (1 + 1e-5); });
        int const ordered = std::min(budget, 1 + static_cast<int>(above));
        auto const best = of.kept(kv::eviction{.score = mass, .budget = kv::per_lane{ordered}})[s];
        RC_ASSERT(static_cast<int>(found[s].size()) == std::min(budget, entries));
        RC_ASSERT(std::includes(found[s].begin(), found[s].end(), best.begin(), best.end()));
      }
    });
  }

  TEST_CASE("lanes of a layer share the budget of a spec, or all lanes do") {
    holds("pools", 50, [] {
      int const entries = *rc::gen::inRange(1, 40), budget = *rc::gen::inRange(0, 30);
      random_lanes of(entries);
      kv::defensive_kv const one{
          .window = *rc::gen::element(1, 3, 8), .pool = kv::avg_pool{3}, .cover = *rc::gen::element(0.0, 0.6, 0.9)};
      kv::layer_defensive_kv const all{one.window, one.pool, one.cover, one.bias, one.axis};
      std::string const fields = "(window=" + std::to_string(one.window) +
                                 ", pool=avg:3, cover=" + kv::to_string(one.cover) + ") | budget(" +
                                 std::to_string(budget) + ")";
      auto const of_layer = of.kept(kv::eviction{.score = one, .budget = kv::per_layer{budget, 0}});
      auto const of_all = of.kept(kv::eviction{.score = all, .budget = kv::per_sequence{budget, 0}});
      RC_ASSERT(of.kept(kv::parse("defensive_kv" + fields)) == of_layer);
      RC_ASSERT(of.kept(kv::parse("layer_defensive_kv" + fields)) == of_all);
      int const window = std::min(one.window, entries), wanted = std::min(entries, std::max(budget, window));
      auto const size = [](auto const& lists, std::size_t first, std::size_t last) {
        std::size_t sum = 0;
        for (std::size_t s = first; s < last; ++s) sum += lists[s].size();
        return static_cast<int>(sum);
      };
      RC_ASSERT(size(of_layer, 0, 2) == 2 * wanted);
      RC_ASSERT(size(of_layer, 2, 4) == 2 * wanted);
      RC_ASSERT(size(of_all, 0, 4) == 4 * wanted);
    });
  }

  TEST_CASE("its specs") {
    CHECK(kv::to_string(kv::parse("defensive_kv | budget(512)")) ==
          "defensive_kv(window=32, pool=avg:5, cover=0.9, bias=window, norm_axis=heads) | budget(512, scope=layer)");
    CHECK(kv::to_string(kv::parse("layer_defensive_kv(bias=release, norm_axis=none) | budget(512)")) ==
          "layer_defensive_kv(window=32, pool=avg:5, cover=0.9, bias=release, norm_axis=none) | budget(512, "
          "scope=global)");
    for (char const* const spec :
         {"defensive_kv(window=8, norm_axis=tokens) | sinks(4) | budget(9)",
          "layer_defensive_kv(pool=none, cover=0) | budget(9, scope=lane)", "defensive_kv | budget(ratio=0.5)"}) {
      kv::any_policy const policy = kv::parse(spec);
      CHECK(kv::parse(kv::to_string(policy)) == policy);
    }
    CHECK(kv::detail::listed_names(kv::parse("defensive_kv | budget(9)").needs()) ==
          "queries, keys, value_norms or values, value_norms or output_projection");
    says(parse_error, "parse: ")({
        {"defensive_kv | at_least(0.5)", "column 1 = defensive_kv, but at_least has no places"},
        {"defensive_kv | pooled(avg:3)",
         "column 16: pooled.score_of = defensive_kv(window=32, pool=avg:5, cover=0.9, bias=window, norm_axis=heads), "
         "but it puts entries first and has the scores of the others, and no stage may be around it"},
    });
  }
}

}  // namespace
