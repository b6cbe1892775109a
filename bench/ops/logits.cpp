// SPDX-License-Identifier: Apache-2.0
// logits of 32 rows against the peak of the multiply-add, of one row against a read of the keys, and mean_row against
// one; a decision of KeyDiff, which is both verbs, against two reads; and redundancy and projected_norm against Eigen's
// products of the same rows.
#include <kvpolicy/ops/future_queries.hpp>
#include <kvpolicy/ops/host/add_shares.hpp>
#include <kvpolicy/ops/host/attention_moments.hpp>
#include <kvpolicy/ops/host/block_scores.hpp>
#include <kvpolicy/ops/host/count_cover.hpp>
#include <kvpolicy/ops/host/lag_spread.hpp>
#include <kvpolicy/ops/host/leverage.hpp>
#include <kvpolicy/ops/host/pooled_attention.hpp>
#include <kvpolicy/ops/host/quadratic_form.hpp>
#include <kvpolicy/ops/host/query_moments.hpp>
#include <kvpolicy/ops/host/row_stats.hpp>
#include <kvpolicy/ops/host/similarity.hpp>
#include <kvpolicy/ops/host/sort_scores.hpp>
#include <kvpolicy/ops/logits.hpp>
#include <kvpolicy/ops/mean_row.hpp>
#include <kvpolicy/ops/normalise.hpp>
#include <kvpolicy/ops/pair_norms.hpp>
#include <kvpolicy/ops/projected_norm.hpp>
#include <kvpolicy/ops/redundancy.hpp>
#include <kvpolicy/ops/visit_attention.hpp>
#include <numeric>

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

