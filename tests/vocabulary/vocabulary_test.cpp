// SPDX-License-Identifier: Apache-2.0
// The nine consumers that the vocabulary must carry, compiled and, as far as they compute, run.
#include "support/test.hpp"
#include "vocabulary/erased.hpp"
#include "vocabulary/graph_capture.hpp"
#include "vocabulary/h2o_decode.hpp"
#include "vocabulary/intent_kv.hpp"
#include "vocabulary/quest.hpp"
#include "vocabulary/snapkv_chunked.hpp"
#include "vocabulary/tensor_parallel.hpp"
#include "vocabulary/trim_kv.hpp"
#include "vocabulary/wg_kv.hpp"

namespace {

using namespace vocabulary;

/// An engine whose rows differ from each other.
engine filled() {
  engine model;
  unsigned x = 1;
  for (auto* of : {&model.k, &model.v, &model.q}) {
    for (float& value : *of) {
      x = x * 1664525u + 1013904223u;
      value = static_cast<float>(x >> 8) / 8388608.0f - 1.0f;
    }
  }
  return model;
}

}  // namespace

TEST_SUITE("vocabulary") {
  TEST_CASE("SnapKV keeps the same entries however the prefill is cut into chunks") {
    kv::host_executor exec;
    engine whole = filled();
    prefill_in_chunks(exec, whole, 50, 50);
    for (int const chunk : {1, 3, 7, 16, 49}) {
      engine pieces = filled();
      prefill_in_chunks(exec, pieces, 50, chunk);
      CHECK(pieces.count == whole.count);
      for (std::size_t lane = 0; lane < engine::lanes; ++lane) {
        for (std::size_t e = 0; e < 16; ++e) {
          CHECK(pieces.position[lane * engine::bound + e] == whole.position[lane * engine::bound + e]);
        }
      }
    }
  }

  TEST_CASE("IntentKV makes one decision for all lanes, and a shared list of positions moves once") {
    kv::host_executor exec;
    engine model = filled();
    std::vector<int> const slots{3, 1, 8, 20, 21, 40};
    kv::cache cache = over_slot_map(model, slots);
    auto const policy =
        kv::eviction{.score = kv::intent_kv{}, .protect = kv::position_span{12, 13}, .budget = kv::per_lane{3}};
    auto state = kv::make_state(exec, policy, cache);
    auto plan = kv::make_plan(exec, policy, cache);
    kv::append(exec, cache, state, {.tokens = 6, .position = 10});
    CHECK(model.count[0] == 6);
    float const kept_key = model.k[2 * std::size_t{engine::dims}];
    kv::decide(exec, policy, kv::signals{cache.lanes, kv::keys_of(cache), no_turn()}, state, plan);
    REQUIRE(plan.keep().segments() == 1);
    auto const kept = plan.keep().listed(0);
    CHECK(std::vector<int>(kept.begin(), kept.end()) ==
          std::vector{0, 1, 2});  // an empty memory ties all: the lowest stay
    kv::apply(exec, kv::compact{}, plan, cache, state);
    CHECK(model.count[0] == 3);
    CHECK(model.position[2] == 12);
    CHECK(model.k[2 * std::size_t{engine::dims}] == kept_key);
  }

  TEST_CASE("a lane policy is refused where lanes share one list of positions") {
    kv::host_executor exec;
    engine model = filled();
    std::vector<int> const slots{3, 1, 8, 20, 21, 40};
    kv::cache cache = over_slot_map(model, slots);
    auto const policy = kv::policies::knorm({.budget = 2});
    auto state = kv::make_state(exec, policy, cache);
    auto plan = kv::make_plan(exec, policy, cache);
    kv::append(exec, cache, state, {.tokens = 6, .position = 10});
    kv::decide(exec, policy, kv::signals{cache.lanes, kv::keys_of(cache)}, state, plan);
    CHECK_THROWS_WITH_AS(
        kv::apply(exec, kv::compact{}, plan, cache, state),
        "apply: lanes.count = shared by layers, but these layers decide apart: reduce_lanes makes them decide together",
        kv::invalid_argument);
  }

  TEST_CASE("WG-KV knows a victim's new place before the ring overwrites it") {
    engine model = filled();
    wg_kv_engine window{model};
    window.oldest = 5;
    window.free = {0};
    window.pages.resize(std::size_t{engine::lanes} * 4);
    for (std::size_t i = 0; i < window.pages.size(); ++i)
      window.pages[i] = static_cast<int>((i + 7) % window.pages.size());
    kv::dual_cache both = window.view(16);
    CHECK(both.window.where.at({0, 0, 0}, 0) == kv::place{0, 5});
    CHECK(both.window.where.at({0, 0, 0}, 60) == kv::place{0, 1});
    CHECK(both.pages.entries.where.at({0, 1, 1}, 17) == kv::place{(7 + 3 * 4 + 1) % 16, 1});
    CHECK_NOTHROW(kv::detail::check_cache("test", both.pages.entries));  // lanes share the pool, not their pages
    CHECK(promotes_before_overwrite(both, {0, 1, 1}));
    kv::host_executor exec;
    wg_kv_step(exec, both, 0);
    CHECK(window.window_count == 1);
  }

  TEST_CASE("TRIM-KV ages the retention that moves with each entry") {
    kv::host_executor exec;
    engine model = filled();
    kv::cache cache = model.view();
    auto const policy = kv::eviction{.score = kv::trim_kv{}, .budget = kv::per_lane{2}};
    auto state = kv::make_state(exec, policy, cache);
    auto plan = kv::make_plan(exec, policy, cache);
    kv::append(exec, cache, state, {.tokens = 3, .position = 0});
    for (int i = 0; i < engine::lanes; ++i) {  // beta = 0.9, 0.5, 0.3
      auto* const beta = reinterpret_cast<float*>(state.columns()[0].rows.row(cache.lanes.at(i)));
      beta[0] = std::log(0.9f), beta[1] = std::log(0.5f), beta[2] = std::log(0.3f);
    }
    kv::decide(exec, policy, kv::signals{cache.lanes}, state, plan);
    auto const kept = plan.keep().listed(0);
    CHECK(std::vector<int>(kept.begin(), kept.end()) == std::vector{0, 2});  // the paper's reading drops token 1
    CHECK(dropped(plan.keep(), 0) == -1);
  }

  TEST_CASE("Quest's bounds are a column of pages that is made again from the first entry which moved") {
    kv::host_executor exec;
    engine model = filled();
    kv::cache cache = model.view();
    auto const policy = kv::selection{.score = quest{16}, .dense_layers = 1};
    auto state = kv::make_state(exec, policy, cache);
    auto plan = kv::make_plan(exec, policy, cache);
    REQUIRE(state.columns().size() == 2);
    CHECK(state.columns()[0].about.units == 4);
    CHECK(state.columns()[1].about.rule == kv::on_move::recompute);
    kv::append(exec, cache, state, {.tokens = 20, .position = 0});
    kv::signals const in{cache.lanes, kv::keys_of(cache), model.rows_of(19, 20)};
    kv::observe(exec, policy, in, state);
    kv::select_pages(exec, policy, in, state, plan);
    CHECK(*kv::record_page_bounds{16}.view(state.columns_from(0)).known.row({}) == 20);
    CHECK(is_read_set(plan.keep()));
    CHECK(plan.keep().listed(0).size() == 2);
  }

  TEST_CASE("H2O's mass survives many evictions in decode") {
    kv::host_executor exec;
    engine model = filled();
    decode_steps(exec, model, 20, 30);
    CHECK(model.count == std::vector<int>(engine::lanes, 8));
    CHECK(model.position[7] == 49);
  }

  TEST_CASE("a score summed over ranks decides as one model would") {
    engine model = filled();
    kv::cache cache = model.view();
    std::vector<float> others(std::size_t{engine::lanes} * engine::bound);
    others[5] = 100;  // the other rank likes entry 5 of the first lane
    ranked_executor exec(others);
    auto const policy = kv::eviction{.score = over_ranks<kv::knorm>{}, .budget = kv::per_lane{1}};
    auto state = kv::make_state(exec, policy, cache);
    auto plan = kv::make_plan(exec, policy, cache);
    kv::append(exec, cache, state, {.tokens = 9, .position = 0});
    kv::decide(exec, policy, kv::signals{cache.lanes, kv::keys_of(cache)}, state, plan);
    CHECK(plan.keep().listed(0)[0] == 5);
  }

  TEST_CASE("a decision is a fixed series of launches that never touches device memory from the host") {
    noting_executor exec;
    engine model;
    kv::cache cache = on_device(model);
    auto const policy = kv::policies::snapkv({.budget = 16});
    auto state = kv::make_state(exec, policy, cache);
    auto plan = kv::make_plan(exec, policy, cache);
    kv::signals const in{cache.lanes, kv::keys_of(cache), model.rows_of(0, 8)};
    exec.launches.clear();  // making a state writes its epochs
    kv::observe(exec, policy, in, state);
    kv::decide(exec, policy, in, state, plan);
    kv::apply(exec, kv::compact{}, plan, cache, state);
    int const lanes = engine::lanes;
    int const entries = lanes * engine::bound;
    CHECK(exec.launches == std::vector<noting_executor::launch>{{"count_rows", 1},
                                                                {"ring_append", lanes},
                                                                {"attention_mass", entries},
                                                                {"pool", entries},
                                                                {"top_k", entries},
                                                                {"refuse_stale", lanes},
                                                                {"gather_rows", lanes},
                                                                {"set_counts", lanes},
                                                                {"raise_epochs", lanes}});
  }

  TEST_CASE("an erased, stateful policy decides as the typed one does") {
    kv::host_executor exec;
    engine typed = filled();
    prefill_in_chunks(exec, typed, 50, 50);
    engine model = filled();
    kv::cache cache = model.view();
    any_session session(exec, kv::policies::snapkv({.budget = 16, .score = {.window = 8, .pool = kv::max_pool{3}}}),
                        cache);
    CHECK(session.name() == "snapkv(window=8, pool=max:3, rows=sum, group=mean) | sinks(0) | budget(16)");
    session.append({.tokens = 50, .position = 0});
    engine_signals const in{cache.lanes, kv::keys_of(cache), model.rows_of(0, 50)};
    session.observe(in);
    session.decide(in);
    session.apply();
    CHECK(model.position == typed.position);
    CHECK(model.count == typed.count);
  }
}
