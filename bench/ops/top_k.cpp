// SPDX-License-Identifier: Apache-2.0
// top_k on scores of every distribution, against a read of the same scores and against what one would write instead:
// std::nth_element on values, a radix select. Rows are many and different, so that no branch is learnt.
#include <kvpolicy/ops/top_k.hpp>

#include "checks.hpp"
#include "measure.hpp"
#include "peers.hpp"

namespace {

namespace kv = kvpolicy;
using bench::scores_like;

/// Scores of many lanes, and room for their keep set.
class selection {
 public:
  selection(int lanes, int entries, scores_like like)
      : entries_(entries),
        scores_(sizeof(float) * static_cast<std::size_t>(lanes) * static_cast<std::size_t>(entries)),
        ordinals_(scores_.size()),
        counts_(static_cast<std::size_t>(lanes), entries),
        seen_(counts_),
        offsets_(counts_.size() + 1) {
    bench::fill_scores(scores_, lanes, entries, like);
    positions_ = bench::reference::every_ordinal(static_cast<std::size_t>(entries));
    lanes_ = {.layer_end = 1,
              .heads = lanes,
              .capacity = entries,
              .count = {counts_.data(), 0, 0, 1},
              .position = {positions_.data()}};
  }

  [[nodiscard]] kv::lanes const& who() const { return lanes_; }
  [[nodiscard]] int lanes() const { return lanes_.heads; }
  [[nodiscard]] std::size_t bytes() const { return scores_.size(); }
  [[nodiscard]] std::byte const* data() const { return scores_.data(); }
  [[nodiscard]] std::span<float const> row(int lane) const {
    auto const width = static_cast<std::size_t>(entries_);
    return {scores_.as<float>() + static_cast<std::size_t>(lane) * width, width};
  }
  [[nodiscard]] int* ordinals(int lane) const { return ordinals_.as<int>() + std::int64_t{lane} * entries_; }

  void top_k(kv::host_executor& exec, int k) {
    kv::ops::top_k(exec, kv::contiguous_scores(lanes_, kv::granularity::lane, scores_.as<float>(), entries_),
                   kv::plain_top_k{k}, keep());
  }
  [[nodiscard]] bool is_right(int k) { return bench::is_top_k(keep(), scores_.as<float>(), entries_, k); }

 private:
  kv::keep_set keep() {
    return {
        lanes_,          kv::granularity::lane, kv::item::token, kv::side::kept,
        offsets_.data(), ordinals_.as<int>(),   seen_.data(),    static_cast<std::int64_t>(counts_.size()) * entries_,
        &report_};
  }

