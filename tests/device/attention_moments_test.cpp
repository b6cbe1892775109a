// SPDX-License-Identifier: Apache-2.0
// attention_moments against the reference, on the host and on the emulated device.

#include "reference/attention.hpp"
#include "support/device.hpp"
#include "support/masses.hpp"
#include "support/test.hpp"

namespace attention_moments_test {

using namespace kvpolicy_test;

/// What a call wrote for each lane.
struct found {
  explicit found(mock_cache& of)
      : lanes(of.lanes()), stride(of.options().bound), memory(as_size(3 * of.lane_count() * stride), 0.5f) {}
  [[nodiscard]] kv::score_view rows(int which) {
    std::int64_t const all = std::int64_t{lanes.size()} * stride;
    return kv::contiguous_scores(lanes, kv::granularity::lane, memory.data() + which * all, stride);
  }
  kv::lanes lanes;
  int stride;
  std::vector<float> memory;
};

template <class Executor>
found computed(Executor& exec, mock_cache& cache, kv::query_view const& rows, kv::moments_options const& how) {
  exec.reserve(kv::detail::scratch_of_verb<kv::ops::attention_moments_t, typename Executor::backend>(cache.model(),
                                                                                                     cache.lanes()));
  found made(cache);
  kv::ops::attention_moments(exec, kv::keys_of(cache.view()), rows, how, {made.rows(1).rows, made.rows(2).rows},
                             made.rows(0));
  if constexpr (requires { exec.check(); }) exec.check();
  return made;
}

bool close(float a, double b) { return std::fabs(static_cast<double>(a) - b) <= 3e-5 * (1 + std::fabs(b)); }

}  // namespace attention_moments_test

TEST_SUITE("device/attention_moments") {
  using namespace attention_moments_test;

  TEST_CASE("moments of each head are the reference's, alone and added up") {
    holds("attention_moments == reference", 60, [] {
      mock_options shape = any_mock(6);
      shape.skew = 0;
      shape.rows = *rc::gen::element(content::smooth, content::few);
      RC_LOG() << shape << '\n';
      mock_cache cache(shape);
      fill(cache, true);
      int const rows = *rc::gen::element(1, 2, 0, 9, 16, 33);
      mock_queries queries(cache, *rc::gen::element(kv::codec::f32, kv::codec::f16, kv::codec::bf16), rows, rows + 2);
      fill_current(queries, cache, content::smooth);
      int const group = rows == 0 ? 1 : queries.view().heads / cache.model().kv_heads;
      kv::moments_options const how{.head = *rc::gen::inRange(0, group),
                                    .last_rows = *rc::gen::element(0, 1, 2, 5, 40),
                                    .gamma = *rc::gen::element(0.0f, 1.0f, 200.0f),
                                    .accumulate = *rc::gen::arbitrary<bool>()};
      kv::isa const level = *rc::gen::element(kv::isa::portable, kv::isa::avx2, kv::isa::avx512);
      kv::host_executor host(*rc::gen::element(1, 3), level);
      device_executor device({}, shape.seed);
      found on_host = computed(host, cache, queries.view(), how),
            on_device = computed(device, cache, queries.view(), how);
      for (int i = 0; i < cache.lane_count(); ++i) {
        kv::lane const one = cache.lane_at(i);
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
          for (found* each : {&on_host, &on_device}) {
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
      found to(cache);
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
