// SPDX-License-Identifier: Apache-2.0
// top_k on the scores of a model's lanes and of a batch's, of every distribution, against what memory allows, a sort by
// CUB and a plain kernel; and of one layer in a graph.
#include <memory>

#include "cuda/top_k_peers.cuh"

namespace {

namespace kv = kvpolicy;
namespace gpu = bench::gpu;
using bench::scores_like;

/// Scores of many lanes on host and device, and room for a keep set of each.
class selection {
 public:
  selection(int lanes, int entries, scores_like like)
      : lanes_(lanes),
        entries_(entries),
        host_scores_(4 * cells()),
        scores_(cells()),
        counts_(std::vector<int>(static_cast<std::size_t>(lanes), entries)),
        host_counts_(static_cast<std::size_t>(lanes), entries),
        host_positions_(bench::reference::every_ordinal(static_cast<std::size_t>(entries))),
        positions_(host_positions_),
        keep_(lanes, static_cast<std::int64_t>(cells())),
        on_host_(lanes, cells()) {
    bench::fill_scores(host_scores_, lanes, entries, like);
    scores_.put({host_scores_.as<float>(), cells()});
  }
  static double bytes(int lanes, int entries) { return 8.0 * lanes * entries; }

  void reserve(gpu::executor& exec) const {
    exec.reserve(kv::implementation<kv::ops::top_k_t, kv::cuda>::scratch({}, on_device()));
  }
  void top_k(gpu::executor& exec, int k) { top_k(exec, k, keep_); }
  void top_k(gpu::executor& exec, int k, gpu::device_keep const& into) {
    kv::lanes const batch = on_device();
    kv::ops::top_k(exec, kv::contiguous_scores(batch, kv::granularity::lane, scores_.data(), entries_),
                   kv::plain_top_k{k}, into.view(batch));
  }
  /// True if host and device keep the same.
  [[nodiscard]] bool is_right(gpu::executor& exec, int k) {
    keep_.poison();
    top_k(exec, k);
    exec.check();
    kv::lanes const batch = lanes_of(host_counts_.data(), host_positions_.data());
    kv::host_executor& host = gpu::host();
    host.reserve(kv::implementation<kv::ops::top_k_t, kv::host>::scratch({}, entries_));
    kv::keep_set const expected = on_host_.view(batch);
    kv::ops::top_k(host, kv::contiguous_scores(batch, kv::granularity::lane, host_scores_.as<float>(), entries_),
                   kv::plain_top_k{k}, expected);
    return gpu::same_lists(expected, keep_);
  }
  /// What the host kept of a lane, after is_right.
  [[nodiscard]] std::vector<int> kept(int lane) {
    auto const listed = on_host_.view(lanes_of(host_counts_.data(), host_positions_.data())).listed(lane);
    return {listed.begin(), listed.end()};
  }
  [[nodiscard]] float const* scores() const { return scores_.data(); }
  [[nodiscard]] kv::lanes on_device() const { return lanes_of(counts_.data(), positions_.data()); }
  [[nodiscard]] std::size_t cells() const {
    return static_cast<std::size_t>(lanes_) * static_cast<std::size_t>(entries_);
  }

 private:
  /// A keep set in the host's memory.
  struct host_keep {
    host_keep(int lanes, std::size_t cells)
        : offset(static_cast<std::size_t>(lanes) + 1), ordinal(4 * cells), seen(static_cast<std::size_t>(lanes)) {}
    kv::keep_set view(kv::lanes const& batch) {
      return {.lanes = batch,
              .indptr = offset.data(),
              .indices = ordinal.as<int>(),
              .entry_count = seen.data(),
              .capacity = static_cast<std::int64_t>(ordinal.size() / 4),
              .report = &report};
    }
    std::vector<std::int64_t> offset;
    bench::memory ordinal;
    std::vector<int> seen;
    kv::report report{};
  };

  [[nodiscard]] kv::lanes lanes_of(int* counts, int* positions) const {
    return {.layer_end = 1,
            .heads = lanes_,
            .capacity = entries_,
            .count = {counts, 0, 0, 1},
            .position = {positions, 0, 0, 0}};
  }

