// SPDX-License-Identifier: Apache-2.0
// Whole policies on the device and on the host: equal keep sets, equal bytes of the cache, step after step.

#include "support/device.hpp"
#include "support/projection.hpp"
#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

/// An engine's memory, which two of the same options fill alike, and the executor that a policy runs on.
template <class Executor>
struct engine {
  explicit engine(mock_options const& shape)
      : cache(shape), queries(cache, shape.element, 3, 5), by(shape.model, kv::codec::f32, 5, 0, shape.seed) {
    fill(cache, false);
    fill_current(queries, cache, content::smooth);
    beta.resize(as_size(cache.lane_count() * shape.bound));
    for (float& each : beta) each = -static_cast<float>(cache.random().below(1000)) / 1000.0f;
    counts.resize(as_size(cache.lane_count()));
    for (int i = 0; i < cache.lane_count(); ++i) {
      counts[as_size(i)] = cache.committed(cache.lane_at(i));  // all of them are new
    }
    kv::shape const& model = cache.model();
    for (int i = 0; i < model.layers * model.query_heads * model.head_dim; ++i) {
      means.push_back(static_cast<float>((7 * i + 3) % 11 - 5) / 4.0f);
    }
  }

  /// A profile of queries whose first two channels turn.
  [[nodiscard]] kv::query_model profile() const {
    kv::shape const& model = cache.model();
    kv::query_model made;
    made.mean.base = reinterpret_cast<std::byte const*>(means.data());
    made.mean.dims = model.head_dim;
    made.mean.head = std::int64_t{4} * model.head_dim;
    made.mean.layer = made.mean.head * model.query_heads;
    made.mean.heads = model.query_heads;
    made.mean.rows = 1;
    made.rope.dims = 2;
    return made;
  }

  [[nodiscard]] auto signals() {
    std::int64_t const heads = cache.model().kv_heads;
    std::int64_t const layers = cache.model().layers;
    std::int64_t const row = cache.options().bound;
    kv::log_beta fresh{{reinterpret_cast<std::byte const*>(beta.data()), kv::codec::f32, row * heads * layers * 4,
                        row * heads * 4, row * 4, 4}};
    fresh.counts = {counts.data(), heads * layers, heads, 1};
    return kv::signals{cache.lanes(),
                       kv::keys_of(cache.view()),
                       kv::values_of(cache.view()),
                       kv::queries{queries.view()},
                       fresh,
                       by.view(),
                       kv::external_queries{queries.view()},
                       profile(),
                       kv::pre_rope_keys{kv::row_view(kv::keys_of(cache.view()))}};
  }

  /// The next token of every sequence: its rows, its place in the lanes, its query row.
  template <class State>
  void forward(State& state, int position) {
    kv::cache in = cache.view();
    for (int i = 0; i < cache.lane_count(); ++i) {
      cache.write_new_row(cache.lane_at(i), cache.count(cache.lane_at(i)), position);
      counts[as_size(i)] = 1;
    }
    fill_current(queries, cache, content::smooth);
    for (int s = 0; s < cache.options().sequences; ++s) {
      queries.set_position(s, queries.rows() - 1, position);
      kv::append(exec, in, state, {.sequence = s, .tokens = 1, .position = position});
      state.history().truncate(s, 0);  // the rows before the last one are shown again
    }
  }

  void wait() {
    if constexpr (requires { exec.check(); }) exec.check();
  }

  Executor exec;
  mock_cache cache;
  mock_queries queries;
  mock_projection by;
  std::vector<float> beta, means;
  std::vector<int> counts;
};

/// What a policy keeps in a prefill and in steps after it, what its reports say, and what these leave of the cache.
struct history {
  std::vector<std::vector<int>> kept;
  std::vector<kv::report> reports;
  std::vector<mock_cache::snapshot> left;
  friend bool operator==(history const&, history const&) = default;
};

void note(history& of, kv::keep_set const& keep) {
  for (int segment = 0; segment < keep.segments(); ++segment) of.kept.push_back(listed(keep, segment));
  of.reports.push_back(*keep.report);
}

