// SPDX-License-Identifier: Apache-2.0
// extend_bounds and page_scores against the reference, over any shape, layout, element type and instruction set.

#include "reference/pages.hpp"
#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

/// A recorder's bounds of a cache.
struct bounded {
  bounded(mock_cache& cache, kv::host_executor& exec, kv::record_page_bounds const& how)
      : keeps(how), held(exec, cache.model(), cache.lanes()) {
    exec.reserve(kv::implementation<kv::ops::extend_bounds_t, kv::host>::scratch(cache.model(), 0));
    exec.reserve(kv::implementation<kv::ops::page_scores_t, kv::host>::scratch(cache.model(), 0));
    held.add(keeps);
  }
  void observe(mock_cache& cache, kv::host_executor& exec) const {
    keeps.observe(exec, kv::signals{cache.lanes(), kv::keys_of(cache.view())}, held.columns_from(0));
  }
  [[nodiscard]] kv::page_bounds view() const { return keeps.view(held.columns_from(0)); }

  kv::record_page_bounds keeps;
  kv::state<kv::host_executor> held;
};

kv::codec any_element(kv::codec of_keys) { return any_bool() && !kv::is_fp8(of_keys) ? of_keys : kv::codec::f32; }

/// Scores of the pages of every lane.
std::vector<std::vector<float>> scores_of(mock_cache& cache, kv::host_executor& exec, kv::page_bounds const& bounds,
                                          kv::query_view const& rows, kv::reduction group) {
  kv::lanes const batch = cache.lanes();
  int const bound = reference::pages_of(batch.capacity, bounds.page);
  std::vector<float> all(as_size(batch.size() * bound), -7);
  kv::lanes pages = batch;
  pages.capacity = bound;
  kv::ops::page_scores(exec, batch, bounds, rows, group,
                       kv::contiguous_scores(pages, kv::granularity::lane, all.data(), bound));
  std::vector<std::vector<float>> made;
  for (int i = 0; i < batch.size(); ++i) {
    auto const first = all.begin() + std::ptrdiff_t{i} * bound;
    auto const count = reference::pages_of(batch.committed(batch.at(i)), bounds.page);
    made.emplace_back(first, first + count);
    RC_ASSERT(std::all_of(first + count, first + bound, [](float each) { return each == -7; }));
  }
  return made;
}

bool is_finite(reference::row const& values) {
  return std::all_of(values.begin(), values.end(), [](double each) { return std::isfinite(each); });
}

/// One page as the heads of a group see it: the reference's score, what rounding may take from it, and the highest
/// product with a key that is there.
struct expected_page {
  double score = 0;
  double slack = 1e-30;
  double best = -reference::infinity;
  bool finite = true;
};

expected_page expect(reference::matrix const& keys, reference::matrix const& heads, kv::reduction group) {
  expected_page made;
  reference::page_bounds const bounds = reference::bounds_of(keys, static_cast<int>(keys.size())).front();
  reference::matrix scores;
  for (reference::row const& head : heads) {
    made.finite = made.finite && is_finite(head) && is_finite(bounds.low) && is_finite(bounds.high);
    scores.push_back({reference::upper_bound(head, bounds)});
    for (std::size_t d = 0; d < head.size(); ++d) {
      made.slack += std::ldexp(std::abs(head[d]) * std::max(std::abs(bounds.low[d]), std::abs(bounds.high[d])), -15);
    }
    for (reference::row const& key : keys) made.best = std::max(made.best, reference::dot(head, key));
  }
  made.score = reference::reduced(scores, static_cast<reference::reduction>(group), 1).front();
  return made;
}

