// SPDX-License-Identifier: Apache-2.0
// Layers that read the pages which an earlier layer chooses: they read exactly these, however an engine divides the
// layers into calls, and what cannot be inherited is refused.

#include "reference/pages.hpp"
#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

/// A cache whose layers hold the same entries, each with keys of its own, and the rows that ask.
struct layered {
  explicit layered(mock_options const& shape) : cache(shape), queries(cache, kv::codec::f32, 1, 1) {
    fill(cache, true);
    for (kv::lane const one : lanes_of(cache)) {
      kv::lane const first{one.sequence, 0, one.head};
      if (one.layer > 0) cache.put(one, cache.positions(first, cache.count(first)));
    }
    fill_current(queries, cache, content::smooth);
  }
  [[nodiscard]] auto in(int begin, int end) {
    return kv::signals{cache.lanes().layers_only(begin, end), kv::keys_of(cache.view()), kv::queries{queries.view()}};
  }
  [[nodiscard]] int layers() const { return cache.model().layers; }

  kv::host_executor exec;
  mock_cache cache;
  mock_queries queries;
};

/// Counts the layers whose pages it scores.
struct counting_quest {
  kv::quest of{};
  int* scored = nullptr;
  int page = of.page;
  using needs = kv::quest::needs;
  using verbs = kv::quest::verbs;
  static constexpr auto decides = kv::quest::decides;
  static constexpr auto scores_of = kv::item::page;
  [[nodiscard]] auto recorders() const { return of.recorders(); }
  void score(auto& exec, auto const& in, kv::score_view const& out) const {
    *scored += out.lanes.layers();
    of.score(exec, in, out);
  }
  [[maybe_unused]] friend bool operator==(counting_quest const&, counting_quest const&) = default;
};

mock_options any_layers() {
  mock_options shape = any_mock(6);
  shape.model.layers = *rc::gen::inRange(1, 10);
  shape.model.kv_heads = *rc::gen::inRange(1, 3);
  shape.model.query_heads = shape.model.kv_heads * *rc::gen::element(1, 2);
  shape.sequences = *rc::gen::inRange(1, 3);
  shape.shared_entries = *rc::gen::element(false, true);
  shape.rows = *rc::gen::element(content::smooth, content::few);
  return shape;
}

/// The layers that begin a call: 0, and some others.
std::vector<int> any_calls(int layers) {
  std::vector<int> begins{0};
  for (int layer = 1; layer < layers; ++layer) {
    if (*rc::gen::element(false, true)) begins.push_back(layer);
  }
  begins.push_back(layers);
  return begins;
}

/// The pages of each lane that a policy chooses in calls for some layers each, in the order of all lanes.
template <class Policy, class State>
std::vector<std::vector<int>> chosen(layered& now, Policy const& policy, State const& state,
                                     std::vector<int> const& begins) {
  auto plan = kv::make_plan(now.exec, policy, now.cache.view());
  std::vector<std::vector<int>> pages(as_size(now.cache.lane_count()));
  for (std::size_t c = 0; c + 1 < begins.size(); ++c) {
    auto const in = now.in(begins[c], begins[c + 1]);
    kv::select_pages(now.exec, policy, in, state, plan);
    for (int i = 0; i < in.lanes.size(); ++i) {
      pages[as_size(now.cache.index(in.lanes.at(i)))] = listed(plan.keep(), i);
    }
  }
  return pages;
}

