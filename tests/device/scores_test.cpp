// SPDX-License-Identifier: Apache-2.0
// Verbs about scores, on the device and on the host, and where sorting or a loop is enough, against that.

#include "device/as_on_host.hpp"
#include "reference/pooled_attention.hpp"

namespace {

using namespace kvpolicy_test;

/// Ragged lanes, and what a verb leaves of their scores.
struct scores_case {
  explicit scores_case(std::vector<int> const& bounds) : of(*rc::gen::elementOf(bounds)) {}
  ragged_scores of;
  std::uint64_t seed = any_seed();
  template <class Verb>
  std::vector<float> after(auto& exec, auto const& call) {
    reserve_for<Verb>(exec, kv::shape{}, of.lanes.view());
    owned_scores scores(of.lanes.view());
    scores.all() = of.scores.all();
    call(scores.view());
    settle(exec);
    return scores.all();
  }
};

struct pool_case : scores_case {
  pool_case() : scores_case({33, 1, 2, 31, 32, 200, 400}) {
    bool const ties = any_bool();
    of.draw([&] { return ties ? troubled_score(of.random, trouble::ties) : static_cast<float>(of.random.real(10)); });
  }
  int width = *rc::gen::element(1, 3, 7, 63, 201, 2147483647), tail = *rc::gen::element(0, 1, 16, 97, 500);
  kv::pooling by = *rc::gen::element<kv::pooling>(kv::max_pool{width}, kv::avg_pool{width}, kv::no_pool{});
  std::vector<float> operator()(auto& exec) {
    return after<kv::ops::pool_t>(exec, [&](kv::score_view const& to) { kv::ops::pool(exec, by, to, tail); });
  }
  static bool same(auto const& found, auto const& expected) { return same_bits(found, expected); }
};

struct normalise_case : scores_case {
  normalise_case() : scores_case({1, 31, 32, 33, 500}) {
    of.draw([&]() -> float {
      if (of.random.chance(10)) return -std::numeric_limits<float>::infinity();
      return of.random.chance(20) ? static_cast<float>(of.random.below(3)) : static_cast<float>(of.random.real(10));
    });
    blocks.of_layer = blocks.size == 0 && any_bool();
    blocks.less = of.random.below(2);
  }
  kv::normalising how = *rc::gen::element(kv::normalising::sum, kv::normalising::min_max, kv::normalising::z,
                                          kv::normalising::softmax, kv::normalising::rank);
  kv::normalised_blocks blocks{*rc::gen::element(how == kv::normalising::rank ? 600 : 0, 1, 16, 33, 400),
                               *rc::gen::element(0, 0, 1, 40)};
  std::vector<float> operator()(auto& exec) {
    return after<kv::ops::normalise_t>(exec, [&](auto const& to) { kv::ops::normalise(exec, how, to, blocks); });
  }
  [[nodiscard]] bool same(auto const& found, auto const& expected) const {
    return alike(found, expected, how == kv::normalising::sum ? 1e-2 : 1e-5);
  }
};

struct even_positions {
  KVPOLICY_HD bool operator()(kv::entry at) const { return at.position % 2 == 0; }
};

struct row_stats_case : scores_case {
  row_stats_case() : scores_case({1, 31, 33, 500}) {
    int const nan = *rc::gen::element(0, 1);
    of.draw([&] { return of.random.chance(nan) ? NAN : static_cast<float>(of.random.real(10)); });
  }
  kv::granularity decides = *rc::gen::element(kv::granularity::lane, kv::granularity::layer);
  kv::statistic what =
      *rc::gen::element(kv::statistic::sum, kv::statistic::mean, kv::statistic::highest, kv::statistic::variance);
  std::vector<float> operator()(auto& exec) {
    kv::score_view view = of.scores.view();
    view.decides = decides;
    std::vector<float> made(6, -7.0f);
    kv::ops::row_stats(exec, view, even_positions{}, what, {made.data(), 0, 3, 1});
    settle(exec);
    return made;
  }
  static bool same(auto const& found, auto const& expected) { return alike(found, expected, 1e-6, 1e-6); }
};

/// A batch whose lanes of a sequence hold equally many entries, folded layer by layer as reduce_lanes does, or at once.
struct fold_case {
  int sequences = *rc::gen::inRange(1, 4), layers = *rc::gen::inRange(1, 4), heads = *rc::gen::inRange(1, 4);
  int bound = *rc::gen::element(33, 1, 31, 32, 200);
  bool by_layer = any_bool(), at_once = any_bool();
  kv::reduction how = *rc::gen::element(kv::reduction::sum, kv::reduction::mean, kv::reduction::max);
  std::uint64_t seed = any_seed();

