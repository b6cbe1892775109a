// SPDX-License-Identifier: Apache-2.0
// logits and mean_row against the reference.

#include "reference/methods.hpp"
#include "support/verbs.hpp"

namespace logits_test {

using namespace kvpolicy_test;
using kv::reduction;
using kv::reduction_order;

kv::logits_options any_options() {
  kv::logits_options how;
  if (any_bool()) how.scale = *rc::gen::element(1.0f, 0.25f);
  how.rows = *rc::gen::element(reduction::sum, reduction::mean, reduction::max, reduction::last);
  how.group = *rc::gen::element(reduction::sum, reduction::mean, reduction::max);
  how.order = *rc::gen::element(reduction_order::rows_then_group, reduction_order::group_then_rows,
                                reduction_order::group_on_logits);
  how.last_rows = *rc::gen::element(0, 0, 1, 3, 16);
  return how;
}

/// An executor with the scratch of both verbs.
struct ready_executor : kv::host_executor {
  ready_executor(kv::isa level, mock_cache& cache, int threads = 1) : kv::host_executor(threads, level) {
    reserve_for<kv::ops::logits_t, kv::ops::mean_row_t>(*this, cache);
  }
};

/// The first lane whose logits are not the reference's. Sums of products of numbers up to 2 may cancel.
comparison agrees(mock_cache& cache, mock_queries& queries, kv::logits_options const& how, kv::isa level) {
  ready_executor exec(level, cache);
  owned_scores out(cache.lanes());
  kv::ops::logits(exec, kv::keys_of(cache.view()), queries.view(), how, old_plus_twice{}, out.view());
  double const largest = 8.0 * cache.model().head_dim * std::max(1, queries.rows()) * cache.model().group();
  return compare_twice(cache, out, largest, [&](int, kv::lane one) {
    reference::lane_attention lane = all_rows_of(cache, queries, one, how.last_rows);
    lane.scale = how.scale.has_value() ? static_cast<double>(*how.scale) : 0;
    return reference::reduced_logits(lane, static_cast<reference::reduction>(how.rows),
                                     static_cast<reference::reduction>(how.group),
                                     how.order == reduction_order::rows_then_group);
  });
}

TEST_SUITE("ops/logits") {
  TEST_CASE("logits are the reference's in every reduction, order, layout and element type") {
    holds("logits == reference", [] {
      mock_options const shape = any_batch({content::smooth, content::few, content::troubled}, 6);
      filled_cache cache(shape);
      int const rows = *rc::gen::element(1, 2, 5, 9, 33, 0);
      mock_queries queries(cache, any_float(), rows, rows + *rc::gen::element(0, 0, 4));
      fill(queries, cache, *rc::gen::element(content::smooth, content::few));
      if (queries.ring() && shape.seed % 4 == 0) queries.set_valid(0, 0);
      auto const before = cache.save();
      kv::logits_options const how = any_options();
      agrees_on_every_isa([&](kv::isa level) { return agrees(cache, queries, how, level); });
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
        cache.put({}, up_to(entries));
        filled_queries queries(cache, kv::codec::f32, entries > 100 ? 3 : 70, entries > 100 ? 3 : 70);
        for (reduction const rows : {reduction::mean, reduction::max}) {
          for (reduction const heads : {reduction::sum, reduction::max}) {
            for (auto const order : {reduction_order::rows_then_group, reduction_order::group_then_rows}) {
              INFO("entries ", entries, ", group ", group);
              check_same(agrees(cache, queries, {.rows = rows, .group = heads, .order = order}, kv::best_isa()));
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
  TEST_CASE("means of keys and values, as they are and of unit rows, are the reference's") {
    holds("mean_row == reference", [] {
      mock_options const shape = any_batch({content::smooth, content::few}, 6);
      filled_cache cache(shape);
      bool const of_keys = any_bool();
      bool const unit = any_bool(), unit_mean = any_bool();
      kv::cache const view = cache.view();
      kv::row_view const rows = of_keys ? kv::row_view(kv::keys_of(view)) : kv::row_view(kv::values_of(view));
      for (kv::isa const level : every_isa) {
        ready_executor exec(level, cache, *rc::gen::element(1, 3));
        owned_rows out(cache, rows.rows.channels);
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
          assert_same(compare(out.row(i), expected, 1));
          auto lengths = reference::row_norms(of_rows);
          for (double& each : lengths) each = each > 0 ? 1 / each : 0;
          RC_ASSERT(compare(norms.row(i, cache.committed(one)), lengths).same);
        }
      }
    });
  }

  TEST_CASE("means of 40,000 rows lose little, and unit rows of any size weigh alike") {
    mock_cache cache({.model = {.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 4}, .bound = 40000});
    cache.put({}, up_to(40000));
    for (int e = 0; e < 40000; ++e) {
      double const size = e % 2 == 0 ? 1e-30 : 1e30;
      cache.write(of::keys, {}, e, {3 * size, 0, 4 * size, 0});
      cache.write(of::values, {}, e, {1.1, 0.3, -0.7, e % 2 == 0 ? 1.0 : -1.0});
    }
    ready_executor exec(kv::best_isa(), cache);
    owned_rows out(cache, 4);
    kv::ops::mean_row(exec, cache.lanes(), kv::keys_of(cache.view()), {.unit = true}, out.view);
    CHECK(compare(out.row(0), {0.6, 0, 0.8, 0, 7}).same);
    kv::ops::mean_row(exec, cache.lanes(), kv::values_of(cache.view()), {}, out.view);
    CHECK(compare(out.row(0), {1.1, 0.3, -0.7, 0, 7}).same);
  }
}

}  // namespace logits_test
