// SPDX-License-Identifier: Apache-2.0
// The device's write_gates and retention_gates against the host's.

#include "support/device.hpp"
#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

constexpr float untouched = -77;

/// Both gates of a model, and hidden rows for its lanes.
struct gates {
  kv::shape model;
  int hidden, width, bound;
  std::vector<float> norm, fc1, bias, fc2, last, layer_fc1, layer_bias;
  std::vector<std::byte> rows;
  kv::codec element;

  gates(mock_cache& of, int units, int channels)
      : model(of.model()),
        hidden(units),
        width(channels),
        bound(of.options().bound),
        norm(drawn(of.random(), model.layers * model.head_dim, 1.5)),
        fc1(drawn(of.random(), lanes() * units * 2 * model.head_dim, 2 / std::sqrt(2.0 * model.head_dim))),
        bias(drawn(of.random(), lanes() * units, 1)),
        fc2(drawn(of.random(), lanes() * units, 2 / std::sqrt(1.0 * units))),
        last(drawn(of.random(), lanes(), 3)),
        layer_fc1(drawn(of.random(), model.layers * units * channels, 2 / std::sqrt(1.0 * channels))),
        layer_bias(drawn(of.random(), model.layers * units, 1)),
        element(kv::is_fp8(of.options().element) ? kv::codec::f32 : of.options().element) {
    bool const troubled = of.options().rows == content::troubled;
    int const all = of.options().sequences * model.layers * bound * channels;
    rows.resize(as_size(all * kv::bytes_of(element)));
    for (int i = 0; i < all; ++i) {
      bool const strange = troubled && of.random().chance(1);
      double const value = strange ? of.random().one_of<double>({NAN, INFINITY, -INFINITY}) : of.random().real(2);
      encode(element, value, rows.data() + i * kv::bytes_of(element));
    }
  }
  [[nodiscard]] int lanes() const { return model.layers * model.kv_heads; }
  [[nodiscard]] kv::write_gate_weights write() const {
    return {model.layers, model.kv_heads, model.head_dim, hidden,     norm.data(),
            norm.data(),  fc1.data(),     bias.data(),    fc2.data(), last.data()};
  }
  [[nodiscard]] kv::retention_gate_weights retention() const {
    return {model.layers, model.kv_heads, width, hidden, layer_fc1.data(), layer_bias.data(), fc2.data(), last.data()};
  }
  [[nodiscard]] kv::hidden_rows hidden_rows() const {
    std::int64_t const row = std::int64_t{width} * kv::bytes_of(element);
    return {rows.data(), element, width, row * bound * model.layers, row * bound, row};
  }
};

launch_numbers numbers(int threads, int processors) {
  launch_numbers made;
  made.entry_threads = threads;
  made.processors = processors;
  return made;
}

/// What both gates say of some layers, one after the other.
std::vector<float> answers(auto& exec, mock_cache& cache, gates const& of, kv::lanes const& batch) {
  auto const capacity = as_size(cache.lane_count()) * as_size(of.bound);
  std::vector<float> all(2 * capacity, untouched);
  std::int64_t const bound = of.bound;
  std::int64_t const layer = bound * batch.heads;
  kv::by_lane<float> out{all.data(), layer * of.model.layers, layer, bound};
  kv::ops::write_gates.reserve(exec, of.write());
  kv::ops::retention_gates.reserve(exec, of.retention());
  kv::row_view const pre = kv::keys_of(cache.view());
  kv::row_view const post = kv::values_of(cache.view());
  kv::ops::write_gates(exec, batch, pre, post, of.write(), out);
  out.data += capacity;
  kv::ops::retention_gates(exec, batch, of.hidden_rows(), of.retention(), out);
  if constexpr (requires { exec.check(); }) exec.check();
  return all;
}

mock_options small(int dims, int bound) {
  mock_options shape;
  shape.model = {.layers = 2, .query_heads = 2, .kv_heads = 2, .head_dim = dims};
  shape.bound = bound;
  return shape;
}

