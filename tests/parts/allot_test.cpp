// SPDX-License-Identifier: Apache-2.0
// Budgets that look: shares that a decision allots before it picks.
#include "support/kept_lists.hpp"
#include "support/specs.hpp"

namespace {

using namespace kvpolicy_test;

/// `fit` and `round_shares` as their text says: the shares of layers in proportion to weights between two limits.
std::vector<int> fitted(std::vector<double> weights, std::int64_t total, std::vector<int> const& low,
                        std::vector<int> const& high) {
  std::size_t const layers = weights.size();
  auto const sum = [](auto const& of) { return std::accumulate(of.begin(), of.end(), std::int64_t{0}); };
  if (sum(high) <= total) return high;
  if (sum(low) >= total) return low;
  double all = 0;
  for (double const each : weights) all += each;
  if (all == 0) {
    weights.assign(layers, 1.0);
    all = static_cast<double>(layers);
  }
  std::vector<double> x(layers);
  for (std::size_t l = 0; l < layers; ++l) {
    x[l] = low[l] + static_cast<double>(total - sum(low)) * weights[l] / all;
  }
  std::vector<bool> full(layers, false);
  for (bool changed = true; changed;) {
    changed = false;
    double excess = 0;
    for (std::size_t l = 0; l < layers; ++l) {
      if (full[l] || x[l] <= high[l]) continue;
      excess += x[l] - high[l];
      x[l] = high[l];
      full[l] = changed = true;
    }
    double open = 0;
    auto const left = static_cast<double>(std::count(full.begin(), full.end(), false));
    for (std::size_t l = 0; l < layers; ++l) open += full[l] ? 0 : weights[l];
    for (std::size_t l = 0; l < layers; ++l) {
      if (!full[l]) x[l] += excess * (open > 0 ? weights[l] / open : 1 / left);
    }
  }
  std::vector<int> whole;
  std::vector<std::pair<std::int64_t, std::size_t>> fractions;
  for (std::size_t l = 0; l < layers; ++l) {
    whole.push_back(static_cast<int>(std::floor(x[l] + 1e-9)));
    fractions.push_back({-static_cast<std::int64_t>(std::floor(1e9 * std::max(0.0, x[l] - whole[l]) + 0.5)), l});
  }
  std::sort(fractions.begin(), fractions.end());
  std::int64_t const rest = total - sum(whole);
  for (std::size_t i = 0; i < as_size(rest); ++i) ++whole[fractions[i % layers].second];
  return whole;
}

/// Lanes of one sequence, all of a layer equally long.
struct even_layers {
  mock_cache cache;
  kv::host_executor exec{1};

  even_layers(int layers, int heads, int bound, std::vector<int> const& counts)
      : cache({.model = {.layers = layers, .query_heads = heads, .kv_heads = heads, .head_dim = 4}, .bound = bound}) {
    for (int i = 0; i < cache.lane_count(); ++i) {
      cache.put(cache.lane_at(i), up_to(counts[as_size(cache.lane_at(i).layer)]));
    }
  }
  /// The numbers that each lane keeps, and those that the plan says it may keep.
  template <class Policy>
  std::pair<std::vector<int>, std::vector<int>> kept(Policy const& policy) {
    kv::cache const view = cache.view();
    auto [state, plan] = decided(exec, kv::signals{view.lanes, kv::keys_of(view)}, policy, view);
    std::pair<std::vector<int>, std::vector<int>> found;
    for (int i = 0; i < view.lanes.size(); ++i) {
      found.first.push_back(static_cast<int>(listed(plan.keep(), i).size()));
      found.second.push_back(*plan.shares().row(view.lanes.at(i)));
    }
    return found;
  }
};

/// A budget of a program: lanes share in proportion to how many of their scores are above a threshold. It reads scores.
struct by_hits {
  int tokens = 4;
  float least = 0;
  static constexpr auto name = "budget_by_hits";
  static constexpr auto fields() { return std::tuple{kv::field{"tokens", &by_hits::tokens}}; }
  int operator()(kv::lane, int) const { return tokens; }

