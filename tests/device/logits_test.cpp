// SPDX-License-Identifier: Apache-2.0
// The device's logits and means of rows against the host's, over every option, shape, memory layout and element type.

#include "support/device.hpp"
#include "support/test.hpp"

namespace device_logits_test {

using namespace kvpolicy_test;

struct old_plus_twice {
  KVPOLICY_HD float operator()(float old, float now) const { return old + 2 * now; }
};

launch_numbers any_numbers() {
  launch_numbers numbers;
  numbers.entry_threads = *rc::gen::element(64, 32, 128);
  numbers.entries_of_a_block = *rc::gen::element(128, 512);
  numbers.processors = *rc::gen::element(1, 3);
  return numbers;
}

/// `slack`: what rounding may take from sums that cancel.
bool alike(std::vector<float> const& found, std::vector<float> const& expected, double slack) {
  for (std::size_t i = 0; i < found.size(); ++i) {
    auto const a = static_cast<double>(found[i]), b = static_cast<double>(expected[i]);
    if (a == b || (std::isnan(a) && std::isnan(b)) || std::abs(a - b) <= slack) continue;
    RC_LOG() << "number " << i << ": " << a << ", the host says " << b << '\n';
    return false;
  }
  return true;
}

template <class Executor>
std::vector<float> logits_of(Executor& exec, mock_cache& cache, kv::query_view const& rows,
                             kv::logits_options const& how) {
  using backend = typename Executor::backend;
  exec.reserve(kv::detail::scratch_of_verb<kv::ops::logits_t, backend>(cache.model(), cache.lanes()));
  owned_scores out(cache.lanes());
  kv::ops::logits(exec, kv::keys_of(cache.view()), rows, how, old_plus_twice{}, out.view());
  if constexpr (requires { exec.check(); }) exec.check();
  return out.all();
}

template <class Executor>
std::vector<float> means_of(Executor& exec, mock_cache& cache, kv::row_view const& rows,
                            kv::mean_row_options const& how) {
  using backend = typename Executor::backend;
  exec.reserve(kv::detail::scratch_of_verb<kv::ops::mean_row_t, backend>(cache.model(), cache.lanes()));
  std::int64_t const dims = rows.rows.channels, layer = dims * cache.model().kv_heads;
  std::vector<float> means(static_cast<std::size_t>(dims * cache.lane_count()), 7.0f);
  kv::ops::mean_row(exec, cache.lanes(), rows, how, {means.data(), layer * cache.model().layers, layer, dims});
  if constexpr (requires { exec.check(); }) exec.check();
  return means;
}

/// True if a lane's numbers cancel, so that rounding alone says where their mean points.
bool cancels(std::vector<float> const& means, int dims) {
  for (std::size_t first = 0; first < means.size(); first += as_size(dims)) {
    double square = 0;
    for (std::size_t d = 0; d < as_size(dims); ++d) square += std::pow(static_cast<double>(means[first + d]), 2);
    if (square < 1e-6) return true;
  }
  return false;
}

}  // namespace device_logits_test

TEST_SUITE("device/logits") {
  using namespace device_logits_test;

  TEST_CASE("logits are the host's in every reduction and order, and no number of a launch changes a bit") {
    holds("device == host", 40, [] {
      mock_options shape = any_mock(6);
      shape.skew = 0;
      shape.rows = *rc::gen::element(content::smooth, content::few, content::troubled);
      RC_LOG() << shape << '\n';
      mock_cache cache(shape);
      fill(cache, true);
      int const rows = *rc::gen::element(1, 3, 0, 9, 33);
      mock_queries queries(cache, *rc::gen::element(kv::codec::f32, kv::codec::f16, kv::codec::bf16), rows,
                           rows + *rc::gen::element(0, 0, 4));
      fill(queries, cache, content::smooth);
      kv::logits_options how;
      if (*rc::gen::arbitrary<bool>()) how.scale = 0.25f;
      how.rows = *rc::gen::element(kv::reduction::sum, kv::reduction::mean, kv::reduction::max, kv::reduction::last);
      how.group = *rc::gen::element(kv::reduction::sum, kv::reduction::mean, kv::reduction::max);
      how.order = *rc::gen::element(kv::reduction_order::rows_then_group, kv::reduction_order::group_then_rows);
      how.last_rows = *rc::gen::element(0, 0, 1, 3);
      kv::host_executor host;
      device_executor device(any_numbers(), shape.seed), other(any_numbers(), shape.seed + 1);
      double const most = 8.0 * shape.model.head_dim * std::max(rows, 1) * shape.model.group();
      auto const found = logits_of(device, cache, queries.view(), how);
      RC_ASSERT(alike(found, logits_of(host, cache, queries.view(), how), std::ldexp(most, -15)));
      RC_ASSERT(alike(found, logits_of(other, cache, queries.view(), how), 0));
    });
  }

  TEST_CASE("means are the host's, and no number of a launch changes a bit") {
    holds("device == host, means", 40, [] {
      mock_options shape = any_mock(6);
      shape.skew = 0;
      shape.bound = *rc::gen::element(shape.bound, 700);
      RC_LOG() << shape << '\n';
      mock_cache cache(shape);
      fill(cache, true);
      kv::cache const view = cache.view();
      kv::mean_row_options const how{*rc::gen::arbitrary<bool>(), *rc::gen::arbitrary<bool>()};
      kv::row_view const rows =
          *rc::gen::arbitrary<bool>() ? kv::row_view(kv::keys_of(view)) : kv::row_view(kv::values_of(view));
      kv::host_executor host;
      device_executor device(any_numbers(), shape.seed), other(any_numbers(), shape.seed + 1);
      if (how.unit_mean && cancels(means_of(host, cache, rows, {.unit = how.unit}), rows.rows.channels)) return;
      auto const found = means_of(device, cache, rows, how);
      RC_ASSERT(alike(found, means_of(host, cache, rows, how), 1e-5));
      RC_ASSERT(alike(found, means_of(other, cache, rows, how), 0));
    });
  }
}