/// Checks that a policy reads what the same policy without `inherit` reads in the layers that choose. Only the bounds
/// of these layers are observed.
template <class Policy>
void inherits(layered& now, Policy const& policy, std::vector<int> const& begins) {
  Policy alone = policy;
  alone.inherit = 1;
  auto all = kv::make_state(now.exec, alone, now.cache.view());
  kv::observe(now.exec, alone, now.in(0, now.layers()), all);
  auto const own = chosen(now, alone, all, {0, now.layers()});
  auto some = kv::make_state(now.exec, policy, now.cache.view());
  for (int layer = 0; layer < now.layers(); ++layer) {
    if (reference::choosing_layer(layer, policy.dense_layers, policy.inherit) == layer) {
      kv::observe(now.exec, policy, now.in(layer, layer + 1), some);
    }
  }
  auto const found = chosen(now, policy, some, begins);
  for (int i = 0; i < now.cache.lane_count(); ++i) {
    kv::lane const one = now.cache.lane_at(i);
    int const layer = reference::choosing_layer(one.layer, policy.dense_layers, policy.inherit);
    RC_LOG() << "lane " << i << ", whose pages layer " << layer << " chooses\n";
    RC_ASSERT(found[as_size(i)] == own[as_size(now.cache.index({one.sequence, layer, one.head}))]);
  }
  if constexpr (std::is_same_v<kv::host_executor::backend, kv::host>) {
    kv::any_selection const erased = policy;
    RC_ASSERT(chosen(now, erased, some, begins) == found);
  }
}

