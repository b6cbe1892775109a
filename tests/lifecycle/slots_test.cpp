// SPDX-License-Identifier: Apache-2.0
// Requests that take the slots of others: what an engine does wrong is told, and nothing of the last request is left.

#include "laws/served_requests.hpp"

namespace {

using namespace kvpolicy_test;

using host_engine = serving_engine<kv::host_executor>;

mock_options shape_of(int slots, int bound = 32) {
  mock_options how;
  how.model = {.layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 4};
  how.sequences = slots;
  how.bound = bound;
  return how;
}

kv::any_policy snapkv() {
  return kv::any_policy(kv::eviction{.score = kv::snapkv{.window = 4}, .budget = kv::per_lane{100}});
}
kv::any_policy h2o() { return kv::any_policy(kv::eviction{.score = kv::h2o{}, .budget = kv::per_lane{100}}); }

/// Shows one sequence the query rows at these positions.
template <class Policy>
void show(Policy const& policy, host_engine& engine, kv::cache const& active, std::vector<int> const& positions) {
  kv::shape const& model = engine.memory().model();
  int const rows = static_cast<int>(positions.size()) / active.lanes.sequences;
  std::vector<float> data(as_size(model.layers * active.lanes.sequences * rows * model.query_heads * model.head_dim),
                          0.5f);
  kv::queries const queries =
      kv::queries_of(data.data(), model, rows, positions.data(), {.sequences = active.lanes.sequences});
  kv::signals const in{active.lanes, kv::keys_of(active), queries};
  kv::observe(engine.exec(), policy, in, engine.state());
}

std::vector<float> mass_of(host_engine& engine, int slot) {
  kv::lane const one{slot, 0, 0};
  auto const* const first = reinterpret_cast<float const*>(engine.state().columns()[0].rows.row(one));
  return {first, first + engine.memory().count(one)};
}

request_script const first_user{.seed = 3, .chunks = {12}};
request_script const second_user{.seed = 4, .chunks = {9}};

TEST_SUITE("slots") {
  TEST_CASE("a request that begins in a slot with the state of another one is refused until the slot is reset") {
    host_engine engine(shape_of(2), snapkv(), 1, {}, 1);
    engine.forward({{1, &first_user, 0, 12}});
    for (int layer = 0; layer < 2; ++layer) {
      for (int head = 0; head < 2; ++head) engine.memory().count({1, layer, head}) = 0;  // what an engine may do
    }
    auto const image = engine.image(1);
    CHECK(
        error_of([&] { engine.forward({{1, &second_user, 0, 9}}); }) ==
        "append: position = 0 in slot 1, but the slot holds the state of an earlier request: reset it before the next "
        "one, or truncate to position 0");
    CHECK(engine.image(1) == image);
    kv::reset(engine.exec(), engine.all(), engine.state(), 1);
    engine.forward({{1, &second_user, 0, 9}});

    host_engine fresh(shape_of(1), snapkv(), 1, {}, 1);
    fresh.forward({{0, &second_user, 0, 9}});
    CHECK(engine.image(1) == fresh.image(0));
  }

  TEST_CASE("the rows of a new request are refused in a slot that was not reset, whoever appends") {
    host_engine engine(shape_of(1), h2o(), 1, {}, 1);
    engine.forward({{0, &first_user, 0, 12}});
    CHECK(
        error_of([&] { show(h2o(), engine, engine.all(), {11}); }) ==
        "observe: queries.position = 11 in the first row of layer 0 of sequence 0, but rows up to 11 were observed: a "
        "row counts once (a sequence that pauses has position -1), and a new request begins with reset");
  }

  TEST_CASE("a sequence that pauses is left out, or has a row at position -1; its mass does not change") {
    host_engine engine(shape_of(2), h2o(), 1, {}, 1);
    engine.forward({{0, &first_user, 0, 12}, {1, &second_user, 0, 9}});
    auto const before = mass_of(engine, 1);
    REQUIRE(before.size() == 9);
    for (int const slot : {0, 1}) {
      kv::append(engine.exec(), engine.all(), engine.state(), {slot, slot == 0 ? 1 : 0, 12});
    }
    show(h2o(), engine, engine.all(), {12, -1});
    CHECK(mass_of(engine, 1) == before);
    int const list[] = {0};
    kv::cache active = kv::only(engine.all(), {.slots = list, .size = 1});
    kv::append(engine.exec(), active, engine.state(), {0, 1, 13});
    show(h2o(), engine, active, {13});
    CHECK(mass_of(engine, 1) == before);
  }

  TEST_CASE("a padding row leaves a ring of query rows as it is") {
    host_engine engine(shape_of(2), snapkv(), 1, {}, 1);
    engine.forward({{0, &first_user, 0, 12}, {1, &second_user, 0, 9}});
    auto const before = engine.image(1);
    kv::append(engine.exec(), engine.all(), engine.state(), {0, 1, 12});
    show(snapkv(), engine, engine.all(), {12, -1});
    CHECK(engine.image(1) == before);
  }

  TEST_CASE("rows of a tree of drafts count where their path was accepted, and rows of rejected drafts do not") {
    host_engine engine(shape_of(1), h2o(), 1, {}, 1);
    host_engine plain(shape_of(1), h2o(), 1, {}, 1);
    for (host_engine* one : {&engine, &plain}) {
      one->forward({{0, &first_user, 0, 12}});
      kv::append(one->exec(), one->all(), one->state(), {0, 2, 12});
    }
    show(h2o(), plain, plain.all(), {12, 13});
    show(h2o(), engine, engine.all(), {12, -1, -1, 13, -1, 14});  // 14 is a draft that is not committed yet
    CHECK(mass_of(engine, 0) == mass_of(plain, 0));
    kv::append(engine.exec(), engine.all(), engine.state(), {0, 1, 14});
    show(h2o(), engine, engine.all(), {14});  // it was not observed before
  }

  TEST_CASE("probabilities, numbers and turns have the same rule") {
    host_engine engine(shape_of(1), h2o(), 1, {}, 1);
    kv::append(engine.exec(), engine.all(), engine.state(), {0, 2, 0});
    std::vector<float> const all(as_size(2 * 4 * 3 * 2), 1.0f);
    int const positions[] = {0, -1, 1};
    auto const rows = kv::probabilities_of(all.data(), engine.memory().model(), 3, 2, positions);
    kv::observe(engine.exec(), h2o(), kv::signals{engine.all().lanes, rows}, engine.state());
    CHECK(mass_of(engine, 0) == std::vector<float>{4, 4});  // two rows of two query heads
  }

  TEST_CASE("the memory of a session is gone after a reset") {
    kv::any_policy const intent(kv::eviction{.score = kv::intent_kv{}, .budget = kv::per_lane{100}});
    host_engine engine(shape_of(1), intent, 1, {}, 1);
    engine.forward({{0, &first_user, 0, 12}});
    std::vector<std::byte> memory(engine.state().session_bytes());
    engine.state().save_session(engine.exec(), 0, memory.data());
    CHECK(memory != std::vector<std::byte>(memory.size()));
    kv::reset(engine.exec(), engine.all(), engine.state(), 0);
    engine.state().save_session(engine.exec(), 0, memory.data());
    CHECK(memory == std::vector<std::byte>(memory.size()));
  }

  TEST_CASE("a list of slots is checked before anything is changed") {
    host_engine engine(shape_of(3), h2o(), 1, {}, 1);
    engine.forward({{0, &first_user, 0, 12}});
    auto const refused = [&](std::vector<int> const& slots) {
      kv::cache active = kv::only(engine.all(), {.slots = slots.data(), .size = static_cast<int>(slots.size())});
      return error_of([&] { show(h2o(), engine, active, std::vector<int>(slots.size(), 12)); });
    };
    CHECK(refused({1, 1}) == "observe: slots = 1, twice, but a slot is one sequence of a batch");
    CHECK(refused({0, 3}) == "observe: slots = 3 of sequence 1, but the tables have slots 0 to 2");
    CHECK(refused({-1}) == "observe: slots = -1 of sequence 0, but the tables have slots 0 to 2");
    CHECK(error_of([&] { kv::reset(engine.exec(), engine.all(), engine.state(), std::array{1, 2, 1}); }) ==
          "reset: slots = 1, twice, but a slot is one sequence of a batch");
    CHECK(error_of([&] { kv::reset(engine.exec(), engine.all(), engine.state(), 3); }) ==
          "reset: slots = 3 of sequence 0, but the tables have slots 0 to 2");
    CHECK(error_of([&] { kv::fork(engine.exec(), engine.all(), engine.state(), 1, 0); }) ==
          "fork: to = 0, but a request uses this slot: reset it first");
    CHECK(error_of([&] { kv::move(engine.exec(), engine.all(), engine.state(), 0, 0); }) ==
          "move: to = 0, but it is the slot that is copied");
    CHECK(error_of([&] { kv::fork(engine.exec(), engine.all(), engine.state(), 0, 4); }) ==
          "fork: to = 4, but the cache has slots 0 to 2");
    CHECK(error_of([&] { kv::reorder(engine.exec(), engine.all(), engine.state(), std::array{0, 1}); }) ==
          "reorder: order.size = 2, but there are 3 slots");
    int const list[] = {0};
    kv::cache part = kv::only(engine.all(), {.slots = list, .size = 1});
    CHECK(error_of([&] { kv::reset(engine.exec(), part, engine.state(), 0); }) ==
          "reset: cache.lanes = some slots, but slots are numbered in the cache of all slots");
    CHECK(error_of([&] { static_cast<void>(kv::only(part, {.slots = list, .size = 1})); }) ==
          "only: lanes = some slots, but a list is taken of all slots");
    CHECK(error_of([&] { static_cast<void>(kv::only(engine.all(), {.slots = list, .size = 0})); }) ==
          "only: slots.size = 0, but a batch has at least one sequence");
  }

  TEST_CASE("a state grows, and goes on with the requests in its slots") {
    auto const grows = [](auto const& policy) {
      mock_cache small(shape_of(2, 8));
      mock_cache large(shape_of(2, 20));
      kv::host_executor exec;
      kv::cache view = small.view();
      auto state = kv::make_state(exec, policy, view);
      kv::append(exec, view, state, {1, 5, 0});
      auto* const mass = reinterpret_cast<float*>(state.columns()[0].rows.row({1, 1, 0}));
      for (int e = 0; e < 5; ++e) mass[e] = static_cast<float>(e + 1);
      large.put({1, 0, 0}, {0, 1, 2, 3, 4});
      CHECK(error_of([&] { kv::grow(exec, policy, view, state); }) ==
            "grow: lanes.capacity = 8, but the state has room for 8 entries a lane");
      kv::grow(exec, policy, large.view(), state);
      auto const* const grown = reinterpret_cast<float const*>(state.columns()[0].rows.row({1, 1, 0}));
      CHECK(std::vector<float>(grown, grown + 6) == std::vector<float>{1, 2, 3, 4, 5, 0});
      CHECK(state.lanes().capacity == 20);
      kv::cache larger = large.view();
      CHECK(error_of([&] { kv::append(exec, larger, state, {1, 1, 0}); }) != "");

      auto sliding = kv::make_state(exec, policy, view, 8);  // as that of a window, whose rows slide
      sliding.slide(3);
      auto* const slid = reinterpret_cast<float*>(sliding.columns()[0].rows.row({1, 1, 0}));
      for (int e = 0; e < 8; ++e) slid[e] = static_cast<float>(e + 1);
      mock_cache wider(shape_of(2, 9));
      kv::grow(exec, policy, wider.view(), sliding);
      auto const* const moved = reinterpret_cast<float const*>(sliding.columns()[0].rows.row({1, 1, 0}));
      CHECK(std::vector<float>(moved, moved + 8) == std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8});
      CHECK(sliding.slack() == 8);
    };
    kv::eviction const typed{.score = kv::h2o{}, .budget = kv::per_lane{100}};
    grows(typed);
    grows(kv::any_policy(typed));
  }
}

}  // namespace
