// SPDX-License-Identifier: Apache-2.0
// The device's bounds and scores of pages against the host's.

#include "device/as_on_host.hpp"

namespace {

using namespace kvpolicy_test;

/// Bounds of every lane, and how far they go.
struct owned_bounds {
  owned_bounds(mock_cache const& of, int page, kv::codec element) {
    int const lanes = of.lane_count();
    int const heads = of.model().kv_heads;
    std::int64_t const row = std::int64_t{kv::detail::pages_for(of.options().bound, page)} * 2 * of.model().head_dim;
    rows.assign(as_size(lanes * row), 7.0f);
    known.assign(as_size(lanes), 0);
    std::int64_t const bytes = row * kv::bytes_of(element);
    std::int64_t const sequence = std::int64_t{heads} * of.model().layers;
    memory = {{reinterpret_cast<std::byte*>(rows.data()), bytes * sequence, bytes * heads, bytes},
              {known.data(), sequence, heads, 1},
              element,
              of.model().head_dim,
              page};
  }
  [[nodiscard]] kv::page_bound_view view() const {
    kv::by_lane<std::byte> const& r = memory.rows;
    kv::by_lane<int> const& k = memory.known;
    kv::by_lane<int const> const far{k.data, k.sequence, k.layer, k.head};
    return {{r.data, r.sequence, r.layer, r.head}, far, memory.element, memory.dims, memory.page};
  }
  std::vector<float> rows;
  std::vector<int> known;
  kv::page_bound_memory memory;
};

/// Equal elements, but for what a NaN says of itself.
void compare_bounds(owned_bounds const& expected, owned_bounds const& found) {
  RC_ASSERT(expected.known == found.known);
  auto const size = as_size(kv::bytes_of(expected.memory.element));
  auto const* const a = reinterpret_cast<std::byte const*>(expected.rows.data());
  auto const* const b = reinterpret_cast<std::byte const*>(found.rows.data());
  for (std::size_t at = 0; at < expected.rows.size() * sizeof(float); at += size) {
    bool const nothing = std::isnan(decoded(expected.memory.element, a + at));
    if (nothing) RC_ASSERT(std::isnan(decoded(expected.memory.element, b + at)));
    if (!nothing) RC_ASSERT(std::memcmp(a + at, b + at, size) == 0);
  }
}

/// Scores of all pages; -7 where none was written.
template <class Executor>
std::vector<float> scores_of(Executor& exec, mock_cache& cache, kv::page_bound_view const& bounds,
                             kv::query_view const& rows, kv::reduction group) {
  kv::lanes pages = cache.lanes();
  pages.capacity = kv::detail::pages_for(pages.capacity, bounds.page);
  std::vector<float> all(as_size(pages.size() * pages.capacity), -7);
  kv::ops::page_scores(exec, cache.lanes(), bounds, rows, group,
                       kv::contiguous_scores(pages, kv::granularity::lane, all.data(), pages.capacity));
  if constexpr (requires { exec.check(); }) exec.check();
  return all;
}

/// What the verb's rounding may take from any score: 2^-15 of sums of products of numbers up to 2.
double slack_of(mock_cache const& cache) {
  return std::ldexp(4.0 * cache.model().head_dim * cache.model().group(), -15);
}

void compare_scores(std::vector<float> const& expected, std::vector<float> const& found, double slack) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    RC_ASSERT(std::isnan(expected[i]) == std::isnan(found[i]));
    if (std::isnan(expected[i]) || expected[i] == found[i]) continue;
    RC_ASSERT(std::abs(static_cast<double>(expected[i]) - static_cast<double>(found[i])) <= slack);
  }
}