/// Five layers of one head with ten entries in pages of 2; layer 0 is dense, and 1 and 3 choose.
struct five_layers : layered {
  five_layers() : layered(shape()) {
    for (int layer = 0; layer < 5; ++layer) cache.put({0, layer, 0}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
    queries.set_position(0, 0, 9);
    kv::observe(exec, policy, in(0, 5), state);
  }
  static mock_options shape() {
    mock_options made;
    made.model.layers = 5;
    return made;
  }
  std::string select(int begin, int end) {
    return error_of([&] { kv::select_pages(exec, policy, in(begin, end), state, plan); });
  }

  kv::selection<kv::quest> policy{.score = {.page = 2}, .budget = {4}, .dense_layers = 1, .inherit = 2};
  kv::state<kv::host_executor> state = kv::make_state(exec, policy, cache.view());
  kv::selection_plan<kv::host_executor> plan = kv::make_plan(exec, policy, cache.view());
};

TEST_SUITE("selection/inherit") {
  TEST_CASE("the layer that chooses, by hand") {
    kv::layer_runs const runs{2, 3};
    int const expected[] = {0, 1, 2, 2, 2, 5, 5, 5, 8};
    for (int layer = 0; layer < 9; ++layer) {
      CHECK(runs.first_of(layer) == expected[layer]);
      CHECK(reference::choosing_layer(layer, 2, 3) == expected[layer]);
    }
    CHECK(runs.end_of(3, 9) == 5);
    CHECK(runs.end_of(8, 9) == 9);
    CHECK(kv::layer_runs{.dense = 1}.first_of(7) == 7);
    CHECK(kv::layer_runs{.dense = 0x7FFFFFFF, .length = 0x7FFFFFFF}.first_of(7) == 7);
    CHECK(kv::layer_runs{.length = 0x7FFFFFFF}.end_of(7, 8) == 8);
  }

  TEST_CASE("layers read the pages of the first layer of their run, in calls for any layers") {
    holds("inherited pages", [] {
      layered now(any_layers());
      int const page = *rc::gen::element(4, 1, 3);
      int const tokens = *rc::gen::element(2 * page, 0, page, 12, 40);
      int const dense = *rc::gen::element(0, 1, 2, 20);
      int const inherit = *rc::gen::element(2, 3, 4, 1, 20);
      std::vector<int> const begins = any_calls(now.layers());
      inherits(now,
               kv::selection<kv::quest>{
                   .score = {.page = page}, .budget = {tokens}, .dense_layers = dense, .inherit = inherit},
               begins);
      inherits(now,
               kv::selection{.score = kv::quest{.page = page},
                             .budget = kv::per_lane{tokens},
                             .dense_layers = dense,
                             .protect = kv::safe{page, 2},
                             .inherit = inherit},
               begins);
      inherits(now,
               kv::selection{.score = kv::quest{.page = page},
                             .budget = kv::unlimited{},
                             .dense_layers = dense,
                             .protect = kv::sinks{1},
                             .pick = kv::at_least{.least = 0.25f, .unbounded = true},
                             .inherit = inherit},
               begins);
    });
  }

  TEST_CASE("the score of a page is that by which it was chosen, and nothing allocates") {
    five_layers now;
    CHECK(allocations_in([&] { CHECK(now.select(0, 5).empty()); }) == 0);
    for (int page = 0; page < 4; ++page) {
      CHECK(now.plan.score(2, page) == now.plan.score(1, page));
      CHECK(now.plan.score(4, page) == now.plan.score(3, page));
    }
    CHECK(listed(now.plan.keep(), 2) == listed(now.plan.keep(), 1));
    CHECK(listed(now.plan.keep(), 0).size() == 5);
    CHECK(listed(now.plan.keep(), 4).size() == 2);
  }

  TEST_CASE("only layers that choose are scored") {
    five_layers now;
    int scored = 0;
    kv::selection<counting_quest> policy{.score = {now.policy.score, &scored}, .budget = {4}, .dense_layers = 1};
    for (int const inherit : {1, 2, 3, 4, 9}) {
      policy.inherit = inherit;
      scored = 0;
      auto plan = kv::make_plan(now.exec, policy, now.cache.view());
      kv::select_pages(now.exec, policy, now.in(0, 5), now.state, plan);
      CHECK(scored == (4 + inherit - 1) / inherit);
    }
  }

  TEST_CASE("a layer whose pages were not chosen just before is refused, and the choice stays") {
    five_layers now;
    std::string const first =
        "select: signals.lanes.layer_begin = 2, but it reads the pages of layer 1: choose for the layers from that one "
        "on first, in their order";
    CHECK(now.select(2, 3) == first);
    CHECK(now.select(0, 2).empty());
    CHECK(now.select(2, 3).empty());
    CHECK(now.select(2, 3) == first);
    CHECK(now.select(3, 4).empty());
    CHECK(now.select(2, 4) == first);
    CHECK(now.plan.keep().lanes.layer_begin == 3);
    CHECK(now.select(4, 5).empty());
    CHECK(now.select(1, 5).empty());
  }

  TEST_CASE("a layer with other entries than the one that chooses is refused") {
    five_layers now;
    CHECK(now.select(0, 5).empty());
    auto const before = listed(now.plan.keep(), 4);
    now.cache.put({0, 4, 0}, {0, 1, 2, 3, 4, 5, 6, 7, 8});
    [[maybe_unused]] std::string const fewer = now.select(0, 5);
    now.cache.put({0, 4, 0}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 10});
    now.queries.set_position(0, 0, 10);
    [[maybe_unused]] std::string const other = now.select(0, 5);
#if defined(KVPOLICY_TEST_ON_DEVICE)
    CHECK(fewer == "select: lanes.count (4) = 9, but layers that read the same pages hold equally many entries");
    CHECK(other == "select: lanes.position (4) = 10, but layers that read the same pages hold the same tokens");
#else
    CHECK(
        fewer ==
        "select: lanes.count = 9 in layer 4, head 0, but it reads the pages of layer 3, whose lane of this head holds "
        "10");
    CHECK(
        other ==
        "select: lanes.position = other tokens in layer 4, head 0 than in layer 3, head 0 (entry 9: 10 against 9), but "
        "layers that read the same pages hold the same tokens");
#endif
    CHECK(listed(now.plan.keep(), 4) == before);
    now.policy.inherit = 1;
    CHECK(now.select(0, 5).empty());
  }

  TEST_CASE("fewer layers than one are refused") {
    five_layers now;
    now.policy.inherit = 0;
    CHECK(now.select(0, 5) == "select: inherit = 0, but the layer that chooses is one of those that read its pages");
    CHECK(error_of([&] { auto const plan = kv::make_plan(now.exec, now.policy, now.cache.view()); }) ==
          "make_plan: inherit = 0, but the layer that chooses is one of those that read its pages");
  }

  TEST_CASE("a cache policy and a description keep it") {
    kv::selection const policy{.score = kv::quest{}, .inherit = 4};
    CHECK(kv::detail::selecting(kv::cache_policy{.select = policy}).inherit == 4);
    CHECK(kv::describe(policy).pick == "top, by the first of every 4 layers");
    CHECK(kv::describe(kv::selection{.score = kv::quest{}}).pick == "top");
  }
}

}  // namespace
