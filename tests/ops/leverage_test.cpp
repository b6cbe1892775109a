// SPDX-License-Identifier: Apache-2.0
// leverage against the reference.

#include "support/leverages.hpp"

namespace leverage_test {

using namespace kvpolicy_test;

/// The first lane that differs from the reference.
comparison agrees(leverage_case& now, int threads = 1) {
  kv::host_executor exec(threads);
  std::vector<float> const found = now.leverages(exec);
  for (int i = 0; i < now.cache.lane_count(); ++i) {
    reference::row const expected = now.expected(i);
    int const stride = now.cache.options().bound + 3;
    std::span<float const> const row(found.data() + std::ptrdiff_t{i} * stride, expected.size());
    comparison const result = compare(row, expected);
    if (!result) return result;
  }
  return {};
}

/// The leverages of the rows of one lane.
std::vector<float> of_rows(std::vector<float> rows, int dims, kv::leverage_options const& how) {
  int count[] = {static_cast<int>(std::ssize(rows)) / dims};
  std::vector<int> positions = up_to(count[0]);
  kv::shape const model{.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = dims};
  int const bound = std::max(count[0], 1);
  rows.resize(as_size(bound * dims));
  positions.resize(as_size(bound));
  kv::cache const cache = kv::contiguous_cache(rows.data(), rows.data(), model, bound, count, positions.data());
  kv::host_executor exec;
  exec.reserve(kv::implementation<kv::ops::leverage_t, kv::host>::scratch(model, count[0]));
  owned_scores out(cache.lanes);
  kv::ops::leverage(exec, kv::keys_of(cache), how, kv::everything{}, out.view());
  auto const row = out.row(0, count[0]);
  return {row.begin(), row.end()};
}

TEST_SUITE("ops/leverage") {
  TEST_CASE("leverages are the reference's in every layout and element type") {
    holds("leverage == reference", [] {
      mock_options const shape = any_batch({content::smooth, content::few}, 4);
      leverage_case now(shape);
      now.which = *rc::gen::element(of::keys, of::values);
      now.draw(*rc::gen::element(1, 4, 60));
      RC_LOG() << now.how.sketch.columns << " columns, jitter " << now.how.jitter << '\n';
      auto const before = now.cache.save();
      assert_same(agrees(now, *rc::gen::element(1, 3)));
      RC_ASSERT(now.cache.save() == before);
    });
  }

  TEST_CASE("head sizes and counts around those of blocks") {
    for (int const dims : {64, 80, 128, 256}) {
      for (int const entries : {1, 31, 32, 33, 4097}) {
        if (entries > 33 && dims > 64) continue;  // the reference is slow
        for (int const columns : {0, 48, 70}) {
          mock_options const shape{.model = {.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = dims},
                                   .bound = entries,
                                   .element = columns == 48 ? kv::codec::bf16 : kv::codec::f16};
          leverage_case now(shape);
          now.cache.put({}, up_to(entries));
          now.how.sketch.columns = columns;
          INFO("dims ", dims, ", entries ", entries, ", columns ", columns);
          check_same(agrees(now));
        }
      }
    }
  }

  TEST_CASE("worked numbers: pairs of opposite rows, with and without a jitter") {
    std::vector<float> const rows{1, 0, -1, 0, 0, 2, 0, -2};
    std::vector<float> const exact{0.5f, 0.5f, 0.5f, 0.5f};
    CHECK(of_rows(rows, 2, {.jitter = 0}) == exact);
    auto const eased = of_rows(rows, 2, {.jitter = 1});
    double const expected[] = {1 / 3.0, 1 / 3.0, 4 / 9.0, 4 / 9.0};
    for (std::size_t e = 0; e < 4; ++e) CHECK(eased[e] == doctest::Approx(expected[e]));
    float const first[] = {2, 0};
    std::vector<float> moved = rows;
    for (float& each : moved) each += 7;
    auto const sketched = of_rows(moved, 2, {.sketch = {.columns = 1, .given = {first}}, .jitter = 0});
    CHECK(sketched == std::vector<float>{0.5f, 0.5f, 0, 0});
    float const weights[] = {1, 0.5f};
    auto const weighted = of_rows({3, 3}, 1, {.jitter = 1, .centre = false, .weights = {weights}, .more = 0.5f});
    CHECK(weighted[0] == doctest::Approx(9 / 23.5));  // 1 + 1.5 * 9 + 1 * 9
    CHECK(weighted[1] == doctest::Approx(4.5 / 23.5));
  }

  TEST_CASE("rows that are all alike, rows on a line, NaN and infinities") {
    std::vector<float> const same(30, 4);
    for (float const each : of_rows(same, 3, {})) CHECK(each == 0);
    for (float const each : of_rows(same, 3, {.centre = false})) CHECK(std::abs(each - 0.1f) < 1e-3f);
    std::vector<float> line;
    for (int e = 0; e < 40; ++e) {
      for (int d = 0; d < 16; ++d) line.push_back(static_cast<float>(e * (d + 1)) * 100);
    }
    double sum = 0;
    for (float const each : of_rows(line, 16, {.jitter = 1e-9})) {  // one direction has all of them
      CHECK((each >= 0 && each < 0.2f));
      sum += double{each};
    }
    CHECK(sum == doctest::Approx(1).epsilon(1e-3));
    for (float const wrong : {NAN, INFINITY, -INFINITY}) {
      line[17] = wrong;
      for (float const each : of_rows(line, 16, {})) CHECK(std::isnan(each));
    }
    CHECK(of_rows({}, 4, {}).empty());
  }

  TEST_CASE("a jitter that does not suffice is ten times as much, at most five times") {
    std::vector<float> rows;
    for (int e = 0; e < 12; ++e) {
      for (int d = 0; d < 8; ++d) rows.push_back(static_cast<float>((e * 7 + 3) % 12 * (d + 1)) / 3 * 1e15f);
    }
    for (double const jitter : {1e16, 1e17, 1e18, 1e19, 1e20, 1e21}) {  // the first ones are lost in rounding
      for (float const each : of_rows(rows, 8, {.jitter = jitter})) CHECK((each >= 0 && each <= 1e9f));
    }
    CHECK(error_of([&] { (void)of_rows(std::vector<float>(16, 3), 8, {.jitter = 0}); }) ==
          "leverage: jitter = 0, but even with 100000 times as much the Gram matrix of lane 0 has no Cholesky factor");
  }

  TEST_CASE("what is wrong is refused") {
    mock_cache cache({.bound = 4});
    kv::host_executor exec;
    owned_scores out(cache.lanes());
    auto const error = [&](kv::leverage_options const& how, kv::score_view const& to) {
      return error_of([&] { kv::ops::leverage(exec, kv::keys_of(cache.view()), how, kv::everything{}, to); });
    };
    CHECK(error({.jitter = -1}, out.view()) == "leverage: jitter = -1, but a finite number, 0 or more");
    CHECK(error({.jitter = double(NAN)}, out.view()) == "leverage: jitter = nan, but a finite number, 0 or more");
    CHECK(error({.more = -1}, out.view()) == "leverage: more = -1, but a finite number, 0 or more");
    CHECK(error({.sketch = {.columns = -1}}, out.view()) ==
          "leverage: sketch.columns = -1, but a count cannot be negative");
    kv::score_view layer = out.view();
    layer.decides = kv::granularity::layer;
    CHECK(error({}, layer) == "leverage: out.decides = 1, but rows belong to lanes");
  }
}

}  // namespace leverage_test