TEST_SUITE("device/gates") {
  TEST_CASE("the gates are the host's to 1e-5") {
    holds("any lanes", 100, [] {
      mock_options shape = any_mock(6);
      shape.model.value_dim = shape.skew = 0;
      bool const latent = shape.memory == arrangement::latent || shape.memory == arrangement::latent_view;
      if (latent) shape.memory = arrangement::nhd;  // the gate reads values as long as keys
      shape.rows = *rc::gen::element(content::smooth, content::troubled);
      int const hidden = *rc::gen::element(1, 7, 64, 65, 256);
      if (hidden * shape.model.head_dim > 2000) shape.bound = *rc::gen::element(1, 5);
      filled_cache cache(shape);
      gates const of(cache, hidden, *rc::gen::element(1, 5, 33, 100));
      kv::lanes const batch = cache.lanes().layers_only(*rc::gen::inRange(0, shape.model.layers), shape.model.layers);
      kv::host_executor host;
      device_executor device(numbers(*rc::gen::element(32, 64, 128), *rc::gen::element(1, 40)), shape.seed);
      std::vector<float> const expected = answers(host, cache, of, batch);
      std::vector<float> const found = answers(device, cache, of, batch);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        RC_ASSERT(std::isnan(expected[i]) == std::isnan(found[i]));
        bool const close = std::abs(expected[i] - found[i]) <= 1e-5f * std::max(1.0f, std::abs(expected[i]));
        RC_ASSERT(close || std::isnan(found[i]) || expected[i] == found[i]);
      }
    });
  }

  TEST_CASE("neither launch numbers nor the rows beside change a bit") {
    mock_cache cache(small(20, 33));
    for (int i = 0; i < cache.lane_count(); ++i) {
      std::vector<int> positions = up_to(33 - 11 * i);
      cache.put(cache.lane_at(i), positions);  // 33, 22, 11, 0
    }
    gates const of(cache, 130, 70);
    device_executor first(numbers(256, 1), 3);
    std::vector<float> const together = answers(first, cache, of, cache.lanes());
    for (int const threads : {32, 96, 128}) {
      for (int const processors : {1, 1000}) {  // all slices in a block, or each in its own
        device_executor other(numbers(threads, processors), 4);
        CHECK(answers(other, cache, of, cache.lanes()) == together);
      }
    }
    for (int const count : {1, 31}) {
      for (int i = 0; i < 2; ++i) cache.count(cache.lane_at(i)) = std::min(count, cache.count(cache.lane_at(i)));
      std::vector<float> const fewer = answers(first, cache, of, cache.lanes());
      for (std::size_t i = 0; i < fewer.size(); ++i) CHECK((fewer[i] == untouched || fewer[i] == together[i]));
      CHECK(fewer[0] == together[0]);
    }
  }

  TEST_CASE("a long lane") {
    mock_options shape = small(1, 4097);
    shape.model.layers = shape.model.kv_heads = shape.model.query_heads = 1;
    mock_cache cache(shape);
    cache.put({}, up_to(4097));
    gates const of(cache, 1, 3);
    kv::host_executor host;
    device_executor device(numbers(256, 132), 5);
    std::vector<float> const expected = answers(host, cache, of, cache.lanes());
    std::vector<float> const found = answers(device, cache, of, cache.lanes());
    for (std::size_t i = 0; i < expected.size(); ++i) REQUIRE(std::abs(expected[i] - found[i]) <= 1e-5f);
  }

  TEST_CASE("what does not fit is refused, and after a fault nothing is written") {
    mock_cache cache(small(8, 4));
    cache.put({0, 1, 1}, {0, 1, 2});
    gates const of(cache, 4, 6);
    device_executor device;
    kv::row_view rows = kv::keys_of(cache.view());
    std::vector<float> out(16, untouched);
    kv::by_lane<float> const to{out.data(), 0, 8, 4};
    auto const refused = [&] {
      return error_of([&] { kv::ops::write_gates(device, cache.lanes(), rows, rows, of.write(), to); });
    };
    CHECK(refused() ==
          "write_gates: exec = an executor without scratch for these weights, but write_gates.reserve comes first");
    kv::ops::write_gates.reserve(device, of.write());
    rows.rows.base += 2;
    CHECK(refused() ==
          "write_gates: pre = misaligned rows, but a device reads elements of 4 bytes where they are aligned");
    rows.rows.base -= 2;
    std::vector<float> sums(5 * 8), scores(4);
    mock_queries const memory(cache, kv::codec::f32, 1, 1);
    kv::score_view const among = kv::contiguous_scores(cache.lanes(), kv::granularity::sequence, scores.data(), 4);
    kv::token_features const features{sums.data(), 8, 4};
    kv::ops::feature_sums(device, kv::keys_of(cache.view()), memory.view(), kv::key_sums{}, among, features);
    CHECK(refused().empty());
    CHECK(error_of([&] { device.check(); }) ==
          "decide: count (3) = 3, but lanes that decide together hold equally many entries");
    for (float const each : out) CHECK(each == untouched);
    CHECK(refused().empty());
    device.check();
    CHECK(out[12] != untouched);
  }
}

}  // namespace
