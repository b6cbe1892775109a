// SPDX-License-Identifier: Apache-2.0
// TRIM-KV's other ways: one token a step by argmin, a threshold instead of a budget, pools, the norm of keys.

#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

/// Two layers of two lanes in slots, one token a step, log beta drawn from few values so that scores tie.
template <class Policy>
struct decoding {
  explicit decoding(Policy const& by, bool listed)
      : policy(by),
        engine({.model = {2, 2, 2, 4},
                .bound = 96,
                .where = kv::locating::slot_map,
                .shared_table = false,
                .rows = content::fingerprint}),
        cache(engine.view()),
        table(as_size(4 * cache.where.table.head)),
        state(kv::make_state(exec, policy, cache)),
        plan(kv::make_plan(exec, policy, cache)),
        overwrites(listed) {
    std::copy_n(cache.where.table.data, table.size(), table.data());
    list = {table.data(), cache.where.table.sequence, cache.where.table.layer, cache.where.table.head};
    cache.where.table = {list.data, list.sequence, list.layer, list.head};
  }

  void step() {
    kv::append(exec, cache, state, {.tokens = 1, .position = length++});
    float betas[4];
    for (float& each : betas) each = -0.125f * static_cast<float>(random.below(4));
    kv::log_beta fresh;
    fresh.base = reinterpret_cast<std::byte const*>(betas);
    fresh.layer = 8;
    fresh.head = fresh.entry = 4;
    fresh.entries = 1;
    kv::signals const in{cache.lanes, fresh, kv::keys_of(cache)};
    observe_and_decide(exec, policy, in, state, plan);
    if (overwrites) {
      kv::apply(exec, kv::overwrite{list}, plan, cache, state);
    } else {
      kv::apply(exec, kv::list_rewrite<>{.list = list}, plan, cache, state);
    }
  }
  [[nodiscard]] std::vector<int> positions(int lane) {
    kv::lane const this_lane = engine.lane_at(lane);
    return engine.positions(this_lane, engine.count(this_lane));
  }

  Policy policy;
  mock_cache engine;
  kv::host_executor exec;
  kv::cache cache;
  std::vector<int> table;
  kv::by_lane<int> list;
  kv::state<kv::host_executor> state;
  kv::plan<kv::host_executor> plan;
  bool overwrites;
  dice random{4};
  int length = 0;
};

TEST_SUITE("scorers/trim_kv") {
  TEST_CASE("one token a step by argmin keeps what top-k keeps") {
    decoding one(kv::policies::trim_kv_decode({.budget = 12, .score = {.window = 2}}), true);
    decoding all(kv::policies::trim_kv({.budget = 12, .score = {.window = 2}}), false);
    for (int t = 0; t < 90; ++t) {
      one.step();
      all.step();
      for (int lane = 0; lane < 4; ++lane) REQUIRE(one.positions(lane) == all.positions(lane));
    }
    CHECK(one.plan.report().triggered == 4);
  }

  TEST_CASE("a threshold keeps what still has so much of its weight, and no number of entries") {
    float const least = std::log(0.25f);
    auto const policy = kv::eviction{.score = kv::trim_kv{},
                                     .protect = kv::nothing{},
                                     .budget = kv::unlimited{},
                                     .pick = kv::at_least{.least = least, .unbounded = true}};
    decoding of(policy, false);
    for (int t = 0; t < 40; ++t) of.step();
    CHECK(kv::to_string(policy).find("at_least(least=-1.38") != std::string::npos);
    for (int lane = 0; lane < 4; ++lane) {
      std::vector<int> const kept = of.positions(lane);
      CHECK(kept.back() == 39);
      for (int e = 0; e < std::ssize(kept); ++e)
        CHECK(of.plan.score(lane, of.plan.keep().listed(lane)[as_size(e)]) >= least);
    }
  }

  TEST_CASE("a pool of all lanes has one exact total, and every lane its floor") {
    auto const policy = kv::eviction{
        .score = kv::trim_kv{}, .protect = kv::nothing{}, .budget = kv::per_sequence{.tokens = 10, .floor_part = 0.5}};
    decoding of(policy, false);
    for (int t = 0; t < 60; ++t) of.step();
    std::size_t total = 0;
    for (int lane = 0; lane < 4; ++lane) {
      CHECK(of.positions(lane).size() >= 5);
      total += of.positions(lane).size();
    }
    CHECK(total == 40);
  }

  /// Steps at which something went, of 60, while a plain count of the pool says when it may.
  template <class Budget>
  void waits_for_the_lanes_of_its_pool(Budget const& limit, int buffer, int lanes) {
    auto const policy = kv::eviction{.score = kv::trim_kv{.buffer = buffer}, .protect = kv::nothing{}, .budget = limit};
    decoding of(policy, false);
    int held = 0;  // of one pool: all pools grow alike
    for (int t = 0; t < 60; ++t) {
      of.step();
      held += lanes;
      if (held >= lanes * (limit.tokens + buffer)) held = lanes * limit.tokens;
      for (int first = 0; first < 4; first += lanes) {
        std::size_t total = 0;
        for (int lane = first; lane < first + lanes; ++lane) total += of.positions(lane).size();
        REQUIRE(total == as_size(held));
      }
    }
  }

  TEST_CASE("lanes that share a budget wait for the buffer of every lane of the pool") {
    for (int const buffer : {1, 2, 5}) {
      waits_for_the_lanes_of_its_pool(kv::per_layer{.tokens = 10, .floor_part = 0}, buffer, 2);
      waits_for_the_lanes_of_its_pool(kv::per_sequence{.tokens = 10, .floor_part = 0.5}, buffer, 4);
    }
  }

  TEST_CASE("the norm term adds alpha log |k|") {
    auto const by = [](float alpha) {
      return kv::eviction{.score = kv::trim_kv_norm{.retained = {}, .alpha = alpha},
                          .protect = kv::nothing{},
                          .budget = kv::per_lane{90}};
    };
    decoding plain(by(0.0f), false);
    decoding longer(by(0.5f), false);
    for (int t = 0; t < 20; ++t) {
      for (auto* each : {&plain, &longer}) {
        for (int lane = 0; lane < 4; ++lane) each->engine.write_new_row(each->engine.lane_at(lane), t, t);
        each->step();
      }
    }
    for (int lane = 0; lane < 4; ++lane) {
      for (int e = 0; e < 20; ++e) {
        double square = 0;
        for (double const x : longer.engine.row(of::keys, longer.engine.lane_at(lane), e)) square += x * x;
        double const want = static_cast<double>(plain.plan.score(lane, e)) + 0.25 * std::log(square);
        CHECK(static_cast<double>(longer.plan.score(lane, e)) == doctest::Approx(want).epsilon(1e-5));
      }
    }
  }
}

}  // namespace
