// SPDX-License-Identifier: Apache-2.0
// logits and mean_row against the reference.

#include "reference/methods.hpp"
#include "support/test.hpp"

namespace logits_test {

using namespace kvpolicy_test;
using kv::reduction;
using kv::reduction_order;

struct old_plus_twice {
  float operator()(float old, float now) const { return old + 2 * now; }
};

/// A lane with all valid rows of its query heads, and the `last` of them if it is above 0.
reference::lane_attention lane_of(mock_cache& cache, mock_queries& queries, kv::lane one, int last) {
  reference::lane_attention lane;
  int const valid = queries.valid(one.sequence);
  lane.keys = cache.rows(of::keys, one, cache.committed(one));
  for (int h = 0; h < cache.model().group(); ++h) {
    reference::matrix rows;
    for (int r = last > 0 ? std::max(0, valid - last) : 0; r < valid; ++r) {
      rows.push_back(queries.row(one.sequence, one.layer, one.head * cache.model().group() + h, r));
    }
    lane.queries.push_back(rows);
  }
  return lane;
}

kv::logits_options any_options() {
  kv::logits_options how;
  if (*rc::gen::arbitrary<bool>()) how.scale = *rc::gen::element(1.0f, 0.25f);
  how.rows = *rc::gen::element(reduction::sum, reduction::mean, reduction::max, reduction::last);
  how.group = *rc::gen::element(reduction::sum, reduction::mean, reduction::max);
  how.order = *rc::gen::element(reduction_order::rows_then_group, reduction_order::group_then_rows,
                                reduction_order::group_on_logits);
  how.last_rows = *rc::gen::element(0, 0, 1, 3, 16);
  return how;
}

/// An executor with the scratch of both verbs.
struct ready_executor : kv::host_executor {
  ready_executor(kv::isa level, mock_cache const& cache, int threads = 1) : kv::host_executor(threads, level) {
    reserve(kv::implementation<kv::ops::logits_t, kv::host>::scratch(cache.model(), cache.options().bound));
    reserve(kv::implementation<kv::ops::mean_row_t, kv::host>::scratch(cache.model(), cache.options().bound));
  }
};

/// The first lane whose logits are not the reference's. Sums of products of numbers up to 2 may cancel.
comparison agrees(mock_cache& cache, mock_queries& queries, kv::logits_options const& how, kv::isa level) {
  ready_executor exec(level, cache);
  owned_scores out(cache.lanes());
  kv::ops::logits(exec, kv::keys_of(cache.view()), queries.view(), how, old_plus_twice{}, out.view());
  for (int i = 0; i < cache.lane_count(); ++i) {
    reference::lane_attention lane = lane_of(cache, queries, cache.lane_at(i), how.last_rows);
    lane.scale = how.scale.has_value() ? static_cast<double>(*how.scale) : 0;
    auto expected = reference::reduced_logits(lane, static_cast<reference::reduction>(how.rows),
                                              static_cast<reference::reduction>(how.group),
                                              how.order == reduction_order::rows_then_group);
    for (double& each : expected) each = 0.5 + 2 * each;
    expected.resize(static_cast<std::size_t>(out.stride()), 0.5);
    double const largest = 8.0 * cache.model().head_dim * std::max(1, queries.rows()) * cache.model().group();
    comparison const result = compare(out.row(i, out.stride()), expected, largest);
    if (!result) return result;
  }
  return {};
}

/// Means of every lane, and one number more, which no verb may write.
struct owned_means {
  owned_means(mock_cache const& of, int channels)
      : stride(channels + 1), values(static_cast<std::size_t>(of.lane_count() * stride), 7.0f) {
    std::int64_t const layer = std::int64_t{of.model().kv_heads} * stride;
    view = {values.data(), layer * of.model().layers, layer, stride};
  }
  [[nodiscard]] std::span<float> row(int lane) {
    return {values.data() + static_cast<std::ptrdiff_t>(lane) * stride, static_cast<std::size_t>(stride)};
  }
  int stride;
  std::vector<float> values;
  kv::by_lane<float> view;
};

}  // namespace logits_test