  int lanes_, entries_;
  bench::memory host_scores_;
  gpu::array<float> scores_;
  gpu::array<int> counts_;
  std::vector<int> host_counts_, host_positions_;
  gpu::array<int> positions_;
  gpu::device_keep keep_;
  host_keep on_host_;
};

/// The selection of the last call, if it was of the same scores: they take longer to make than to select from.
selection& of(int lanes, int entries, scores_like like) {
  static std::unique_ptr<selection> last;
  static std::tuple<int, int, scores_like> made_for{};
  std::tuple const asked{lanes, entries, like};
  if (last == nullptr || made_for != asked) {
    last.reset();
    last = std::make_unique<selection>(lanes, entries, like);
    made_for = asked;
  }
  return *last;
}

/// `keep` 0: a quarter of the entries; else so many.
int kept_of(std::int64_t keep, int entries) { return keep == 0 ? entries / 4 : static_cast<int>(keep); }

void top_k(benchmark::State& state) {
  gpu::guarded(state, [&] {
    int const lanes = static_cast<int>(state.range(0));
    int const entries = static_cast<int>(state.range(1));
    int const k = kept_of(state.range(2), entries);
    auto const like = static_cast<scores_like>(state.range(3));
    if (!gpu::fits(state, 2 * selection::bytes(lanes, entries))) return;
    gpu::stream const on;
    gpu::executor exec(on);
    selection& data = of(lanes, entries, like);
    data.reserve(exec);
    if (!data.is_right(exec, k)) return state.SkipWithError("wrong result");
    auto const taken = gpu::in_turn(state, exec, on, [&] { data.top_k(exec, k); });
    state.SetLabel(bench::name_of(like));
    state.counters["launches"] = exec.launches_of([&] { data.top_k(exec, k); });
    gpu::report_share(state, 4.0 * static_cast<double>(data.cells()) + 4.0 * lanes * k, taken.seconds(0));
  });
}
BENCHMARK(top_k)
    ->ArgNames({"lanes", "entries", "keep", "like"})
    ->Apply([](benchmark::internal::Benchmark* to) {
      auto const one = [&](int lanes, int entries, int like) {
        for (int const keep : {0, 1024}) to->Args({lanes, entries, keep, like});
      };
      for (int const entries : {8192, 32768, 131072}) {
        for (int like = 0; like < 10; ++like) one(288, entries, like);
      }
      for (int like = 0; like < 10; ++like) one(2304, 32768, like);
      for (int const like : {0, 4}) one(2304, 8192, like), one(2304, 131072, like);
      one(288, 32769, 0);  // rows that begin anywhere
    })
    ->Iterations(11)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

/// Against the peers, in turn.
void top_k_peers(benchmark::State& state) {
  gpu::guarded(state, [&] {
    int const lanes = static_cast<int>(state.range(0));
    int const entries = static_cast<int>(state.range(1));
    int const k = entries / 4;
    if (!gpu::fits(state, 2 * selection::bytes(lanes, entries) + gpu::cub_sort::bytes(lanes, entries))) return;
    gpu::stream const on;
    gpu::executor exec(on);
    selection& data = of(lanes, entries, scores_like::sharp_softmax);
    data.reserve(exec);
    if (!data.is_right(exec, k)) return state.SkipWithError("wrong result");
    gpu::cub_sort sort(lanes, entries);
    gpu::array<int> const plain(static_cast<std::size_t>(lanes) * static_cast<std::size_t>(k));
    auto const select = [&] {
      gpu::plain_select<<<static_cast<unsigned>(lanes), 512, 0, on.get()>>>(data.scores(), entries, k, plain.data());
      gpu::checked("plain_select", cudaGetLastError());
    };
    sort(on, data.scores());
    select();
    if (sort.best(lanes - 1, k) != data.kept(lanes - 1)) return state.SkipWithError("CUB found something else");
    auto const taken =
        gpu::in_turn(state, exec, on, [&] { data.top_k(exec, k); }, [&] { sort(on, data.scores()); }, select);
    state.counters["cub_sort_over"] = taken.ratio(1, 0);
    state.counters["plain_over"] = taken.ratio(2, 0);
    gpu::report_share(state, 4.0 * static_cast<double>(data.cells()) + 4.0 * lanes * k, taken.seconds(0));
  });
}
BENCHMARK(top_k_peers)
    ->ArgNames({"lanes", "entries"})
    ->ArgsProduct({{288, 2304}, {8192, 32768}})
    ->Args({288, 131072})
    ->Iterations(5)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

/// One layer, 8 lanes of 32k, 160 layers in one graph: more of them than L2 holds.
void top_k_layer(benchmark::State& state) {
  gpu::guarded(state, [&] {
    constexpr int lanes = 8, entries = 32768, layers = 160;
    int const k = kept_of(state.range(0), entries);
    auto const like = static_cast<scores_like>(state.range(1));
    gpu::stream const on;
    gpu::executor exec(on);
    std::vector<std::unique_ptr<selection>> all;
    for (int i = 0; i < layers; ++i) all.push_back(std::make_unique<selection>(lanes, entries, like));
    all.front()->reserve(exec);
    if (!all.front()->is_right(exec, k)) return state.SkipWithError("wrong result");
    double const seconds =
        gpu::in_a_graph(state, exec, on, layers, [&](int i) { all[static_cast<std::size_t>(i)]->top_k(exec, k); });
    state.SetLabel(bench::name_of(like));
    gpu::report_share(state, 4.0 * lanes * (entries + k), seconds);
  });
}
BENCHMARK(top_k_layer)
    ->ArgNames({"keep", "like"})
    ->ArgsProduct({{0, 1024}, {0, 1, 4}})
    ->Iterations(15)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