void compare_lane(mock_cache& cache, mock_queries& rows, kv::lane this_lane, int page, kv::reduction group,
                  std::vector<float> const& actual) {
  int const count = cache.committed(this_lane);
  int const heads = cache.model().group();
  reference::matrix asking;
  for (int h = 0; h < heads; ++h) {
    asking.push_back(
        rows.row(this_lane.sequence, this_lane.layer, this_lane.head * heads + h, rows.valid(this_lane.sequence) - 1));
  }
  for (std::size_t p = 0; p < actual.size(); ++p) {
    reference::matrix keys;
    for (int e = static_cast<int>(p) * page; e < std::min(count, (static_cast<int>(p) + 1) * page); ++e) {
      keys.push_back(cache.row(of::keys, this_lane, e));
    }
    expected_page const expected = expect(keys, asking, group);
    auto const is = static_cast<double>(actual[p]);
    RC_LOG() << "page " << p << ": " << is << ", the reference says " << expected.score << '\n';
    RC_ASSERT(std::isnan(is) == std::isnan(expected.score));
    if (!std::isfinite(expected.score)) RC_ASSERT((std::isnan(is) || is == expected.score));
    if (!expected.finite && std::isfinite(expected.score)) {
      RC_ASSERT(std::abs(is - expected.score) <= 1e-6 * (1 + std::abs(expected.score)));
    }
    if (expected.finite) RC_ASSERT(std::abs(is - expected.score) <= expected.slack);
    if (group == kv::reduction::max && expected.finite) RC_ASSERT(is >= expected.best - expected.slack);
  }
}

void compare_bounds(mock_cache& cache, kv::page_bounds const& bounds, kv::lane this_lane) {
  auto const expected = reference::bounds_of(cache.rows(of::keys, this_lane, cache.committed(this_lane)), bounds.page);
  int const width = kv::bytes_of(bounds.element);
  RC_ASSERT(*bounds.known.row(this_lane) == cache.committed(this_lane));
  for (std::size_t p = 0; p < expected.size(); ++p) {
    for (int d = 0; d < bounds.dims; ++d) {
      std::byte const* const at = bounds.row(this_lane, static_cast<int>(p)) + d * width;
      double const high = decoded(bounds.element, at);
      double const low = decoded(bounds.element, at + bounds.dims * width);
      double const wanted = expected[p].high[as_size(d)];
      if (std::isnan(wanted)) {
        RC_ASSERT((std::isnan(high) || std::isnan(low)));
      } else {
        RC_ASSERT(high == wanted);
        RC_ASSERT(low == expected[p].low[as_size(d)]);
      }
    }
  }
}

/// Everything at once, of one shape.
void compare_all(mock_options const& shape, kv::host_executor& exec, kv::record_page_bounds const& how,
                 kv::reduction group) {
  filled_cache cache(shape);
  mock_queries rows(cache, *rc::gen::element(kv::codec::f32, kv::codec::bf16, kv::codec::f16), 2,
                    *rc::gen::element(2, 3));
  fill(rows, cache, *rc::gen::element(content::smooth, content::few, content::troubled));
  bounded pages(cache, exec, how);
  pages.observe(cache, exec);
  auto const scores = scores_of(cache, exec, pages.view(), rows.view(), group);
  for (int i = 0; i < cache.lane_count(); ++i) {
    compare_bounds(cache, pages.view(), cache.lane_at(i));
    compare_lane(cache, rows, cache.lane_at(i), how.page, group, scores[as_size(i)]);
  }
}