TEST_SUITE("ops/logits") {
  using namespace logits_test;

  TEST_CASE("logits are the reference's in every reduction, order, layout and element type") {
    holds("logits == reference", [] {
      mock_options shape = any_mock(6);
      shape.rows = *rc::gen::element(content::smooth, content::few, content::troubled);
      RC_LOG() << shape << '\n';
      mock_cache cache(shape);
      fill(cache, true);
      int const rows = *rc::gen::element(1, 2, 5, 9, 33, 0);
      mock_queries queries(cache, *rc::gen::element(kv::codec::f32, kv::codec::f16, kv::codec::bf16), rows,
                           rows + *rc::gen::element(0, 0, 4));
      fill(queries, cache, *rc::gen::element(content::smooth, content::few));
      if (queries.ring() && shape.seed % 4 == 0) queries.set_valid(0, 0);
      auto const before = cache.save();
      kv::logits_options const how = any_options();
      for (kv::isa const level : every_isa) {
        comparison const result = agrees(cache, queries, how, std::min(level, kv::best_isa()));
        RC_LOG() << result;
        RC_ASSERT(result.same);
      }
      RC_ASSERT(cache.save() == before);
    });
  }

  TEST_CASE("more rows than a pass takes, and every number of entries, are reduced to the same") {
    for (int const entries : {1, 23, 24, 25, 4097}) {
      for (int const group : {1, 4, 8}) {
        mock_options const shape{.model = {.layers = 1, .query_heads = group, .kv_heads = 1, .head_dim = 16},
                                 .bound = entries,
                                 .element = entries % 2 == 0 ? kv::codec::bf16 : kv::codec::f16};
        mock_cache cache(shape);
        std::vector<int> every;
        for (int e = 0; e < entries; ++e) every.push_back(e);
        cache.put({}, every);
        mock_queries queries(cache, kv::codec::f32, entries > 100 ? 3 : 70, entries > 100 ? 3 : 70);
        fill(queries, cache, content::smooth);
        for (reduction const rows : {reduction::mean, reduction::max}) {
          for (reduction const heads : {reduction::sum, reduction::max}) {
            for (auto const order : {reduction_order::rows_then_group, reduction_order::group_then_rows}) {
              CAPTURE(entries);
              CAPTURE(group);
              comparison const found =
                  agrees(cache, queries, {.rows = rows, .group = heads, .order = order}, kv::best_isa());
              CHECK_MESSAGE(found.same, found);
            }
          }
        }
      }
    }
  }

  TEST_CASE("a NaN stays, an infinity without its opposite stays, and neither the cap nor sinks apply") {
    mock_cache cache({.model = {.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 4}});
    cache.put({}, {0, 1, 2});
    double const infinite = std::numeric_limits<double>::infinity();
    cache.write(of::keys, {}, 0, {std::numeric_limits<double>::quiet_NaN(), 1, 1, 1});
    cache.write(of::keys, {}, 1, {infinite, 1, 1, 1});
    cache.write(of::keys, {}, 2, {100, 100, 100, 100});
    mock_queries queries(cache, kv::codec::f32, 1, 1);
    queries.write(0, 0, 0, 0, {1, 2, 3, 4});
    kv::keys keys = kv::keys_of(cache.view());
    float const sink = 50;
    keys.logits = {.scale = 0.5f, .soft_cap = 10, .sinks = {&sink, 1}};
    for (reduction const how : {reduction::sum, reduction::max}) {
      ready_executor exec(kv::best_isa(), cache);
      owned_scores out(cache.lanes());
      kv::ops::logits(exec, keys, queries.view(), {.rows = how, .group = how}, kv::replaced{}, out.view());
      CHECK(std::isnan(out.row(0, 3)[0]));
      CHECK(static_cast<double>(out.row(0, 3)[1]) == infinite);
      CHECK(out.row(0, 3)[2] == 500);
    }
  }

  TEST_CASE("a wrong argument is named, and nothing is written") {
    mock_cache cache({});
    cache.put({}, {0});
    mock_queries queries(cache, kv::codec::f32, 1, 1);
    ready_executor exec(kv::best_isa(), cache);
    owned_scores out(cache.lanes()), shared(cache.lanes(), kv::granularity::sequence);
    kv::keys const keys = kv::keys_of(cache.view());
    auto const refused = [&](kv::query_view const& rows, kv::logits_options const& how, kv::score_view const& to) {
      return error_of([&] { kv::ops::logits(exec, keys, rows, how, kv::replaced{}, to); });
    };
    kv::query_view wide = queries.view();
    wide.dims = 5;
    CHECK(refused(wide, {}, out.view()) == "logits: queries.dims = 5, but keys and queries have one head size");
    CHECK(refused(queries.view(), {.scale = 0.0f}, out.view()) ==
          "logits: scale = 0, but products are multiplied by a finite number above 0");
    CHECK(refused(queries.view(), {.group = reduction::last}, out.view()) ==
          "logits: group = last, but query heads have no order");
    CHECK(refused(queries.view(), {.last_rows = -1}, out.view()) ==
          "logits: last_rows = -1, but a count cannot be negative");
    CHECK(refused(queries.view(), {}, shared.view()) == "logits: out.decides = 2, but keys belong to lanes");
    CHECK(error_of([&] { kv::ops::mean_row(exec, cache.lanes(), keys, {}, {}); }) ==
          "mean_row: out = null, but each lane's mean is written there: a scorer asks its plan for memory by "
          "`spare_rows`");
    for (float const each : out.all()) CHECK(each == 0.5f);
  }
}

