// SPDX-License-Identifier: Apache-2.0
// The verbs of decode steps over a whole model's lanes, each against a plain loop over what it must touch: record_norms
// of a prompt, argmin_of, replace_listed, and sort_entries against a sort of the same numbers.
#include <algorithm>

#include "../measure.hpp"
#include "../model.hpp"

namespace {

namespace kv = kvpolicy;
using bench::floors::touching;

constexpr int entries = 32768;

/// Lists, positions and numbers of 288 lanes, out of order, and without rows of K and V.
struct shuffled_lanes {
  explicit shuffled_lanes(int threads)
      : exec(threads),
        list(std::size_t{288} * entries),
        position(list.size()),
        number(list.size()),
        count(288),
        order(288) {
    bench::noise random(3);
    for (float& each : number) each = -random.uniform() - 0.5f;
    shuffle();
    columns[0] = {
        {"number", kv::column_extent::lane_entry, kv::on_move::permute, 4},
        {reinterpret_cast<std::byte*>(number.data()), 0, std::int64_t{32} * entries, std::int64_t{4} * entries}};
  }
  void shuffle() {
    for (std::size_t i = 0; i < list.size(); ++i) {
      auto const e = static_cast<int>(i % entries);
      list[i] = e;
      position[i] = (e * 40503 + 977) % entries;
    }
    std::fill(count.begin(), count.end(), entries);
    std::fill(order.begin(), order.end(), kv::lane_order{0, -1, entries, entries - 1});
  }
  kv::cache view() {
    auto const rows = [](std::vector<int>& of) { return kv::by_lane<int>{of.data(), 0, 8LL * entries, entries}; };
    kv::plane const plane{.element = kv::codec::bf16, .channels = 128, .unit_stride = 256, .channel_stride = 2};
    kv::cache made{.shape = bench::whole_model, .k = plane, .v = plane};
    made.where = kv::slot_map({list.data(), 0, 8LL * entries, entries}, entries);
    made.lanes = {
        .layer_end = 36, .heads = 8, .capacity = entries, .count = {count.data(), 0, 8, 1}, .position = rows(position)};
    made.lanes.order = {order.data(), 0, 8, 1};
    return made;
  }
  kv::by_lane<int> table() { return {list.data(), 0, 8LL * entries, entries}; }

