// SPDX-License-Identifier: Apache-2.0
// What a model does once a token, in one launch for all layers: argmin of every lane, promotion out of every window,
// the scores of pages, and norms of keys.
#include "cuda/cases.cuh"
#include "cuda/promoting.cuh"

namespace {

namespace kv = kvpolicy;
namespace gpu = bench::gpu;

constexpr int lanes = 36 * 8;

// TRIM-KV's step: 288 lanes of 4096
// ------------------------------------------------------------------------------------

/// 64 sets of scores, together more than L2 holds; each call of the graph has its own.
void argmin(benchmark::State& state) {
  gpu::guarded(state, [&] {
    constexpr int sets = 64;
    int const entries = static_cast<int>(state.range(0));
    auto const cells = static_cast<std::size_t>(lanes) * static_cast<std::size_t>(entries);
    gpu::stream const on;
    gpu::executor exec(on);
    std::vector<float> scores(cells * sets);
    bench::noise random(7);
    for (float& each : scores) each = random.uniform();
    gpu::array<float> const device_scores(scores);
    gpu::array<int> const counts(std::vector<int>(lanes, entries));
    gpu::array<int> const positions(bench::reference::every_ordinal(static_cast<std::size_t>(entries)));
    gpu::device_keep const keep(lanes, lanes);
    kv::lanes const batch{.layer_end = 36,
                          .heads = 8,
                          .capacity = entries,
                          .count = {counts.data(), 0, 8, 1},
                          .position = {positions.data(), 0, 0, 0}};
    auto const lowest = [&](int i) {
      float* const now = device_scores.data() + cells * static_cast<std::size_t>(i);
      kv::ops::argmin(exec, kv::contiguous_scores(batch, kv::granularity::lane, now, entries),
                      kv::plain_top_k{entries - 1}, keep.view(batch, kv::side::dropped));
    };
    for (int const set : {0, sets - 1}) {
      keep.poison();
      lowest(set);
      exec.check();
      auto const found = keep.ordinal().get();
      for (int i = 0; i < lanes; ++i) {
        float const* const row = scores.data() + cells * static_cast<std::size_t>(set) +
                                 static_cast<std::size_t>(i) * static_cast<std::size_t>(entries);
        float const least = *std::min_element(row, row + entries);
        int last = entries - 1;  // of equal ones the last goes
        while (row[last] != least) --last;
        if (found[static_cast<std::size_t>(i)] != last) return state.SkipWithError("wrong result");
      }
    }
    double const seconds = gpu::in_a_graph(state, exec, on, sets, lowest);
    state.counters["launches"] = exec.launches_of([&] { lowest(0); });
    gpu::report_share(state, 4.0 * static_cast<double>(cells), seconds);
  });
}
BENCHMARK(argmin)->ArgName("entries")->Arg(2048)->Arg(4096)->Iterations(21)->UseManualTime()->Unit(
    benchmark::kMicrosecond);

// WG-KV's step: the oldest of every window
// -----------------------------------------------------------------------------

using gpu::host_array;

/// 300 steps on both sides, compared; then one step after the other is timed, until the pages are full.
void promotion(benchmark::State& state) {
  gpu::guarded(state, [&] {
    std::vector<float> gates(lanes);
    bench::noise random(3);
    for (float& each : gates) each = random.below(100) < static_cast<int>(state.range(0)) ? 1.0f : 0.0f;
    gpu::stream const on;
    gpu::executor exec(on);
    gpu::promoting<gpu::executor, gpu::array> device(exec, gates);
    gpu::promoting<kv::host_executor, host_array> host(gpu::host(), gates);
    for (int i = 0; i < 300; ++i) {
      device.promote(), device.write();
      host.promote(), host.write();
    }
    exec.check();
    if (!same_models(device.model(), host.model())) return state.SkipWithError("wrong result");
    int const launches = exec.launches_of([&] { device.promote(); });
    device.write();
    gpu::cold_l2 const flush;
    std::vector<double> taken;
    for (auto _ : state) {
      flush(on);
      taken.push_back(gpu::seconds_on(on, [&] { device.promote(); }));
      state.SetIterationTime(taken.back());
      device.write();
    }
    exec.check();
    if (device.full()) return state.SkipWithError("more steps than pages");
    state.counters["launches"] = launches;
    state.counters["rows"] = static_cast<double>(std::count(gates.begin(), gates.end(), 1.0f));
    state.counters["us"] = 1e6 * bench::median(taken);
  });
}
BENCHMARK(promotion)->ArgName("percent")->Arg(100)->Arg(25)->Iterations(200)->UseManualTime()->Unit(
    benchmark::kMicrosecond);

// Quest's step: bounds of 128k entries a lane
// --------------------------------------------------------------------------

constexpr int entries = 131072;
constexpr int page = 16;
constexpr int pages = entries / page;

/// Bounds of one layer's or a model's pages, drawn: of them high need not be above low.
struct bounded {
  bounded(int layers_, kv::codec element_, std::byte* rows, int* known, int* counts)
      : layers(layers_), element(element_) {
    std::int64_t const bytes = std::int64_t{pages} * 2 * 128 * kv::bytes_of(element);
    bounds = {{rows, 0, 8 * bytes, bytes}, {known, 0, 8, 1}, element, 128, page};
    who = {.layer_end = layers, .heads = 8, .capacity = entries, .count = {counts, 0, 8, 1}};
  }
  [[nodiscard]] kv::score_view scores(float* to) const {
    kv::lanes in_pages = who;
    in_pages.capacity = pages;
    return kv::contiguous_scores(in_pages, kv::granularity::lane, to, pages);
  }
  int layers;
  kv::codec element;
  kv::page_bound_view bounds;
  kv::lanes who;
};

void page_scores(benchmark::State& state) {
  gpu::guarded(state, [&] {
    int const layers = static_cast<int>(state.range(0));
    auto const element = static_cast<kv::codec>(state.range(1));
    kv::shape model = bench::one_layer;
    model.layers = layers;
    auto const many = static_cast<std::size_t>(layers) * 8;
    bench::memory const rows(many * pages * 2 * 128 * static_cast<std::size_t>(kv::bytes_of(element)));
    if (!gpu::fits(state, 1.1 * static_cast<double>(rows.size()))) return;
    gpu::stream const on;
    gpu::executor exec(on);
    bench::fill_elements(rows, element, 1, 5);
    std::vector<int> full(many, entries);
    bench::model_queries const queries(model, entries, 1, element);
    gpu::device_queries const asking(model, 1, queries.view());
    gpu::array<std::byte> const device_rows(gpu::bytes_of(rows));
    gpu::array<int> const device_full(full);
    gpu::array<float> const out(many * pages);
    bounded const host(layers, element, rows.data(), full.data(), full.data());
    bounded const device(layers, element, device_rows.data(), device_full.data(), device_full.data());
    auto const score = [&] {
      kv::ops::page_scores(exec, device.who, device.bounds, asking.view(), kv::reduction::max,
                           device.scores(out.data()));
    };
    out.poison(0xFF);
    score();
    exec.check();
    std::vector<float> expected(many * pages);
    gpu::host().reserve(kv::implementation<kv::ops::page_scores_t, kv::host>::scratch(model, entries));
    kv::ops::page_scores(gpu::host(), host.who, host.bounds, queries.view(), kv::reduction::max,
                         host.scores(expected.data()));
    if (!gpu::close_floats(out.get(), expected, 1e-4f)) return state.SkipWithError("wrong result");
    auto const taken = gpu::in_turn(state, exec, on, score);
    state.SetLabel(kv::name_of(element));
    state.counters["launches"] = exec.launches_of(score);
    gpu::report_share(state, static_cast<double>(rows.size()) + 4.0 * static_cast<double>(out.size()),
                      taken.seconds(0));
  });
}
BENCHMARK(page_scores)
    ->ArgNames({"layers", "element"})
    ->ArgsProduct({{1, 36}, {2, 1, 0}})
    ->Iterations(15)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

// Knorm's scores: the norms of all keys of a model
// ----------------------------------------------------------------------------------------

void row_norm(benchmark::State& state) {
  gpu::guarded(state, [&] {
    constexpr int entries = 4096;
    auto const element = static_cast<kv::codec>(state.range(0));
    if (!gpu::fits(state, 2 * bench::model_cache::bytes(bench::whole_model, entries, element))) return;
    gpu::stream const on;
    gpu::executor exec(on);
    bench::model_cache model(bench::whole_model, entries, element);
    gpu::device_cache const device(model);
    gpu::array<float> const out(device.cells());
    std::vector<float> expected(device.cells());
    auto const norms = [](auto& by, kv::cache const& of, float* to) {
      kv::ops::row_norm(by, kv::keys_of(of), kv::replaced{},
                        kv::contiguous_scores(of.lanes, kv::granularity::lane, to, entries));
    };
    auto const score = [&] { norms(exec, device.view(), out.data()); };
    out.poison(0xFF);
    score();
    exec.check();
    norms(gpu::host(), model.view(), expected.data());
    if (!gpu::close_floats(out.get(), expected, 1e-5f)) return state.SkipWithError("wrong result");
    auto const taken = gpu::in_turn(state, exec, on, score);
    state.SetLabel(kv::name_of(element));
    state.counters["launches"] = exec.launches_of(score);
    gpu::report_share(state, static_cast<double>(device.k().bytes()) + 4.0 * static_cast<double>(out.size()),
                      taken.seconds(0));
  });
}
BENCHMARK(row_norm)
    ->ArgNames({"element"})
    ->ArgsProduct({{2, 1, 0}})
    ->Iterations(15)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
