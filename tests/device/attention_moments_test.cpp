// SPDX-License-Identifier: Apache-2.0
// attention_moments against the reference, on the host and on the emulated device.

#include "support/device.hpp"
#include "support/masses.hpp"

namespace attention_moments_test {

using namespace kvpolicy_test;

template <class Executor>
rows_of_numbers computed(Executor& exec, mock_cache& cache, kv::query_view const& rows,
                         kv::moments_options const& how) {
  reserve_for<kv::ops::attention_moments_t>(exec, cache);
  rows_of_numbers made(cache, 3);
  kv::ops::attention_moments(exec, kv::keys_of(cache.view()), rows, how, {made.rows(1).rows, made.rows(2).rows},
                             made.rows(0));
  if constexpr (requires { exec.check(); }) exec.check();
  return made;
}

bool close(float a, double b) { return std::fabs(static_cast<double>(a) - b) <= 3e-5 * (1 + std::fabs(b)); }

TEST_SUITE("device/attention_moments") {
  TEST_CASE("moments of each head are the reference's, alone and added up") {
    holds("attention_moments == reference", 60, [] {
      current_case of({1, 2, 0, 9, 16, 33});
      auto& [shape, cache, rows, queries] = of;
      int const group = rows == 0 ? 1 : queries.view().heads / cache.model().kv_heads;
      kv::moments_options const how{.head = *rc::gen::inRange(0, group),
                                    .last_rows = *rc::gen::element(0, 1, 2, 5, 40),
                                    .gamma = *rc::gen::element(0.0f, 1.0f, 200.0f),
                                    .accumulate = any_bool()};
      kv::isa const level = *rc::gen::element(kv::isa::portable, kv::isa::avx2, kv::isa::avx512);
      kv::host_executor host(*rc::gen::element(1, 3), level);
      device_executor device({}, shape.seed);
      auto on_host = computed(host, cache, queries.view(), how),
           on_device = computed(device, cache, queries.view(), how);
      for (kv::lane const one : lanes_of(cache)) {
        auto const lane = reference_lane(cache, queries, one);
        reference::attention_moments expected;
        if (lane.query_positions.empty()) {
          reference::row const none(as_size(cache.committed(one)), 0.0);
          expected = {none, none, none};
        } else {
          expected = reference::moments_of_head(lane, as_size(how.head), how.last_rows);
        }
        double const before = how.accumulate ? 0.5 : 0;
        for (int e = 0; e < cache.committed(one); ++e) {
          double const variance = expected.variance[as_size(e)];
          double const score = expected.mean[as_size(e)] + static_cast<double>(how.gamma) * variance;
          for (rows_of_numbers* each : {&on_host, &on_device}) {
            RC_ASSERT(close(each->rows(0).rows.row(one)[e], score));
            RC_ASSERT(close(each->rows(1).rows.row(one)[e], before + variance));
            RC_ASSERT(close(each->rows(2).rows.row(one)[e], before + expected.entropy[as_size(e)]));
          }
        }
      }
    });
  }

  TEST_CASE("what is not there is refused by name") {
    mock_cache cache({.model = {.layers = 1, .query_heads = 2, .kv_heads = 1, .head_dim = 4}, .bound = 8});
    cache.put(cache.lane_at(0), up_to(4));
    mock_queries queries(cache, kv::codec::f32, 2, 2);
    kv::host_executor exec;
    auto const refused = [&](kv::moments_options const& how, auto const& change) {
      rows_of_numbers to(cache, 3);
      kv::moment_rows rows{to.rows(1).rows, to.rows(2).rows};
      change(rows);
      return error_of(
          [&] { kv::ops::attention_moments(exec, kv::keys_of(cache.view()), queries.view(), how, rows, to.rows(0)); });
    };
    auto const as_it_is = [](kv::moment_rows&) {};
    CHECK(refused({.head = 2}, as_it_is) == "attention_moments: head = 2, but it is one of a group's query heads");
    CHECK(refused({.last_rows = -1}, as_it_is) ==
          "compute_attention_mass: last_rows = -1, but a count cannot be negative");
    CHECK(refused({}, [](kv::moment_rows& rows) { rows.entropy = {}; }) ==
          "attention_moments: to.entropy = null, but each entry has an entropy");
    CHECK(refused({}, [](kv::moment_rows& rows) { rows.variance = {}; }) ==
          "attention_moments: to.variance = null, but each entry has a variance");
  }
}

}  // namespace attention_moments_test