  kv::host_executor exec;
  std::vector<int> list, position;
  std::vector<float> number;
  std::vector<int> count;
  std::vector<kv::lane_order> order;
  kv::recorded_column columns[1];
};

void record_norms(benchmark::State& state) {
  auto const element = static_cast<kv::codec>(state.range(0));
  if (!bench::has_memory(state, bench::model_cache::bytes(bench::whole_model, 8192, element))) return;
  bench::model_cache model(bench::whole_model, 8192, element);
  kv::host_executor exec(static_cast<int>(state.range(1)));
  kv::cache const cache = model.view();
  std::vector<float> norms(std::size_t{288} * 8192);
  kv::score_view const out = kv::contiguous_scores(cache.lanes, kv::granularity::lane, norms.data(), 8192);
  auto const taken = bench::in_turn_after(
      state, [&] { std::fill(norms.begin(), norms.end(), 0.0f); },
      [&] { kv::ops::record_norms(exec, kv::keys_of(cache), out); },
      [&] {
        bench::floors::touch_pass(exec, {{touching::read, model.keys().data(), model.plane_bytes()},
                                         {touching::write, norms.data(), 4 * norms.size()}});
      });
  bench::report_share(state, taken, 0, 1);
}
BENCHMARK(record_norms)
    ->ArgNames({"element", "threads"})
    ->ArgsProduct({{0, 1, 2}, {1, 2}})
    ->UseManualTime()
    ->Iterations(5)
    ->Unit(benchmark::kMillisecond);

struct number_of_entry {
  kv::by_lane<float const> number;
  [[nodiscard]] float const* row(kv::lane one) const { return number.row(one); }
  float operator()(float, kv::entry const& at) const { return row(at.lane)[at.ordinal]; }
};

/// A keep set that lists one entry of each lane.
struct dropped_ones {
  explicit dropped_ones(kv::lanes const& batch) : offset(289), ordinal(std::size_t{288} * entries), seen(288, entries) {
    keep = {.lanes = batch,
            .lists = kv::side::dropped,
            .indptr = offset.data(),
            .indices = ordinal.data(),
            .entry_count = seen.data(),
            .capacity = static_cast<std::int64_t>(ordinal.size()),
            .report = &report};
    bench::noise random(9);
    for (int i = 0; i < 288; ++i) {
      offset[static_cast<std::size_t>(i) + 1] = i + 1;
      ordinal[static_cast<std::size_t>(i)] = random.below(entries - 1);
    }
  }
  std::vector<std::int64_t> offset;
  std::vector<int> ordinal, seen;
  kv::report report;
  kv::keep_set keep;
};

void argmin_of(benchmark::State& state) {
  shuffled_lanes on(static_cast<int>(state.range(0)));
  kv::cache const cache = on.view();
  dropped_ones to(cache.lanes);
  std::vector<float> unread(std::size_t{1});
  kv::score_view const who = kv::contiguous_scores(cache.lanes, kv::granularity::lane, unread.data(), 0);
  number_of_entry const f{{on.number.data(), 0, 8LL * entries, entries}};
  auto const taken = bench::in_turn(
      state, [&] { kv::ops::argmin_of(on.exec, who, f, kv::plain_top_k{entries - 1}, to.keep); },
      [&] { bench::floors::touch_pass(on.exec, {{touching::read, on.number.data(), 4 * on.number.size()}}); });
  if (to.keep.listed(5)[0] != std::min_element(on.number.begin() + 5L * entries, on.number.begin() + 6L * entries) -
                                  on.number.begin() - 5L * entries) {
    return state.SkipWithError("wrong result");
  }
  bench::report_share(state, taken, 0, 1);
}
BENCHMARK(argmin_of)->ArgName("threads")->Arg(1)->Arg(2)->UseManualTime()->Iterations(30)->Unit(
    benchmark::kMillisecond);

void replace_listed(benchmark::State& state) {
  shuffled_lanes on(static_cast<int>(state.range(0)));
  kv::cache const cache = on.view();
  dropped_ones to(cache.lanes);
  auto const restore = [&] {
    std::fill(on.count.begin(), on.count.end(), entries);
    std::fill(on.order.begin(), on.order.end(), kv::lane_order{0, -1, entries, entries - 1});
  };
  auto const taken = bench::in_turn_after(
      state, restore, [&] { kv::ops::replace_listed(on.exec, to.keep, cache, on.table(), on.columns); }, [] {});
  bench::report_share(state, taken, 0, 1);
}
BENCHMARK(replace_listed)
    ->ArgName("threads")
    ->Arg(1)
    ->Arg(2)
    ->UseManualTime()
    ->Iterations(60)
    ->Unit(benchmark::kMicrosecond);

void sort_entries(benchmark::State& state) {
  shuffled_lanes on(1);
  kv::cache const cache = on.view();
  std::vector<std::uint64_t> keys(entries);
  auto const floor = [&] {
    for (int i = 0; i < 288; ++i) {
      int const* const position = on.position.data() + std::int64_t{i} * entries;
      for (int e = 0; e < entries; ++e) {
        keys[static_cast<std::size_t>(e)] = static_cast<std::uint64_t>(position[e]) << 32 | static_cast<unsigned>(e);
      }
      std::sort(keys.begin(), keys.end());
      for (void* const row : {static_cast<void*>(on.list.data() + std::int64_t{i} * entries),
                              static_cast<void*>(on.number.data() + std::int64_t{i} * entries)}) {
        bench::floors::write_piece(kv::best_isa(), static_cast<std::byte*>(row), 4 * entries, true);
      }
    }
  };
  auto const taken = bench::in_turn_after(
      state, [&] { on.shuffle(); }, [&] { kv::ops::sort_entries(on.exec, cache, on.table(), on.columns); }, floor);
  on.shuffle();
  kv::ops::sort_entries(on.exec, cache, on.table(), on.columns);
  if (!std::is_sorted(on.position.begin(), on.position.begin() + entries)) return state.SkipWithError("wrong result");
  bench::report_share(state, taken, 0, 1);
}
BENCHMARK(sort_entries)->UseManualTime()->Iterations(3)->Unit(benchmark::kMillisecond);

}  // namespace
