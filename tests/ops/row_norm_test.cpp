// row_norm against the reference, for keys and values of every element type and layout.

#include <doctest/doctest.h>
#include <rapidcheck.h>

#include <kvpolicy/kvpolicy.hpp>
#include <vector>

#include "reference/methods.hpp"
#include "support/holds.hpp"
#include "support/mock_batch.hpp"
#include "support/mock_cache.hpp"
#include "support/mock_options.hpp"
#include "support/scores.hpp"

namespace {

using namespace kvpolicy_test;

struct old_plus_twice {
  float operator()(float old, float norm) const { return old + 2 * norm; }
};

struct just_norm {
  float operator()(float, float norm) const { return norm; }
};

}  // namespace

TEST_SUITE("ops/row_norm") {
  TEST_CASE("agrees with the reference for keys and values, and writes only committed entries") {
    holds("row_norm == reference", [] {
      mock_options shape = any_mock();
      shape.rows = *rc::gen::element(content::smooth, content::few, content::troubled);
      RC_LOG() << shape << '\n';
      mock_cache cache(shape);
      fill(cache, true);
      auto const before = cache.save();
      bool const of_keys = *rc::gen::arbitrary<bool>();
      kv::host_executor exec(*rc::gen::element(1, 3));
      owned_scores out(cache.lanes());
      kv::cache const view = cache.view();
      kv::row_view const rows = of_keys ? kv::row_view(kv::keys_of(view)) : kv::row_view(kv::values_of(view));
      kv::ops::row_norm(exec, rows, old_plus_twice{}, out.view());
      for (int i = 0; i < cache.lane_count(); ++i) {
        kv::lane const this_lane = cache.lane_at(i);
        auto expected =
            reference::row_norms(cache.rows(of_keys ? of::keys : of::values, this_lane, cache.committed(this_lane)));
        for (double& each : expected) each = 0.5 + 2 * each;
        expected.resize(static_cast<std::size_t>(out.stride()), 0.5);
        comparison const result = compare(out.row(i, out.stride()), expected);
        RC_LOG() << result;
        RC_ASSERT(result.same);
      }
      RC_ASSERT(cache.save() == before);
    });
  }

  TEST_CASE("rows of 1e30 do not overflow, and rows of 1e-30 do not vanish") {
    mock_cache cache({.model = {.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 4}});
    cache.put({0, 0, 0}, {0, 1});
    cache.write(of::keys, {0, 0, 0}, 0, {1e30, 1e30, 1e30, 1e30});
    cache.write(of::keys, {0, 0, 0}, 1, {1e-30, -1e-30, 1e-30, 1e-30});
    kv::host_executor exec;
    owned_scores out(cache.lanes());
    kv::ops::row_norm(exec, kv::keys_of(cache.view()), just_norm{}, out.view());
    CHECK(out.row(0, 2)[0] == doctest::Approx(2e30));
    CHECK(static_cast<double>(out.row(0, 2)[1]) * 1e30 == doctest::Approx(2.0));
  }

  TEST_CASE("refuses scores that are not made lane by lane") {
    mock_cache cache({});
    kv::host_executor exec;
    owned_scores out(cache.lanes(), kv::granularity::token);
    CHECK_THROWS_WITH_AS(kv::ops::row_norm(exec, kv::keys_of(cache.view()), just_norm{}, out.view()),
                         "row_norm: out.decides = 2, but rows belong to lanes", kv::invalid_argument);
  }
}
