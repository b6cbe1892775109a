// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism: ranks that hold other heads come to the same decision.

#include "support/ranks.hpp"

#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

constexpr int layers = 3;
constexpr int query_heads = 16;
constexpr int kv_heads = 8;
constexpr int dims = 16;
constexpr int entries = 300;
constexpr int span_rows = 5;
constexpr int budget = 90;

/// A model's rows, all heads, of one turn. Some keys are the same, so that scores tie.
struct turn_of_all_heads {
  std::vector<float> k = std::vector<float>(std::size_t{layers} * kv_heads * entries * dims);
  std::vector<float> v = std::vector<float>(k.size());
  std::vector<float> q = std::vector<float>(std::size_t{layers} * query_heads * span_rows * dims);
  std::vector<float> weights = std::vector<float>(20000);
  std::vector<int> rows{entries - 5, entries - 4, entries - 3, entries - 2, entries - 1};

  explicit turn_of_all_heads(unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (auto* const each : {&k, &v, &q}) std::generate(each->begin(), each->end(), [&] { return normal(random); });
    for (float& each : weights) each = 0.2f * normal(random);
    for (std::size_t lane = 0; lane < std::size_t{layers} * kv_heads; ++lane) {
      float* const first = k.data() + lane * entries * dims;
      for (int e = 40; e < 80; ++e) std::copy_n(first + 10 * dims, dims, first + e * dims);
    }
  }

  [[nodiscard]] kv::residual_head residual() const {
    kv::residual_head made{.dims = dims, .width = 16, .hidden = 24, .alpha = 2};
    float const* next = weights.data();
    auto const take = [&](int floats) { return std::exchange(next, next + floats); };
    int const phi = 3 * dims + 1;
    made.w_q = take(16 * phi), made.w_q_bias = take(16);
    made.w_k = take(16 * dims), made.w_k_bias = take(16);
    made.w_v = take(16 * dims), made.w_v_bias = take(16);
    made.fc1 = take(24 * (phi + 16)), made.fc1_bias = take(24);
    made.fc2 = take(24), made.fc2_bias = take(1);
    return made;
  }
};

struct outcome {
  std::vector<float> scores;
  std::vector<int> kept;
  friend bool operator==(outcome const&, outcome const&) = default;
};

/// What a rank of so many decides, which sees its own heads only.
template <class Policy, class Executor>
outcome decide_on(Executor& exec, int rank, int ranks, turn_of_all_heads& all, Policy const& policy, int fewer = 0) {
  int const heads = kv_heads / ranks;
  kv::shape const model{layers, query_heads / ranks, heads, dims};
  int count = 0;
  std::vector<int> position(entries);
  auto const rows = [&](std::vector<float>& of) {
    constexpr std::int64_t head = 4LL * dims * entries;
    return kv::plane{.base = reinterpret_cast<std::byte*>(of.data()) + rank * heads * head,
                     .channels = dims,
                     .layer_stride = head * kv_heads,
                     .token_stride = 4LL * dims,
                     .head_stride = head,
                     .channel_stride = 4};
  };
  kv::cache cache{.shape = model,
                  .lanes = {.layer_end = layers,
                            .heads = heads,
                            .capacity = entries,
                            .count = {&count},
                            .position = {position.data()}},
                  .k = rows(all.k),
                  .v = rows(all.v),
                  .where = kv::identity_map(entries)};
  kv::turn_queries turn;
  turn.head = 4LL * span_rows * dims;
  turn.layer = turn.head * query_heads;
  turn.row = 4LL * dims;
  turn.base = reinterpret_cast<std::byte const*>(all.q.data()) + rank * model.query_heads * turn.head;
  turn.dims = dims;
  turn.heads = model.query_heads;
  turn.rows = span_rows;
  turn.position = {all.rows.data()};
  auto [state, plan] = state_and_plan(exec, policy, cache);
  kv::append(exec, cache, state, {.tokens = entries - fewer, .position = 0});
  kv::signals const in{cache.lanes, kv::keys_of(cache), turn};
  kv::observe(exec, policy, in, state);
  for (int i = 0; i < (fewer > 0 ? 200 : 1); ++i) kv::decide(exec, policy, in, state, plan);
  outcome made;
  for (int e = 0; e < entries; ++e)
    made.scores.push_back(std::as_const(plan).scores()[e]);  // also those behind the entries
  auto const kept = plan.keep().listed(0);
  made.kept.assign(kept.begin(), kept.end());
  return made;
}

template <class Policy>
std::vector<outcome> decide_on_ranks(int ranks, turn_of_all_heads& all, Policy const& policy, int fewer = 0) {
  std::vector<outcome> found(as_size(ranks));
  on_ranks(ranks, [&](rank_executor& exec, int rank) {
    found[as_size(rank)] = decide_on(exec, rank, ranks, all, policy, fewer);
  });
  return found;
}

/// Relative to 1 and the score: sums of 48 heads' softmax in another order of additions.
constexpr float bound = 2e-5f;

