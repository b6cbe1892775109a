// SPDX-License-Identifier: Apache-2.0
// How a decision must change when its input changes: scaled scores, permuted lanes, larger budgets.

#include "laws/subjects.hpp"

namespace {

using namespace kvpolicy_test;
using keep_sets = std::vector<std::vector<int>>;

template <class Policy>
keep_sets kept_by(Policy const& policy, mock_cache& cache, mock_queries& queries) {
  kv::host_executor exec;
  auto [state, plan] = state_and_plan(exec, policy, cache.view());
  kv::signals const in{cache.lanes(), kv::keys_of(cache.view()), kv::queries{queries.view()}};
  observe_and_decide(exec, policy, in, state, plan);
  keep_sets all;
  for (int i = 0; i < cache.lane_count(); ++i) all.push_back(listed(plan.keep(), i));
  return all;
}

/// H2O on mass that the engine provides: any scores at all.
keep_sets kept_by_mass(kv::eviction<kv::h2o> const& policy, mock_cache& cache, std::vector<float> const& mass) {
  kv::host_executor exec;
  auto [state, plan] = state_and_plan(exec, policy, cache.view());
  std::int64_t const bound = cache.options().bound;
  std::int64_t const layer = bound * cache.model().kv_heads;
  kv::attention_mass const given{{mass.data(), layer * cache.model().layers, layer, bound}};
  kv::decide(exec, policy, kv::signals{cache.lanes(), given}, state, plan);
  keep_sets all;
  for (int i = 0; i < cache.lane_count(); ++i) all.push_back(listed(plan.keep(), i));
  return all;
}

/// The lane that lane i of a batch comes from, when sequences, layers and heads are dealt out anew.
class dealt {
 public:
  explicit dealt(mock_cache& of)
      : sequence_(of.random().permutation(of.options().sequences)),
        layer_(of.random().permutation(of.model().layers)),
        head_(of.random().permutation(of.model().kv_heads)) {}
  [[nodiscard]] int sequence(int i) const { return sequence_[as_size(i)]; }
  [[nodiscard]] int layer(int i) const { return layer_[as_size(i)]; }
  [[nodiscard]] int head(int i) const { return head_[as_size(i)]; }
  [[nodiscard]] kv::lane lane(kv::lane to) const { return {sequence(to.sequence), layer(to.layer), head(to.head)}; }

 private:
  std::vector<int> sequence_, layer_, head_;
};

void copy_dealt(mock_cache& to, mock_cache& from, dealt const& by) {
  for (kv::lane const target : lanes_of(to)) {
    kv::lane const source = by.lane(target);
    to.put(target, from.positions(source, from.count(source)));
    to.set_drafts(target.sequence, from.drafts(source.sequence));
    for (int e = 0; e < from.count(source); ++e) {
      for (of const plane : {of::keys, of::values}) to.write(plane, target, e, from.row(plane, source, e));
    }
  }
}

void copy_dealt(mock_queries& to, mock_queries& from, mock_cache const& shape, dealt const& by) {
  int const group = shape.model().group();
  for (int s = 0; s < shape.options().sequences; ++s) {
    for (int r = 0; r < to.rows(); ++r) {
      to.set_position(s, r, from.position(by.sequence(s), r));
      for (int layer = 0; layer < shape.model().layers; ++layer) {
        for (int h = 0; h < shape.model().query_heads; ++h) {
          int const head = by.head(h / group) * group + h % group;
          to.write(s, layer, h, r, from.row(by.sequence(s), by.layer(layer), head, r));
        }
      }
    }
  }
}

}  // namespace

