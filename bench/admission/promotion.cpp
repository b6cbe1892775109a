// One step's promotion for a whole model: the oldest row of every lane's window goes on in its pages, against a copy of
// the same number of rows from other places of the same rings to other places of the same pages.
#include <numeric>

#include "measure.hpp"
#include "model.hpp"

namespace {

namespace kv = kvpolicy;

constexpr int window = 256, page = 16, lane_pages = 32, lanes = 36 * 8;
constexpr std::size_t row = 256;  // of 128 numbers in bf16

/// Rings in local pages of a pool, and 32 pages for every lane beside them.
struct dual_model {
  bench::memory k, v;
  std::vector<int> free, table, held, count, position, window_position;
  int free_count = 0, oldest = 0, window_count = 0;
  kv::dual_cache both;

  dual_model() : k(pool_bytes()), v(pool_bytes()) {
    bench::fill_elements(k, kv::codec::bf16, 1, 1);
    bench::fill_elements(v, kv::codec::bf16, 1, 2);
    free.resize(lanes * lane_pages);
    table.resize(lanes * lane_pages);
    held.resize(lanes);
    count.resize(lanes);
    position.resize(lanes * lane_pages * page);
    window_position.resize(window);
    std::iota(free.rbegin(), free.rend(), lanes * window / page);
    free_count = lanes * lane_pages;
    view();
  }
  static std::size_t pool_bytes() { return row * lanes * (window + lane_pages * page); }

  kv::plane plane(bench::memory const& of, bool ring) const {
    auto const bytes = static_cast<std::int64_t>(row);
    kv::plane made{
        .base = of.data(), .element = kv::codec::bf16, .dims = 128, .unit = page * bytes, .token = bytes, .dim = 2};
    if (!ring) return made;
    made.head = window * bytes;
    made.layer = made.head * 8;
    made.unit = made.layer * 36;
    return made;
  }
  void view() {
    auto const who = [](kv::by_lane<int> counts, kv::by_lane<int> positions, int bound) {
      return kv::lanes{.layer_end = 36, .heads = 8, .bound = bound, .count = counts, .position = positions};
    };
    both.window = {.shape = bench::whole_model,
                   .lanes = who({&window_count, 1, 0, 0}, {window_position.data(), window, 0, 0}, window),
                   .k = plane(k, true),
                   .v = plane(v, true),
                   .where = {kv::locating::ring, {&oldest, 1, 0, 0}, window, 1}};
    both.oldest = {&oldest, 1, 0, 0};
    constexpr std::int64_t capacity = lane_pages * page;
    both.global.table = {table.data(), 0, 8 * lane_pages, lane_pages};
    both.global.entries = {
        .shape = bench::whole_model,
        .lanes = who({count.data(), 0, 8, 1}, {position.data(), 0, 8 * capacity, capacity}, capacity),
        .k = plane(k, false),
        .v = plane(v, false),
        .where =
            kv::block_table({table.data(), 0, 8 * lane_pages, lane_pages}, page, lanes * (window / page + lane_pages))};
    both.global.num_pages = {held.data(), 0, 8, 1};
    both.global.pages = {free.data(), &free_count, -1};
  }
  /// Pages are empty again; the window stays as it is.
  void empty() {
    std::fill(count.begin(), count.end(), 0);
    kv::host_executor one;
    kv::ops::release_pages(one, both.global);
  }
};

void promotion(benchmark::State& state, int admitted_percent, int threads) {
  dual_model model;
  kv::host_executor exec(threads);
  auto const policy = kv::policies::wg_kv({.window = window});
  auto held = kv::make_state(exec, policy, model.both);
  auto plans = kv::make_plan(exec, policy, model.both);
  std::vector<float> gates(lanes);
  bench::noise random(3);
  for (float& each : gates) each = random.uniform() * 100 < static_cast<float>(admitted_percent) ? 1.0f : 0.0f;
  kv::gate fresh;
  fresh.base = reinterpret_cast<std::byte const*>(gates.data());
  fresh.layer = 32;
  fresh.head = fresh.entry = 4;
  fresh.entries = 1;
  int position = 0;
  kv::promotion_stats stats;
  auto const step = [&] {
    kv::promote(exec, policy, kv::signals{model.both.window.lanes}, model.both, held, plans, 1, &stats);
    kv::append(exec, model.both.window, held.window, {.tokens = 1, .position = position++});
  };
  auto const write = [&] {
    kv::observe(exec, policy, kv::signals{model.both.window.lanes, fresh}, held.window);
    if (*std::max_element(model.count.begin(), model.count.end()) == lane_pages * page) model.empty();
  };
  for (int t = 0; t <= window; ++t) step(), write();
  auto const rows = std::count(gates.begin(), gates.end(), 1.0f);
  if (stats.promoted != rows) return state.SkipWithError("wrong result");

  auto const copy = [&] {  // rows half a ring away, into the other half of the lanes' pages
    exec.for_each(lanes, [&](int i, int) {
      if (gates[static_cast<std::size_t>(i)] == 0) return;
      std::size_t const from = row * static_cast<std::size_t>(i * window + (model.oldest + window / 2) % window);
      auto const other = static_cast<std::size_t>((i * 7 + 5) % lanes);
      std::size_t const to = row * (static_cast<std::size_t>(lanes * window) + other * lane_pages * page +
                                    static_cast<std::size_t>((model.count[other] + 256) % (lane_pages * page)));
      std::memcpy(model.k.data() + to, model.k.data() + from, row);
      std::memcpy(model.v.data() + to, model.v.data() + from, row);
    });
  };
  bench::rounds const taken = bench::in_turn_after(state, write, step, copy);
  state.counters["over_copy"] = taken.ratio(0, 1);
  state.counters["rows"] = static_cast<double>(2 * rows);
  state.counters["bytes/s"] = static_cast<double>(2 * rows) * row / taken.seconds(0);
}

void promotion_of(benchmark::State& state) {
  promotion(state, static_cast<int>(state.range(0)), static_cast<int>(state.range(1)));
}
BENCHMARK(promotion_of)
    ->Name("promotion")
    ->ArgNames({"percent", "threads"})
    ->ArgsProduct({{100, 25}, {1, 2}})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond)
    ->Iterations(2000);

}  // namespace