float worst(std::vector<float> const& a, std::vector<float> const& b) {
  float most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isinf(a[i]) && a[i] == b[i]) continue;
    most = std::max(most, std::abs(a[i] - b[i]) / std::max(1.0f, std::abs(a[i])));
  }
  return most;
}

/// Entries that one keeps and the other does not.
int differing(outcome const& a, outcome const& b) {
  std::vector<int> only;
  std::set_symmetric_difference(a.kept.begin(), a.kept.end(), b.kept.begin(), b.kept.end(), std::back_inserter(only));
  return static_cast<int>(only.size());
}

/// The score that decided: the lowest that was kept.
float cut(outcome const& of) {
  float lowest = 1e30f;
  for (int const e : of.kept) {
    float const score = of.scores[as_size(e)];
    if (!std::isinf(score)) lowest = std::min(lowest, score);
  }
  return lowest;
}

}  // namespace

TEST_SUITE("ops/ranks") {
  TEST_CASE("1, 2, 4 and 8 ranks agree: bit for bit within a run, within the bound across numbers of ranks") {
    int different = 0, compared = 0;
    for (unsigned seed = 0; seed < 6; ++seed) {
      for (auto const mode : {kv::intent_mode::memory, kv::intent_mode::learnable}) {
        turn_of_all_heads all(seed);
        auto policy = kv::policies::intent_kv({.budget = budget, .score = {.mode = mode, .prefix = 3}});
        policy.score.residual = all.residual();
        kv::host_executor alone(1);
        outcome const whole = decide_on(alone, 0, 1, all, policy);
        REQUIRE(whole.kept.size() == budget);
        for (int const ranks : {1, 2, 4, 8}) {
          auto const found = decide_on_ranks(ranks, all, policy);
          for (outcome const& each : found) CHECK(each == found.front());
          CHECK(worst(whole.scores, found.front().scores) < bound);
          ++compared;
          if (differing(whole, found.front()) == 0) continue;
          ++different;  // only where scores are closer than the bound
          CHECK(std::abs(cut(whole) - cut(found.front())) < bound * std::max(1.0f, std::abs(cut(whole))));
        }
      }
    }
    MESSAGE(different << " of " << compared << " keep sets differ, all of them between scores within the bound");
    CHECK(compared == 48);
  }

  TEST_CASE("scores of lanes that are summed for a token are summed over ranks") {
    turn_of_all_heads all(3);
    auto const policy =
        kv::eviction{.score = kv::reduce_lanes{.score_of = kv::knorm{}}, .budget = kv::per_lane{budget}};
    kv::host_executor alone(1);
    outcome const whole = decide_on(alone, 0, 1, all, policy);
    for (int const ranks : {2, 8}) {
      auto const found = decide_on_ranks(ranks, all, policy);
      for (outcome const& each : found) CHECK(each == found.front());
      CHECK(worst(whole.scores, found.front().scores) < bound);
    }
  }

  TEST_CASE("what stands behind the entries does not grow from one reduction to the next") {
    turn_of_all_heads all(4);
    auto const policy = kv::policies::intent_kv({.budget = budget});
    for (outcome const& each : decide_on_ranks(2, all, policy, 3)) {
      CHECK(std::isfinite(each.scores.back()));
      CHECK(each.scores[entries - 1] == 0.0f);
    }
  }

  TEST_CASE("adding the residuals of ranks is another score") {
    turn_of_all_heads all(7);
    auto policy = kv::policies::intent_kv({.budget = budget, .score = {.mode = kv::intent_mode::learnable}});
    policy.score.residual = all.residual();
    kv::host_executor alone(1);
    outcome const whole = decide_on(alone, 0, 1, all, policy);
    std::vector<float> added(entries, 0.0f);
    for (int rank = 0; rank < 2; ++rank) {
      outcome const part = decide_on(alone, rank, 2, all, policy);  // each rank evaluates the head on its own sums
      for (std::size_t e = 0; e < added.size(); ++e) added[e] += part.scores[e];
    }
    CHECK(worst(whole.scores, added) > 100 * bound);
  }

  TEST_CASE("a budget that heads share is refused where ranks hold other heads") {
    turn_of_all_heads all(1);
    auto const shared = kv::eviction{.score = kv::knorm{}, .budget = kv::per_layer{budget}};
    on_ranks(2, [&](rank_executor& exec, int rank) {
      CHECK(error_of([&] { decide_on(exec, rank, 2, all, shared); }) ==
            "decide: budget.scope = layer, but the heads that share it are on 2 ranks: gather first");
    });
    CHECK_NOTHROW(decide_on_ranks(1, all, shared));
    auto const apart = kv::eviction{.score = kv::reduce_lanes{.score_of = kv::knorm{}, .how = kv::reduction::max},
                                    .budget = kv::per_lane{budget}};
    on_ranks(2, [&](rank_executor& exec, int rank) {
      CHECK(error_of([&] { decide_on(exec, rank, 2, all, apart); }) ==
            "decide: score.decides = token, but heads of 2 ranks decide, and the scorer does not reduce");
    });
  }
}