TEST_SUITE("ops/mean_row") {
  using namespace logits_test;

  TEST_CASE("means of keys and values, as they are and of unit rows, are the reference's") {
    holds("mean_row == reference", [] {
      mock_options shape = any_mock(6);
      shape.rows = *rc::gen::element(content::smooth, content::few);
      RC_LOG() << shape << '\n';
      mock_cache cache(shape);
      fill(cache, true);
      bool const of_keys = *rc::gen::arbitrary<bool>();
      bool const unit = *rc::gen::arbitrary<bool>(), unit_mean = *rc::gen::arbitrary<bool>();
      kv::cache const view = cache.view();
      kv::row_view const rows = of_keys ? kv::row_view(kv::keys_of(view)) : kv::row_view(kv::values_of(view));
      for (kv::isa const level : every_isa) {
        ready_executor exec(std::min(level, kv::best_isa()), cache, *rc::gen::element(1, 3));
        owned_means out(cache, rows.rows.channels);
        owned_scores norms(cache.lanes());
        kv::ops::mean_row(exec, cache.lanes(), rows, {unit, unit_mean, norms.view().rows}, out.view);
        for (int i = 0; i < cache.lane_count(); ++i) {
          kv::lane const one = cache.lane_at(i);
          auto const of_rows = cache.rows(of_keys ? of::keys : of::values, one, cache.committed(one));
          auto const width = as_size(rows.rows.channels);
          auto const plain = reference::mean_row(of_rows, unit, false, width);
          if (unit_mean && reference::dot(plain, plain) < 1e-6) continue;  // what is left of numbers that cancel
          auto expected = reference::mean_row(of_rows, unit, unit_mean, width);
          expected.push_back(7);
          comparison const result = compare(out.row(i), expected, 1);
          RC_LOG() << result;
          RC_ASSERT(result.same);
          auto lengths = reference::row_norms(of_rows);
          for (double& each : lengths) each = each > 0 ? 1 / each : 0;
          RC_ASSERT(compare(norms.row(i, cache.committed(one)), lengths).same);
        }
      }
    });
  }

  TEST_CASE("means of 40,000 rows lose little, and unit rows of any size weigh alike") {
    mock_cache cache({.model = {.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 4}, .bound = 40000});
    std::vector<int> every;
    for (int e = 0; e < 40000; ++e) every.push_back(e);
    cache.put({}, every);
    for (int e = 0; e < 40000; ++e) {
      double const size = e % 2 == 0 ? 1e-30 : 1e30;
      cache.write(of::keys, {}, e, {3 * size, 0, 4 * size, 0});
      cache.write(of::values, {}, e, {1.1, 0.3, -0.7, e % 2 == 0 ? 1.0 : -1.0});
    }
    ready_executor exec(kv::best_isa(), cache);
    owned_means out(cache, 4);
    kv::ops::mean_row(exec, cache.lanes(), kv::keys_of(cache.view()), {.unit = true}, out.view);
    CHECK(compare(out.row(0), {0.6, 0, 0.8, 0, 7}).same);
    kv::ops::mean_row(exec, cache.lanes(), kv::values_of(cache.view()), {}, out.view);
    CHECK(compare(out.row(0), {1.1, 0.3, -0.7, 0, 7}).same);
  }
}