/// Means, variances and entropies of 32 rows of all query heads, against the plain mass of the same rows.
void attention_moments(benchmark::State& state) {
  fixture on(state, 32);
  on.exec.reserve(kv::implementation<kv::ops::attention_moments_t, kv::host>::scratch(bench::one_layer, on.entries));
  kv::query_view const rows = on.queries.view(false);
  std::vector<float> more(2 * on.values.size());
  auto const table = [&](std::size_t i) {
    float* const first = more.data() + i * on.values.size();
    return kv::contiguous_scores(on.cache.lanes, kv::granularity::lane, first, on.entries).rows;
  };
  kv::moment_rows const to{table(0), table(1)};
  auto const taken = bench::in_turn(
      state,
      [&] {
        for (int h = 0; h < bench::one_layer.group(); ++h) {
          kv::ops::attention_moments(on.exec, kv::keys_of(on.cache), rows,
                                     {.head = h, .gamma = 200, .accumulate = h > 0}, to, on.scores);
        }
      },
      [&] { kv::ops::compute_attention_mass(on.exec, kv::keys_of(on.cache), rows, {}, on.scores); });
  state.counters["over_mass"] = taken.ratio(0, 1);
  state.counters["verb_us"] = 1e6 * taken.least(0);
}
BENCHMARK(attention_moments)
    ->ArgNames({"entries", "element", "threads"})
    ->ArgsProduct({{32768}, {0, 1, 2}, {1, 2}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

/// Means and the highest pools of 32 rows of all query heads, against the plain mass of the same rows.
void pooled_attention(benchmark::State& state) {
  fixture on(state, 32);
  on.exec.reserve(kv::implementation<kv::ops::pooled_attention_t, kv::host>::scratch(bench::one_layer, on.entries));
  kv::query_view const rows = on.queries.view(false);
  std::vector<float> mean(on.values.size());
  auto const to = kv::contiguous_scores(on.cache.lanes, kv::granularity::lane, mean.data(), on.entries).rows;
  auto const taken = bench::in_turn(
      state, [&] { kv::ops::pooled_attention(on.exec, kv::keys_of(on.cache), rows, {.tail = 32}, to, on.scores); },
      [&] { kv::ops::compute_attention_mass(on.exec, kv::keys_of(on.cache), rows, {}, on.scores); });
  state.counters["over_mass"] = taken.ratio(0, 1);
  state.counters["verb_us"] = 1e6 * taken.least(0);
}
BENCHMARK(pooled_attention)
    ->ArgNames({"entries", "element", "threads"})
    ->ArgsProduct({{32768}, {0, 1, 2}, {1, 2}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

/// How many scores cover 0.9 of their sum, against a copy of them.
struct most_of_sum {
  double operator()(kv::lane) const { return 0.9 * 16384; }
};
void count_cover(benchmark::State& state) {
  fixture on(state, 1);
  std::vector<float> from(on.values.size()), counts(static_cast<std::size_t>(on.cache.lanes.size()));
  bench::noise some(5);
  for (float& each : on.values) each = some.uniform();
  kv::by_lane<float> const out{counts.data(), 0, 0, 1};
  auto const taken = bench::in_turn(
      state, [&] { kv::ops::count_cover(on.exec, on.scores, kv::everything{}, most_of_sum{}, out); },
      [&] { std::copy(on.values.begin(), on.values.end(), from.begin()); });
  bench::report_share(state, taken, 0, 1);
}
BENCHMARK(count_cover)
    ->ArgNames({"entries", "element", "threads"})
    ->ArgsProduct({{32768}, {0}, {1, 2}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

/// A copy of scores that is put in order, against the copy alone.
void sort_scores(benchmark::State& state) {
  fixture on(state, 1);
  std::vector<float> from(on.values.size());
  bench::noise some(5);
  for (float& each : from) each = some.uniform();
  auto const copy = [&] { std::copy(from.begin(), from.end(), on.values.begin()); };
  auto const sorted = [&] {
    copy();
    kv::ops::sort_scores(on.exec, on.scores);
  };
  auto const taken = bench::in_turn(state, sorted, copy);
  bench::report_share(state, taken, 0, 1);
}
BENCHMARK(sort_scores)
    ->ArgNames({"entries", "element", "threads"})
    ->ArgsProduct({{32768}, {0}, {1, 2}})
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

/// Leverages of keys by a sketch of 48 columns, and as they are with 0, against Eigen's product of the keys with
/// themselves.
void leverage(benchmark::State& state) {
  fixture on(state, 1);
  on.exec.reserve(kv::implementation<kv::ops::leverage_t, kv::host>::scratch(bench::one_layer, on.entries));
  kv::leverage_options const how{.sketch = {.columns = static_cast<int>(state.range(3))}};
  int const dims = on.cache.k.channels, lanes = on.cache.lanes.size();
  std::vector<float> columns(static_cast<std::size_t>(dims * on.entries), 0.5f),
      product(static_cast<std::size_t>(on.threads) * static_cast<std::size_t>(dims * dims));
  auto const eigen = [&](int, int worker) {
    bench::peers::eigen_product(columns.data(), columns.data(), dims, on.entries, dims,
                                product.data() + std::int64_t{worker} * dims * dims);
  };
  auto const taken = bench::in_turn(
      state, [&] { kv::ops::leverage(on.exec, kv::keys_of(on.cache), how, kv::everything{}, on.scores); },
      [&] { on.exec.for_each(lanes, eigen); });
  state.counters["of_eigen"] = taken.ratio(1, 0);
  state.counters["verb_us"] = 1e6 * taken.least(0);
}
BENCHMARK(leverage)
    ->ArgNames({"entries", "element", "threads", "columns"})
    ->ArgsProduct({{4096}, {0, 2}, {1, 2}, {0, 48}})
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

/// Values after an output projection of 1,024 channels, against Eigen's product with the columns of each query head.
void projected_norm(benchmark::State& state) {
  fixture on(state, 1);
  on.exec.reserve(kv::implementation<kv::ops::projected_norm_t, kv::host>::scratch(bench::one_layer, on.entries));
  constexpr int width = 1024;
  int const dims = on.cache.v.channels, heads = bench::one_layer.query_heads, group = bench::one_layer.group();
  std::vector<float> weights(static_cast<std::size_t>(width * heads * dims)), apart(weights.size());
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>(i * 37 % 101) / 101.0f - 0.5f;
  for (std::size_t i = 0; i < weights.size(); ++i) {  // [head][channel][d]
    std::size_t const d = i % static_cast<std::size_t>(dims), c = i / static_cast<std::size_t>(dims) % width;
    std::size_t const h = i / static_cast<std::size_t>(dims) / width;
    apart[i] = weights[(c * static_cast<std::size_t>(heads) + h) * static_cast<std::size_t>(dims) + d];
  }
  auto const by = kv::output_projection_of(weights.data(), kv::codec::f32, width, bench::one_layer);
  auto const* const values = reinterpret_cast<float const*>(on.cache.v.row(0, {}, 0));
  std::vector<float> product(static_cast<std::size_t>(on.threads) * static_cast<std::size_t>(on.entries) * width);
  auto const eigen = [&](int lane, int worker) {
    for (int h = lane * group; h < (lane + 1) * group; ++h) {
      bench::peers::eigen_product(values + std::int64_t{lane} * on.entries * dims,
                                  apart.data() + std::int64_t{h} * width * dims, on.entries, dims, width,
                                  product.data() + std::int64_t{worker} * on.entries * width);
    }
  };
  auto const run = [&] {
    kv::ops::projected_norm(on.exec, kv::values_of(on.cache), by, {}, kv::replaced{}, on.scores);
  };
  run();
  double expected = 0;  // of the last entry of lane 0
  for (int h = 0; h < group; ++h) {
    for (int c = 0; c < width; ++c) {
      float const* const row = apart.data() + (std::int64_t{h} * width + c) * dims;
      float const* const value = values + std::int64_t{on.entries - 1} * dims;
      expected += std::abs(std::inner_product(row, row + dims, value, 0.0)) / group;
    }
  }
  double const found = static_cast<double>(on.values[static_cast<std::size_t>(on.entries) - 1]);
  if (std::abs(found - expected) > 1e-4 * expected) return state.SkipWithError("wrong result");
  auto const taken = bench::in_turn(state, run, [&] { on.exec.for_each(on.cache.lanes.size(), eigen); });
  state.counters["of_eigen"] = taken.ratio(1, 0);
  state.counters["verb_us"] = 1e6 * taken.least(0);
}
BENCHMARK(projected_norm)
    ->ArgNames({"entries", "element", "threads"})
    ->ArgsProduct({{2176}, {0}, {1, 2}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

/// A matrix of each lane, against Eigen's product of it and the keys; keys of 16 bits have Eigen's product of floats.
void quadratic_form(benchmark::State& state) {
  fixture on(state, 1);
  on.exec.reserve(kv::implementation<kv::ops::quadratic_form_t, kv::host>::scratch(bench::one_layer, on.entries));
  int const dims = on.cache.k.channels, lanes = on.cache.lanes.size();
  std::vector<float> square(static_cast<std::size_t>(lanes) * static_cast<std::size_t>(dims * dims));
  bench::noise from(3);
  for (float& each : square) each = from.uniform();
  kv::query_view const matrix{.base = reinterpret_cast<std::byte const*>(square.data()),
                              .dims = dims,
                              .head = std::int64_t{4} * dims * dims,
                              .row = std::int64_t{4} * dims,
                              .heads = lanes,
                              .rows = dims};
  std::vector<float> keys(static_cast<std::size_t>(lanes) * static_cast<std::size_t>(on.entries * dims), 0.5f);
  std::vector<float> product(static_cast<std::size_t>(on.threads) * static_cast<std::size_t>(on.entries * dims));
  auto const eigen = [&](int lane, int worker) {
    std::int64_t const of_lane = std::int64_t{on.entries} * dims;
    bench::peers::eigen_product(keys.data() + lane * of_lane, square.data() + std::int64_t{lane} * dims * dims,
                                on.entries, dims, dims, product.data() + worker * of_lane);
  };
  auto const taken = bench::in_turn(
      state, [&] { kv::ops::quadratic_form(on.exec, kv::keys_of(on.cache), matrix, kv::replaced{}, on.scores); },
      [&] { on.exec.for_each(lanes, eigen); });
  state.counters["of_eigen"] = taken.ratio(1, 0);
  state.counters["verb_us"] = 1e6 * taken.least(0);
}
BENCHMARK(quadratic_form)
    ->ArgNames({"entries", "element", "threads"})
    ->ArgsProduct({{4096}, {0, 1, 2}, {1, 2}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

/// The moments of a prompt's query rows, against Eigen's product of the rows with themselves, channel by channel.
void query_moments(benchmark::State& state) {
  fixture on(state, 4096);
  on.exec.reserve(kv::implementation<kv::ops::query_moments_t, kv::host>::scratch(bench::one_layer, on.entries));
  int const dims = on.cache.k.channels, lanes = on.cache.lanes.size(), rows = 4096, group = bench::one_layer.group();
  std::vector<float> mean(static_cast<std::size_t>(lanes * group * dims)),
      square(mean.size() * static_cast<std::size_t>(dims));
  auto const of_lanes = [&](std::vector<float>& of) {
    return kv::contiguous_scores(on.cache.lanes, kv::granularity::lane, of.data(),
                                 static_cast<std::int64_t>(of.size()) / lanes)
        .rows;
  };
  kv::moments_of_queries const out{of_lanes(mean), of_lanes(square)};
  std::vector<float> columns(static_cast<std::size_t>(dims * rows), 0.5f),
      product(static_cast<std::size_t>(on.threads) * static_cast<std::size_t>(dims * dims));
  auto const eigen = [&](int, int worker) {
    bench::peers::eigen_product(columns.data(), columns.data(), dims, rows, dims,
                                product.data() + std::int64_t{worker} * dims * dims);
  };
  auto const taken = bench::in_turn(
      state, [&] { kv::ops::query_moments(on.exec, on.cache.lanes, on.queries.view(false), 4, out); },
      [&] { on.exec.for_each(lanes * group, eigen); });
  state.counters["of_eigen"] = taken.ratio(1, 0);
  state.counters["verb_us"] = 1e6 * taken.least(0);
}
BENCHMARK(query_moments)
    ->ArgNames({"entries", "element", "threads"})
    ->ArgsProduct({{4096}, {0, 2}, {1, 2}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

/// The turned moments of a layer, which depend on no entry.
void future_moments(benchmark::State& state) {
  fixture on(state, 1);
  on.exec.reserve(kv::implementation<kv::ops::future_moments_t, kv::host>::scratch(bench::one_layer, on.entries));
  int const dims = on.cache.k.channels, lanes = on.cache.lanes.size();
  std::vector<float> mean(static_cast<std::size_t>(lanes * dims)), square(mean.size() * static_cast<std::size_t>(dims));
  auto const of_lanes = [&](std::vector<float>& of) {
    return kv::contiguous_scores(on.cache.lanes, kv::granularity::lane, of.data(),
                                 static_cast<std::int64_t>(of.size()) / lanes)
        .rows;
  };
  kv::moments_of_queries const out{of_lanes(mean), of_lanes(square)};
  kv::query_model const model = out.model(on.cache.lanes, dims, {});
  auto const taken =
      bench::in_turn(state, [&] { kv::ops::future_moments(on.exec, on.cache.lanes, model, 512, out); }, [] {});
  bench::report_share(state, taken, 0, 1);  // of what nobody waits for
}
BENCHMARK(future_moments)
    ->ArgNames({"entries", "element", "threads"})
    ->ArgsProduct({{4096}, {0}, {1, 2}})
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