  std::vector<float> operator()(auto& exec) const {
    dice random(seed);
    std::vector<int> counts;
    for (int s = 0; s < sequences; ++s) counts.insert(counts.end(), as_size(layers * heads), random.below(bound + 1));
    owned_lanes const lanes(sequences, layers, heads, bound, counts);
    owned_scores fine(lanes.view());
    owned_scores coarse(lanes.view(), by_layer ? kv::granularity::layer : kv::granularity::sequence);
    for (float& each : fine.all()) each = troubled_score(random, trouble::ties);
    int const rows = by_layer ? heads : layers * heads;
    for (int layer = 0; layer < layers; layer += at_once ? layers : 1) {
      bool const last = by_layer || at_once || layer + 1 == layers;
      kv::score_view part = fine.view();
      if (!at_once) part.lanes = part.lanes.layers_only(layer, layer + 1);
      bool const divides = how == kv::reduction::mean && last;
      kv::ops::fold(exec, part, kv::ops::fold_step{how, by_layer || layer == 0, divides ? rows : 1}, coarse.view());
    }
    settle(exec);
    return coarse.all();
  }
  static bool same(auto const& found, auto const& expected) { return same_bits(found, expected); }
};

struct of_everything {
  KVPOLICY_HD float operator()(float score, kv::entry at) const {
    return 2 * score + static_cast<float>(at.ordinal + 7 * at.position + 13 * at.count + at.lane.layer + at.lane.head);
  }
};

struct map_case : batch_case {
  map_case() : batch_case(any_mock()) {}
  std::vector<float> operator()(auto& exec) {
    return scores_by<kv::ops::map_t>(
        exec, cache, [](auto& on, kv::score_view const& out) { kv::ops::map(on, out, of_everything{}); });
  }
  static bool same(auto const& found, auto const& expected) { return same_bits(found, expected); }
};

struct of_lane {
  KVPOLICY_HD int operator()(kv::lane_entries const& of) const {
    int const last = of.count > 0 ? of.position[of.count - 1] : -1;
    return of.count + 100 * last + 7 * of.lane.layer + 3 * of.lane.head + of.lane.sequence + of.budget;
  }
};

/// The rows of all lanes after sorting, whose places behind the committed entries must not change.
std::vector<float> sorted(auto& exec, mock_cache& cache, kv::granularity decides, std::vector<float> scores) {
  kv::ops::sort_scores(exec, kv::contiguous_scores(cache.lanes(), decides, scores.data(), cache.options().bound));
  settle(exec);
  return scores;
}

/// Whether a score stands before another one: NaN is behind all, and both zeros are equal.
bool higher(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return !std::isnan(a) && std::isnan(b);
  return a > b;
}

struct not_third {
  KVPOLICY_HD bool operator()(kv::entry at) const { return at.position % 3 != 2; }
};
struct limit_of_lane {
  kv::by_lane<double const> limits;
  KVPOLICY_HD double operator()(kv::lane one) const { return *limits.row(one); }
};

std::vector<float> covers(auto& exec, kv::score_view const& scores, std::vector<double> const& limits) {
  std::vector<float> made(limits.size(), -1.0f);
  kv::ops::count_cover(exec, scores, not_third{}, limit_of_lane{{limits.data(), 0, scores.lanes.heads, 1}},
                       kv::by_lane<float>{made.data(), 0, scores.lanes.heads, 1});
  settle(exec);
  return made;
}

}  // namespace

