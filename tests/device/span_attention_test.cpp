// SPDX-License-Identifier: Apache-2.0
// The device's span_attention against the host's, over every shape, memory layout and element type.

#include "device/any_numbers.hpp"
#include "support/device.hpp"
#include "support/given_logits.hpp"
#include "support/masses.hpp"
#include "support/spans.hpp"

namespace device_span_attention_test {

using namespace kvpolicy_test;

kv::codec any_element() { return *rc::gen::element(kv::codec::f32, kv::codec::f16, kv::codec::bf16); }

}  // namespace device_span_attention_test

TEST_SUITE("device/span_attention") {
  using namespace device_span_attention_test;

  TEST_CASE("the most attention is the host's, and no number of a launch changes a bit") {
    holds("device == host, span_attention", 60, [] {
      mock_options shape = any_mock(6);
      shape.skew = 0;
      shape.rows = *rc::gen::element(content::smooth, content::few, content::troubled);
      RC_LOG() << shape << '\n';
      int const rows = *rc::gen::element(0, 1, 2, 5, 9, 33);
      spans_case of(shape, any_element(), rows, rows + *rc::gen::element(0, 0, 4));
      auto const any = [] { return *rc::gen::arbitrary<bool>(); };
      of.draw(*rc::gen::element(1, 3, 17, 100), any() && !kv::is_fp8(shape.element) ? shape.element : any_element(),
              any());
      given_logits const logits(of.cache.random(), shape.model, any(), any(), any());
      kv::keys const keys = logits.keys_of(of.cache.view());
      int const sinks = *rc::gen::element(0, 1, 4, 100);
      kv::host_executor host;
      device_executor device(any_numbers(), shape.seed), other(any_numbers(), shape.seed + 1);
      auto const found = of.attention(device, keys, sinks);
      RC_ASSERT(masses_alike(found, of.attention(other, keys, sinks), 0));
      RC_ASSERT(masses_alike(found, of.attention(host, keys, sinks), 1e-4f));
    });
  }

  TEST_CASE("more than a tile of rows, entries and keys of rows") {
    for (int const group : {1, 4, 8, 40}) {
      for (kv::codec const element : {kv::codec::f32, kv::codec::bf16}) {
        mock_options const shape{.model = {.layers = 1, .query_heads = group, .kv_heads = 1, .head_dim = 16},
                                 .bound = 300,
                                 .element = element};
        spans_case of(shape, kv::codec::f32, 150, 150);
        of.cache.put({}, up_to(300));
        for (int r = 0; r < 150; ++r) of.set(0, r, r < 140 ? 3 : 200, r < 140 ? 280 : 300);
        of.draw_keys(element);
        kv::host_executor host;
        device_executor device(numbers_of(64, 128), 3);
        kv::keys const keys = kv::keys_of(of.cache.view());
        CAPTURE(group);
        CHECK(masses_alike(of.attention(device, keys, 4), of.attention(host, keys, 4), 1e-4f));
      }
    }
  }
}
