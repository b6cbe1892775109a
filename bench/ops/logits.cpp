// SPDX-License-Identifier: Apache-2.0
// logits of 32 rows against the peak of the multiply-add, of one row against a read of the keys, and mean_row against
// one; a decision of KeyDiff, which is both verbs, against two reads; and redundancy against Eigen's product of the
// keys with themselves.
#include <kvpolicy/ops/future_queries.hpp>
#include <kvpolicy/ops/host/add_shares.hpp>
#include <kvpolicy/ops/host/block_scores.hpp>
#include <kvpolicy/ops/host/lag_spread.hpp>
#include <kvpolicy/ops/host/row_stats.hpp>
#include <kvpolicy/ops/host/similarity.hpp>
#include <kvpolicy/ops/logits.hpp>
#include <kvpolicy/ops/mean_row.hpp>
#include <kvpolicy/ops/normalise.hpp>
#include <kvpolicy/ops/pair_norms.hpp>
#include <kvpolicy/ops/redundancy.hpp>
#include <kvpolicy/ops/visit_attention.hpp>

#include "checks.hpp"
#include "measure.hpp"
#include "peers.hpp"

namespace {

namespace kv = kvpolicy;

struct fixture {
  fixture(benchmark::State& state, int rows)
      : entries(static_cast<int>(state.range(0))),
        element(static_cast<kv::codec>(state.range(1))),
        threads(static_cast<int>(state.range(2))),
        exec(threads),
        model(bench::one_layer, entries, element),
        queries(bench::one_layer, entries, rows, element),
        cache(model.view()),
        values(static_cast<std::size_t>(cache.lanes.size()) * static_cast<std::size_t>(entries)),
        scores(kv::contiguous_scores(cache.lanes, kv::granularity::lane, values.data(), entries)) {
    exec.reserve(kv::implementation<kv::ops::logits_t, kv::host>::scratch(bench::one_layer, entries));
    exec.reserve(kv::implementation<kv::ops::mean_row_t, kv::host>::scratch(bench::one_layer, entries));
    exec.reserve(kv::implementation<kv::ops::redundancy_t, kv::host>::scratch(bench::one_layer, entries));
    state.SetLabel(kv::name_of(element));
  }
  void read() { bench::floors::read_pass(exec, model.keys().data(), model.plane_bytes()); }