TEST_SUITE("ops/page_bounds") {
  TEST_CASE("bounds are the highest and lowest values of each page's keys, and scores what the reference says") {
    holds("a page's score bounds its products", [] {
      mock_options shape = any_mock();
      shape.rows = *rc::gen::element(content::smooth, content::few, content::troubled);
      if (shape.model.head_dim < 64 && any_bool())
        shape.model.query_heads = *rc::gen::element(9, 13) * shape.model.kv_heads;
      kv::host_executor exec(*rc::gen::element(1, 3), any_isa());
      compare_all(shape, exec, {*rc::gen::element(16, 1, 2, 5, 33, 100), any_element(shape.element)},
                  *rc::gen::element(kv::reduction::max, kv::reduction::mean, kv::reduction::sum));
    });
  }

  TEST_CASE("a long lane of wide heads is bounded page by page") {
    holds("4097 entries", 3, [] {
      mock_options shape;
      shape.model = {.layers = 1, .query_heads = *rc::gen::element(8, 4), .kv_heads = 1, .head_dim = 128};
      shape.bound = 4097;
      shape.element = *rc::gen::element(kv::codec::bf16, kv::codec::f32);
      kv::host_executor exec(1, any_isa());
      mock_cache cache(shape);
      cache.put({}, up_to(*rc::gen::element(4097, 15, 16, 17)));
      filled_queries rows(cache, kv::codec::f32, 1, 1);
      bounded pages(cache, exec, {16, shape.element});
      pages.observe(cache, exec);
      compare_bounds(cache, pages.view(), {});
      compare_lane(cache, rows, {}, 16, kv::reduction::max,
                   scores_of(cache, exec, pages.view(), rows.view(), kv::reduction::max).front());
    });
  }

  TEST_CASE("a page that the bounds do not speak of in full scores infinity") {
    mock_options shape;
    mock_cache cache(shape);
    cache.put({}, {0, 1, 2, 3, 4, 5});
    kv::host_executor exec;
    bounded pages(cache, exec, {4, kv::codec::f32});
    pages.observe(cache, exec);
    cache.put({}, {0, 1, 2, 3, 4, 5, 6, 7, 8});
    mock_queries rows(cache, kv::codec::f32, 1, 2);
    fill(rows, cache, content::few);
    auto const infinite = static_cast<float>(reference::infinity);
    auto const scores = scores_of(cache, exec, pages.view(), rows.view(), kv::reduction::max).front();
    CHECK((scores[0] < infinite));
    CHECK((scores[1] == infinite));
    CHECK((scores[2] == infinite));
    rows.set_valid(0, 0);
    CHECK(scores_of(cache, exec, pages.view(), rows.view(), kv::reduction::max).front() == std::vector<float>(3, 0));
  }

  TEST_CASE("an infinite key bounds what it bounds, and no more") {
    mock_options shape;
    shape.model = {.layers = 1, .query_heads = 2, .kv_heads = 1, .head_dim = 2};
    mock_cache cache(shape);
    cache.put({}, {0, 1});
    cache.write(of::keys, {}, 0, {reference::infinity, 1});
    cache.write(of::keys, {}, 1, {0, 2});
    kv::host_executor exec;
    bounded pages(cache, exec, {2, kv::codec::f32});
    pages.observe(cache, exec);
    mock_queries rows(cache, kv::codec::f32, 1, 1);
    rows.write(0, 0, 0, 0, {-1, 1});
    rows.write(0, 0, 1, 0, {-3, 1});
    auto const score = [&](kv::reduction group) {
      return scores_of(cache, exec, pages.view(), rows.view(), group).front().front();
    };
    CHECK((score(kv::reduction::max) == 2));
    CHECK((score(kv::reduction::sum) == 4));
    CHECK((score(kv::reduction::mean) == 2));
    rows.write(0, 0, 0, 0, {1, 1});
    CHECK((score(kv::reduction::mean) == static_cast<float>(reference::infinity)));
  }

  TEST_CASE("keys whose channels lie apart have the same bounds") {
    mock_options shape;
    shape.model.head_dim = 5;
    shape.bound = 16;
    filled_cache cache(shape, false);
    kv::host_executor exec;
    bounded pages(cache, exec, {3, kv::codec::f32});
    std::vector<float> turned(5 * 16);  // [channel][entry]
    for (int e = 0; e < cache.count({}); ++e) {
      for (int d = 0; d < 5; ++d) {
        turned[as_size(16 * d + e)] = static_cast<float>(cache.row(of::keys, {}, e)[as_size(d)]);
      }
    }
    kv::plane const apart{
        .base = reinterpret_cast<std::byte*>(turned.data()), .channels = 5, .token_stride = 4, .channel_stride = 64};
    pages.keeps.observe(exec, kv::signals{cache.lanes(), kv::keys{{apart, kv::identity_map(16)}}},
                        pages.held.columns_from(0));
    REQUIRE(cache.count({}) > 3);
    compare_bounds(cache, pages.view(), {});
  }

  TEST_CASE("bounds that would not be the keys' values are refused") {
    mock_options shape;
    shape.element = kv::codec::bf16;
    mock_cache cache(shape);
    kv::host_executor exec;
    bounded const pages(cache, exec, {4, kv::codec::f16});
    CHECK(error_of([&] { pages.observe(cache, exec); }) ==
          "extend_bounds: page_bounds.element = f16, but bounds are values of the keys, held as those are (bf16) or in "
          "f32");
  }
}

}  // namespace