TEST_SUITE("device/scores") {
  TEST_CASE("pools are the host's, over all seams of pieces, plateaus and NaN") {
    is_as_on_host<pool_case>("device == host, pool", 100);
  }
  TEST_CASE("normalised scores are the host's") { is_as_on_host<normalise_case>("device == host, normalise", 40); }
  TEST_CASE("row_stats: statistics are the host's") { is_as_on_host<row_stats_case>("device == host, row_stats", 40); }
  TEST_CASE("fold: sums, means and maxima of lanes are the host's, NaN and infinities too") {
    is_as_on_host<fold_case>("device == host, fold", 100);
  }
  TEST_CASE("map: every score becomes what the host says") { is_as_on_host<map_case>("device == host, map", 100); }

  TEST_CASE("4097 entries are pooled in many pieces as in one") {
    owned_lanes const lanes(4097);
    std::vector<float> pooled[2];
    auto const pool = [&](auto& exec, std::vector<float>& to) {
      owned_scores scores(lanes.view());
      dice random(5);
      for (float& each : scores.all()) each = static_cast<float>(random.real(10));
      reserve_for<kv::ops::pool_t>(exec, kv::shape{}, lanes.view());
      kv::ops::pool(exec, kv::avg_pool{5}, scores.view(), 32);
      settle(exec);
      to = scores.all();
    };
    kv::host_executor host;
    device_executor device;
    pool(host, pooled[0]);
    pool(device, pooled[1]);
    CHECK(same_bits(pooled[1], pooled[0]));
  }

  TEST_CASE("map_lanes: every lane's number is what the host says") {
    holds("any lanes", [] {
      filled_cache cache(any_mock());
      std::vector<int> found[2];
      auto const map = [&](auto& exec, std::vector<int>& to) {
        to.assign(as_size(cache.lane_count()), -5);
        std::int64_t const heads = cache.model().kv_heads;
        kv::ops::map_lanes(exec, cache.lanes(), of_lane{},
                           kv::by_lane<int>{to.data(), heads * cache.model().layers, heads, 1});
      };
      kv::host_executor host;
      device_executor device(cache.options().seed);
      map(host, found[0]);
      map(device, found[1]);
      RC_ASSERT(found[0] == found[1]);
      for (kv::lane const one : lanes_of(cache)) {
        int const count = cache.lanes().committed(one);
        int const last = count > 0 ? cache.lanes().position.row(one)[count - 1] : -1;
        int const all = count + 100 * last + 7 * one.layer + 3 * one.head + one.sequence;
        RC_ASSERT(found[1][as_size(cache.index(one))] == all);
      }
    });
  }

  TEST_CASE("sort_scores: scores of each segment descend, NaN is last, and nothing else changes") {
    holds("sort_scores", 60, [] {
      mock_options shape = any_mock(6);
      shape.bound = *rc::gen::element(shape.bound, 1, 2, 63, 64, 65, 300);
      shape.shared_entries = true;
      RC_LOG() << shape << '\n';
      filled_cache cache(shape);
      auto const decides = *rc::gen::element(kv::granularity::lane, kv::granularity::layer);
      dice random(any_seed());
      int const values = *rc::gen::element(3, 1000);
      std::vector<float> scores(as_size(cache.lane_count() * shape.bound));
      constexpr float infinity = std::numeric_limits<float>::infinity();
      float const special[] = {0.0f, -0.0f, infinity, -infinity, std::nanf("")};
      for (float& each : scores) {
        int const drawn = random.below(values + 5);
        each = drawn < 5 ? special[drawn] : static_cast<float>(drawn - values / 2) / 8.0f;
      }
      kv::host_executor host(*rc::gen::element(1, 3));
      device_executor device({}, shape.seed);
      auto const on_host = sorted(host, cache, decides, scores), on_device = sorted(device, cache, decides, scores);
      kv::score_view const view = kv::contiguous_scores(cache.lanes(), decides, scores.data(), shape.bound);
      for (int s = 0; s < view.segments(); ++s) {
        std::sort(view.row(s), view.row(s) + cache.committed(view.lane_of(s)), higher);
      }
      RC_ASSERT(alike(on_host, scores, 0));
      RC_ASSERT(alike(on_device, scores, 0));
    });
  }

  TEST_CASE("count_cover: as many scores are counted as have a sum below the limit") {
    holds("count_cover", [] {
      ragged_scores of(*rc::gen::element(1, 2, 31, 33, 300));
      int const distinct = *rc::gen::element(1, 3, 1000), special = *rc::gen::element(0, 5);
      double const size = *rc::gen::element(1.0, 1e-30, 1e9);
      of.draw([&] {
        float const others[] = {-0.0f, NAN, -1.0f, -std::numeric_limits<float>::infinity()};
        auto const one = static_cast<float>(size * of.random.below(distinct + 1) / distinct);
        return of.random.chance(special) ? others[of.random.below(4)] : one;
      });
      std::vector<double> limits;
      std::vector<float> expected;
      double margin = std::numeric_limits<double>::infinity();
      for (int i = 0; i < 6; ++i) {
        kv::lane const one = of.lanes.view().at(i);
        reference::row taken;
        double all = 0;
        for (int e = 0; e < of.counts[as_size(i)]; ++e) {
          float const score = of.scores.view().row(i)[e];
          bool const counts = not_third{}(kv::entry{one, e, 0, of.lanes.view().position.row(one)[e], 0});
          if (counts && score >= 0) taken.push_back(static_cast<double>(score)), all += taken.back();
        }
        limits.push_back(all * *rc::gen::element(0.37, 0.9, 1.5, 0.0, -0.5, 0.01));
        if (of.random.chance(5)) limits.back() = std::nan("");
        expected.push_back(static_cast<float>(reference::covered(taken, limits.back(), margin) * (limits.back() > 0)));
      }
      if (margin < 1e-12 * size) return;  // rounding decides
      kv::host_executor host(*rc::gen::element(1, 3));
      device_executor device({}, 1);
      RC_ASSERT(covers(host, of.scores.view(), limits) == expected);
      RC_ASSERT(covers(device, of.scores.view(), limits) == expected);
    });
  }

  TEST_CASE("count_cover: the last one of equal scores that still fits, and what is refused") {
    owned_lanes const lanes(1, 1, 1, 4, {4});
    owned_scores scores(lanes.view());
    kv::host_executor exec;
    auto const counted = [&](std::vector<float> const& of, double limit) {
      std::copy(of.begin(), of.end(), scores.all().begin());
      return static_cast<int>(covers(exec, scores.view(), {limit})[0]);
    };
    CHECK(counted({0.25f, 9, 0.25f, 0.25f}, 0.5) == 1);  // the second is left out, and the crossing one too
    CHECK(counted({0.25f, 9, 0.25f, 0.25f}, 0.51) == 2);
    CHECK(counted({0.25f, 9, 0.25f, 0.25f}, 0.76) == 3);
    CHECK(counted({0, 0, 0, 0}, 1) == 3);
    CHECK(counted({0, 0, 0, 0}, 0) == 0);
    auto const call = [&] {
      kv::ops::count_cover(exec, scores.view(), not_third{}, limit_of_lane{}, kv::by_lane<float>{});
    };
    CHECK(error_of(call) == "count_cover: out = null, but it has a number for each segment");
  }
}
