// SPDX-License-Identifier: Apache-2.0
// H2O with the engine's own probabilities on the device and on the host: equal bits.

#include "support/device.hpp"
#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

/// The masses after a forward of three rows, of which the second sequence has two.
template <class Executor>
std::vector<float> masses(kv::codec element, kv::reduction group) {
  constexpr int rows = 3, entries = 40;
  mock_cache cache(
      {.model = {.layers = 2, .query_heads = 8, .kv_heads = 2, .head_dim = 4}, .sequences = 2, .bound = 33});
  Executor exec;
  kv::eviction<kv::h2o> const policy{.score = {.group = group}, .budget = {8}};
  kv::cache view = cache.view();
  auto state = kv::make_state(exec, policy, view);
  for (int s = 0; s < 2; ++s) kv::append(exec, view, state, {.sequence = s, .tokens = 33 - s, .position = 0});
  dice random(5);
  std::vector<std::byte> memory(as_size(2 * 2 * 8 * rows * entries * kv::bytes_of(element)));
  for (std::size_t at = 0; at < memory.size(); at += as_size(kv::bytes_of(element))) {
    encode(element, random.real(0.5) + 0.5, memory.data() + at);
  }
  std::vector<int> const positions{30, 31, 32, 30, 31, 0}, valid{3, 2};
  auto const given = kv::probabilities_of(memory.data(), element, view.shape, rows, entries, positions.data(),
                                          {.sequences = 2, .valid_rows = valid.data()});
  kv::observe(exec, policy, kv::signals{view.lanes, given}, state);
  if constexpr (requires { exec.check(); }) exec.check();
  std::vector<float> all;
  for (int i = 0; i < cache.lane_count(); ++i) {
    float const* const row = state.columns_from(0).template table<float const>(0).row(cache.lane_at(i));
    all.insert(all.end(), row, row + 33);
  }
  return all;
}

}  // namespace

TEST_SUITE("device/attention_probabilities") {
  TEST_CASE("masses are the host's, bit for bit") {
    for (auto const element : {kv::codec::f32, kv::codec::f16, kv::codec::bf16}) {
      for (auto const group : {kv::reduction::sum, kv::reduction::mean, kv::reduction::max}) {
        auto const on_host = masses<kv::host_executor>(element, group);
        CHECK(masses<device_executor>(element, group) == on_host);
        CHECK(on_host[0] > 0);
      }
    }
  }
}