TEST_SUITE("device/pages") {
  TEST_CASE("bounds, what is forgotten of them and what pages score are the host's") {
    holds("any lanes", [] {
      mock_options shape = any_mock(6);
      shape.skew = 0;
      shape.rows = *rc::gen::element(content::smooth, content::few, content::troubled);
      if (shape.model.head_dim < 64) shape.model.query_heads = shape.model.kv_heads * *rc::gen::element(1, 3, 8, 13);
      mock_cache cache(shape);
      int const page = *rc::gen::element(4, 16, 1, 5, 33);
      kv::codec const element = any_bool() && !kv::is_fp8(shape.element) ? shape.element : kv::codec::f32;
      auto const group = *rc::gen::element(kv::reduction::max, kv::reduction::mean, kv::reduction::sum);
      kv::host_executor host;
      device_executor device(any_numbers(), shape.seed);
      device_executor other(any_numbers(), shape.seed + 1);
      host.reserve(kv::implementation<kv::ops::extend_bounds_t, kv::host>::scratch(cache.model(), 0));
      host.reserve(kv::implementation<kv::ops::page_scores_t, kv::host>::scratch(cache.model(), 0));
      owned_bounds expected(cache, page, element), found(cache, page, element);
      for (int forward = 0; forward < 2; ++forward) {
        fill(cache, true);
        mock_queries rows(cache, *rc::gen::element(kv::codec::f32, kv::codec::bf16, kv::codec::f16), 2,
                          *rc::gen::element(2, 3));
        fill(rows, cache, *rc::gen::element(content::smooth, content::few, content::troubled));
        if (rows.ring() && shape.seed % 4 == 0) rows.set_valid(0, 0);
        int const sequence = *rc::gen::inRange(0, shape.sequences);
        int const position = *rc::gen::element(0, 1, 9, 40);
        kv::ops::forget_bounds(host, cache.lanes(), expected.memory.known, sequence, position);
        kv::ops::forget_bounds(device, cache.lanes(), found.memory.known, sequence, position);
        kv::keys const keys = kv::keys_of(cache.view());
        kv::ops::extend_bounds(host, cache.lanes(), keys, expected.memory);
        kv::ops::extend_bounds(device, cache.lanes(), keys, found.memory);
        device.check();
        compare_bounds(expected, found);
        if (shape.seed % 8 < 3) expected.known[0] = *rc::gen::inRange(0, cache.committed({}) + 1);
        auto const scores = scores_of(device, cache, expected.view(), rows.view(), group);
        compare_scores(scores_of(host, cache, expected.view(), rows.view(), group), scores, slack_of(cache));
        auto const again = scores_of(other, cache, expected.view(), rows.view(), group);
        RC_ASSERT(std::memcmp(scores.data(), again.data(), scores.size() * sizeof(float)) == 0);
        expected.known = found.known;
      }
    });
  }

  TEST_CASE("a long lane is bounded and scored page by page") {
    mock_options shape;
    shape.model = {.layers = 1, .query_heads = 8, .kv_heads = 1, .head_dim = 4};
    shape.bound = 4097;
    mock_cache cache(shape);
    cache.put({}, up_to(4097));
    filled_queries rows(cache, kv::codec::f32, 1, 1);
    kv::host_executor host;
    device_executor device;
    host.reserve(1 << 16);
    owned_bounds expected(cache, 16, kv::codec::f32), found(cache, 16, kv::codec::f32);
    kv::ops::extend_bounds(host, cache.lanes(), kv::keys_of(cache.view()), expected.memory);
    kv::ops::extend_bounds(device, cache.lanes(), kv::keys_of(cache.view()), found.memory);
    device.check();
    CHECK(expected.rows == found.rows);
    auto const scores = scores_of(device, cache, found.view(), rows.view(), kv::reduction::max);
    auto const wanted = scores_of(host, cache, found.view(), rows.view(), kv::reduction::max);
    double const slack = slack_of(cache);
    for (std::size_t p = 0; p < 257; ++p) CHECK(std::abs(static_cast<double>(scores[p] - wanted[p])) <= slack);
  }

  TEST_CASE("pages are counted as on the host") {
    mock_options shape;
    shape.sequences = 3;
    mock_cache cache(shape);
    for (int s = 0; s < 3; ++s) cache.put({s, 0, 0}, std::vector<int>(as_size(5 * s)));
    cache.set_drafts(1, 1);
    std::vector<int> count(3, -1), position(6, -1);
    kv::lanes pages = cache.lanes();
    pages.capacity = 5;
    pages.count.data = count.data();
    pages.position = {position.data(), 0, 0, 0};
    device_executor device;
    kv::ops::count_pages(device, cache.lanes(), 4, pages);
    device.check();
    CHECK(count == std::vector{0, 1, 3});
    CHECK(position == std::vector{0, 1, 2, 3, -1, -1});
  }

  TEST_CASE("rows that a device cannot read are refused before any launch") {
    mock_cache cache({});
    device_executor device;
    owned_bounds bounds(cache, 4, kv::codec::f32);
    kv::keys keys = kv::keys_of(cache.view());
    keys.rows.base += 2;
    CHECK(error_of([&] { kv::ops::extend_bounds(device, cache.lanes(), keys, bounds.memory); }) ==
          "extend_bounds: keys = misaligned rows, but a device reads elements of 4 bytes where they are aligned");
    bounds.memory.rows.data += 2;
    CHECK(
        error_of([&] { kv::ops::extend_bounds(device, cache.lanes(), kv::keys_of(cache.view()), bounds.memory); }) ==
        "extend_bounds: page_bounds = misaligned rows, but a device reads elements of 4 bytes where they are aligned");
  }
}

}  // namespace