TEST_SUITE("laws/metamorphic") {
  TEST_CASE("doubling every score keeps the keep sets") {
    holds("twice the mass, the same keep sets", [] {
      mock_options const shape = any_mock(6);
      filled_cache cache(shape);
      std::vector<float> mass(as_size(cache.lane_count() * shape.bound));
      trouble const what = *rc::gen::element(trouble::ties, trouble::last_bits);
      for (float& each : mass) each = troubled_score(cache.random(), what);
      kv::eviction<kv::h2o> const policy{.score = any_scorer<kv::h2o>(), .budget = {shape.bound / 2}};
      auto const once = kept_by_mass(policy, cache, mass);
      for (float& each : mass) each *= 2;
      RC_ASSERT(kept_by_mass(policy, cache, mass) == once);
    });
  }

  TEST_CASE("doubling every key keeps Knorm's keep sets") {
    holds("twice the keys, the same keep sets", 50, [] {
      mock_options const shape = any_mock(6);
      filled_cache cache(shape);
      mock_queries queries(cache, kv::codec::f32, 1, 1);
      auto const policy = kv::policies::knorm({.budget = shape.bound / 2});
      auto const once = kept_by(policy, cache, queries);
      for (int i = 0; i < cache.lane_count(); ++i) {
        for (int e = 0; e < cache.count(cache.lane_at(i)); ++e) {
          reference::row key = cache.row(of::keys, cache.lane_at(i), e);
          for (double& each : key) each *= 2;
          cache.write(of::keys, cache.lane_at(i), e, key);
        }
      }
      RC_ASSERT(kept_by(policy, cache, queries) == once);
    });
  }

  TEST_CASE_TEMPLATE_DEFINE("a larger budget keeps whatever a smaller one keeps", Scorer, budget_law) {
    holds(Scorer::name, [] {
      mock_options shape = suited<Scorer>(any_mock(6));
      shape.rows = *rc::gen::element(content::smooth, content::few, content::troubled);
      filled_cache cache(shape);
      current_queries queries(cache, kv::codec::f32, 3, 3);
      auto policy = any_policy<Scorer>(shape.bound);
      policy.trigger.slack = 0;
      if constexpr (std::same_as<Scorer, kv::h2o>) {
        policy.score.recent = *rc::gen::element(0, 1, 4);  // a window that does not follow from the budget
      }
      keep_sets smaller = kept_by(policy, cache, queries);
      for (int const more : {1, 3, 40}) {
        policy.budget.tokens += more;
        keep_sets const larger = kept_by(policy, cache, queries);
        for (std::size_t i = 0; i < larger.size(); ++i) {
          RC_ASSERT(std::includes(larger[i].begin(), larger[i].end(), smaller[i].begin(), smaller[i].end()));
        }
        smaller = larger;
      }
    });
  }
  TEST_CASE_TEMPLATE_APPLY(budget_law, every_scorer);

  TEST_CASE_TEMPLATE_DEFINE("permuting sequences, layers and heads permutes the keep sets", Scorer, lane_law) {
    holds(Scorer::name, [] {
      mock_options const shape = any_mock(6);
      filled_cache cache(shape);
      current_queries queries(cache, kv::codec::f32, 3, 3);
      dealt const by(cache);
      mock_options other_shape = shape;
      other_shape.seed += 1;  // other slots, too
      mock_cache other(other_shape);
      mock_queries other_queries(other, kv::codec::f32, 3, 3);
      copy_dealt(other, cache, by);
      copy_dealt(other_queries, queries, cache, by);
      auto const policy = any_policy<Scorer>(shape.bound);
      keep_sets const kept = kept_by(policy, cache, queries);
      keep_sets const permuted = kept_by(policy, other, other_queries);
      for (int i = 0; i < other.lane_count(); ++i) {
        RC_ASSERT(permuted[as_size(i)] == kept[as_size(cache.index(by.lane(other.lane_at(i))))]);
      }
    });
  }
  // Not kv::random_scores: a lane's numbers are made of the lane.
  TEST_CASE_TEMPLATE_INVOKE(lane_law, kv::full, kv::streaming_llm, kv::snapkv, kv::h2o, kv::knorm);

  TEST_CASE(
      "random numbers lie in [0, 1), differ by request, layer, head, position and seed, and do not depend on the "
      "count") {
    mock_options const shape{
        .model = {.layers = 2, .query_heads = 2, .kv_heads = 2, .head_dim = 1}, .sequences = 2, .bound = 64};
    mock_cache cache(shape);
    std::vector<int> positions = up_to(64);
    for (int i = 0; i < 8; ++i) cache.put(cache.lane_at(i), positions);
    kv::host_executor exec;
    std::vector<float> all;
    int const requests[] = {7, 8};
    kv::lanes batch = cache.lanes();
    batch.request = {requests, 1, 0, 0};
    for (std::uint64_t const seed : {1u, 2u}) {
      owned_scores out(cache.lanes());
      kv::random_scores{seed}.score(exec, kv::signals{batch}, out.view());
      for (int i = 0; i < 8; ++i) {
        for (float const each : out.row(i, 64)) all.push_back(each);
      }
      std::vector<float> const before = out.all();
      for (int i = 0; i < 8; ++i) cache.put(cache.lane_at(i), {3, 60});
      kv::random_scores{seed}.score(exec, kv::signals{batch}, out.view());
      for (int i = 0; i < 8; ++i) {
        CHECK(out.row(i, 2)[0] == before[as_size(i * out.stride() + 3)]);
        CHECK(out.row(i, 2)[1] == before[as_size(i * out.stride() + 60)]);
        cache.put(cache.lane_at(i), positions);
      }
    }
    double sum = 0;
    for (float const each : all) {
      CHECK(each >= 0.0f);
      CHECK(each < 1.0f);
      sum += static_cast<double>(each);
    }
    CHECK(sum / static_cast<double>(all.size()) == doctest::Approx(0.5).epsilon(0.1));
    std::sort(all.begin(), all.end());
    CHECK(std::adjacent_find(all.begin(), all.end()) == all.end());
  }
}
