// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism: ranks that hold other heads come to the same decision.

#include "support/ranks.hpp"

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
  std::vector<float> mean = std::vector<float>(std::size_t{layers} * query_heads * dims);
  std::vector<float> radius = std::vector<float>(mean.size() / 2);
  std::vector<float> told = std::vector<float>(std::size_t{layers} * kv_heads * entries);  ///< a few values: they tie
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
    for (float& each : mean) each = normal(random);
    for (float& each : radius) each = 2 + std::abs(normal(random));
    for (float& each : told) each = static_cast<float>(random() % 8) / 8;
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

/// The signals that a rank of so many is given: those of its own heads.
auto signals_of_rank(kv::cache const& cache, turn_of_all_heads& all, int rank) {
  kv::shape const& model = cache.shape;
  kv::turn_queries turn;
  turn.head = 4LL * span_rows * dims;
  turn.layer = turn.head * query_heads;
  turn.row = 4LL * dims;
  turn.base = reinterpret_cast<std::byte const*>(all.q.data()) + rank * model.query_heads * turn.head;
  turn.dims = dims;
  turn.heads = model.query_heads;
  turn.rows = span_rows;
  turn.position = {all.rows.data()};
  std::ptrdiff_t const first = std::ptrdiff_t{rank} * model.query_heads;
  kv::query_model profile =
      kv::query_model_of(all.mean.data() + first * dims, all.radius.data() + first * (dims / 2), model, {.theta = 100});
  profile.mean.layer = profile.mean.head * query_heads;
  profile.radius.layer = profile.radius.head * query_heads;
  kv::external_scores const told{{all.told.data() + std::ptrdiff_t{rank} * model.kv_heads * entries, 0,
                                  std::int64_t{kv_heads} * entries, entries}};
  return kv::signals{cache.lanes, kv::keys_of(cache), turn, profile, told};
}

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
  auto [state, plan] = state_and_plan(exec, policy, cache);
  kv::append(exec, cache, state, {.tokens = entries - fewer, .position = 0});
  auto const in = signals_of_rank(cache, all, rank);
  kv::observe(exec, policy, in, state);
  for (int i = 0; i < (fewer > 0 ? 200 : 1); ++i) kv::decide(exec, policy, in, state, plan);
  outcome made;
  for (int i = 0; i < kv::segments(cache.lanes, plan.decides()) * entries; ++i)
    made.scores.push_back(std::as_const(plan).scores()[i]);  // also those behind the entries
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

/// A maximum over lanes decides for tokens and for layers as it does on one rank.
template <class Score>
void same_on_ranks(turn_of_all_heads& all, Score const& score) {
  for (auto const decides : {kv::granularity::sequence, kv::granularity::layer}) {
    auto const policy =
        kv::eviction{.score = kv::reduce_lanes{.score_of = score, .decides = decides, .how = kv::reduction::max},
                     .protect = kv::safe{2, 3},
                     .budget = kv::per_lane{budget}};
    CAPTURE(kv::to_string(policy));
    kv::host_executor alone(1);
    outcome const whole = decide_on(alone, 0, 1, all, policy);
    REQUIRE(whole.kept.size() == budget);
    for (int const ranks : {1, 2, 4, 8}) {
      for (outcome const& each : decide_on_ranks(ranks, all, policy)) CHECK(each == whole);
    }
  }
}

/// The highest score of each entry over all lanes.
std::vector<float> most_of_lanes(std::vector<float> const& scores) {
  std::vector<float> most(scores.begin(), scores.begin() + entries);
  for (std::size_t i = 0; i < scores.size(); ++i) most[i % entries] = std::max(most[i % entries], scores[i]);
  return most;
}

/// The entries of the highest scores, as many as the budget; of equal ones the lower ordinals.
std::vector<int> highest(std::vector<float> const& scores) {
  std::vector<int> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int a, int b) {
    float const first = scores[as_size(a)], second = scores[as_size(b)];
    return first == second ? a < b : first > second;
  });
  order.resize(budget);
  std::sort(order.begin(), order.end());
  return order;
}

