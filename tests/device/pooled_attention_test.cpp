// SPDX-License-Identifier: Apache-2.0
// pooled_attention against the reference, on the host and on the emulated device.

#include "reference/pooled_attention.hpp"

#include "device/as_on_host.hpp"
#include "support/masses.hpp"

namespace pooled_attention_test {

using namespace kvpolicy_test;

template <class Executor>
rows_of_numbers computed(Executor& exec, mock_cache& cache, kv::keys const& keys, kv::query_view const& rows,
                         kv::pooled_attention_options const& how) {
  reserve_for<kv::ops::pooled_attention_t>(exec, cache);
  rows_of_numbers made(cache, 2);
  kv::ops::pooled_attention(exec, keys, rows, how, made.rows(1).rows, made.rows(0));
  if constexpr (requires { exec.check(); }) exec.check();
  return made;
}

bool close(float a, double b, double slack) {
  bool const same = std::isnan(a) && std::isnan(b);
  return same || std::fabs(static_cast<double>(a) - b) <= slack * std::max(std::fabs(b), 1e-6);
}

/// True if a call found what the reference says of every lane.
bool is_right(rows_of_numbers& made, mock_cache& cache, mock_queries& queries, kv::pooled_attention_options const& how,
              double slack, given_logits const* logits = nullptr) {
  for (int i = 0; i < cache.lane_count(); ++i) {
    kv::lane const one = cache.lane_at(i);
    reference::lane_attention lane = reference_lane(cache, queries, one);
    if (logits != nullptr) logits->tell(one, lane);
    reference::pooled_attention const expected = reference::pooled_attention_of(
        reference::attention_of_last_rows(lane, how.last_rows), lane.keys.size(), in_double(how.pool), how.tail);
    for (std::size_t e = 0; e < lane.keys.size(); ++e) {
      float const most = made.rows(0).rows.row(one)[e], mean = made.rows(1).rows.row(one)[e];
      if (close(most, expected.most[e], slack) && close(mean, expected.mean[e], slack)) continue;
      MESSAGE("lane ", i, ", entry ", e, ": ", most, " for ", expected.most[e], ", mean ", mean, " for ",
              expected.mean[e]);
      return false;
    }
  }
  return true;
}

kv::pooling any_pooling() {
  return *rc::gen::element<kv::pooling>(kv::no_pool{}, kv::avg_pool{1}, kv::avg_pool{3}, kv::avg_pool{5},
                                        kv::max_pool{3}, kv::max_pool{7}, kv::avg_pool{41}, kv::max_pool{65});
}

TEST_SUITE("device/pooled_attention") {
  TEST_CASE("means and the highest pools are the reference's, for any shape, layout and element type") {
    holds("pooled_attention == reference", 100, [] {
      current_case of({1, 2, 0, 9, 16, 33});
      auto& [shape, cache, rows, queries] = of;
      kv::pooled_attention_options const how{.pool = any_pooling(),
                                             .tail = *rc::gen::element(0, 1, 2, 5, 32, 100),
                                             .last_rows = *rc::gen::element(0, 1, 2, 5, 40)};
      dice random(shape.seed);
      bool const given = any_bool();
      given_logits const logits(random, cache.model(), given, given, given);
      kv::keys const keys = logits.keys_of(cache.view());
      kv::isa const level = *rc::gen::elementOf(vector_isas());
      kv::host_executor host(*rc::gen::element(1, 3), level);
      device_executor device(any_numbers(), shape.seed), other(any_numbers(), shape.seed + 1);
      auto on_host = computed(host, cache, keys, queries.view(), how),
           on_device = computed(device, cache, keys, queries.view(), how);
      RC_ASSERT(is_right(on_host, cache, queries, how, 1e-4, &logits));
      RC_ASSERT(is_right(on_device, cache, queries, how, 1e-4, &logits));
      RC_ASSERT(computed(other, cache, keys, queries.view(), how).memory == on_device.memory);
    });
  }

  TEST_CASE("long lanes, wide heads and large groups; windows that are longer than the lane") {
    struct shape {
      int entries, dims, group, rows;
      kv::codec element;
    };
    for (shape const& of : {shape{4097, 64, 1, 32, kv::codec::f32}, shape{4097, 80, 4, 9, kv::codec::bf16},
                            shape{4097, 128, 8, 4, kv::codec::f16}, shape{4097, 256, 4, 3, kv::codec::f32},
                            shape{33, 256, 8, 40, kv::codec::bf16}, shape{1, 128, 4, 32, kv::codec::f16},
                            shape{31, 64, 8, 32, kv::codec::f32}, shape{32, 80, 1, 32, kv::codec::f16}}) {
      mock_cache cache({.model = {.layers = 1, .query_heads = of.group, .kv_heads = 1, .head_dim = of.dims},
                        .bound = of.entries,
                        .element = of.element,
                        .seed = 7});
      cache.put(cache.lane_at(0), up_to(of.entries));
      int const rows = std::min(of.rows, of.entries);
      current_queries queries(cache, of.element, rows, rows);
      for (kv::pooling const pool : {kv::pooling(kv::avg_pool{5}), kv::pooling(kv::max_pool{7})}) {
        kv::pooled_attention_options const how{pool, 32, 32};
        INFO("entries ", of.entries, ", dims ", of.dims, ", group ", of.group);
        for (kv::isa const level : vector_isas()) {
          kv::host_executor host(1, level);
          auto made = computed(host, cache, kv::keys_of(cache.view()), queries.view(), how);
          CHECK(is_right(made, cache, queries, how, 2e-4));
        }
        if (of.dims > 80) continue;
        device_executor device({}, 1);
        auto made = computed(device, cache, kv::keys_of(cache.view()), queries.view(), how);
        CHECK(is_right(made, cache, queries, how, 2e-4));
      }
    }
  }

  TEST_CASE("what is not there is refused by name") {
    mock_cache cache({.model = {.layers = 1, .query_heads = 2, .kv_heads = 1, .head_dim = 4}, .bound = 8});
    cache.put(cache.lane_at(0), up_to(4));
    mock_queries queries(cache, kv::codec::f32, 2, 2);
    kv::host_executor host;
    device_executor device({}, 1);
    auto const refused = [&](auto& exec, kv::pooled_attention_options const& how, bool mean = true) {
      rows_of_numbers to(cache, 2);
      kv::by_lane<float> const rows = mean ? to.rows(1).rows : kv::by_lane<float>{};
      return error_of(
          [&] { kv::ops::pooled_attention(exec, kv::keys_of(cache.view()), queries.view(), how, rows, to.rows(0)); });
    };
    CHECK(refused(host, {.pool = kv::avg_pool{4}}) == "pool: width = 4, but a pool has an odd width");
    CHECK(refused(host, {.pool = kv::max_pool{-1}}) == "pool: width = -1, but a pool has an odd width");
    CHECK(refused(host, {.tail = -1}) == "pool: tail = -1, but a count cannot be negative");
    CHECK(refused(host, {.last_rows = -1}) == "compute_attention_mass: last_rows = -1, but a count cannot be negative");
    CHECK(refused(host, {}, false) == "pooled_attention: mean = null, but each entry has a mean");
    CHECK(refused(device, {.pool = kv::avg_pool{67}}) ==
          "pooled_attention: pool = 67, but a device takes pools of up to 65 entries");
  }
}

}  // namespace pooled_attention_test
