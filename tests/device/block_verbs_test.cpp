// SPDX-License-Identifier: Apache-2.0
// block_scores, add_shares and similarity against the reference, on the host and on the emulated device.

#include "reference/methods.hpp"
#include "support/device.hpp"
#include "support/verbs.hpp"

namespace block_verbs_test {

using namespace kvpolicy_test;

/// Six lanes of random scores, some NaN or -inf.
struct scored_lanes : ragged_scores {
  scored_lanes() : ragged_scores(*rc::gen::element(1, 31, 32, 33, 400)) {}
  [[nodiscard]] std::vector<float> some(int odd) {
    draw([&] {
      auto const one = static_cast<float>(random.real(4));
      return random.chance(odd) ? random.one_of<float>({NAN, -std::numeric_limits<float>::infinity()}) : one;
    });
    return scores.all();
  }
};

bool near(double a, double b, double slack = 1e-5) {
  return a == b || (std::isnan(a) && std::isnan(b)) || std::fabs(a - b) <= slack * (1 + std::fabs(b));
}

template <class Run>
void on_both(Run const& run) {
  for (kv::isa const level : every_isa) {
    kv::host_executor host(*rc::gen::element(1, 3), level);
    run(host);
  }
  device_executor device(launch_numbers{}, *rc::gen::inRange<std::uint64_t>(0, 1000));
  run(device);
  device.check();
}

TEST_SUITE("device/block_verbs") {
  TEST_CASE("every member of a block has the reference's score of the block; a shorter segment stays") {
    holds("block_scores == reference", 60, [] {
      scored_lanes of;
      std::vector<float> const before = of.some(3);
      kv::score_blocks const blocks{*rc::gen::element(1, 2, 7, 32, 64),
                                    *rc::gen::element(kv::reduction::mean, kv::reduction::sum, kv::reduction::max)};
      on_both([&](auto& exec) {
        owned_scores scores(of.lanes.view());
        scores.all() = before;
        kv::ops::block_scores(exec, blocks, scores.view());
        for (int i = 0; i < 6; ++i) {
          int const count = of.counts[as_size(i)];
          auto const old = before.begin() + std::ptrdiff_t{i} * scores.stride();
          auto const row = scores.row(i, scores.stride());
          for (int e = 0; e < scores.stride(); ++e) {
            int const begin = e / blocks.size * blocks.size, end = std::min(begin + blocks.size, count);
            double expected = static_cast<double>(old[e]);
            if (e < count && count >= blocks.size) {
              expected = blocks.how == kv::reduction::max ? -reference::infinity : 0;
              bool nan = false;
              for (int m = begin; m < end; ++m) {
                auto const one = static_cast<double>(old[m]);
                nan = nan || std::isnan(one);
                expected = blocks.how == kv::reduction::max ? std::max(expected, one) : expected + one;
              }
              if (blocks.how == kv::reduction::mean) expected /= end - begin;
              if (nan) expected = std::nan("");
            }
            RC_ASSERT(near(static_cast<double>(row[as_size(e)]), expected));
          }
        }
      });
    });
  }

  TEST_CASE("weighted shares add up to what the row gives") {
    holds("add_shares == reference", 60, [] {
      scored_lanes of;
      owned_scores mass(of.lanes.view()), weights(of.lanes.view());
      std::vector<float> const before = of.some(0), first = of.some(0), second = of.some(0);
      mass.all() = first, weights.all() = second;
      bool const nothing = *rc::gen::inRange(0, 5) == 0;
      for (float& each : mass.all()) each = nothing ? 0 : std::fabs(each);
      for (float& each : weights.all()) each = -std::fabs(each);
      on_both([&](auto& exec) {
        owned_scores to(of.lanes.view());
        to.all() = before;
        kv::by_lane<float> const table = weights.view().rows;
        kv::by_lane<float const> const read{table.data, table.sequence, table.layer, table.head};
        kv::ops::add_shares(exec, mass.view(), read, to.view().rows);
        for (int i = 0; i < 6; ++i) {
          auto const m = mass.row(i, of.counts[as_size(i)]), w = weights.row(i, of.counts[as_size(i)]);
          double given = 0, weighted = 0;
          for (std::size_t e = 0; e < m.size(); ++e) {
            given += static_cast<double>(m[e]);
            weighted += static_cast<double>(m[e]) * static_cast<double>(w[e]);
          }
          for (int e = 0; e < to.stride(); ++e) {
            auto expected = static_cast<double>(before[as_size(i * to.stride() + e)]);
            if (as_size(e) < m.size() && weighted != 0)
              expected += given * static_cast<double>(m[as_size(e)]) * static_cast<double>(w[as_size(e)]) / weighted;
            RC_ASSERT(near(static_cast<double>(to.row(i, to.stride())[as_size(e)]), expected));
          }
        }
      });
    });
  }

  TEST_CASE("similarity is the reference's in every layout and element type, whoever competes") {
    holds("similarity == reference", 40, [] {
      mock_options const shape = any_batch({content::smooth, content::few}, 6, true);
      filled_cache cache(shape);
      dice random(shape.seed);
      owned_scores marks(cache.lanes());
      int const forced = *rc::gen::element(0, 20, 100);
      for (float& each : marks.all()) each = random.chance(forced) ? -std::numeric_limits<float>::infinity() : 7.0f;
      on_both([&]<class Executor>(Executor& exec) {
        reserve_for<kv::ops::similarity_t>(exec, cache);
        owned_scores out(cache.lanes());
        out.all() = marks.all();
        kv::ops::similarity(exec, kv::keys_of(cache.view()), out.view());
        for (int i = 0; i < cache.lane_count(); ++i) {
          kv::lane const one = cache.lane_at(i);
          std::vector<bool> competes;
          for (float const each : marks.row(i, cache.committed(one))) competes.push_back(each == 7.0f);
          double margin = 1;
          auto const expected =
              reference::similarity(cache.rows(of::keys, one, cache.committed(one)), competes, margin);
          auto const row = out.row(i, cache.committed(one));
          for (std::size_t e = 0; e < row.size() && margin > 1e-5; ++e) {
            RC_ASSERT(near(static_cast<double>(row[e]), expected[e], 2e-5));
          }
        }
      });
    });
  }

  TEST_CASE("a NaN in a key makes all numbers of its lane NaN, and a key of zeros is like none") {
    mock_cache cache({.model = {.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 4}, .bound = 40});
    cache.put({}, up_to(40));
    for (int e = 0; e < 40; ++e) cache.write(of::keys, {}, e, {e == 3 ? 0.0 : 1.0, 0, 0, 0});
    auto const run = [&](auto& exec) {
      exec.reserve(1u << 20);
      owned_scores out(cache.lanes());
      kv::ops::similarity(exec, kv::keys_of(cache.view()), out.view());
      return std::vector<float>(out.row(0, 40).begin(), out.row(0, 40).end());
    };
    kv::host_executor host;
    device_executor device(launch_numbers{}, 1);
    CHECK(run(host)[3] == 0);
    CHECK(run(host)[4] == doctest::Approx(38.0 / 40));
    CHECK(run(device)[3] == 0);
    CHECK(run(device)[4] == doctest::Approx(38.0 / 40));
    cache.write(of::keys, {}, 3, {std::nan(""), 0, 0, 0});
    for (float const each : run(host)) CHECK(std::isnan(each));
    for (float const each : run(device)) CHECK(std::isnan(each));
  }

  TEST_CASE("what they refuse") {
    mock_cache cache({.bound = 8});
    kv::host_executor exec;
    owned_scores out(cache.lanes());
    kv::by_lane<float const> const none{};
    kv::score_view coarse = out.view();
    coarse.decides = kv::granularity::layer;
    CHECK(error_of([&] { kv::ops::similarity(exec, kv::keys_of(cache.view()), coarse); }) ==
          "similarity: out.decides = 1, but keys belong to lanes");
    CHECK(error_of([&] { kv::ops::block_scores(exec, kv::score_blocks{0}, out.view()); }) ==
          "block_scores: blocks.size = 0, but a block has at least one entry");
    CHECK(error_of([&] { kv::ops::block_scores(exec, kv::score_blocks{4, kv::reduction::last}, out.view()); }) ==
          "block_scores: blocks.how = last, but a block is more than its last entry");
    CHECK(error_of([&] { kv::ops::add_shares(exec, out.view(), none, out.view().rows); }) ==
          "add_shares: weights = null, but every entry has one");
    CHECK(error_of([&] { kv::ops::add_shares(exec, coarse, none, out.view().rows); }) ==
          "add_shares: mass.decides = 1, but a row is shared out inside a lane");
  }
}

}  // namespace block_verbs_test
