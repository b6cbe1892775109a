// SPDX-License-Identifier: Apache-2.0
// The device's leverages, and attention in chunks of entries, against the host's.

#include "device/any_numbers.hpp"
#include "support/device.hpp"
#include "support/given_logits.hpp"
#include "support/leverages.hpp"
#include "support/masses.hpp"
#include "support/spans.hpp"

namespace device_leverage_test {

using namespace kvpolicy_test;

bool alike(std::vector<float> const& found, std::vector<float> const& expected, double slack) {
  for (std::size_t i = 0; i < found.size(); ++i) {
    auto const a = static_cast<double>(found[i]), b = static_cast<double>(expected[i]);
    if (a == b || (std::isnan(a) && std::isnan(b)) || std::abs(a - b) <= slack * std::max(1.0, std::abs(b))) continue;
    RC_LOG() << "number " << i << ": " << a << ", expected " << b << '\n';
    return false;
  }
  return true;
}

}  // namespace device_leverage_test

TEST_SUITE("device/leverage") {
  using namespace device_leverage_test;

  TEST_CASE("leverages are the host's, and the same for any launch") {
    holds("device == host, leverage", 30, [] {
      mock_options shape = any_mock(3);
      shape.skew = 0;
      if (shape.model.head_dim > 33)
        shape.model.head_dim = 33, shape.model.value_dim = 0, shape.memory = arrangement::nhd;
      shape.rows = *rc::gen::element(content::smooth, content::few, content::troubled);
      RC_LOG() << shape << '\n';
      leverage_case now(shape);
      now.which = *rc::gen::element(of::keys, of::values);
      now.draw(*rc::gen::element(1, 4, 40));
      kv::host_executor host;
      device_executor device(any_numbers(), shape.seed), other(any_numbers(), shape.seed + 1);
      auto const found = now.leverages(device);
      RC_ASSERT(alike(found, now.leverages(other), 0));
      RC_ASSERT(alike(found, now.leverages(host), 1e-6));
    });
  }

  TEST_CASE("a Gram matrix without a factor is noted with its lane") {
    mock_options const shape{.model = {.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 3}, .bound = 5};
    leverage_case now(shape);
    now.cache.put({}, up_to(5));
    for (int e = 0; e < 5; ++e) now.cache.write(of::keys, {}, e, {1, 1, 1});
    now.how.jitter = 0;
    device_executor device(numbers_of(64, 128), 3);
    CHECK(error_of([&] { (void)now.leverages(device); }) ==
          "leverage: rows.channels (0) = 3, but even with 100000 times the jitter their Gram matrix has no Cholesky "
          "factor");
  }

  TEST_CASE("attention in chunks of entries is the host's, and no number of a launch changes a bit") {
    holds("device == host, span_attention in chunks", 40, [] {
      mock_options shape = any_mock(6);
      shape.skew = 0;
      shape.rows = *rc::gen::element(content::smooth, content::few, content::troubled);
      RC_LOG() << shape << '\n';
      int const rows = *rc::gen::element(0, 1, 9, 33, 50);
      spans_case of(shape, *rc::gen::element(kv::codec::f32, kv::codec::f16, kv::codec::bf16), rows, rows);
      auto const any = [] { return *rc::gen::arbitrary<bool>(); };
      given_logits const logits(of.cache.random(), shape.model, any(), any(), any());
      kv::keys const keys = logits.keys_of(of.cache.view());
      kv::entry_chunks const chunks{*rc::gen::element(1, 2, 7, 16, 33, 1000), *rc::gen::element(0, 1, 5, 60),
                                    *rc::gen::element(0, 1, 5, 60), any()};
      kv::host_executor host;
      device_executor device(any_numbers(), shape.seed), other(any_numbers(), shape.seed + 1);
      auto const found = of.attention_in(device, keys, chunks);
      RC_ASSERT(masses_alike(found, of.attention_in(other, keys, chunks), 0));
      RC_ASSERT(masses_alike(found, of.attention_in(host, keys, chunks), 1e-4f));
    });
  }

  TEST_CASE("chunks of more than a tile of rows and entries") {
    for (int const group : {1, 4, 8}) {
      for (kv::codec const element : {kv::codec::f32, kv::codec::bf16}) {
        mock_options const shape{.model = {.layers = 1, .query_heads = group, .kv_heads = 1, .head_dim = 16},
                                 .bound = 300,
                                 .element = element};
        spans_case of(shape, element, 300, 300);
        of.cache.put({}, up_to(300));
        kv::host_executor host;
        device_executor device(numbers_of(64, 128), 3);
        kv::keys const keys = kv::keys_of(of.cache.view());
        CAPTURE(group);
        for (kv::entry_chunks const chunks : {kv::entry_chunks{150, 5, 3}, kv::entry_chunks{1000, 0, 0, true}}) {
          CHECK(masses_alike(of.attention_in(device, keys, chunks), of.attention_in(host, keys, chunks), 1e-4f));
        }
      }
    }
  }
}