  struct count_above {
    kv::score_view scores;
    float least;
    int most;
    int operator()(kv::lane_entries const& of) const {
      float const* const row = scores.row(scores.lanes.index(of.lane));
      return std::min(most, static_cast<int>(std::count_if(row, row + of.count, [&](float s) { return s > least; })));
    }
  };
  template <class Executor, class SignalSet>
  void allot(Executor& exec, SignalSet const& in, kv::score_view const& scores, kv::by_lane<int> const& shares) const {
    kv::ops::map_lanes(exec, in.lanes, count_above{scores, least, tokens}, shares);
  }
  [[maybe_unused]] friend bool operator==(by_hits const&, by_hits const&) = default;
};

/// An allotter of a program: the first layer has `extra` entries more than the average, the others fewer.
struct front_loaded {
  int extra = 1;
  static constexpr auto name = "front_loaded";
  static constexpr auto fields() { return std::tuple{kv::field{"extra", &front_loaded::extra}}; }
  void check(char const* call) const {
    kv::expects(extra >= 0, call, "front_loaded.extra", extra, "a count cannot be negative");
  }
  struct of_layer {
    kv::average_share average;
    int extra;
    int operator()(kv::lane_entries const& of) const {
      return average(of.lane, of.count) + (of.lane.layer == 0 ? extra : -extra);
    }
  };
  template <class Executor>
  void allot(Executor& exec, kv::allotting<Executor>& of, kv::by_lane<int> const& shares) const {
    kv::ops::map_lanes(exec, of.scores.lanes, of_layer{of.average, extra}, shares);
  }
  [[maybe_unused]] friend bool operator==(front_loaded const&, front_loaded const&) = default;
};

/// What a decision shows of layers of one lane, whose scorer has left numbers.
struct shown_numbers final : kv::allotting<kv::host_executor> {
  shown_numbers(kv::lanes const& batch, float* numbers, int tokens) {
    scores.lanes = batch;
    scores.spare = numbers;
    average.tokens = tokens;
  }
  [[nodiscard]] kv::kept_of_lanes kept(kv::budget_scope, kv::sure_part, kv::forced_by) override { return {}; }
};

/// The shares of layers with so many entries. It writes the layers' preferences beside their numbers.
std::vector<int> shares_by(kv::moments const& by, std::vector<float>& numbers, int layers, int entries, int tokens) {
  std::vector<int> counts(1, entries), positions(as_size(entries), 0), shares(as_size(layers));
  kv::lanes batch{.sequences = 1, .heads = 1};
  batch.layer_end = layers;
  batch.capacity = entries;
  batch.count = {counts.data()};
  batch.position = {positions.data()};
  kv::host_executor exec{1};
  shown_numbers of(batch, numbers.data(), tokens);
  by.allot(exec, of, kv::by_lane<int>{shares.data(), 0, 1, 0});
  return shares;
}

/// Real shares in proportion to weights, of which none is above `most`: what is above goes to the others likewise.
std::vector<double> filled(std::vector<double> const& weights, double total, double most) {
  std::vector<double> x(weights.size(), most);
  if (most * static_cast<double>(weights.size()) <= total) return x;
  std::vector<bool> full(weights.size(), false);
  for (bool changed = true; changed;) {
    double sum = 0, left = total, open = 0;
    for (std::size_t l = 0; l < weights.size(); ++l) {
      if (full[l]) left -= most;
      if (!full[l]) sum += weights[l], ++open;
    }
    changed = false;
    for (std::size_t l = 0; l < weights.size(); ++l) {
      if (!full[l]) x[l] = sum > 0 ? left * weights[l] / sum : left / open;
    }
    for (std::size_t l = 0; l < weights.size(); ++l) {
      if (!full[l] && x[l] > most) x[l] = most, full[l] = changed = true;
    }
  }
  return x;
}

/// A ratio as a budget in text: 1 - 0.5 and the like are exact.
int part(int tokens, int of_sixteen) { return tokens * of_sixteen / 16; }

TEST_SUITE("parts/allot") {
  TEST_CASE("shares by weight are those of the text, and sum to the budget of all layers") {
    holds("any weights", 200, [] {
      int const layers = *rc::gen::inRange(1, 12);
      int const heads = *rc::gen::element(1, 2);
      int const bound = *rc::gen::inRange(1, 400);
      int const tokens = *rc::gen::inRange(0, bound + 1);
      int const least = *rc::gen::element(0, 1, 8, 32, 1000);
      double const cap = *rc::gen::element(1.0, 1.5, 3.0, 100.0);
      std::vector<float> weights;
      std::vector<int> counts;
      for (int l = 0; l < layers; ++l) {
        weights.push_back(static_cast<float>(*rc::gen::element(0, 0, 1, 2, 7, 1000)) / 8);
        counts.push_back(*rc::gen::inRange(1, bound + 1));
      }
      std::vector<int> low, high;
      for (int const count : counts) {
        high.push_back(std::min(count, static_cast<int>(cap * tokens + 1e-9)));
        low.push_back(std::min({least, tokens, high.back()}));
      }
      std::vector<int> const expected =
          fitted({weights.begin(), weights.end()}, std::int64_t{tokens} * layers, low, high);
      even_layers lanes(layers, heads, bound, counts);
      kv::eviction const policy{
          .score = kv::knorm{},
          .budget = kv::proportional<kv::table_of_layers>{{{weights.data(), 0, 1, 0}}, tokens, least, cap}};
      auto const [kept, shares] = lanes.kept(policy);
      for (int i = 0; i < layers * heads; ++i) {
        int const layer = i / heads;
        RC_ASSERT(shares[as_size(i)] == expected[as_size(layer)]);
        RC_ASSERT(kept[as_size(i)] == std::min(expected[as_size(layer)], counts[as_size(layer)]));
      }
    });
  }

  TEST_CASE("worked: 3 layers of 100, 40 each, weights 6, 3 and 1, at least 10, at most 1.5 times") {
    std::vector<float> const weights{6, 3, 1};
    even_layers lanes(3, 1, 100, {100, 100, 100});
    kv::eviction const policy{
        .score = kv::knorm{},
        .budget = kv::proportional<kv::table_of_layers>{{{weights.data(), 0, 1, 0}}, 40, 10, 1.5}};
    // 10 + 90 * (.6, .3, .1) = 64, 37, 19; 64 is above 60, and 4 go to the others, 3 to 1
    CHECK(lanes.kept(policy).second == std::vector<int>{60, 40, 20});
    CHECK(lanes.kept(policy).first == std::vector<int>{60, 40, 20});
  }

  TEST_CASE("weights that are no numbers count as 0") {
    float const nan = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> const weights{nan, 1, -3, std::numeric_limits<float>::infinity()};
    even_layers lanes(4, 1, 50, {50, 50, 50, 50});
    kv::eviction const policy{.score = kv::knorm{},
                              .budget = kv::proportional<kv::table_of_layers>{{{weights.data(), 0, 1, 0}}, 10, 4, 100}};
    CHECK(lanes.kept(policy).second == std::vector<int>{4, 28, 4, 4});
  }

  TEST_CASE("by name the same shares, of tokens and of a ratio") {
    std::vector<float> const weights{5, 1, 0, 2};
    even_layers lanes(4, 2, 64, {64, 64, 64, 64});
    kv::registry known = kv::shipped();
    known.table("profile", kv::by_lane<float const>{weights.data(), 0, 1, 0});
    auto const named = known.parse("knorm | budget(16, by=importance, table=profile, least=3, cap=2.5)");
    kv::eviction const typed{.score = kv::knorm{},
                             .budget = kv::proportional<kv::table_of_layers>{{{weights.data(), 0, 1, 0}}, 16, 3, 2.5}};
    CHECK(lanes.kept(named) == lanes.kept(typed));
    CHECK(kv::to_string(named) == "knorm | budget(16, by=importance, table=profile, least=3, cap=2.5)");
    CHECK(named == known.parse(kv::to_string(named)));
    auto const ratio = known.parse("knorm | budget(ratio=0.75, by=importance, table=profile, least=3, cap=2.5)");
    CHECK(lanes.kept(ratio) == lanes.kept(typed));
    auto const refused = [&](char const* text) { return error_of([&] { (void)known.parse(text); }); };
    says(refused, "parse: ")({
        {"knorm | budget(16, by=importance, table=other)",
         "column 41 = other, but a table is given to the registry by its name"},
        {"knorm | budget(16, by=importance, table=profile, cap=0.5)",
         "column 9: budget.cap = 0.5, but a layer may keep cap times the average, cap >= 1"},
        {"knorm | budget(16, least=3)", "column 20 = least, but only by=importance has it"},
        {"knorm | reduce_lanes(token, max) | budget(16, by=importance, table=profile)",
         "column 50 = importance, but layers that decide together have one budget"},
    });
  }

  TEST_CASE("layers that are compared decide at once") {
    std::vector<float> const weights{5, 1};
    even_layers lanes(2, 1, 32, {32, 32});
    kv::eviction const policy{.score = kv::knorm{},
                              .budget = kv::proportional<kv::table_of_layers>{{{weights.data(), 0, 1, 0}}, 8, 2, 3}};
    kv::cache const view = lanes.cache.view();
    auto [state, plan] = state_and_plan(lanes.exec, policy, view);
    kv::signals const in{view.lanes.layers_only(0, 1), kv::keys_of(view)};
    CHECK(error_of([&] { kv::decide(lanes.exec, policy, in, state, plan); }) ==
          "decide: signals.lanes.layers = 1, but all 2 layers share this budget");
    CHECK(error_of([&] { (void)kv::make_plan(lanes.exec, policy, view, kv::at_once{.entries = 32}); }) ==
          "make_plan: at_once.entries = 32, but one sequence has 64 entries that are decided about together");
    CHECK(kv::due(policy, view));
    kv::eviction const other{.score = kv::knorm{}, .budget = kv::per_lane{8}};
    auto without = kv::make_plan(lanes.exec, other, view);
    CHECK(without.shares().data == nullptr);
    CHECK(error_of([&] {
            kv::decide(lanes.exec, policy, kv::signals{view.lanes, kv::keys_of(view)}, state, without);
          }) == "decide: plan = without room for shares, but make_plan makes it for the policy that decides");
    CHECK(kv::required_bytes<kv::host_executor>(policy, view).plan ==
          kv::required_bytes<kv::host_executor>(other, view).plan + 2 * sizeof(int));
  }

  TEST_CASE("a part of the tokens seen grows with the sequence, and a part of what is left does not") {
    mock_cache cache({.model = {.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 4}, .bound = 64});
    kv::host_executor exec;
    kv::cache view = cache.view();
    auto const policy = kv::parse("streaming_llm(sinks=1) | budget(ratio=0.5, by=seen)");
    CHECK(kv::to_string(policy) == "streaming_llm(sinks=1) | budget(ratio=0.5, by=seen)");
    auto [state, plan] = state_and_plan(exec, policy, view, kv::compact{});
    for (int token = 0; token < 100; ++token) {
      kv::append(exec, view, state, {.tokens = 1, .position = token});
      kv::decide(exec, policy, kv::signals{view.lanes}, state, plan);
      kv::apply(exec, kv::compact{}, plan, view, state);
      CHECK(*view.lanes.count.row({}) == std::max(1, part(token + 1, 8)));  // position 0 is a sink
    }
    CHECK(error_of([] { (void)kv::parse("knorm | budget(16, by=seen)"); }) ==
          "parse: column 9 = budget, but by=seen counts a part of the tokens: budget(ratio=0.5, by=seen)");
    CHECK(error_of([] { (void)kv::parse("knorm | budget(ratio=0.5, by=seen, scope=layer)"); }) ==
          "parse: column 9 = budget, but only lanes that share with nobody have shares that differ");
  }

  TEST_CASE("hits: a layer's share is what its lanes have among the best entries of all lanes") {
    holds("any norms", 100, [] {
      int const layers = *rc::gen::inRange(1, 7);
      int const heads = *rc::gen::element(1, 2, 3);
      int const bound = *rc::gen::inRange(1, 60);
      int const tokens = *rc::gen::inRange(0, bound + 2);
      int const window = *rc::gen::inRange(0, 6);
      even_layers lanes(layers, heads, bound, std::vector<int>(as_size(layers), bound));
      dice random(*rc::gen::inRange<std::uint64_t>(1, 1000));
      struct place {
        double score;
        int lane;
      };
      std::vector<place> competing;
      int const forced = std::min(window, bound);
      for (int i = 0; i < lanes.cache.lane_count(); ++i) {
        for (int e = 0; e < bound; ++e) {
          double const norm = random.below(32) / 8.0;
          lanes.cache.write(of::keys, lanes.cache.lane_at(i), e, {norm, 0, 0, 0});
          competing.push_back({-norm, i});  // what is only protected competes, too
        }
      }
      std::sort(competing.begin(), competing.end(), [](place const& a, place const& b) {
        return a.score != b.score ? a.score > b.score : a.lane < b.lane;
      });
      std::int64_t const all = std::int64_t{layers} * heads * tokens;
      std::vector<double> hits(as_size(layers), 0);
      std::int64_t taken = 0;
      for (place const& each : competing) {
        if (taken++ < all) hits[as_size(each.lane / heads)] += 1.0 / heads;
      }
      kv::eviction const policy{
          .score = kv::knorm{}, .protect = kv::recent{window}, .budget = kv::shared_out<kv::hits>{.tokens = tokens}};
      auto const [kept, shares] = lanes.kept(policy);
      std::int64_t sum = 0;
      for (int i = 0; i < layers * heads; ++i) {
        double const share = hits[as_size(i / heads)];
        RC_ASSERT(std::abs(shares[as_size(i)] - share) < 1);
        RC_ASSERT(kept[as_size(i)] == std::min(std::max(shares[as_size(i)], forced), bound));
        if (i % heads == 0) sum += shares[as_size(i)];
      }
      RC_ASSERT(sum == std::int64_t{layers} * std::min(tokens, bound));
      auto const named =
          kv::parse("knorm | recent(" + std::to_string(window) + ") | budget(" + std::to_string(tokens) + ", by=hits)");
      RC_ASSERT(lanes.kept(named) == lanes.kept(policy));
      RC_ASSERT(named == kv::parse(kv::to_string(named)));
    });
  }

  TEST_CASE("pooled: a lane's share is what it would keep if its layer shared the budget") {
    holds("any norms", 60, [] {
      int const bound = *rc::gen::inRange(1, 50);
      int const tokens = *rc::gen::inRange(0, bound + 2);
      double const floor = *rc::gen::element(0.0, 0.2, 0.5, 1.0);
      bool const all_layers = any_bool();
      even_layers lanes(3, 2, bound, {bound, bound, bound});
      dice random(*rc::gen::inRange<std::uint64_t>(1, 1000));
      for (int i = 0; i < lanes.cache.lane_count(); ++i) {
        for (int e = 0; e < bound; ++e) {
          lanes.cache.write(of::keys, lanes.cache.lane_at(i), e, {random.below(32) / 8.0, 0, 0, 0});
        }
      }
      auto const scope = all_layers ? kv::budget_scope::sequence : kv::budget_scope::layer;
      kv::eviction const policy{.score = kv::knorm{},
                                .budget = kv::shared_out<kv::pooled_share>{tokens, {scope, floor}}};
      auto const counts = [&](auto const& pooled) {
        kv::cache const view = lanes.cache.view();
        auto [state, plan] = decided(lanes.exec, kv::signals{view.lanes, kv::keys_of(view)}, pooled, view);
        std::vector<int> found;
        for (int i = 0; i < view.lanes.size(); ++i) found.push_back(static_cast<int>(listed(plan.keep(), i).size()));
        return found;
      };
      auto const expected = all_layers
                                ? counts(kv::eviction{.score = kv::knorm{}, .budget = kv::per_sequence{tokens, floor}})
                                : counts(kv::eviction{.score = kv::knorm{}, .budget = kv::per_layer{tokens, floor}});
      RC_ASSERT(lanes.kept(policy).first == expected);
      RC_ASSERT(lanes.kept(policy).second == expected);
      kv::any_policy const erased(policy);
      RC_ASSERT(lanes.kept(erased) == lanes.kept(policy));
      RC_ASSERT(kv::parse(kv::to_string(erased)) == erased);
    });
  }

  TEST_CASE("moments: shares add up, none exceeds its entries, and a cascade over the layers ends with one shot") {
    holds("any statistics", 10000, [] {
      int const layers = *rc::gen::inRange(1, 9);
      int const entries = *rc::gen::inRange(1, 300);
      int const window = *rc::gen::inRange(0, 40);
      int const tokens = *rc::gen::inRange(0, entries + 2);
      kv::moments const by{
          .tau1 = *rc::gen::element(1.0, 1.6, 0.5), .tau2 = *rc::gen::element(1.0, 0.4), .window = window};
      std::vector<float> numbers;
      for (int l = 0; l < layers; ++l) {
        numbers.push_back(static_cast<float>(*rc::gen::inRange(0, 1000)) / 64);
        numbers.push_back(static_cast<float>(*rc::gen::element(0, 1, 7, 100, 900)) / 1e4f);
        numbers.push_back(0);
      }
      std::vector<int> const one_shot = shares_by(by, numbers, layers, entries, tokens);
      std::int64_t sum = 0;
      for (int const share : one_shot) {
        RC_ASSERT(share >= std::min(window, entries));
        RC_ASSERT(share <= entries);
        sum += share;
      }
      std::int64_t const all = std::int64_t{layers} * std::max(tokens, std::min(window, entries));
      RC_ASSERT(sum == std::min(all, std::int64_t{layers} * entries));
      // Layers come one by one, and each is cut to what it may have among those that are there: never below the end.
      for (int there = 1; there < layers; ++there) {
        std::vector<double> weights;
        for (int l = 0; l < there; ++l) weights.push_back(static_cast<double>(numbers[as_size(3 * l + 2)]));
        std::int64_t const free = std::int64_t{layers} * std::max(0, tokens - std::min(window, entries));
        std::vector<double> const x = filled(weights, static_cast<double>(free), entries - std::min(window, entries));
        for (int l = 0; l < there; ++l) {
          int const left = std::min(window, entries) + static_cast<int>(std::ceil(x[as_size(l)] - 1e-9));
          RC_ASSERT(left >= one_shot[as_size(l)]);
        }
      }
    });
  }

  TEST_CASE("variance: layers share by e to the power of less their part of all variances, and shares add up") {
    auto const shares = [](std::vector<int> const& counts, std::vector<std::vector<double>> const& norms, int heads,
                           int tokens, std::string const& fields) {
      even_layers lanes(static_cast<int>(counts.size()), heads, 64, counts);
      for (int i = 0; i < lanes.cache.lane_count(); ++i) {
        for (std::size_t e = 0; e < norms[as_size(i)].size(); ++e) {
          lanes.cache.write(of::keys, lanes.cache.lane_at(i), static_cast<int>(e), {norms[as_size(i)][e], 0, 0, 0});
        }
      }
      auto const policy = kv::parse("knorm | budget(" + std::to_string(tokens) + ", by=variance" + fields + ")");
      CHECK(kv::parse(kv::to_string(policy)) == policy);
      std::vector<int> found;
      std::vector<int> const all = lanes.kept(policy).second;
      for (std::size_t l = 0; l < counts.size(); ++l) found.push_back(all[l * as_size(heads)]);
      return found;
    };
    // Variances of 0.2, 0.5 and 0.3: weights .377978, .280013 and .342009 of 3 * 10 entries less 3 * 0.4.
    std::vector<std::vector<double>> norms;
    for (double const f : {0.2, 0.5, 0.3}) {
      norms.emplace_back();
      for (int e = 0; e < 40; ++e) norms.back().push_back(5 + (e % 2 == 0 ? 1 : -1) * std::sqrt(f));
    }
    CHECK(shares({40, 40, 40}, norms, 1, 10, "") == std::vector<int>{11, 9, 10});
    CHECK(shares({40, 40, 40}, norms, 1, 10, ", least_part=0.25") == std::vector<int>{10, 10, 10});
    holds("any norms", 200, [&] {
      int const layers = *rc::gen::inRange(1, 6), heads = *rc::gen::inRange(1, 3), tokens = *rc::gen::inRange(0, 60);
      int const bound = *rc::gen::inRange(1, 60);
      dice random(*rc::gen::inRange<std::uint64_t>(1, 1000));
      std::vector<std::vector<double>> lanes(as_size(layers * heads));
      std::vector<double> weights;
      double all = 0;
      for (int l = 0; l < layers; ++l) {
        double layer = 0;
        for (int h = 0; h < heads; ++h) {
          auto& lane = lanes[as_size(l * heads + h)];
          double sum = 0, squares = 0;
          for (int e = 0; e < bound; ++e) lane.push_back(random.below(64) / (4.0 + 16.0 * l));
          for (double const each : lane) sum += each / bound;
          for (double const each : lane) squares += (each - sum) * (each - sum) / bound;
          layer += squares / heads;
        }
        weights.push_back(layer);
        all += layer;
      }
      for (double& each : weights) each = std::exp(all > 0 ? -each / all : 0);
      std::vector<int> const found =
          shares(std::vector<int>(as_size(layers), bound), lanes, heads, tokens, ", least_part=0");
      std::vector<int> const expected =
          fitted(weights, std::int64_t{layers} * tokens, std::vector<int>(as_size(layers)),
                 std::vector<int>(as_size(layers), bound));
      for (std::size_t l = 0; l < found.size(); ++l) RC_ASSERT(std::abs(found[l] - expected[l]) <= 1);
      RC_ASSERT(std::accumulate(found.begin(), found.end(), 0) == std::accumulate(expected.begin(), expected.end(), 0));
    });
  }

  TEST_CASE("shares of every allotter add up: to the budget of all lanes, or to all that they have") {
    kv::host_executor exec{1};
    holds("any norms", 10000, [&] {
      int const layers = *rc::gen::inRange(1, 5), heads = *rc::gen::inRange(1, 4), bound = *rc::gen::inRange(1, 24);
      int const tokens = *rc::gen::inRange(0, bound + 2);
      std::string const by = *rc::gen::element<std::string>("hits", "pool", "pool, scope=global, floor=0", "ranks",
                                                            "variance", "variance, least_part=0");
      std::vector<float> keys(as_size(layers * heads * bound)), values = keys;
      dice random(*rc::gen::inRange<std::uint64_t>(1, 1000000));
      for (float& each : keys) each = static_cast<float>(random.below(32)) / static_cast<float>(1 + random.below(8));
      std::vector<int> count(as_size(layers * heads), bound), position(as_size(bound));
      std::iota(position.begin(), position.end(), 0);
      kv::cache view = kv::contiguous_cache(keys.data(), values.data(), {layers, heads, heads, 1}, bound, count.data(),
                                            position.data());
      auto const policy = kv::parse("knorm | budget(" + std::to_string(tokens) + ", by=" + by + ")");
      auto [state, plan] = decided(exec, kv::signals{view.lanes, kv::keys_of(view)}, policy, view);
      std::int64_t sum = 0, least = 0;
      bool const of_lanes = by.starts_with("pool"), of_ranks = by == "ranks";
      for (int i = 0; i < view.lanes.size(); ++i) {
        if (!of_lanes && view.lanes.at(i).head > 0) continue;
        int const share = *plan.shares().row(view.lanes.at(i));
        RC_ASSERT(share >= 0);
        RC_ASSERT(share <= bound);
        sum += share;
        least += share == 1 ? 1 : 0;  // ranks gives each layer one
      }
      std::int64_t const all = std::int64_t{of_lanes ? layers * heads : layers} * std::min(tokens, bound);
      RC_ASSERT(sum >= all);
      RC_ASSERT(sum <= all + (of_ranks ? least : 0));
    });
  }

  TEST_CASE("equal lanes whose entries all differ keep alone what they keep of a budget that they share") {
    holds("any norms", 200, [] {
      int const bound = *rc::gen::inRange(1, 40), tokens = *rc::gen::inRange(0, bound + 2);
      even_layers lanes(3, 2, bound, {bound, bound, bound});
      std::vector<int> order(as_size(bound));
      std::iota(order.begin(), order.end(), 1);
      dice random(*rc::gen::inRange<std::uint64_t>(1, 1000));
      for (std::size_t i = order.size(); i > 1; --i)
        std::swap(order[i - 1], order[as_size(random.below(static_cast<int>(i)))]);
      for (int i = 0; i < lanes.cache.lane_count(); ++i) {
        for (int e = 0; e < bound; ++e) {
          lanes.cache.write(of::keys, lanes.cache.lane_at(i), e, {order[as_size(e)] / 8.0, 0, 0, 0});
        }
      }
      std::string const budget = "knorm | budget(" + std::to_string(tokens);
      auto const alone = kept_lists(lanes.exec, kv::parse(budget + ")"), lanes.cache.view());
      for (char const* const shared :
           {", scope=layer)", ", scope=global)", ", by=pool)", ", by=hits)", ", by=ranks)"}) {
        bool const gives_one = std::string(shared) == ", by=ranks)" && tokens == 0;
        if (!gives_one) RC_ASSERT(kept_lists(lanes.exec, kv::parse(budget + shared), lanes.cache.view()) == alone);
      }
    });
  }

  TEST_CASE("sequences share nothing: in turns, one at a time, they keep what they keep at once") {
    holds("any norms of two sequences", 40, [] {
      int const bound = *rc::gen::inRange(2, 40);
      mock_options shape{.model = {.layers = 3, .query_heads = 2, .kv_heads = 2, .head_dim = 4}, .bound = bound};
      shape.sequences = 2;
      mock_cache cache(shape);
      dice random(*rc::gen::inRange<std::uint64_t>(1, 1000));
      for (int i = 0; i < cache.lane_count(); ++i) {
        cache.put(cache.lane_at(i), up_to(bound));
        for (int e = 0; e < bound; ++e) {
          cache.write(of::keys, cache.lane_at(i), e, {random.below(64) / (1.0 + random.below(3)), 0, 0, 0});
        }
      }
      std::string const by = *rc::gen::element<std::string>("hits", "pool, scope=global", "pool, floor=0.5", "ranks");
      auto const policy =
          kv::parse("knorm | budget(" + std::to_string(*rc::gen::inRange(0, bound)) + ", by=" + by + ")");
      kv::host_executor exec(*rc::gen::element(1, 3));
      kv::cache view = cache.view();
      auto [held, at_once] = decided(exec, kv::signals{view.lanes, kv::keys_of(view)}, policy, view);
      std::vector<int> expected;
      for (int i = 0; i < view.lanes.size(); ++i)
        expected.push_back(static_cast<int>(listed(at_once.keep(), i).size()));
      auto [state, plan] = state_and_plan(exec, policy, view, kv::at_once{.sequences = 1}, kv::compact{});
      kv::evict(exec, policy, kv::signals{view.lanes, kv::keys_of(view)}, kv::compact{}, view, state, plan);
      for (int i = 0; i < view.lanes.size(); ++i) {
        RC_ASSERT(*view.lanes.count.row(view.lanes.at(i)) == expected[as_size(i)]);
      }
    });
  }

  TEST_CASE("an allotter of a program is a line of the registry, and what it cannot share is refused") {
    kv::registry known = kv::shipped();
    known.add(front_loaded{});
    even_layers lanes(2, 1, 20, {20, 20});
    auto const policy = known.parse("knorm | budget(8, by=front_loaded, extra=3)");
    CHECK(kv::to_string(policy) == "knorm | budget(8, by=front_loaded, extra=3)");
    CHECK(lanes.kept(policy).second == std::vector<int>{11, 5});
    auto const refused = [&](char const* text) { return error_of([&] { (void)known.parse(text); }); };
    says(refused, "parse: ")({
        {"knorm | budget(8, by=nothing)",
         "column 22 = nothing, but a budget is shared out by fixed, ramp, table, importance, seen, hits, pool, "
         "moments, ranks, depth, variance, table_power and front_loaded"},
        {"knorm | budget(8, by=hits, extra=3)",
         "column 28 = extra, but budget has the fields tokens, ratio, bytes, scope, floor, rounding, by, beta, rule, "
         "table, floor_tokens, least, cap, held and block"},
        {"knorm | budget(8, by=front_loaded, extra=-3)",
         "column 9: front_loaded.extra = -3, but a count cannot be negative"},
        {"knorm | budget(8, by=hits, scope=layer)",
         "column 9: budget.scope = layer, but only lanes that share with nobody have shares that differ"},
        {"knorm | reduce_lanes(token, max) | budget(8, by=hits)",
         "column 49 = hits, but layers that decide together have one budget"},
    });
    CHECK(error_of([] { kv::shipped().add(kv::hits{}); }) ==
          "registry: name = hits, but there is a budget's share of that name");
    kv::eviction const by_threshold{
        .score = kv::knorm{}, .budget = kv::shared_out<kv::hits>{.tokens = 3}, .pick = kv::at_least{}};
    CHECK(error_of([&] { (void)lanes.kept(known.parse("knorm | budget(8, by=moments)")); }) ==
          "make_state: budget = budget(8, by=moments, tau1=1, tau2=1, rounding=largest), but it goes by numbers that "
          "cake computes, and "
          "knorm does not");
    CHECK(error_of([&] { (void)lanes.kept(by_threshold); }) ==
          "make_state: budget = budget(3, by=hits), but its shares are of a policy that picks the best entries");
  }

  TEST_CASE("a budget of a program reads the scores, and the lanes of a turn") {
    even_layers lanes(3, 2, 24, {24, 24, 24});
    dice random(3);
    std::vector<int> expected(as_size(lanes.cache.lane_count()), 0);
    for (int i = 0; i < lanes.cache.lane_count(); ++i) {
      for (int e = 0; e < 24; ++e) {
        double const norm = random.below(8) / 8.0;
        lanes.cache.write(of::keys, lanes.cache.lane_at(i), e, {norm, 0, 0, 0});
        if (norm < 0.3) ++expected[as_size(i)];
      }
    }
    kv::eviction const policy{.score = kv::knorm{}, .budget = by_hits{.tokens = 9, .least = -0.3f}};
    kv::cache view = lanes.cache.view();
    for (int& each : expected) each = std::min(each, 9);
    CHECK(lanes.kept(policy).first == expected);
    auto [state, small] = state_and_plan(lanes.exec, policy, view, kv::at_once{.entries = 48}, kv::compact{});
    kv::evict(lanes.exec, policy, kv::signals{view.lanes, kv::keys_of(view)}, kv::compact{}, view, state, small);
    for (int i = 0; i < view.lanes.size(); ++i) {
      CHECK(*view.lanes.count.row(view.lanes.at(i)) == expected[as_size(i)]);
    }
  }
}

}  // namespace
