// SPDX-License-Identifier: Apache-2.0
// lag_spread and row_stats against the reference.

#include "reference/methods.hpp"
#include "support/verbs.hpp"

namespace lag_spread_test {

using namespace kvpolicy_test;

/// The first lane whose shares are not the reference's. Rounding errors of a quotient are multiplied by its size.
comparison agrees(mock_cache& cache, of which, kv::lagged_blocks const& blocks, kv::isa level) {
  kv::host_executor exec(1, level);
  reserve_for<kv::ops::lag_spread_t>(exec, cache);
  owned_scores out(cache.lanes());
  kv::ops::lag_spread(exec, rows_of(cache, which), blocks, old_plus_twice{}, out.view());
  for (int i = 0; i < cache.lane_count(); ++i) {
    kv::lane const one = cache.lane_at(i);
    double size = 1;
    reference::row expected = reference::lag_shares(cache.rows(which, one, cache.committed(one)), as_size(blocks.lag),
                                                    as_size(blocks.first), size);
    comparison const result = compare_twice(out, i, std::move(expected), 1 + size);
    if (!result) return result;
  }
  return {};
}

struct even_positions {
  bool operator()(kv::entry at) const { return at.position % 2 == 0; }
};

TEST_SUITE("ops/lag_spread") {
  TEST_CASE("shares are the reference's in every layout and element type") {
    holds("lag_spread == reference", [] {
      mock_options const shape = any_batch({content::smooth, content::few, content::fingerprint}, 6);
      filled_cache cache(shape);
      auto const before = cache.save();
      kv::lagged_blocks const blocks{*rc::gen::element(1, 2, 3, 7, 16, 17), *rc::gen::element(0, 0, 1, 4, 50)};
      RC_LOG() << "lag " << blocks.lag << ", first " << blocks.first << '\n';
      for (of const which : {of::keys, of::values}) {
        agrees_on_every_isa([&](kv::isa level) { return agrees(cache, which, blocks, level); });
      }
      RC_ASSERT(cache.save() == before);
    });
  }

  TEST_CASE("worked numbers, equal rows, and NaN in a block and in the next one") {
    mock_options const shape{.model = {.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 2}, .bound = 6};
    auto const shares = [&](std::vector<float> const& numbers, int lag) {
      std::vector<float> rows = numbers;
      std::vector<int> positions{0, 1, 2, 3, 4, 5};
      int count[] = {static_cast<int>(rows.size() / 2)};
      rows.resize(12);
      kv::cache const cache = kv::contiguous_cache(rows.data(), rows.data(), shape.model, 6, count, positions.data());
      kv::host_executor exec;
      exec.reserve(kv::implementation<kv::ops::lag_spread_t, kv::host>::scratch(shape.model, 6));
      owned_scores out(cache.lanes);
      kv::ops::lag_spread(exec, kv::keys_of(cache), {lag, 0}, kv::replaced{}, out.view());
      auto const row = out.row(0, count[0]);
      return std::vector<float>(row.begin(), row.end());
    };
    auto const worked = shares({0, 0, 1, 3, 1, 1, 2, 3}, 2);
    CHECK(worked[0] == doctest::Approx(0.412521));
    CHECK(worked[1] == doctest::Approx(0.587479));
    CHECK(worked[2] == 0);
    CHECK(worked[3] == 0);
    // The bounds of the first channel are one number, so that it is 0 in all rows.
    auto const flat = shares({9, 0, -5, 4, 2, 0, 2, 4}, 2);
    CHECK(flat[0] == doctest::Approx(1 / (1 + std::exp(std::sqrt(0.5)))));
    CHECK(shares({1, 2, 1, 2, 1, 2, 0, 1, 1, 5, 3, 0}, 3) == std::vector<float>{1 / 3.0f, 1 / 3.0f, 1 / 3.0f, 0, 0, 0});
    float const nan = std::numeric_limits<float>::quiet_NaN();
    auto const own = shares({1, nan, 2, 3, 1, 1, 2, 3}, 2), next = shares({1, 4, 2, 3, 1, 1, 2, -nan}, 2);
    for (std::size_t e = 0; e < 2; ++e) CHECK((std::isnan(own[e]) && std::isnan(next[e])));
    auto const before = shares({1, 4, 2, 3, nan, 1, 2, 1, 3, 3, 4, 4}, 2);
    for (std::size_t e = 0; e < 6; ++e) CHECK(std::isnan(before[e]) == (e < 4));
  }

  TEST_CASE("equal rows have equal shares, wherever they stand in a long block") {
    for (kv::isa const level : every_isa) {
      for (int const lag : {37, 128, 131}) {
        kv::shape const model{.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 37};
        std::vector<float> rows(as_size(2 * lag * 37));
        dice random(7);
        for (float& each : rows) each = static_cast<float>(random.real(3));
        for (int e = 1; e < lag; e += 3) std::copy_n(rows.begin(), 37, rows.begin() + e * 37);
        std::vector<int> positions(as_size(2 * lag));
        for (int e = 0; e < 2 * lag; ++e) positions[as_size(e)] = e;
        int count[] = {2 * lag};
        kv::cache const cache = kv::contiguous_cache(rows.data(), rows.data(), model, 2 * lag, count, positions.data());
        kv::host_executor exec(1, std::min(level, kv::best_isa()));
        exec.reserve(kv::implementation<kv::ops::lag_spread_t, kv::host>::scratch(model, 2 * lag));
        owned_scores out(cache.lanes);
        kv::ops::lag_spread(exec, kv::keys_of(cache), {lag, 0}, kv::replaced{}, out.view());
        auto const row = out.row(0, lag);
        for (int e = 1; e < lag; e += 3) CHECK(row[as_size(e)] == row[0]);
      }
    }
  }

  TEST_CASE("what is wrong is refused") {
    mock_cache cache({.bound = 4});
    kv::host_executor exec;
    owned_scores out(cache.lanes());
    auto const error = [&](kv::lagged_blocks blocks, kv::score_view const& to) {
      return error_of([&] { kv::ops::lag_spread(exec, kv::keys_of(cache.view()), blocks, kv::replaced{}, to); });
    };
    CHECK(error({0, 0}, out.view()) == "lag_spread: blocks.lag = 0, but a block has 1 to 4096 entries");
    CHECK(error({4097, 0}, out.view()) == "lag_spread: blocks.lag = 4097, but a block has 1 to 4096 entries");
    CHECK(error({1, -1}, out.view()) == "lag_spread: blocks.first = -1, but ordinals begin at 0");
    kv::score_view layer = out.view();
    layer.decides = kv::granularity::layer;
    CHECK(error({1, 0}, layer) == "lag_spread: out.decides = 1, but rows belong to lanes");
  }
}

TEST_SUITE("ops/row_stats") {
  TEST_CASE("statistics are those of the scores that are taken") {
    holds("row_stats == their formulas", [] {
      ragged_scores of(*rc::gen::element(1, 2, 33, 300));
      of.draw([&] { return static_cast<float>(of.random.real(3)); });
      auto const decides = *rc::gen::element(kv::granularity::lane, kv::granularity::layer);
      kv::score_view view = of.scores.view();
      view.decides = decides;
      std::vector<float> found(6, -7.0f);
      kv::by_lane<float> const to{found.data(), 0, 3, 1};
      kv::host_executor exec(*rc::gen::element(1, 3));
      auto const what =
          *rc::gen::element(kv::statistic::sum, kv::statistic::mean, kv::statistic::highest, kv::statistic::variance);
      kv::ops::row_stats(exec, view, even_positions{}, what, to);
      for (int i = 0; i < 6; ++i) {
        if (decides == kv::granularity::layer && i % 3 != 0) {
          RC_ASSERT(found[as_size(i)] == -7.0f);
          continue;
        }
        kv::lane const one = of.lanes.view().at(i);
        reference::row taken;
        for (int e = 0; e < of.counts[as_size(i)]; ++e) {
          if (of.lanes.view().position.row(one)[e] % 2 == 0) taken.push_back(double{of.scores.view().row(i)[e]});
        }
        double sum = 0, high = -reference::infinity, squares = 0;
        for (double const x : taken) sum += x, high = std::max(high, x);
        double const n = std::max<double>(1, static_cast<double>(taken.size()));
        for (double const x : taken) squares += (x - sum / n) * (x - sum / n);
        double const expected = what == kv::statistic::sum       ? sum
                                : what == kv::statistic::mean    ? sum / n
                                : what == kv::statistic::highest ? high
                                                                 : squares / n;
        auto const now = double{found[as_size(i)]};
        RC_ASSERT(now == expected || std::fabs(now - expected) <= 1e-6 * (1 + std::fabs(expected)));
      }
    });
  }

  TEST_CASE("NaN stays, and no memory is refused") {
    owned_lanes const lanes(1, 1, 1, 3, {3});
    owned_scores scores(lanes.view());
    float const given[] = {5, std::numeric_limits<float>::quiet_NaN(), 9};
    std::copy(std::begin(given), std::end(given), scores.row(0, scores.stride()).begin());
    kv::host_executor exec;
    for (auto const of : {kv::statistic::sum, kv::statistic::mean, kv::statistic::highest, kv::statistic::variance}) {
      float found = 0;
      kv::ops::row_stats(exec, scores.view(), kv::everything{}, of, {&found});
      CHECK(std::isnan(found));
    }
    CHECK(error_of([&] { kv::ops::row_stats(exec, scores.view(), kv::everything{}, kv::statistic::sum, {}); }) ==
          "row_stats: out = null, but it has a number for each segment");
  }
}

}  // namespace lag_spread_test
