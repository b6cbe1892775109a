// SPDX-License-Identifier: Apache-2.0
// projected_norm against the reference.

#include "reference/methods.hpp"
#include "support/projection.hpp"
#include "support/verbs.hpp"

namespace projected_norm_test {

using namespace kvpolicy_test;
using kv::norm_of_row;

/// The first lane whose norms are not the reference's.
comparison agrees(mock_cache& cache, mock_projection const& by, norm_of_row norm, kv::isa level, int threads = 1) {
  kv::host_executor exec(threads, level);
  reserve_for<kv::ops::projected_norm_t>(exec, cache);
  owned_scores out(cache.lanes());
  kv::ops::projected_norm(exec, kv::values_of(cache.view()), by.view(), {norm}, old_plus_twice{}, out.view());
  return compare_twice(cache, out, by.view().width, [&](int, kv::lane one) {
    return reference::projected_norms(cache.rows(of::values, one, cache.committed(one)), by.heads_of(one),
                                      norm == norm_of_row::l1);
  });
}

TEST_SUITE("ops/projected_norm") {
  TEST_CASE("norms are the reference's in every layout and element type of values and projection") {
    holds("projected_norm == reference", [] {
      mock_options const shape = any_batch({content::smooth, content::few, content::troubled}, 6);
      filled_cache cache(shape);
      int const width = *rc::gen::element(1, 2, 5, 16, 17, 32, 33, 130);
      mock_projection const by(cache.model(), any_float(), width, *rc::gen::element(0, 0, 3), shape.seed);
      auto const before = cache.save();
      auto const norm = *rc::gen::element(norm_of_row::l1, norm_of_row::l2);
      agrees_on_every_isa([&](kv::isa level) { return agrees(cache, by, norm, level, *rc::gen::element(1, 3)); });
      RC_ASSERT(cache.save() == before);
    });
  }

  TEST_CASE("more rows than a pass takes, and every number of entries, are added up") {
    for (int const entries : {1, 23, 24, 25, 700}) {
      for (int const group : {1, 3}) {
        mock_options const shape{.model = {.layers = 1, .query_heads = group, .kv_heads = 1, .head_dim = 16},
                                 .bound = entries,
                                 .element = entries % 2 == 0 ? kv::codec::bf16 : kv::codec::f16};
        mock_cache cache(shape);
        cache.put({}, up_to(entries));
        mock_projection const by(cache.model(), kv::codec::f32, 1000, 0, 7);
        for (norm_of_row const norm : {norm_of_row::l1, norm_of_row::l2}) {
          INFO("entries ", entries, ", group ", group);
          check_same(agrees(cache, by, norm, kv::best_isa()));
        }
      }
    }
  }

  TEST_CASE("worked numbers, and what is not a number") {
    mock_cache cache({.model = {.layers = 1, .query_heads = 2, .kv_heads = 1, .head_dim = 2}});
    cache.put({}, {0, 1, 2});
    cache.write(of::values, {}, 0, {1, 2});
    cache.write(of::values, {}, 1, {std::numeric_limits<double>::infinity(), 1});
    cache.write(of::values, {}, 2, {std::numeric_limits<double>::quiet_NaN(), 1});
    mock_projection by(cache.model(), kv::codec::f32, 2, 0, 1);
    double const numbers[2][2][2] = {{{1, 1}, {2, 0}}, {{3, -2}, {-1, 1}}};  // [channel][head][d]
    for (int c = 0; c < 2; ++c) {
      for (int h = 0; h < 2; ++h) {
        for (int d = 0; d < 2; ++d) by.write({}, c, h, d, numbers[c][h][d]);
      }
    }
    kv::host_executor exec;
    exec.reserve(kv::implementation<kv::ops::projected_norm_t, kv::host>::scratch(cache.model(), 16));
    owned_scores out(cache.lanes());
    auto const run = [&](norm_of_row norm) {
      kv::ops::projected_norm(exec, kv::values_of(cache.view()), by.view(), {norm}, kv::replaced{}, out.view());
      CHECK(out.row(0, 3)[1] == std::numeric_limits<float>::infinity());
      CHECK(std::isnan(out.row(0, 3)[2]));
      return static_cast<double>(out.row(0, 3)[0]);
    };
    CHECK(run(norm_of_row::l1) == 3.5);  // head 0: |3| + |-1|, head 1: |2| + |1|
    CHECK(run(norm_of_row::l2) == doctest::Approx((std::sqrt(10.0) + std::sqrt(5.0)) / 2));
  }

  TEST_CASE("a wrong argument is named, and nothing is written") {
    mock_cache cache({.model = {.layers = 1, .query_heads = 2, .kv_heads = 2, .head_dim = 4}});
    cache.put({}, {0});
    mock_projection const by(cache.model(), kv::codec::f32, 3, 0, 1);
    kv::host_executor exec;
    owned_scores out(cache.lanes()), shared(cache.lanes(), kv::granularity::sequence);
    auto const refused = [&](kv::output_projection const& with, kv::score_view const& to) {
      return error_of(
          [&] { kv::ops::projected_norm(exec, kv::values_of(cache.view()), with, {}, kv::replaced{}, to); });
    };
    auto const changed = [&](auto const& change) {
      kv::output_projection with = by.view();
      change(with);
      return refused(with, out.view());
    };
    CHECK(changed([](auto& with) { with.base = nullptr; }) ==
          "projected_norm: output_projection = null, but a signal is the engine's memory");
    CHECK(changed([](auto& with) { with.dims = 5; }) ==
          "projected_norm: output_projection.dims = 5, but values have 4 channels");
    CHECK(changed([](auto& with) { with.width = 0; }) ==
          "projected_norm: output_projection.width = 0, but a layer's output has channels");
    CHECK(changed([](auto& with) { with.heads = 3; }) ==
          "projected_norm: output_projection.heads = 3, but query heads are shared out evenly among KV heads");
    CHECK(changed([](auto& with) { with.element = kv::codec::e4m3; }) ==
          "projected_norm: output_projection = e4m3, but it is f32, f16 or bf16: only keys and values may be fp8");
    CHECK(refused(by.view(), shared.view()) == "projected_norm: out.decides = 2, but values belong to lanes");
    for (float const each : out.all()) CHECK(each == 0.5f);
  }

  TEST_CASE("signals that do not fit the model are refused") {
    kv::shape const model{.layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 4, .value_dim = 3};
    std::vector<float> const numbers(as_size(2 * 5 * 12), 1.0f);
    kv::output_projection const sound = kv::output_projection_of(numbers.data(), kv::codec::f32, 5, model);
    CHECK(sound.channel == 48);
    CHECK(sound.layer == 240);
    owned_lanes const lanes(1, 2, 2, 8, std::vector<int>(4, 8));
    auto const refused = [&](auto const& change) {
      kv::output_projection with = sound;
      change(with);
      return error_of([&] {
        with.check("here", model);
        with.check_strides("here", lanes.view());
      });
    };
    CHECK(refused([](auto&) {}).empty());
    CHECK(refused([](auto& with) { with.dims = 4; }) == "here: output_projection.dims = 4, but values have 3 channels");
    CHECK(refused([](auto& with) { with.heads = 2; }) ==
          "here: output_projection.heads = 2, but the model has 4 query heads");
    CHECK(refused([](auto& with) {
            with.layer = 0;
          }).starts_with("here: output_projection.layer = 0, but there are 2 layers"));
    CHECK(error_of([&] { kv::value_norms{}.check("here", model); }) ==
          "here: value_norms = null, but a signal is the engine's memory");
    CHECK(error_of([&] {
            kv::value_norms{{numbers.data(), 0, 8, 0}}.check_strides("here", lanes.view());
          }).starts_with("here: value_norms.head = 0"));
  }
}

}  // namespace projected_norm_test
