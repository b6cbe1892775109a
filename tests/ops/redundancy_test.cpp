// SPDX-License-Identifier: Apache-2.0
// redundancy and normalise against the reference.

#include "reference/methods.hpp"
#include "support/verbs.hpp"

namespace redundancy_test {

using namespace kvpolicy_test;

/// The cosines of a lane: [i][j], 1 on the diagonal of keys that have a direction.
reference::matrix cosines_of(reference::matrix const& keys) {
  reference::row const norms = reference::row_norms(keys);
  reference::matrix made(keys.size(), reference::row(keys.size(), 0.0));
  for (std::size_t i = 0; i < keys.size(); ++i) {
    for (std::size_t j = 0; j < keys.size(); ++j) {
      if (norms[i] > 0 && norms[j] > 0) made[i][j] = reference::dot(keys[i], keys[j]) / (norms[i] * norms[j]);
    }
  }
  return made;
}

/// A lane of a cache with what the verb is given: 1 / norm, and the mean cosine with all entries.
struct given_lane {
  reference::matrix keys;
  reference::row inverse_norms, means;
  double margin = 1;  ///< how far the cosine that is closest to the threshold is from it

  given_lane(mock_cache& cache, kv::lane one, double threshold)
      : keys(cache.rows(of::keys, one, cache.committed(one))) {
    reference::matrix const cosines = cosines_of(keys);
    for (double const norm : reference::row_norms(keys)) inverse_norms.push_back(norm > 0 ? 1 / norm : 0);
    for (std::size_t j = 0; j < keys.size(); ++j) {
      double sum = 0;
      for (reference::row const& of_i : cosines)
        sum += of_i[j], margin = std::min(margin, std::fabs(of_i[j] - threshold));
      means.push_back(sum / static_cast<double>(keys.size()));
    }
  }
};

/// What a segment of `how` becomes; -inf takes no part.
reference::row normalised(kv::normalising how, reference::row scores) {
  double sum = 0, low = reference::infinity, high = -reference::infinity, squares = 0, powers = 0;
  int count = 0;
  auto const each = [&](auto const& visit) {
    for (double& x : scores) {
      if (x != -reference::infinity) visit(x);
    }
  };
  each([&](double x) { sum += x, low = std::min(low, x), high = std::max(high, x), ++count; });
  double const mean = count > 0 ? sum / count : 0;
  each([&](double x) { squares += (x - mean) * (x - mean), powers += std::exp(x - high); });
  double const deviation = std::max(1e-6, count > 0 ? std::sqrt(squares / count) : 0);
  reference::row const given = scores;
  each([&](double& x) {
    if (how == kv::normalising::rank) {
      auto const mine = as_size(&x - scores.data());
      int worse = 0;
      for (std::size_t e = 0; e < given.size(); ++e) {
        if (given[e] == -reference::infinity) continue;
        worse += given[e] < given[mine] || (given[e] == given[mine] && e > mine) ? 1 : 0;
      }
      x = static_cast<double>(worse) / count;
    }
    if (how == kv::normalising::sum) x = sum == 0 && x == 0 ? 0 : x / sum;
    if (how == kv::normalising::min_max) x = high == low ? 0 : (x - low) / (high - low);
    if (how == kv::normalising::z) x = (x - mean) / deviation;
    if (how == kv::normalising::softmax) x = std::exp(x - high) / powers;
  });
  return scores;
}

TEST_SUITE("ops/redundancy") {
  TEST_CASE("redundancy is the reference's in every layout and element type, whatever is similar") {
    holds("redundancy == reference", [] {
      mock_options const shape = any_batch({content::smooth, content::few}, 6);
      filled_cache cache(shape);
      kv::redundancy_options const how{*rc::gen::element(0.03571f, 0.48713f, 0.94129f),
                                       *rc::gen::element(true, true, false)};
      auto const before = cache.save();
      for (kv::isa const level : every_isa) {
        kv::host_executor exec(*rc::gen::element(1, 3), std::min(level, kv::best_isa()));
        reserve_for<kv::ops::redundancy_t>(exec, cache);
        owned_scores norms(cache.lanes()), out(cache.lanes());
        std::vector<given_lane> given;
        for (int i = 0; i < cache.lane_count(); ++i) {
          given_lane const& lane = given.emplace_back(cache, cache.lane_at(i), static_cast<double>(how.threshold));
          std::copy(lane.inverse_norms.begin(), lane.inverse_norms.end(), norms.row(i, out.stride()).begin());
          std::copy(lane.means.begin(), lane.means.end(), out.row(i, out.stride()).begin());
        }
        auto const rest = out.all();
        kv::ops::redundancy(exec, kv::keys_of(cache.view()), norms.view().rows, how, out.view());
        for (int i = 0; i < cache.lane_count(); ++i) {
          given_lane const& lane = given[as_size(i)];
          if (how.spare_newest && lane.margin < 1e-5) continue;  // rounding decides what is similar
          auto const expected = reference::redundancy(lane.keys, static_cast<double>(how.threshold), how.spare_newest);
          assert_same(compare(out.row(i, cache.committed(cache.lane_at(i))), expected, 1));
        }
      }
      RC_ASSERT(cache.save() == before);
    });
  }

  TEST_CASE("a key that is NaN, and one of zeros") {
    mock_cache cache({.model = {.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 4}, .bound = 70});
    cache.put({}, up_to(70));
    for (int e = 0; e < 70; ++e) cache.write(of::keys, {}, e, {e == 3 ? 0.0 : 1.0, 0, 0, 0});
    kv::host_executor exec;
    exec.reserve(kv::implementation<kv::ops::redundancy_t, kv::host>::scratch(cache.model(), 70));
    owned_scores norms(cache.lanes()), out(cache.lanes());
    auto const run = [&](double mean) {
      for (int e = 0; e < 70; ++e) norms.row(0, 70)[as_size(e)] = e == 3 ? 0.0f : 1.0f;
      std::fill_n(out.row(0, 70).begin(), 70, static_cast<float>(mean));
      kv::ops::redundancy(exec, kv::keys_of(cache.view()), norms.view().rows, {}, out.view());
    };
    run(69.0 / 70);
    CHECK(out.row(0, 70)[0] == doctest::Approx(68.0 / 70));
    CHECK(out.row(0, 70)[68] == doctest::Approx(67.0 / 70));  // the last entry spares the one before it
    CHECK(out.row(0, 70)[69] == doctest::Approx(0));          // and all others spare the last one
    cache.write(of::keys, {}, 3, {std::nan(""), 0, 0, 0});
    run(std::nan(""));
    for (float const each : out.row(0, 70)) CHECK(std::isnan(each));
  }

  TEST_CASE("what it refuses") {
    mock_cache cache({.bound = 8});
    kv::host_executor exec;
    owned_scores out(cache.lanes());
    kv::keys const keys = kv::keys_of(cache.view());
    CHECK(error_of([&] { kv::ops::redundancy(exec, keys, {}, {}, out.view()); }) ==
          "redundancy: inverse_norms = null, but mean_row computes them");
    CHECK(error_of([&] { kv::ops::redundancy(exec, keys, out.view().rows, {.threshold = 1.5f}, out.view()); }) ==
          "redundancy: threshold = 1.5, but it is a cosine, 0 to 1");
    kv::score_view coarse = out.view();
    coarse.decides = kv::granularity::layer;
    CHECK(error_of([&] { kv::ops::redundancy(exec, keys, out.view().rows, {}, coarse); }) ==
          "redundancy: out.decides = 1, but keys belong to lanes");
  }
}

TEST_SUITE("ops/normalise") {
  TEST_CASE("scores are the reference's, and those of -inf stay") {
    holds("normalise == reference", [] {
      ragged_scores of(*rc::gen::element(1, 2, 33, 300, 700));
      auto& scores = of.scores;
      bool const ties = any_bool();
      of.draw([&]() -> float {
        if (of.random.chance(10)) return -std::numeric_limits<float>::infinity();
        return ties ? static_cast<float>(of.random.below(3)) : static_cast<float>(of.random.real(10));
      });
      auto const before = scores.all();
      auto const how = *rc::gen::element(kv::normalising::sum, kv::normalising::min_max, kv::normalising::z,
                                         kv::normalising::softmax, kv::normalising::rank);
      kv::normalised_blocks const blocks{*rc::gen::element(how == kv::normalising::rank ? 4096 : 0, 1, 3, 16, 64, 300),
                                         *rc::gen::element(0, 0, 1, 4, 301)};
      kv::host_executor exec(*rc::gen::element(1, 3));
      kv::ops::normalise(exec, how, scores.view(), blocks);
      for (int i = 0; i < 6; ++i) {
        auto const count = as_size(of.counts[as_size(i)]);
        auto const row = scores.row(i, scores.stride());
        auto const old = before.begin() + static_cast<std::ptrdiff_t>(i) * scores.stride();
        reference::row expected;
        for (int e = 0; e < of.counts[as_size(i)];) {
          int const left = of.counts[as_size(i)] - e;
          int const size = e < blocks.begin   ? std::min(left, blocks.begin)
                           : blocks.size == 0 ? left
                                              : std::min(left, blocks.size);
          reference::row block(old + e, old + e + size);
          if (e >= blocks.begin) block = normalised(how, block);
          expected.insert(expected.end(), block.begin(), block.end());
          e += size;
        }
        for (std::size_t e = 0; e < row.size(); ++e) {
          auto const now = static_cast<double>(row[e]);
          if (e >= count) RC_ASSERT(row[e] == old[static_cast<std::ptrdiff_t>(e)]);
          if (e < count)
            RC_ASSERT(now == expected[e] || std::fabs(now - expected[e]) <= 2e-5 * (1 + std::fabs(expected[e])));
        }
      }
    });
  }

  TEST_CASE("the lanes of a layer are normalised together, and a sample's deviation divides by one less") {
    holds("normalise of layers == reference", [] {
      ragged_scores of(*rc::gen::element(1, 2, 33, 300));
      auto& [bound, random, counts, lanes, scores] = of;
      int const begin = *rc::gen::element(0, 0, 1, 4), less = *rc::gen::element(0, 1, 5);
      of.draw([&] {
        return random.chance(10) ? -std::numeric_limits<float>::infinity() : static_cast<float>(random.real(10));
      });
      auto const before = scores.all();
      kv::host_executor exec(*rc::gen::element(1, 3));
      kv::ops::normalise(exec, kv::normalising::z, scores.view(), {.begin = begin, .of_layer = true, .less = less});
      for (int layer = 0; layer < 2; ++layer) {
        double sum = 0, squares = 0;
        int n = 0;
        auto const each = [&](auto const& visit) {
          for (int i = 3 * layer; i < 3 * layer + 3; ++i) {
            for (int e = 0; e < scores.stride(); ++e) {
              auto const at = as_size(i * scores.stride() + e);
              visit(double{before[at]}, double{scores.all()[at]}, e >= begin && e < counts[as_size(i)]);
            }
          }
        };
        auto const takes = [](double old, bool there) { return there && old != -reference::infinity; };
        each([&](double old, double, bool there) { takes(old, there) ? sum += old, ++n : n; });
        each([&](double old, double, bool there) {
          if (takes(old, there)) squares += (old - sum / n) * (old - sum / n);
        });
        double const deviation = std::max(1e-6, std::sqrt(squares / (n > less ? n - less : 1)));
        each([&](double old, double now, bool there) {
          double const expected = takes(old, there) ? (old - sum / n) / deviation : old;
          RC_ASSERT(now == expected || std::fabs(now - expected) <= 2e-5 * (1 + std::fabs(expected)));
        });
      }
    });
  }

  TEST_CASE("a NaN is worse than all other scores of its block, and has no rank") {
    float const nan = std::numeric_limits<float>::quiet_NaN(), low = -std::numeric_limits<float>::infinity();
    owned_lanes const lanes(1, 1, 1, 9, {9});
    owned_scores scores(lanes.view());
    float const given[] = {7, 2, nan, low, 2, -low, 5, 5, 1};
    std::copy(std::begin(given), std::end(given), scores.row(0, scores.stride()).begin());
    kv::host_executor exec;
    kv::ops::normalise(exec, kv::normalising::rank, scores.view(), {5, 1});
    auto const row = scores.row(0, scores.stride());
    float const expected[] = {7, 0.5f, nan, low, 0.25f, 0.75f, 2 / 3.0f, 1 / 3.0f, 0};
    for (std::size_t e = 0; e < 9; ++e) CHECK((row[e] == expected[e] || (e == 2 && row[e] != row[e])));
  }

  TEST_CASE("blocks that there cannot be are refused") {
    owned_lanes const lanes(1, 1, 1, 9, {9});
    owned_scores scores(lanes.view());
    kv::host_executor exec;
    auto const error = [&](kv::normalising how, kv::normalised_blocks blocks) {
      return error_of([&] { kv::ops::normalise(exec, how, scores.view(), blocks); });
    };
    CHECK(error(kv::normalising::z, {-1, 0}) == "normalise: blocks.size = -1, but a count cannot be negative");
    CHECK(error(kv::normalising::z, {0, -1}) == "normalise: blocks.begin = -1, but ordinals begin at 0");
    CHECK(error(kv::normalising::rank, {}) == "normalise: blocks.size = 0, but a block of ranks has 1 to 4096 entries");
    CHECK(error(kv::normalising::rank, {4097, 0}) ==
          "normalise: blocks.size = 4097, but a block of ranks has 1 to 4096 entries");
    CHECK(error(kv::normalising::z, {.less = -1}) == "normalise: blocks.less = -1, but a count cannot be negative");
    CHECK(error(kv::normalising::z, {.size = 5, .of_layer = true}) ==
          "normalise: blocks.size = 5, but all scores of a layer are one block");
    kv::score_view together = scores.view();
    together.decides = kv::granularity::layer;
    CHECK(error_of([&] { kv::ops::normalise(exec, kv::normalising::z, together, {.of_layer = true}); }) ==
          "normalise: scores.decides = 1, but lanes of a layer are normalised together");
  }
}

}  // namespace redundancy_test
