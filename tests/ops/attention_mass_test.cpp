// SPDX-License-Identifier: Apache-2.0
// attention_mass against the reference in double, over every option, shape, memory layout and element type.

#include "reference/methods.hpp"
#include "support/masses.hpp"

namespace {

using namespace kvpolicy_test;

kv::attention_mass_options any_options() {
  kv::attention_mass_options how =
      any_mass_options({kv::key_domain::all, kv::key_domain::past}, {0, 0, 1, 2, 3, 16, 31, 100});
  how.accumulate = any_bool();
  return how;
}

reference::row expected_mass(mock_cache& cache, mock_queries& queries, kv::lane this_lane,
                             kv::attention_mass_options const& how) {
  reference::lane_attention lane = reference_lane(cache, queries, this_lane);
  if (how.last_rows > 0) lane = reference::last_rows(lane, how.last_rows);
  return reference::attention_mass(lane, in_double(how));
}

/// Gives every row its log-sum-exp, and `more`.
void give_lse(mock_cache& cache, mock_queries& queries, double more = 0) {
  kvpolicy_test::give_lse(cache, queries, [&](kv::lane at) { return reference_lane(cache, queries, at); }, more);
}

/// Checks every lane, and that nothing behind the committed entries was written.
comparison agrees(mock_cache& cache, mock_queries& queries, kv::attention_mass_options const& how,
                  kv::isa simd_level = kv::best_isa()) {
  kv::host_executor exec(1, simd_level);
  auto const lanes = cache.lanes();
  owned_scores out(lanes);
  write_masses(exec, cache.model(), kv::keys_of(cache.view()), queries.view(), how, out.view());
  for (int i = 0; i < cache.lane_count(); ++i) {
    int const committed = cache.committed(cache.lane_at(i));
    reference::row expected = expected_mass(cache, queries, cache.lane_at(i), how);
    if (how.accumulate) {
      for (double& each : expected) each += 0.5;  // what was in the row before
    }
    expected.resize(as_size(out.stride()), 0.5);
    auto const result = compare(out.row(i, out.stride()), expected);
    if (!result) {
      INFO("lane ", i, ", committed ", committed);
      return result;
    }
  }
  return {};
}

}  // namespace