template <class Executor, class Policy>
history history_of(mock_options const& shape, Policy const& policy) {
  engine<Executor> runs(shape);
  history made;
  kv::cache in = runs.cache.view();
  auto [held, plan] = state_and_plan(runs.exec, policy, in);
  kv::decide(runs.exec, policy, runs.signals(), held, plan);  // before anything was observed
  runs.wait();
  note(made, plan.keep());
  for (int step = 0; step < 4; ++step) {
    if (step > 0) runs.forward(held, 100 + step);
    kv::observe(runs.exec, policy, runs.signals(), held);
    kv::decide(runs.exec, policy, runs.signals(), held, plan);
    kv::apply(runs.exec, kv::compact{}, plan, in, held);
    runs.wait();
    note(made, plan.keep());
    made.left.push_back(runs.cache.save());
  }
  return made;
}

template <class Executor, class Policy>
history selections_of(mock_options const& shape, Policy const& policy) {
  engine<Executor> runs(shape);
  history made;
  kv::cache in = runs.cache.view();
  auto [held, plan] = state_and_plan(runs.exec, policy, in);
  for (int step = 0; step < 4; ++step) {
    if (step % 2 == 1) kv::truncate(runs.exec, in, held, 0, 9);
    if (step == 2) runs.forward(held, 100);
    kv::observe(runs.exec, policy, runs.signals(), held);
    kv::select_pages(runs.exec, policy, runs.signals(), held, plan);
    runs.wait();
    note(made, plan.keep());
  }
  return made;
}

mock_options any_shape() {
  mock_options shape = any_mock(6);
  shape.skew = 0;
  if (shape.model.head_dim == 1) shape.model.head_dim = 2;  // a pair of channels turns
  if (shape.bound == 1) shape.bound = 20;
  RC_LOG() << shape << '\n';
  return shape;
}

template <class Policy>
void agree(char const* name, Policy const& policy) {
  holds(name, 10, [&] {
    mock_options shape = any_shape();
    bool const alone = kv::detail::decides_of(policy.score) == kv::granularity::lane;
    if (!alone) shape.model.layers = 1, shape.shared_entries = shape.shared_table = true;  // heads that decide together
    if (!alone && shape.memory == arrangement::one_pool) shape.memory = arrangement::nhd;  // which has a table a lane
    RC_ASSERT(history_of<kv::host_executor>(shape, policy) == history_of<device_executor>(shape, policy));
  });
}

