// SPDX-License-Identifier: Apache-2.0
// A decode step of Quest on a whole model's lanes: bounds of the new entry's page, and the pages that are read.
#include <vector>

#include "checks.hpp"
#include "measure.hpp"
#include "reference/pages.hpp"

namespace {

namespace kv = kvpolicy;
using bench::whole_model;

constexpr int budget = 512;
constexpr int unfinished = 8;  ///< entries of the last page

/// A model in the middle of a page, and the row that asks.
class reading_model {
 public:
  reading_model(int entries, kv::codec element, int threads)
      : policy_(kv::policies::quest({.budget = budget, .score = {.bounds = element}})),
        exec_(threads),
        model_(whole_model, entries, element),
        queries_(whole_model, entries, 1, element),
        cache_(model_.view()),
        held_(kv::make_state(exec_, policy_, cache_)),
        plan_(kv::make_plan(exec_, policy_, cache_)) {
    int const less = policy_.score.page - unfinished;
    for (int i = 0; i < cache_.lanes.size(); ++i) *cache_.lanes.count.row(cache_.lanes.at(i)) -= less;
  }

  void observe() { kv::observe(exec_, policy_, in(), held_); }
  void select() { kv::select_pages(exec_, policy_, in(), held_, plan_); }
  void read_bounds() {
    auto const& bounds = held_.columns()[0].rows;
    bench::floors::read_pass(exec_, bounds.row({0, policy_.dense_layers, 0}), read_bytes());
  }
  /// Bytes of the bounds of all layers that are not dense.
  [[nodiscard]] std::size_t read_bytes() const {
    auto const layers = static_cast<std::size_t>(whole_model.layers - policy_.dense_layers);
    return layers * static_cast<std::size_t>(held_.columns()[0].rows.layer);
  }

  /// True if a dense lane reads all, and the last lane what the reference says.
  [[nodiscard]] bool is_right() {
    observe();
    select();
    int const page = policy_.score.page;
    kv::lane const last = cache_.lanes.at(cache_.lanes.size() - 1);
    int const pages = bench::reference::pages_of(cache_.lanes.committed(last), page);
    if (std::ssize(plan_.keep().listed(0)) != pages) return false;
    auto const lane = bench::lane_of(cache_, queries_.view(), last);
    bench::reference::matrix asking;
    for (auto const& head : lane.queries) asking.push_back(head.back());
    auto const scores = bench::reference::page_scores(lane.keys, asking, page);
    return bench::keeps_best(plan_.keep().listed(cache_.lanes.size() - 1), scores, bench::reference::ends(pages, 0, 1),
                             budget / page, scores.front() * 1e-3);
  }

 private:
  [[nodiscard]] kv::signals<kv::keys, kv::queries> in() {
    return kv::signals{cache_.lanes, kv::keys_of(cache_), queries_.signal()};
  }

  kv::selection<kv::quest> policy_;
  kv::host_executor exec_;
  bench::model_cache model_;
  bench::model_queries queries_;
  kv::cache cache_;
  kv::state<kv::host_executor> held_;
  kv::selection_plan<kv::host_executor> plan_;
};

void quest(benchmark::State& state) {
  int const entries = static_cast<int>(state.range(0));
  auto const element = static_cast<kv::codec>(state.range(1));
  int const threads = static_cast<int>(state.range(2));
  if (!bench::has_memory(state, 1.2 * bench::model_cache::bytes(whole_model, entries, element))) return;
  reading_model run(entries, element, threads);
  if (!run.is_right()) return state.SkipWithError("wrong result");
  auto const taken = bench::in_turn(state, [&] { run.select(); }, [&] { run.observe(); }, [&] { run.read_bounds(); });
  state.SetLabel(kv::name_of(element));
  state.counters["observe_ms"] = 1e3 * taken.seconds(1);
  state.counters["of_read"] = taken.ratio(2, 0);
  bench::report_rate(state, static_cast<double>(run.read_bytes()), taken.seconds(0), threads);
}
BENCHMARK(quest)
    ->ArgNames({"entries", "element", "threads"})
    ->ArgsProduct({{4096, 16384, 32768}, {0, 1, 2}, {1, 2}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