/// One of two ranks, which can only sum.
class summing_rank : public kv::host_executor {
 public:
  int reductions = 0;
  [[nodiscard]] static int ranks() { return 2; }
  void all_reduce(float*, std::size_t) { ++reductions; }
};

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

  TEST_CASE("a maximum of lanes decides on any number of ranks as on one, bit for bit") {
    turn_of_all_heads all(5);
    same_on_ranks(all, kv::knorm{});
    same_on_ranks(all, kv::external{});
    same_on_ranks(all, kv::tri_attention{});
    same_on_ranks(all, kv::tri_attention{.aggregate = kv::distance_mean::max, .group = kv::reduction::mean});
  }

  TEST_CASE("TriAttention's one set for all heads: the top-k of the maximum over the lanes, on any number of ranks") {
    for (unsigned seed = 10; seed < 14; ++seed) {
      turn_of_all_heads all(seed);
      kv::host_executor alone(1);
      auto const of_lanes = kv::eviction{.score = kv::tri_attention{}, .budget = kv::per_lane{budget}};
      outcome const lanes = decide_on(alone, 0, 1, all, of_lanes);
      auto const union_of_lanes =
          kv::eviction{.score = kv::reduce_lanes{.score_of = kv::tri_attention{}, .how = kv::reduction::max},
                       .budget = kv::per_lane{budget}};
      for (int const ranks : {1, 2, 4}) {
        for (outcome const& each : decide_on_ranks(ranks, all, union_of_lanes)) {
          CHECK(each.scores == most_of_lanes(lanes.scores));
          CHECK(each.kept == highest(each.scores));
        }
      }
    }
  }

  TEST_CASE("a NaN of one rank's lane is a NaN of the maximum on every rank, and -inf gives way to every number") {
    turn_of_all_heads all(6);
    auto const row = [&](int head, int entry) -> float& { return all.told[as_size(head * entries + entry)]; };
    row(0, 3) = row(3, 100) = row(7, 200) = std::numeric_limits<float>::quiet_NaN();
    for (int head = 0; head < layers * kv_heads; ++head) row(head, 50) = row(head, 60) = -reference::infinity;
    row(4, 60) = 7;
    auto const policy = kv::eviction{.score = kv::reduce_lanes{.score_of = kv::external{}, .how = kv::reduction::max},
                                     .budget = kv::per_lane{entries - 4}};
    for (int const ranks : {1, 2, 4, 8}) {
      for (outcome const& each : decide_on_ranks(ranks, all, policy)) {
        for (int const entry : {3, 100, 200}) {
          CHECK(std::isnan(each.scores[as_size(entry)]));
          CHECK(!std::binary_search(each.kept.begin(), each.kept.end(), entry));
        }
        CHECK(each.scores[50] == -std::numeric_limits<float>::infinity());
        CHECK(!std::binary_search(each.kept.begin(), each.kept.end(), 50));
        CHECK(each.scores[60] == 7.0f);
      }
    }
  }

  TEST_CASE("a maximum over ranks whose executor only sums is refused before anything is scored") {
    turn_of_all_heads all(2);
    auto const policy = kv::eviction{.score = kv::reduce_lanes{.score_of = kv::knorm{}, .how = kv::reduction::max},
                                     .budget = kv::per_lane{budget}};
    summing_rank exec;
    CHECK(error_of([&] { decide_on(exec, 0, 2, all, policy); }) ==
          "decide: reduction = max, but the executor has no member all_reduce_max, and the heads are on 2 ranks");
    CHECK(exec.reductions == 0);
    auto const unchanged = kv::eviction{
        .score = kv::reduce_lanes{.score_of = kv::knorm{}, .decides = kv::granularity::lane, .how = kv::reduction::max},
        .budget = kv::per_lane{budget}};
    CHECK_NOTHROW(decide_on(exec, 0, 2, all, unchanged));  // nothing is reduced
    kv::basic_any_policy<summing_rank> const named(policy);
    CHECK(error_of([&] { decide_on(exec, 0, 2, all, named); }) ==
          "decide: reduction = max, but the executor has no member all_reduce_max, and the heads are on 2 ranks");
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
    auto const apart = kv::eviction{.score = kv::reduce_lanes{.score_of = kv::knorm{}, .how = kv::reduction::mean},
                                    .budget = kv::per_lane{budget}};
    on_ranks(2, [&](rank_executor& exec, int rank) {
      CHECK(error_of([&] { decide_on(exec, rank, 2, all, apart); }) ==
            "decide: score.decides = token, but heads of 2 ranks decide, and the scorer does not reduce");
    });
  }
}
