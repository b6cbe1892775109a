// SPDX-License-Identifier: Apache-2.0
// Verbs that make a number of each row, on the device and on the host: over every option, shape, memory layout and
// element type.

#include "device/as_on_host.hpp"
#include "support/given_logits.hpp"
#include "support/leverages.hpp"
#include "support/projection.hpp"
#include "support/spans.hpp"

namespace {

using namespace kvpolicy_test;
using enum content;

/// Norms of keys.
struct norms_case : batch_case {
  norms_case() : batch_case({smooth}, 12) {}
  std::vector<float> operator()(auto& exec) {
    return scores_by<kv::ops::row_norm_t>(exec, cache, [&](auto& on, kv::score_view const& out) {
      kv::ops::row_norm(on, kv::keys_of(cache.view()), kv::multiplied{}, out);
    });
  }
  static bool same(auto const& found, auto const& expected) { return alike(found, expected, 0, 1e-6); }
};

/// Norms of projected values.
struct projected_case : batch_case {
  projected_case() : batch_case({smooth, few, troubled}) {}
  mock_projection by{cache.model(), any_float(), *rc::gen::element(1, 5, 32, 33, 70), *rc::gen::element(0, 0, 8), seed};
  kv::norm_of_row norm = *rc::gen::element(kv::norm_of_row::l1, kv::norm_of_row::l2);
  std::vector<float> operator()(auto& exec) {
    return scores_by<kv::ops::projected_norm_t>(exec, cache, [&](auto& on, kv::score_view const& out) {
      kv::ops::projected_norm(on, kv::values_of(cache.view()), by.view(), {norm}, kv::multiplied{}, out);
    });
  }
  static bool same(auto const& found, auto const& expected) { return alike(found, expected, 1e-4, 1e-4); }
};

/// Logits of any options.
struct logits_case : batch_case {
  logits_case() : batch_case({smooth, few, troubled}) {
    fill(queries, cache, smooth);
    if (any_bool()) how.scale = 0.25f;
    how.rows = *rc::gen::element(kv::reduction::sum, kv::reduction::mean, kv::reduction::max, kv::reduction::last);
    how.group = *rc::gen::element(kv::reduction::sum, kv::reduction::mean, kv::reduction::max);
    how.order = *rc::gen::element(kv::reduction_order::rows_then_group, kv::reduction_order::group_then_rows);
    how.last_rows = *rc::gen::element(0, 0, 1, 3);
  }
  int rows = *rc::gen::element(1, 3, 0, 9, 33);
  mock_queries queries{cache, any_float(), rows, rows + *rc::gen::element(0, 0, 4)};
  kv::logits_options how;
  std::vector<float> operator()(auto& exec) {
    return scores_by<kv::ops::logits_t>(exec, cache, [&](auto& on, kv::score_view const& out) {
      kv::ops::logits(on, kv::keys_of(cache.view()), queries.view(), how, old_plus_twice{}, out);
    });
  }
  /// What rounding may take from sums that cancel.
  [[nodiscard]] bool same(auto const& found, auto const& expected) const {
    double const most = 8.0 * shape.model.head_dim * std::max(rows, 1) * shape.model.group();
    return alike(found, expected, std::ldexp(most, -15));
  }
};

mock_options with_long_lanes(mock_options shape) {
  shape.bound = *rc::gen::element(shape.bound, 700);
  return shape;
}

/// Means of keys or values.
struct means_case : batch_case {
  means_case() : batch_case(with_long_lanes(any_batch({smooth}, 6, true))) {}
  kv::row_view rows = rows_of(cache, *rc::gen::element(of::keys, of::values));
  kv::mean_row_options how{any_bool(), any_bool()};
  std::vector<float> means(auto& exec, kv::mean_row_options const& options) {
    reserve_for<kv::ops::mean_row_t>(exec, cache);
    owned_rows out(cache, rows.rows.channels, 0);
    kv::ops::mean_row(exec, cache.lanes(), rows, options, out.view);
    settle(exec);
    return out.values;
  }
  std::vector<float> operator()(auto& exec) { return means(exec, how); }
  bool same(auto const& found, auto const& expected) { return cancels() || alike(found, expected, 1e-5); }
  /// True if a lane's numbers cancel, so that rounding alone says where their mean points.
  bool cancels() {
    kv::host_executor host;
    std::vector<float> const plain = means(host, {.unit = how.unit});
    auto const dims = as_size(rows.rows.channels);
    for (std::size_t first = 0; how.unit_mean && first < plain.size(); first += dims) {
      double square = 0;
      for (std::size_t d = 0; d < dims; ++d) square += std::pow(static_cast<double>(plain[first + d]), 2);
      if (square < 1e-6) return true;
    }
    return false;
  }
};

/// Redundancies by way of all their verbs.
struct redundancy_case : batch_case {
  redundancy_case() : batch_case({smooth, few}) {}
  kv::redundancy_options how{*rc::gen::element(0.03571f, 0.48713f, 0.94129f), *rc::gen::element(true, true, false)};
  std::vector<float> operator()(auto& exec) {
    kv::keys const keys = kv::keys_of(cache.view());
    reserve_for<kv::ops::mean_row_t, kv::ops::logits_t, kv::ops::redundancy_t>(exec, cache);
    owned_rows anchor(cache, keys.rows.channels, 0);
    owned_scores norms(cache.lanes()), out(cache.lanes());
    kv::ops::mean_row(exec, cache.lanes(), keys, {.unit = true, .inverse_norms = norms.view().rows}, anchor.view);
    kv::ops::logits(exec, keys, kv::one_row_a_lane(anchor.view, keys.rows.channels, cache.lanes()), {.scale = 1.0f},
                    kv::replaced{}, out.view());
    kv::ops::map(exec, out.view(), kv::r_kv::over_norm{norms.view().rows});
    kv::ops::redundancy(exec, keys, norms.view().rows, how, out.view());
    settle(exec);
    return out.all();
  }
  bool same(auto const& found, auto const& expected) {
    if (how.spare_newest && margin() < 1e-5) return true;
    return alike(found, expected, 2e-5);
  }
  /// The least distance of a cosine of any lane to the threshold.
  double margin() {
    double least = 1;
    for (kv::lane const lane : lanes_of(cache)) {
      auto const keys = cache.rows(of::keys, lane, cache.committed(lane));
      for (auto const& one : keys) {
        for (auto const& other : keys) {
          double const norms = std::sqrt(reference::dot(one, one) * reference::dot(other, other));
          if (norms == 0) continue;
          least = std::min(least, std::fabs(reference::dot(one, other) / norms - static_cast<double>(how.threshold)));
        }
      }
    }
    return least;
  }
};

/// Shares of keys, and then of values.
struct lag_spread_case : batch_case {
  lag_spread_case() : batch_case({smooth, few}) {}
  kv::lagged_blocks blocks{*rc::gen::element(1, 2, 7, 16), *rc::gen::element(0, 1, 4)};
  std::vector<float> operator()(auto& exec) {
    std::vector<float> all;
    for (of const which : {of::keys, of::values}) {
      auto const some = scores_by<kv::ops::lag_spread_t>(exec, cache, [&](auto& on, kv::score_view const& out) {
        kv::ops::lag_spread(on, rows_of(cache, which), blocks, old_plus_twice{}, out);
      });
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }
  static bool same(auto const& found, auto const& expected) { return alike(found, expected, 1e-3, 1e-3); }
};

mock_options small_heads(mock_options shape) {
  if (shape.model.head_dim > 33) shape.model.head_dim = 33, shape.model.value_dim = 0, shape.memory = arrangement::nhd;
  return shape;
}

struct any_leverages : leverage_case {
  any_leverages() : leverage_case(small_heads(any_batch({smooth, few, troubled}, 3, true))) {
    which = *rc::gen::element(of::keys, of::values);
    draw(*rc::gen::element(1, 4, 40));
  }
  std::uint64_t seed = cache.options().seed;
  std::vector<float> operator()(auto& exec) { return leverages(exec); }
  static bool same(auto const& found, auto const& expected) { return alike(found, expected, 1e-6, 1e-6); }
};

/// Attention of rows of any span, with any logits.
struct span_case {
  span_case(int row_count, int capacity) : on(shape, any_float(), row_count, capacity) {}
  mock_options shape = any_batch({smooth, few, troubled}, 6, true);
  std::uint64_t seed = shape.seed;
  spans_case on;
  given_logits logits{on.cache.random(), shape.model, any_bool(), any_bool(), any_bool()};
  kv::keys keys = logits.keys_of(on.cache.view());
  static bool same(auto const& found, auto const& expected) { return alike(found, expected, 1e-7, 1e-4); }
};

struct spans_of_rows : span_case {
  explicit spans_of_rows(int rows = *rc::gen::element(0, 1, 2, 5, 9, 33))
      : span_case(rows, rows + *rc::gen::element(0, 0, 4)) {
    bool const as_keys = any_bool() && !kv::is_fp8(shape.element);
    on.draw(*rc::gen::element(1, 3, 17, 100), as_keys ? shape.element : any_float(), any_bool());
  }
  int sinks = *rc::gen::element(0, 1, 4, 100);
  std::vector<float> operator()(auto& exec) { return on.attention(exec, keys, sinks); }
};

struct chunks_of_entries : span_case {
  explicit chunks_of_entries(int rows = *rc::gen::element(0, 1, 9, 33, 50)) : span_case(rows, rows) {}
  kv::entry_chunks chunks{*rc::gen::element(1, 2, 7, 16, 33, 1000), *rc::gen::element(0, 1, 5, 60),
                          *rc::gen::element(0, 1, 5, 60), any_bool()};
  std::vector<float> operator()(auto& exec) { return on.attention_in(exec, keys, chunks); }
};

/// One lane of 300 entries that rows of a group of heads see.
struct long_spans {
  long_spans(int group, kv::codec element, kv::codec queries_of, int rows)
      : on({.model = {.layers = 1, .query_heads = group, .kv_heads = 1, .head_dim = 16},
            .bound = 300,
            .element = element},
           queries_of, rows, rows) {
    on.cache.put({}, up_to(300));
  }
  /// Checks what `call(exec, keys)` finds.
  void check(auto const& call) {
    kv::host_executor host;
    device_executor device(numbers_of(64, 128), 3);
    kv::keys const keys = kv::keys_of(on.cache.view());
    CHECK(alike(call(device, keys), call(host, keys), 1e-7, 1e-4));
  }
  spans_case on;
};

}  // namespace

TEST_SUITE("device/rows") {
  TEST_CASE("row_norm: norms of keys are the host's to the last bits") {
    is_as_on_host<norms_case>("device == host, row_norm", 100);
  }
  TEST_CASE("projected_norm: norms are the host's, and no number of a launch changes a bit") {
    is_as_on_host<projected_case>("device == host, projected_norm", 40);
  }
  TEST_CASE("logits are the host's in every reduction and order, and no number of a launch changes a bit") {
    is_as_on_host<logits_case>("device == host, logits", 40);
  }
  TEST_CASE("mean_row: means are the host's, and no number of a launch changes a bit") {
    is_as_on_host<means_case>("device == host, means", 40);
  }
  TEST_CASE("redundancies are the host's, and no number of a launch changes a bit") {
    is_as_on_host<redundancy_case>("device == host, redundancy", 40);
  }
  TEST_CASE("lag_spread: shares are the host's, and the same for any launch") {
    is_as_on_host<lag_spread_case>("device == host, lag_spread", 40);
  }
  TEST_CASE("leverages are the host's, and the same for any launch") {
    is_as_on_host<any_leverages>("device == host, leverage", 30);
  }
  TEST_CASE("span_attention: the most attention is the host's, and no number of a launch changes a bit") {
    is_as_on_host<spans_of_rows>("device == host, span_attention", 60);
  }
  TEST_CASE("span_attention in chunks of entries is the host's, and no number of a launch changes a bit") {
    is_as_on_host<chunks_of_entries>("device == host, span_attention in chunks", 40);
  }

  TEST_CASE("leverage: a Gram matrix without a factor is noted with its lane") {
    leverage_case now({.model = {.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 3}, .bound = 5});
    now.cache.put({}, up_to(5));
    for (int e = 0; e < 5; ++e) now.cache.write(of::keys, {}, e, {1, 1, 1});
    now.how.jitter = 0;
    device_executor device(numbers_of(64, 128), 3);
    CHECK(error_of([&] { (void)now.leverages(device); }) ==
          "leverage: rows.channels (0) = 3, but even with 100000 times the jitter their Gram matrix has no Cholesky "
          "factor");
  }

  TEST_CASE("span_attention: more than a tile of rows, entries and keys of rows") {
    for (int const group : {1, 4, 8, 40}) {
      for (kv::codec const element : {kv::codec::f32, kv::codec::bf16}) {
        long_spans of(group, element, kv::codec::f32, 150);
        for (int r = 0; r < 150; ++r) of.on.set(0, r, r < 140 ? 3 : 200, r < 140 ? 280 : 300);
        of.on.draw_keys(element);
        CAPTURE(group);
        of.check([&](auto& exec, kv::keys const& keys) { return of.on.attention(exec, keys, 4); });
      }
    }
  }

  TEST_CASE("span_attention: chunks of more than a tile of rows and entries") {
    for (int const group : {1, 4, 8}) {
      for (kv::codec const element : {kv::codec::f32, kv::codec::bf16}) {
        long_spans of(group, element, element, 300);
        CAPTURE(group);
        for (kv::entry_chunks const chunks : {kv::entry_chunks{150, 5, 3}, kv::entry_chunks{1000, 0, 0, true}}) {
          of.check([&](auto& exec, kv::keys const& keys) { return of.on.attention_in(exec, keys, chunks); });
        }
      }
    }
  }
}