TEST_SUITE("device/policies") {
  TEST_CASE("a policy keeps on the device what it keeps on the host, and leaves the same cache") {
    agree("streaming_llm", kv::policies::streaming_llm({.budget = 7, .sinks = 2}));
    agree("snapkv", kv::policies::snapkv({.budget = 9, .score = {.window = 4}, .sinks = 1}));
    agree("pyramid_kv", kv::policies::pyramid_kv({.budget = 9, .score = {.window = 3}, .beta = 4}));
    for (auto const then : {kv::rest_order::recency, kv::rest_order::random}) {
      kv::put_first const score{.score_of = kv::snapkv{.window = 2, .pool = kv::no_pool{}}, .part = 0.5, .then = then};
      agree("put_first", kv::eviction{.score = score, .protect = kv::sinks{1}, .budget = kv::per_lane{8}});
    }
    kv::reduce_lanes const of_layer{kv::window_attention{.window = 3}, kv::granularity::layer, kv::reduction::mean};
    kv::blocks const by_blocks{.score_of = of_layer, .size = 4};
    agree("blocks", kv::eviction{.score = by_blocks, .protect = kv::sinks{1}, .budget = kv::per_lane{9}});
    agree("lowest", kv::eviction{.score = by_blocks, .budget = kv::unlimited{}, .pick = kv::lowest{0.5}});
    agree("received_by_value", kv::eviction{.score = kv::received_by_value{.by_age = true}, .budget = kv::per_lane{9}});
    for (bool const adaptive : {false, true}) {
      kv::openvino const score{.start = 2, .recent = 5, .block = 3, .adaptive = adaptive, .cover = 0.6, .crush = 2};
      agree("openvino", kv::eviction{.score = score, .budget = kv::per_lane{12}});  // and two blocks on top
    }
    kv::cake const by_change{.window = 3, .pool = kv::avg_pool{3}};
    agree("cake", kv::eviction{.score = by_change, .budget = kv::per_lane{9}});
    // Shares that go by the scores of all lanes, and by the numbers that the scorer leaves.
    agree("hits", kv::eviction{.score = kv::knorm{}, .budget = kv::shared_out<kv::hits>{.tokens = 9}});
    agree("pool", kv::eviction{.score = kv::knorm{}, .budget = kv::shared_out<kv::pooled_share>{.tokens = 9}});
    kv::shared_out<kv::moments> const by_moments{.tokens = 9, .by = {.window = 3}};
    agree("moments", kv::eviction{.score = by_change, .budget = by_moments});
    agree("finch", kv::eviction{.score = kv::finch{.window = 3}, .budget = kv::per_lane{9}});
    for (bool const mean : {false, true}) {
      kv::kvcompose const score{.add_mean = mean, .values = mean};
      agree("kvcompose", kv::eviction{.score = score, .budget = kv::per_lane{9}});
    }
    kv::critical<kv::snapkv> const critical{.score_of = {.window = 2, .pool = kv::avg_pool{3}}, .first = 0.4};
    agree("critical", kv::eviction{.score = critical, .protect = kv::sinks{1}, .budget = kv::per_lane{9}});
    kv::defensive_kv const most{.window = 3, .pool = kv::avg_pool{3}, .cover = 0.6};
    agree("defensive_kv", kv::eviction{.score = most, .budget = kv::per_layer{9, 0}});
    for (auto const of : {kv::leverage_of::product, kv::leverage_of::mean}) {
      agree("cur", kv::eviction{.score = kv::cur{.sinks = 1, .block = 4, .of = of}, .budget = kv::per_lane{9}});
    }
    agree("lag_kv", kv::eviction{.score = kv::lag_kv{.lag = 4, .sinks = 1}, .budget = kv::per_lane{12}});
    agree("leverage", kv::eviction{.score = kv::leverage{.sketch = 3}, .budget = kv::per_lane{9}});
    kv::compactor const leading{.sinks = 1, .recent = 2, .chunk = 4, .sketch = 2};
    agree("compactor", kv::eviction{.score = leading, .budget = kv::per_lane{9}});
    for (int const future : {0, 5}) {
      kv::cap_kv const capacity{.tau = 2, .future = future, .sinks = 1};
      agree("cap_kv", kv::eviction{.score = capacity, .budget = kv::per_lane{9}});
    }
    kv::lazy_layers const ends{.threshold = 0.3f, .initial = 1, .recent = 5};
    agree("lazy_layers", kv::eviction{.score = ends, .budget = kv::per_lane{9}});
    static std::vector<int> const classes = [] {
      std::vector<int> of(10000);
      for (std::size_t i = 0; i < of.size(); ++i) of[i] = static_cast<int>(i % 7);
      return of;
    }();
    agree("late_attention", kv::eviction{.score = kv::late_attention{.rows = 0.3},
                                         .budget = kv::shared_out{.tokens = 9, .by = kv::depth{.least = 3}}});
    kv::peak_attention const peaks{.rows = 0.3, .long_rows = 0.1, .longer = 12};
    agree("peak_attention", kv::eviction{.score = peaks, .budget = kv::unlimited{}, .pick = kv::at_least{0.1f}});
    static std::vector<float> const numbers = [] {
      std::vector<float> of(1000);
      for (std::size_t i = 0; i < of.size(); ++i) of[i] = static_cast<float>(i % 5) / 4 - 1.5f;
      return of;
    }();
    kv::lookahead_kv const patched{.recent = 0, .rows = kv::reduction::max, .group = kv::reduction::max};
    kv::table_power const drifts{.power = 1.1, .floor = 0.25, .numbers = {numbers.data() + 2, 0, 5, 1}};
    agree("table_power", kv::eviction{.score = patched, .budget = kv::shared_out{.tokens = 9, .by = drifts}});
    for (bool const strict : {false, true}) {
      kv::at_least_table const pick{.strict = strict, .thresholds = {numbers.data(), 0, 7, 1}};
      agree("at_least_table", kv::eviction{.score = kv::knorm{}, .budget = kv::unlimited{}, .pick = pick});
    }
    kv::cheapest_recipe const recipe{.recover = 0.7, .recent = 0.2, .frequent = 0.2, .classes = {classes.data()}};
    agree("cheapest_recipe", kv::eviction{.score = recipe, .budget = kv::per_lane{9}});
    kv::normalised const ranked{.score_of = kv::knorm{}, .how = kv::normalising::rank, .block = 4};
    agree("ranks", kv::eviction{.score = ranked, .protect = kv::sinks{1}, .budget = kv::per_lane{8}});
    agree("recency", kv::eviction{.score = kv::recency{}, .protect = kv::sinks{2}, .budget = kv::per_lane{7}});
    // The stages that change scores, each once.
    using smooth = kv::pooled<kv::normalised<kv::times_norm<kv::snapkv>>>;
    smooth const inner{.score_of = {.score_of = {.score_of = {.window = 2, .pool = kv::no_pool{}}, .epsilon = 0.02f},
                                    .how = kv::normalising::z}};
    kv::decayed<smooth> const older{inner, 0.99f};
    kv::mix<kv::noise<kv::decayed<smooth>>, kv::knorm> const mixed{.score_of = {older, 7}, .lambda = 0.7f};
    agree("stages", kv::eviction{.score = mixed, .protect = kv::sinks{1}, .budget = kv::per_lane{8}});
    agree("h2o", kv::policies::h2o({.budget = 8}));
    agree("trim_kv", kv::policies::trim_kv({.budget = 11}));
    agree("knorm", kv::policies::knorm({.budget = 10}));
    agree("knorm", kv::eviction{.score = kv::knorm{}, .budget = kv::drop_ratio{0.75}});
    for (float const least : {-1.0f, 1.0f}) {  // above 0 every lane is emptied
      kv::at_least const pick{.least = least, .unbounded = true};
      agree("at_least", kv::eviction{.score = kv::knorm{}, .budget = kv::unlimited{}, .pick = pick});
    }
  }

#if !defined(__CUDACC__)  // the executor of a GPU does not count
  TEST_CASE("a planned decision takes three launches, typed or by name") {
    mock_options const shape{.model = {.layers = 3, .query_heads = 4, .kv_heads = 2, .head_dim = 4}, .bound = 40};
    engine<device_executor> runs(shape);
    kv::cache in = runs.cache.view();
    auto const launches_of = [&](auto const& policy) {
      auto [held, plan] = state_and_plan(runs.exec, policy, in);
      int const before = runs.exec.launches();
      kv::decide(runs.exec, policy, runs.signals(), held, plan);
      kv::apply(runs.exec, kv::compact{}, plan, in, held);
      runs.wait();
      return runs.exec.launches() - before;
    };
    CHECK(launches_of(kv::policies::knorm({.budget = 10})) == 3);
    CHECK(launches_of(kv::basic_any_policy<device_executor>(kv::policies::knorm({.budget = 9}))) == 3);
  }
#endif

  TEST_CASE("a selection reads on the device the pages that it reads on the host") {
    holds("quest", 20, [] {
      mock_options shape = any_shape();
      shape.sequences = 1;
      auto const policy = kv::policies::quest({.budget = 12, .score = {.page = 4}, .dense_layers = 1});
      RC_ASSERT(selections_of<kv::host_executor>(shape, policy) == selections_of<device_executor>(shape, policy));
    });
  }
}

}  // namespace