  int entries_;
  bench::memory scores_, ordinals_;
  std::vector<int> counts_, seen_, positions_;
  std::vector<std::int64_t> offsets_;
  kv::report report_{};
  kv::lanes lanes_;
};

/// An executor with the scratch that top_k asks for.
kv::host_executor& reserved(kv::host_executor& exec, int entries) {
  exec.reserve(kv::implementation<kv::ops::top_k_t, kv::host>::scratch({}, entries));
  return exec;
}

void nth_element(kv::host_executor& exec, selection const& data, int k) {
  static thread_local std::vector<float> temp_storage;
  exec.for_each(data.lanes(), [&](int lane, int) {
    bench::floors::keep(bench::peers::nth_element(data.row(lane), k, temp_storage));
  });
}

void radix_select(kv::host_executor& exec, selection const& data, int k) {
  static thread_local std::vector<std::uint32_t> keys;
  exec.for_each(data.lanes(), [&](int lane, int) {
    bench::floors::keep(bench::peers::radix_select(data.row(lane), k, keys, data.ordinals(lane)));
  });
}

void top_k(benchmark::State& state) {
  int const lanes = static_cast<int>(state.range(0));
  int const entries = static_cast<int>(state.range(1));
  int const k = entries / static_cast<int>(state.range(2));
  int const threads = static_cast<int>(state.range(3));
  auto const like = static_cast<scores_like>(state.range(4));
  if (!bench::has_memory(state, 8.0 * lanes * entries)) return;
  selection data(lanes, entries, like);
  kv::host_executor exec(threads);
  reserved(exec, entries);
  data.top_k(exec, k);
  if (!data.is_right(k)) return state.SkipWithError("wrong result");
  auto const taken = bench::in_turn(
      state, [&] { data.top_k(exec, k); }, [&] { bench::floors::read_pass(exec, data.data(), data.bytes()); });
  state.SetLabel(bench::name_of(like));
  state.counters["over_read"] = taken.ratio(0, 1);
  bench::report_rate(state, static_cast<double>(data.bytes()), taken.seconds(0), threads);
}
BENCHMARK(top_k)
    ->ArgNames({"lanes", "entries", "one_in", "threads", "like"})
    ->ArgsProduct({{8, 288}, {4096, 32768, 131072}, {4, 32}, {1, 2}, {0, 1, 3}})
    ->ArgsProduct({{288}, {32768}, {4}, {2}, {2, 4, 5, 6, 7, 8, 9}})
    ->ArgsProduct({{8}, {32769}, {4}, {1}, {0}})  // rows that begin anywhere
    ->UseManualTime();

/// A peer on the same rows, two threads or one.
template <class Peer>
void run_peer(benchmark::State& state, Peer const& peer) {
  int const entries = static_cast<int>(state.range(1));
  int const threads = static_cast<int>(state.range(2));
  selection data(static_cast<int>(state.range(0)), entries, scores_like::sharp_softmax);
  kv::host_executor exec(threads);
  auto const taken = bench::in_turn(state, [&] { peer(exec, data, entries / 4); });
  bench::report_rate(state, static_cast<double>(data.bytes()), taken.seconds(0), threads);
}
void peer_nth_element(benchmark::State& state) { run_peer(state, nth_element); }
void peer_radix_select(benchmark::State& state) { run_peer(state, radix_select); }
BENCHMARK(peer_nth_element)
    ->ArgNames({"lanes", "entries", "threads"})
    ->ArgsProduct({{8, 288}, {4096, 32768}, {1, 2}})
    ->UseManualTime();
BENCHMARK(peer_radix_select)
    ->ArgNames({"lanes", "entries", "threads"})
    ->ArgsProduct({{8, 288}, {4096, 32768}, {1, 2}})
    ->UseManualTime();

/// True if radix_select finds what top_k kept, and nth_element the lowest of its values.
bool peers_agree(kv::host_executor& exec, selection& data, int k) {
  std::vector<float> temp_storage;
  std::vector<std::uint32_t> keys;
  std::vector<int> to(data.row(0).size());
  data.top_k(exec, k);
  std::vector<int> const kept(data.ordinals(0), data.ordinals(0) + k);
  auto const ours = [&](int e) { return bench::peers::ordered(data.row(0)[static_cast<std::size_t>(e)]); };
  int const lowest = *std::min_element(kept.begin(), kept.end(), [&](int a, int b) { return ours(a) < ours(b); });
  to.resize(static_cast<std::size_t>(bench::peers::radix_select(data.row(0), k, keys, to.data())));
  return to == kept && ours(lowest) == bench::peers::ordered(bench::peers::nth_element(data.row(0), k, temp_storage));
}

// For the report: a whole batch of 2304 lanes x 32k from memory, a quarter kept.
// -----------------------------------------

constexpr int batch_lanes = 2304;
constexpr int batch_entries = 32768;
constexpr int batch_k = batch_entries / 4;

/// top_k, the read of its scores, and the peers, in turn, on both numbers of threads.
void report_top_k(benchmark::State& state) {
  auto const like = static_cast<scores_like>(state.range(0));
  if (!bench::has_memory(state, 8.0 * batch_lanes * batch_entries)) return;
  selection data(batch_lanes, batch_entries, like);
  kv::host_executor one(1), two(2);
  reserved(one, batch_entries);
  reserved(two, batch_entries);
  if (!peers_agree(one, data, batch_k)) return state.SkipWithError("a peer found something else");
  data.top_k(two, batch_k);
  if (!data.is_right(batch_k)) return state.SkipWithError("wrong result");
  data.top_k(one, batch_k);
  if (!data.is_right(batch_k)) return state.SkipWithError("wrong result");
  auto const read = [&](kv::host_executor& exec) { bench::floors::read_pass(exec, data.data(), data.bytes()); };
  auto const taken = bench::in_turn(
      state, [&] { data.top_k(one, batch_k); }, [&] { data.top_k(two, batch_k); }, [&] { read(one); },
      [&] { read(two); }, [&] { nth_element(two, data, batch_k); }, [&] { radix_select(two, data, batch_k); });
  state.SetLabel(bench::name_of(like));
  state.counters["top_k_1_ms"] = 1e3 * taken.seconds(0);
  state.counters["top_k_2_ms"] = 1e3 * taken.seconds(1);
  state.counters["over_read_1"] = taken.ratio(0, 2);
  state.counters["over_read_2"] = taken.ratio(1, 3);
  state.counters["nth_over_2"] = taken.ratio(4, 1);
  state.counters["radix_over_2"] = taken.ratio(5, 1);
}
BENCHMARK(report_top_k)->Name("report/top_k")->ArgName("like")->DenseRange(0, 9)->Iterations(3)->UseManualTime();

/// What the second thread gains top_k, of what it gains a copy of the same scores.
void report_threads(benchmark::State& state) {
  if (!bench::has_memory(state, 12.0 * batch_lanes * batch_entries)) return;
  selection data(batch_lanes, batch_entries, scores_like::sharp_softmax);
  bench::memory const to(data.bytes());
  kv::host_executor one(1), two(2);
  reserved(one, batch_entries);
  reserved(two, batch_entries);
  data.top_k(two, batch_k);
  if (!data.is_right(batch_k)) return state.SkipWithError("wrong result");
  auto const copy = [&](kv::host_executor& exec) {
    bench::floors::stream_pass(exec, to.data(), data.data(), data.bytes());
  };
  auto const taken = bench::in_turn(
      state, [&] { data.top_k(one, batch_k); }, [&] { data.top_k(two, batch_k); }, [&] { copy(one); },
      [&] { copy(two); });
  state.counters["share"] = taken.share(0, 1, 2, 3);
  state.counters["gain"] = taken.ratio(0, 1);
  state.counters["floor_gain"] = taken.ratio(2, 3);
}
BENCHMARK(report_threads)->Name("report/threads/top_k")->Iterations(7)->UseManualTime();

}  // namespace