  int entries;
  kv::codec element;
  int threads;
  kv::host_executor exec;
  bench::model_cache model;
  bench::model_queries queries;
  kv::cache cache;
  std::vector<float> values;
  kv::score_view scores;
};

/// Rows of each of the four query heads of a lane: 8, or only one of the lane's own.
void logits(benchmark::State& state) {
  bool const one = state.range(3) == 1;
  fixture on(state, one ? 1 : 8);
  kv::query_view rows = on.queries.view(false);
  if (one) rows.heads = on.cache.lanes.heads;
  auto const run = [&] { kv::ops::logits(on.exec, kv::keys_of(on.cache), rows, {}, kv::replaced{}, on.scores); };
  run();
  auto lane = bench::lane_of(on.cache, rows, {});
  if (one) lane.queries.resize(1);
  auto const expected = bench::reference::reduced_logits(lane, bench::reference::reduction::mean,
                                                         bench::reference::reduction::mean, true);
  for (std::size_t e = 0; e < 100; ++e) {
    if (std::abs(static_cast<double>(on.values[e]) - expected[e]) > 1e-3) return state.SkipWithError("wrong result");
  }
  double const operations = 2.0 * (one ? 1 : 32) * on.cache.lanes.size() * on.entries * on.cache.k.channels;
  auto const peak = bench::floors::peak_of(on.exec.simd_level(), on.element);
  auto const taken =
      bench::in_turn(state, run, [&] { on.read(); }, [&] { bench::floors::peak_pass(on.exec, peak, operations); });
  bench::report_share(state, taken, 0, one ? 1 : 2);
}
BENCHMARK(logits)
    ->ArgNames({"entries", "element", "threads", "rows"})
    ->ArgsProduct({{32768}, {0, 1, 2}, {1, 2}, {1, 32}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

void mean_row(benchmark::State& state) {
  fixture on(state, 1);
  bool const unit = state.range(3) != 0;
  std::vector<float> mean(static_cast<std::size_t>(on.cache.lanes.size() * on.cache.k.channels));
  auto const to = kv::contiguous_scores(on.cache.lanes, kv::granularity::lane, mean.data(), on.cache.k.channels).rows;
  auto const run = [&] { kv::ops::mean_row(on.exec, on.cache.lanes, kv::keys_of(on.cache), {.unit = unit}, to); };
  run();
  auto const keys = bench::decoded_rows(on.element, on.cache.k.row(0, {}, 0), on.entries, on.cache.k.channels);
  auto const expected = bench::reference::mean_row(keys, unit, false, keys[0].size());
  if (!bench::close({mean.data(), expected.size()}, expected, 1e-4)) return state.SkipWithError("wrong result");
  auto const taken = bench::in_turn(state, run, [&] { on.read(); });
  bench::report_share(state, taken, 0, 1);
}
BENCHMARK(mean_row)
    ->ArgNames({"entries", "element", "threads", "unit"})
    ->ArgsProduct({{32768}, {0, 1, 2}, {1, 2}, {0, 1}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

void keydiff(benchmark::State& state) {
  fixture on(state, 1);
  auto const policy = kv::eviction{.score = kv::keydiff{}, .budget = kv::per_lane{on.entries / 4}};
  auto kept = kv::make_state(on.exec, policy, on.cache);
  auto plan = kv::make_plan(on.exec, policy, on.cache);
  kv::signals const in{on.cache.lanes, kv::keys_of(on.cache)};
  auto const taken = bench::in_turn(
      state, [&] { kv::decide(on.exec, policy, in, kept, plan); },
      [&] {
        on.read();
        on.read();
      });
  bench::report_share(state, taken, 0, 1);
}
BENCHMARK(keydiff)
    ->ArgNames({"entries", "element", "threads"})
    ->ArgsProduct({{32768}, {0, 1, 2}, {1, 2}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

/// Keys of f32 of which none are similar, so that every entry is compared with every other one, or nearly all are.
void redundancy(benchmark::State& state) {
  fixture on(state, 1);
  int const dims = on.cache.k.channels;
  auto* const keys = reinterpret_cast<float*>(const_cast<std::byte*>(on.cache.k.row(0, {}, 0)));
  if (state.range(3) == 1) {
    std::size_t const all = on.model.plane_bytes() / sizeof(float);
    for (std::size_t i = 0; i < all; i += static_cast<std::size_t>(dims)) keys[i] += 40;
  }
  std::vector<float> inverse(on.values.size());
  auto const norms = kv::contiguous_scores(on.cache.lanes, kv::granularity::lane, inverse.data(), on.entries);
  std::vector<float> mean(static_cast<std::size_t>(on.cache.lanes.size() * dims));
  auto const to = kv::contiguous_scores(on.cache.lanes, kv::granularity::lane, mean.data(), dims).rows;
  kv::keys const from = kv::keys_of(on.cache);
  kv::ops::mean_row(on.exec, on.cache.lanes, from, {.unit = true, .inverse_norms = norms.rows}, to);
  std::vector<float> product(static_cast<std::size_t>(on.threads) * on.values.size() /
                             static_cast<std::size_t>(on.cache.lanes.size()) * static_cast<std::size_t>(on.entries));
  auto const eigen = [&](int lane, int worker) {
    float const* const rows = keys + std::int64_t{lane} * on.entries * dims;
    float* const out = product.data() + std::int64_t{worker} * on.entries * on.entries;
    bench::peers::eigen_product(rows, rows, on.entries, dims, on.entries, out);
  };
  auto const taken = bench::in_turn(
      state, [&] { kv::ops::redundancy(on.exec, from, norms.rows, {}, on.scores); },
      [&] { on.exec.for_each(on.cache.lanes.size(), eigen); });
  state.counters["of_eigen"] = taken.ratio(1, 0);
  state.counters["verb_us"] = 1e6 * taken.least(0);
}
BENCHMARK(redundancy)
    ->ArgNames({"entries", "element", "threads", "alike"})
    ->ArgsProduct({{2176}, {0}, {1, 2}, {0, 1}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

/// Against a read of the keys: a sum of all 64 lengths of pairs.
void pair_norms(benchmark::State& state) {
  fixture on(state, 1);
  on.exec.reserve(kv::implementation<kv::ops::pair_norms_t, kv::host>::scratch(bench::one_layer, on.entries));
  std::vector<float> weight(static_cast<std::size_t>(on.cache.k.channels / 2), 0.5f);
  kv::key_pairs const pairs{.count = on.cache.k.channels / 2};
  auto const taken = bench::in_turn(
      state,
      [&] {
        kv::ops::pair_norms(on.exec, kv::keys_of(on.cache), pairs, kv::by_lane<float>{weight.data()}, kv::replaced{},
                            on.scores);
      },
      [&] { on.read(); });
  bench::report_share(state, taken, 0, 1);
}
BENCHMARK(pair_norms)
    ->ArgNames({"entries", "element", "threads"})
    ->ArgsProduct({{32768}, {0, 1, 2}, {1, 2}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

/// What a visit does at the least: it keeps the probability.
struct kept_mass {
  kv::by_lane<float> to;
  void operator()(float p, kv::attention_row const&, kv::entry const& at) const { to.row(at.lane)[at.ordinal] = p; }
};

/// The row of a decode step, against the mass of the same row.
void visit_attention(benchmark::State& state) {
  fixture on(state, 1);
  on.exec.reserve(kv::implementation<kv::ops::visit_attention_t, kv::host>::scratch(bench::one_layer, on.entries));
  kv::query_view const rows = on.queries.view(true);
  auto const taken = bench::in_turn(
      state,
      [&] {
        kv::ops::visit_attention(on.exec, on.cache.lanes, kv::keys_of(on.cache), rows, {}, kept_mass{on.scores.rows});
      },
      [&] { kv::ops::compute_attention_mass(on.exec, kv::keys_of(on.cache), rows, {}, on.scores); });
  bench::report_share(state, taken, 0, 1);
}
BENCHMARK(visit_attention)
    ->ArgNames({"entries", "element", "threads"})
    ->ArgsProduct({{32768}, {0, 1, 2}, {1, 2}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

/// A softmax of scores, against a copy of them.
void normalise(benchmark::State& state) {
  fixture on(state, 1);
  std::vector<float> from(on.values.size(), 0.25f);
  auto const taken = bench::in_turn(
      state, [&] { kv::ops::normalise(on.exec, kv::normalising::softmax, on.scores); },
      [&] { std::copy(from.begin(), from.end(), on.values.begin()); });
  bench::report_share(state, taken, 0, 1);
}
BENCHMARK(normalise)
    ->ArgNames({"entries", "element", "threads"})
    ->ArgsProduct({{32768}, {0}, {1, 2}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

/// Ranks in blocks of `block` scores that differ, against a copy of them.
void rank(benchmark::State& state) {
  fixture on(state, 1);
  std::vector<float> from(on.values.size());
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<float>(i * 2654435761u % 65521);
  auto const block = static_cast<int>(state.range(3));
  auto const taken = bench::in_turn(
      state,
      [&] {
        std::copy(from.begin(), from.end(), on.values.begin());
        kv::ops::normalise(on.exec, kv::normalising::rank, on.scores, {block, 0});
      },
      [&] { std::copy(from.begin(), from.end(), on.values.begin()); });
  bench::report_share(state, taken, 0, 1);
}
BENCHMARK(rank)
    ->ArgNames({"entries", "element", "threads", "block"})
    ->ArgsProduct({{32768}, {0}, {1, 2}, {128, 1024}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

/// LagKV's blocks, against a read of the keys.
void lag_spread(benchmark::State& state) {
  fixture on(state, 1);
  on.exec.reserve(kv::implementation<kv::ops::lag_spread_t, kv::host>::scratch(bench::one_layer, on.entries));
  auto const taken = bench::in_turn(
      state, [&] { kv::ops::lag_spread(on.exec, kv::keys_of(on.cache), {}, kv::replaced{}, on.scores); },
      [&] { on.read(); });
  bench::report_share(state, taken, 0, 1);
}
BENCHMARK(lag_spread)
    ->ArgNames({"entries", "element", "threads"})
    ->ArgsProduct({{32768}, {0, 1, 2}, {1, 2}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

/// The sum of the scores of both ends, against a copy of all of them.
void row_stats(benchmark::State& state) {
  fixture on(state, 1);
  std::vector<float> from(on.values.size(), 0.25f), sums(static_cast<std::size_t>(on.cache.lanes.size()));
  kv::by_lane<float> const to = kv::contiguous_scores(on.cache.lanes, kv::granularity::lane, sums.data(), 1).rows;
  auto const taken = bench::in_turn(
      state, [&] { kv::ops::row_stats(on.exec, on.scores, kv::safe{4, 1024}, kv::statistic::sum, to); },
      [&] { std::copy(from.begin(), from.end(), on.values.begin()); });
  bench::report_share(state, taken, 0, 1);
}
BENCHMARK(row_stats)
    ->ArgNames({"entries", "element", "threads"})
    ->ArgsProduct({{32768}, {0}, {1, 2}})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

/// The turned queries of a layer, which depend on no entry.
void future_queries(benchmark::State& state) {
  fixture on(state, 1);
  int const group = bench::one_layer.group(), dims = on.cache.k.channels;
  kv::query_model model{.mean = on.queries.view(false), .radius = on.queries.view(false)};
  model.radius.dims = dims / 2;
  std::vector<float> rows(static_cast<std::size_t>(on.cache.lanes.size() * group * dims)), spread(rows.size() / 2);
  auto const of_lanes = [&](std::vector<float>& of) {
    return kv::contiguous_scores(on.cache.lanes, kv::granularity::lane, of.data(),
                                 static_cast<std::int64_t>(of.size()) / on.cache.lanes.size())
        .rows;
  };
  auto const taken = bench::in_turn(
      state,
      [&] {
        kv::ops::future_queries(on.exec, on.cache.lanes, model, kv::future_positions{},
                                kv::future_rows{of_lanes(rows), of_lanes(spread)});
      },
      [] {});
  bench::report_share(state, taken, 0, 1);  // of what nobody waits for
}
BENCHMARK(future_queries)
    ->ArgNames({"entries", "element", "threads"})
    ->ArgsProduct({{32768}, {0}, {1, 2}})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

/// Blocks of 32 scores, against a copy of them.
void block_scores(benchmark::State& state) {
  fixture on(state, 1);
  std::vector<float> from(on.values.size(), 0.25f);
  auto const taken = bench::in_turn(
      state, [&] { kv::ops::block_scores(on.exec, kv::score_blocks{}, on.scores); },
      [&] { std::copy(from.begin(), from.end(), on.values.begin()); });
  bench::report_share(state, taken, 0, 1);
}
BENCHMARK(block_scores)
    ->ArgNames({"entries", "element", "threads"})
    ->ArgsProduct({{32768}, {0}, {1, 2}})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

/// The shares of a row, against a copy of three such rows.
void add_shares(benchmark::State& state) {
  fixture on(state, 1);
  std::vector<float> weights(on.values.size(), 0.5f), to(on.values.size());
  auto const rows_of = [&](std::vector<float>& of) {
    return kv::contiguous_scores(on.cache.lanes, kv::granularity::lane, of.data(), on.entries).rows;
  };
  kv::by_lane<float> const weight = rows_of(weights);
  std::fill(on.values.begin(), on.values.end(), 0.125f);
  auto const taken = bench::in_turn(
      state,
      [&] {
        kv::by_lane<float const> const read{weight.data, weight.sequence, weight.layer, weight.head};
        kv::ops::add_shares(on.exec, on.scores, read, rows_of(to));
      },
      [&] {
        for (int i = 0; i < 3; ++i) std::copy(weights.begin(), weights.end(), on.values.begin());
      });
  bench::report_share(state, taken, 0, 1);
}
BENCHMARK(add_shares)
    ->ArgNames({"entries", "element", "threads"})
    ->ArgsProduct({{32768}, {0}, {1, 2}})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

/// All keys compete, against Eigen's product of the same keys.
void similarity(benchmark::State& state) {
  fixture on(state, 1);
  on.exec.reserve(kv::implementation<kv::ops::similarity_t, kv::host>::scratch(bench::one_layer, on.entries));
  int const dims = on.cache.k.channels;
  auto const* const keys = reinterpret_cast<float const*>(on.cache.k.row(0, {}, 0));
  std::vector<float> product(static_cast<std::size_t>(on.threads) * static_cast<std::size_t>(on.entries) *
                             static_cast<std::size_t>(on.entries));
  auto const eigen = [&](int lane, int worker) {
    float const* const rows = keys + std::int64_t{lane} * on.entries * dims;
    float* const out = product.data() + std::int64_t{worker} * on.entries * on.entries;
    bench::peers::eigen_product(rows, rows, on.entries, dims, on.entries, out);
  };
  auto const taken = bench::in_turn(
      state, [&] { kv::ops::similarity(on.exec, kv::keys_of(on.cache), on.scores); },
      [&] { on.exec.for_each(on.cache.lanes.size(), eigen); });
  state.counters["of_eigen"] = taken.ratio(1, 0);
  state.counters["verb_us"] = 1e6 * taken.least(0);
}
BENCHMARK(similarity)
    ->ArgNames({"entries", "element", "threads"})
    ->ArgsProduct({{2176}, {0}, {1, 2}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