TEST_SUITE("ops/attention_mass") {
  TEST_CASE("agrees with the reference in every domain, reduction and order, and writes only committed entries") {
    holds("attention mass == reference", 400, [] {
      mock_options const shape = any_batch({content::smooth, content::few}, 12);
      filled_cache cache(shape, any_bool());
      int const rows = std::min(*rc::gen::element(1, 2, 3, 0, 15, 16, 17, 33), shape.bound + 10);
      mock_queries queries(cache, any_float(), rows, rows + *rc::gen::element(0, 0, 1, 4));
      fill(queries, cache, shape.rows);
      auto const before = cache.save();
      auto const how = any_options();
      assert_same(agrees(cache, queries, how, any_isa()));
      RC_ASSERT(cache.save() == before);
    });
  }

  TEST_CASE("sums of the softmax that the engine gives are taken where they are sums over these keys") {
    holds("attention mass with log-sum-exp == reference", 200, [] {
      mock_options shape = any_mock();
      RC_LOG() << shape << '\n';
      filled_cache cache(shape, any_bool());
      int const rows = std::min(*rc::gen::element(1, 2, 3, 15, 17, 33, 40), shape.bound + 10);
      filled_queries queries(cache, *rc::gen::element(kv::codec::f32, kv::codec::bf16), rows,
                             rows + *rc::gen::element(0, 0, 4));
      give_lse(cache, queries);
      assert_same(agrees(cache, queries, any_options(), any_isa()));
    });
  }

  TEST_CASE("a log-sum-exp that says half says half") {
    mock_options const shape{.model = {.layers = 1, .query_heads = 4, .kv_heads = 2, .head_dim = 8}, .bound = 50};
    filled_cache cache(shape, false);
    filled_queries queries(cache, kv::codec::f32, 2, 2);
    owned_scores plain(cache.lanes()), halved(cache.lanes());
    kv::host_executor exec;
    write_masses(exec, cache.model(), kv::keys_of(cache.view()), queries.view(), {}, plain.view());
    give_lse(cache, queries, std::log(2.0));
    write_masses(exec, cache.model(), kv::keys_of(cache.view()), queries.view(), {}, halved.view());
    for (int i = 0; i < cache.lane_count(); ++i) {
      for (int e = 0; e < cache.committed(cache.lane_at(i)); ++e) {
        auto const at = as_size(e);
        CHECK(close(2 * static_cast<double>(halved.row(i, 50)[at]), static_cast<double>(plain.row(i, 50)[at])));
      }
    }
  }

  TEST_CASE("probabilities below e^-87 of their row's maximum are 0 and tie, down to the last that is not") {
    std::vector<double> const logits{0, -200, -120, -103, -90, -88, -86, -80, 0};
    mock_options const shape{.model = {.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 4}, .bound = 9};
    mock_cache cache(shape);
    cache.put({0, 0, 0}, {0, 1, 2, 3, 4, 5, 6, 7, 8});
    for (int e = 0; e < 9; ++e) cache.write(of::keys, {0, 0, 0}, e, {logits[as_size(e)], 0, 0, 0});
    mock_queries queries(cache, kv::codec::f32, 1, 1);
    queries.write(0, 0, 0, 0, {2, 0, 0, 0});  // scaled by 1 / sqrt(4)
    queries.set_position(0, 0, 8);
    for (kv::isa const simd_level : every_isa) {
      kv::host_executor exec(1, simd_level);
      owned_scores out(cache.lanes());
      write_masses(exec, cache.model(), kv::keys_of(cache.view()), queries.view(), {}, out.view());
      auto const mass = out.row(0, 9);
      for (std::size_t e = 1; e <= 5; ++e) CHECK(mass[e] == 0.0f);
      CHECK(static_cast<double>(mass[6]) == doctest::Approx(std::exp(-86.0) / 2).epsilon(1e-4));
      CHECK(static_cast<double>(mass[7]) == doctest::Approx(std::exp(-80.0) / 2).epsilon(1e-4));
      CHECK(static_cast<double>(mass[0]) == doctest::Approx(0.5));
    }
  }

  TEST_CASE("passes NaN on exactly where the reference does, and copes with infinite keys") {
    holds("attention mass with NaN == reference", [] {
      mock_options shape = any_mock(4);
      shape.rows = content::troubled;
      RC_LOG() << shape << '\n';
      filled_cache cache(shape, false);
      int const rows = std::min(*rc::gen::element(3, 20), shape.bound + 10);
      mock_queries queries(cache, *rc::gen::element(kv::codec::f32, kv::codec::bf16), rows, rows);
      fill(queries, cache, *rc::gen::element(content::troubled, content::smooth));
      assert_same(agrees(cache, queries, any_options(), any_isa()));
    });
  }

  TEST_CASE("agrees with the reference on 4097 entries, in every order") {
    mock_options const shape{.model = {.layers = 1, .query_heads = 2, .kv_heads = 1, .head_dim = 16}, .bound = 4097};
    mock_cache cache(shape);
    cache.put({0, 0, 0}, up_to(4097));
    filled_queries queries(cache, kv::codec::f32, 3, 3);
    for (int r = 0; r < 3; ++r) queries.set_position(0, r, 4094 + r);
    for (auto const order : {kv::reduction_order::rows_then_group, kv::reduction_order::group_then_rows,
                             kv::reduction_order::group_on_logits}) {
      CHECK(agrees(cache, queries, {.order = order}));
    }
  }

  TEST_CASE("reduces the lanes that decide together last, and keeps to the layers that it was given") {
    holds("mass of a layer or a token == reduced masses of its lanes", [] {
      mock_options shape = any_mock();
      shape.shared_entries = true;
      filled_cache cache(shape);
      filled_queries queries(cache, kv::codec::f32, 3, 3);
      kv::attention_mass_options how = any_options();
      how.accumulate = false;
      how.lanes = *rc::gen::element(kv::reduction::sum, kv::reduction::mean, kv::reduction::max);
      auto const decides = *rc::gen::element(kv::granularity::lane, kv::granularity::layer, kv::granularity::sequence);
      int const begin = *rc::gen::inRange(0, shape.model.layers);
      auto const lanes = cache.lanes().layers_only(begin, *rc::gen::inRange(begin + 1, shape.model.layers + 1));
      kv::host_executor exec(2);
      owned_scores out(lanes, decides);
      write_masses(exec, cache.model(), kv::keys_of(cache.view()), queries.view(), how, out.view());
      for (int segment = 0; segment < kv::segments(lanes, decides); ++segment) {
        reference::matrix masses;
        for (int i = 0; i < lanes.size(); ++i) {
          kv::lane const this_lane = lanes.at(i);
          bool const inside = decides == kv::granularity::lane    ? i == segment
                              : decides == kv::granularity::layer ? i / lanes.heads == segment
                                                                  : this_lane.sequence == segment;
          if (inside) masses.push_back(expected_mass(cache, queries, this_lane, how));
        }
        int const count = cache.committed(lanes.at(kv::first_lane(lanes, decides, segment)));
        auto const all = reference::reduced(masses, static_cast<reference::reduction>(how.lanes), as_size(count));
        comparison const result = compare(out.row(segment, count), all);
        RC_LOG() << "segment " << segment << ", " << result;
        RC_ASSERT(result.same);
      }
    });
  }

  TEST_CASE("rows without positions see every entry") {
    mock_options const shape{.model = {.layers = 1, .query_heads = 4, .kv_heads = 1, .head_dim = 5}, .bound = 9};
    mock_cache cache(shape);
    cache.put({0, 0, 0}, {2, 3, 5, 7, 11, 13, 17});
    cache.set_drafts(0, 1);
    filled_queries queries(cache, kv::codec::bf16, 2, 2);
    kv::query_view everywhere = queries.view();
    everywhere.position = {};
    for (int r = 0; r < 2; ++r) queries.set_position(0, r, 13 + r);
    reference::lane_attention lane = reference_lane(cache, queries, {0, 0, 0});
    REQUIRE(lane.query_positions.size() == 1);  // the other is after the last committed entry
    kv::host_executor exec;
    owned_scores out(cache.lanes());
    for (auto const domain : {kv::key_domain::all, kv::key_domain::past}) {
      write_masses(exec, cache.model(), kv::keys_of(cache.view()), everywhere, {.domain = domain, .last_rows = 2},
                   out.view());
      lane.query_positions = {99, 99};
      for (int h = 0; h < 4; ++h) {
        lane.queries[as_size(h)] = {queries.row(0, 0, h, 0), queries.row(0, 0, h, 1)};
      }
      CHECK(compare(out.row(0, 6), reference::attention_mass(lane, {})));
    }
  }

  TEST_CASE("gives the same bits for any number of threads") {
    holds("1 thread == 3 threads", 30, [] {
      mock_options const shape = any_mock();
      filled_cache cache(shape);
      filled_queries queries(cache, kv::codec::f32, 3, 5);
      auto const how = any_options();
      std::vector<float> results[2];
      for (int const threads : {1, 3}) {
        kv::host_executor exec(threads);
        owned_scores out(cache.lanes());
        write_masses(exec, cache.model(), kv::keys_of(cache.view()), queries.view(), how, out.view());
        results[threads / 3] = out.all();
      }
      RC_ASSERT(results[0] == results[1]);
    });
  }

  TEST_CASE("workers that are busy at the same time do not disturb each other") {
    mock_options const shape{
        .model = {.layers = 4, .query_heads = 8, .kv_heads = 8, .head_dim = 16}, .sequences = 1, .bound = 400};
    mock_cache cache(shape);
    for (int i = 0; i < cache.lane_count(); ++i) cache.put(cache.lane_at(i), cache.random().subset(500, 400));
    filled_queries queries(cache, kv::codec::f32, 16, 16);
    std::vector<float> alone;
    for (int const threads : {1, 3, 3, 3}) {
      kv::host_executor exec(threads);
      owned_scores out(cache.lanes());
      write_masses(exec, cache.model(), kv::keys_of(cache.view()), queries.view(), {}, out.view());
      if (threads == 1) alone = out.all();
      CHECK(out.all() == alone);
    }
  }

  TEST_CASE("reduces over the whole window when only its last row counts") {
    mock_options const shape{.model = {.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 4}, .bound = 8};
    mock_cache cache(shape);
    cache.put({0, 0, 0}, {0, 1, 2, 3, 4, 5, 6, 7});
    filled_queries queries(cache, kv::codec::f32, 3, 3);
    for (int r = 0; r < 3; ++r) queries.set_position(0, r, 5 + r);
    CHECK(agrees(cache, queries, {.domain = kv::key_domain::past, .rows = kv::reduction::last}));
    CHECK(agrees(cache, queries, {.domain = kv::key_domain::past, .rows = kv::reduction::last, .last_rows = 2}));
  }

  TEST_CASE("refuses what has no meaning and names it") {
    mock_options const shape{.model = {.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 4}};
    mock_cache cache(shape);
    mock_queries queries(cache, kv::codec::f32, 2, 2);
    kv::host_executor exec;
    owned_scores out(cache.lanes());
    auto const mass = [&](kv::query_view const& rows, kv::attention_mass_options const& how, kv::score_view to) {
      kv::ops::compute_attention_mass(exec, kv::keys_of(cache.view()), rows, how, to);
    };
    kv::query_view wide = queries.view();
    wide.dims = 5;
    CHECK(error_of([&] { mass(wide, {}, out.view()); }) ==
          "compute_attention_mass: queries.dims = 5, but keys and queries have one head size");
    kv::query_view none = queries.view();
    none.rows = -1;
    CHECK(error_of([&] { mass(none, {}, out.view()); }) ==
          "compute_attention_mass: queries.rows = -1, but a count cannot be negative");
    CHECK(error_of([&] { mass(queries.view(), {.last_rows = -2}, out.view()); }) ==
          "compute_attention_mass: last_rows = -2, but a count cannot be negative");
    CHECK(error_of([&] { mass(queries.view(), {.group = kv::reduction::last}, out.view()); }) ==
          "compute_attention_mass: group = last, but query heads have no order");
    CHECK(error_of([&] { mass(queries.view(), {.lanes = kv::reduction::last}, out.view()); }) ==
          "compute_attention_mass: lanes = last, but lanes have no order");
    kv::score_view layered = out.view();
    layered.decides = kv::granularity::layer;
    CHECK(error_of([&] { mass(queries.view(), {.accumulate = true}, layered); }) ==
          "compute_attention_mass: accumulate = true, but mass accumulates lane by lane");
    for (float const each : out.all()) CHECK(each == 0.5f);
  }
}
