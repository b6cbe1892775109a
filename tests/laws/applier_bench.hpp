// SPDX-License-Identifier: Apache-2.0
// Every applier over a batch of slots or pages, whose lanes decide alone or together.
#pragma once

#include "layout/slot_cache.hpp"
#include "support/beside.hpp"
#include "support/test.hpp"

namespace kvpolicy_test {

/// Every applier that the library ships; a test compares this list with the headers.
using every_applier = std::tuple<kv::compact, kv::compact_rerotated, kv::list_rewrite<>, kv::dead_slot<>, kv::mask,
                                 kv::overwrite, kv::drop_blocks<>>;

inline slot_options any_shape(bool pages) {
  slot_options shape;
  shape.model = {.layers = *rc::gen::inRange(1, 3), .query_heads = 2, .kv_heads = 2, .head_dim = 4};
  shape.sequences = *rc::gen::inRange(1, 3);
  shape.bound = *rc::gen::element(12, 33);
  shape.page = pages ? 4 : 1;
  shape.by_lane = any_bool();
  shape.element = *rc::gen::element(kv::codec::f32, kv::codec::bf16);
  shape.seed = *rc::gen::inRange<std::uint64_t>(1, 1u << 20);
  return shape;
}

/// Which lanes of a cache decide together: those that share a table.
inline kv::granularity deciding(slot_options const& shape) {
  return shape.by_lane ? kv::granularity::lane : kv::granularity::sequence;
}

/// A batch of two turns of tokens and some drafts, with a column that follows its entries, and scores of a few values.
template <class Layout, class Score = kv::reduce_lanes<kv::random_scores>>
struct bench {
  using policy_type = kv::eviction<Score, kv::sinks>;

  explicit bench(slot_options const& shape) : bench(shape, {.decides = deciding(shape)}) {}
  bench(slot_options const& shape, Score const& score)
      : cache(shape),
        view(cache.view()),
        policy{.score = score, .protect = {1}},
        plan(kv::make_plan(exec, policy, view)),
        columns(kv::make_state(exec, policy, view)),
        hidden(as_size(cache.rows * cache.units), std::byte{1}),
        told(as_size(cache.lane_count() * shape.bound)) {
    keep_beside(columns, kv::record_attention_mass{});
    for (float& each : told) each = static_cast<float>(cache.random.between(0, 12)) / 8;
    int const tokens = cache.random.between(1, shape.bound - 2);
    for (int s = 0; s < shape.sequences; ++s) {
      for (int t = 0; t < tokens + 2; ++t) {
        cache.write_token(s, t, 100 * s + t);
        kv::append(exec, view, columns, {s, 1, t, t >= tokens});
      }
    }
    for (int i = 0; i < cache.lane_count(); ++i) {
      for (int e = 0; e < cache.held(cache.lane_at(i)); ++e) mass(i)[e] = static_cast<float>(10 * i + e);
    }
  }

  [[nodiscard]] float* mass(int i) { return reinterpret_cast<float*>(columns.columns()[0].rows.row(cache.lane_at(i))); }

  [[nodiscard]] Layout layout() {
    auto const list = cache.list_table();
    auto const like = cache.table(cache.count, 1);
    std::int64_t const row = cache.units;
    if constexpr (std::same_as<Layout, kv::list_rewrite<>>) return {.list = list, .freed = cache.freed_list()};
    if constexpr (std::same_as<Layout, kv::dead_slot<>>) return cache.redirecting();
    if constexpr (std::same_as<Layout, kv::mask>) {
      return {list,
              {{hidden.data(), like.sequence * row, like.layer * row, like.head * row}, kv::mask_form::boolean, row}};
    }
    if constexpr (std::same_as<Layout, kv::overwrite>) return {list};
    if constexpr (std::same_as<Layout, kv::drop_blocks<>>) return {list, cache.freed_list()};
    if constexpr (std::same_as<Layout, kv::compact> || std::same_as<Layout, kv::compact_rerotated>) return {};
  }
  void decide(int budget) {
    policy.budget.tokens = budget;
    std::int64_t const head = cache.options.bound, layer = head * cache.options.model.kv_heads;
    kv::external_scores const given{{told.data(), layer * cache.options.model.layers, layer, head}};
    kv::decide(exec, policy, kv::signals{view.lanes, given}, columns, plan);
  }
  kv::apply_stats apply() {
    kv::apply_stats stats{-1, -1, -1};
    kv::apply(exec, layout(), plan, view, columns, &stats);
    return stats;
  }

  /// What an engine could notice: all memory and tables but the lists that are handed back, which a call makes anew.
  struct snapshot {
    std::vector<std::byte> memory, hidden;
    std::vector<std::vector<int>> tables;
    std::vector<float> mass;
    friend bool operator==(snapshot const&, snapshot const&) = default;
  };
  [[nodiscard]] snapshot save(bool with_lists) {
    auto all = cache.save();
    snapshot made{all.memory, hidden, all.tables, {}};
    for (std::size_t lists = 6; lists < 10 && !with_lists; ++lists) made.tables[lists].clear();
    for (int i = 0; i < cache.lane_count(); ++i)
      made.mass.insert(made.mass.end(), mass(i), mass(i) + cache.options.bound);
    return made;
  }

  slot_cache cache;
  kv::host_executor exec;
  kv::cache view;
  policy_type policy;
  kv::plan<kv::host_executor> plan;
  kv::state<kv::host_executor> columns;
  std::vector<std::byte> hidden;
  std::vector<float> told;
};

template <class Layout>
bench<Layout> any_bench() {
  return bench<Layout>(any_shape(std::same_as<Layout, kv::drop_blocks<>>));
}

}  // namespace kvpolicy_test
