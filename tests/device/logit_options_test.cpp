// SPDX-License-Identifier: Apache-2.0
// The device's attention_mass with an attention scale, a soft cap and sink logits, against the host's.

#include "device/as_on_host.hpp"
#include "support/masses.hpp"

namespace {

using namespace kvpolicy_test;
using kv::reduction;
using kv::reduction_order;

/// A batch, its rows, and how its logits are made.
struct batch : mass_batch {
  batch(mock_options shape, kv::codec queries_of, int rows, bool scale, bool cap, bool sinks)
      : mass_batch((shape.skew = 0, shape), queries_of, rows, rows, scale, cap, sinks) {
    fill(cache, true);
    fill(queries, cache, content::smooth);
  }
  std::vector<float> mass(auto& exec, kv::attention_mass_options const& how,
                          kv::granularity decides = kv::granularity::lane) {
    return mass_batch::mass(exec, queries.view(), how, decides);
  }
};

bool alike(std::vector<float> const& a, std::vector<float> const& b) { return masses_alike(a, b, 3e-5f); }

kv::attention_mass_options any_options() {
  using enum kv::key_domain;
  return any_mass_options({all, past, candidates}, {0, 0, 1, 3, 16});
}

}  // namespace

TEST_SUITE("device/logit_options") {
  TEST_CASE("a scale, a cap and sinks give the host's masses for the shapes of models") {
    kv::attention_mass_options const options[] = {
        {.rows = reduction::sum, .group = reduction::mean},
        {.rows = reduction::sum, .group = reduction::max, .order = reduction_order::group_then_rows},
        {.domain = kv::key_domain::candidates, .rows = reduction::sum, .group = reduction::sum},
        {.rows = reduction::mean, .group = reduction::mean, .order = reduction_order::group_on_logits},
        {.rows = reduction::sum, .group = reduction::max, .order = reduction_order::group_on_logits}};
    kv::codec const elements[] = {kv::codec::f32, kv::codec::f16, kv::codec::bf16};
    std::size_t turn = 0;
    for (int const dims : {64, 80, 128, 256, 576}) {
      for (int const group : {1, 4, 8}) {
        for (int const bound : {1, 31, 32, 33, 4097}) {
          ++turn;
          if (bound == 4097 && group * dims > 576) continue;
          kv::codec const element = elements[(turn + turn / 5) % 3];
          mock_options const shape{.model = {.layers = 1, .query_heads = group, .kv_heads = 1, .head_dim = dims},
                                   .bound = bound,
                                   .element = element,
                                   .seed = turn};
          int const rows = bound == 1 ? 1 : static_cast<int>(turn % 4) + 1;
          batch of(shape, turn % 2 == 0 ? kv::codec::f32 : element, rows, true, turn % 7 != 0, turn % 5 != 1);
          of.hold_all();
          auto const how = options[turn / 2 % std::size(options)];
          INFO("dims ", dims, ", group ", group, ", bound ", bound, ", turn ", turn);
          kv::host_executor host;
          device_executor device(turn);
          CHECK(alike(of.mass(device, how), of.mass(host, how)));
        }
      }
    }
  }

  TEST_CASE("every layer and head has its own sink, in every memory, domain, reduction and order") {
    holds("device with logit options == host", 40, [] {
      mock_options shape = any_mock(6);
      shape.shared_entries = any_bool();
      RC_LOG() << shape << '\n';
      auto const coin = [] { return any_bool(); };
      batch of(shape, any_float(), *rc::gen::element(1, 3, 0, 9, 17), coin(), coin(), coin());
      kv::attention_mass_options const how = any_options();
      auto const decides = shape.shared_entries ? kv::granularity::sequence : kv::granularity::lane;
      if (coin()) {
        of.queries.bring_lse();
        for (int s = 0; s < shape.sequences; ++s) {
          for (int r = 0; r < of.queries.rows(); ++r) of.queries.set_lse(s, 0, 0, r, 0.25 * r);
        }
      }
      kv::host_executor host;
      device_executor device(shape.seed);
      RC_ASSERT(alike(of.mass(device, how, decides), of.mass(host, how, decides)));
    });
  }

  TEST_CASE("no number of a launch changes a bit") {
    mock_options const shape{.model = {.layers = 1, .query_heads = 3, .kv_heads = 1, .head_dim = 8}, .bound = 4097};
    batch of(shape, kv::codec::f32, 12, true, true, true);
    of.hold_all();
    for (auto const order : {reduction_order::rows_then_group, reduction_order::group_on_logits}) {
      kv::attention_mass_options const how{.rows = reduction::max, .group = reduction::sum, .order = order};
      kv::host_executor host;
      auto const expected = of.mass(host, how);
      device_executor small(numbers_of(32, 96), 7), large(numbers_of(128, 1024), 9);
      auto const found = of.mass(small, how);
      CHECK(alike(found, expected));
      CHECK(of.mass(large, how) == found);
    }
  }

  TEST_CASE("each of 1030 rows, in two launches, has the sink of its head") {
    mock_options const shape{.model = {.layers = 2, .query_heads = 6, .kv_heads = 2, .head_dim = 1}, .bound = 40};
    batch of(shape, kv::codec::bf16, 1030, true, false, true);
    of.hold_all();
    for (int r = 0; r < 1030; ++r) of.queries.set_position(0, r, r / 27);
    kv::host_executor host;
    device_executor device(numbers_of(128, 1024), 3);
    kv::attention_mass_options const how{.rows = reduction::mean};
    CHECK(alike(of.mass(device, how), of.mass(host, how)));
  }

  TEST_CASE("a sink that is NaN makes the entries that its head sees NaN") {
    mock_options const shape{.model = {.layers = 1, .query_heads = 2, .kv_heads = 2, .head_dim = 4}, .bound = 8};
    batch of(shape, kv::codec::f32, 1, false, false, true);
    of.hold_all();
    of.logits.sinks()[0] = 1;
    of.logits.sinks()[1] = std::numeric_limits<float>::quiet_NaN();
    device_executor device;
    auto const found = of.mass(device, {});
    for (std::size_t e = 0; e < 8; ++e) {
      CHECK(found[e] >= 0);
      CHECK(std::isnan(found[11 + e]));  // a row of scores has 8 entries and 3 more
    }
  }
}
