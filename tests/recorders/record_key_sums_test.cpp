// SPDX-License-Identifier: Apache-2.0
// The sums of keys that a recorder keeps: the same bits as sums that are made when they are needed.

#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

/// A cache whose lanes share their entries, and a state that holds nothing but sums of keys.
struct recorded_cache {
  explicit recorded_cache(mock_options const& shape, int threads = 1)
      : cache(shape), exec(threads), state(exec, shape.model, cache.lanes()), memory(cache, kv::codec::f32, 1, 1) {
    exec.reserve(kv::implementation<kv::ops::record_key_sums_t, kv::host>::scratch(shape.model, shape.bound));
    state.add(keeps);
    fill(cache, true);
    fill(memory, cache, content::smooth);
  }

  void observe(kv::lanes const& batch) {
    keeps.observe(exec, kv::signals{batch, kv::keys_of(cache.view())}, state.columns_from(0));
  }
  /// Lets the cache hold at most `count` entries and all drafts.
  void hold(int count) {
    for (int i = 0; i < cache.lane_count(); ++i) {
      int& held = cache.count(cache.lane_at(i));
      held = std::min(held, std::max(count, cache.lanes().in_flight[cache.lane_at(i).sequence]));
    }
  }
  [[nodiscard]] kv::key_sums sums() { return keeps.view(state.columns_from(0)); }
  [[nodiscard]] std::vector<float> features(kv::key_sums const& recorded) {
    kv::lanes const batch = cache.lanes();
    int const dims = cache.model().head_dim;
    std::vector<float> made(as_size(kv::token_features::scratch_floats(batch, dims)), 3.0f);
    std::vector<float> scores(made.size());
    kv::score_view const among = kv::contiguous_scores(batch, kv::granularity::sequence, scores.data(), 1);
    kv::ops::feature_sums(exec, kv::keys_of(cache.view()), memory.view(), recorded, among,
                          kv::token_features{made.data(), dims, batch.capacity});
    return made;
  }

  kv::record_key_sums keeps;
  mock_cache cache;
  kv::host_executor exec;
  kv::state<kv::host_executor> state;
  mock_queries memory;
};

mock_options any_shared_mock() {
  mock_options shape = any_mock();
  shape.skew = 0;
  shape.shared_entries = true;
  return shape;
}

mock_options whole_model(int bound) {
  mock_options shape;
  shape.model = {.layers = 3, .query_heads = 4, .kv_heads = 2, .head_dim = 64};
  shape.bound = bound;
  shape.shared_entries = true;
  return shape;
}

TEST_SUITE("recorders/key sums") {
  TEST_CASE("recorded sums have the bits of sums that are made when they are needed") {
    holds("any cache, observed in parts", 60, [] {
      mock_options const shape = any_shared_mock();
      recorded_cache on(shape, *rc::gen::element(1, 3));
      std::vector<int> counts;
      for (int i = 0; i < on.cache.lane_count(); ++i) counts.push_back(on.cache.count(on.cache.lane_at(i)));
      for (int const part : {*rc::gen::inRange(0, shape.bound + 1), *rc::gen::inRange(0, shape.bound + 1)}) {
        on.hold(part);
        on.observe(on.cache.lanes());
        for (int i = 0; i < on.cache.lane_count(); ++i) on.cache.count(on.cache.lane_at(i)) = counts[as_size(i)];
      }
      std::vector<float> const made = on.features({});
      RC_ASSERT(same_bits(on.features(on.sums()), made));  // the last entries were not observed
      on.observe(on.cache.lanes());
      RC_ASSERT(same_bits(on.features(on.sums()), made));
    });
  }

  TEST_CASE("recorded sums are read, and not made again") {
    for (int const bound : {1, 31, 33, 130}) {
      recorded_cache on(whole_model(bound));
      on.cache.put({}, up_to(bound));
      on.observe(on.cache.lanes());
      std::vector<float> const before = on.features(on.sums());
      *on.sums().at(on.cache.lanes(), 0, bound - 1, 63) += 100.0f;
      std::vector<float> const after = on.features(on.sums());
      std::size_t const changed = as_size(bound) * 64 + 63;
      CHECK(after[changed] == doctest::Approx(before[changed] + 100.0f));
      CHECK(std::count(before.begin(), before.end(), 3.0f) == 0);
      int different = 0;
      for (std::size_t i = 0; i < before.size(); ++i) different += before[i] != after[i] ? 1 : 0;
      CHECK(different == 1);
    }
  }

  TEST_CASE("a sum that is zero is recorded") {
    recorded_cache on(whole_model(4));
    on.cache.put({}, {0, 1});
    for (int layer = 0; layer < 3; ++layer) {
      for (int head = 0; head < 2; ++head) on.cache.write(of::keys, {0, layer, head}, 1, std::vector<double>(64, 0.0));
    }
    on.observe(on.cache.lanes());
    CHECK(kv::key_sums::is_recorded(*on.sums().at(on.cache.lanes(), 0, 1, 0)));
    std::vector<float> const features = on.features(on.sums());
    CHECK(features[2 * 64] == 0);
    CHECK_FALSE(std::signbit(features[2 * 64]));
  }

  TEST_CASE("some of the layers, lanes with fewer entries, and keys that are not given record nothing") {
    recorded_cache on(whole_model(4));
    on.cache.put({}, {0, 1, 2});
    auto const recorded = [&](int entry) {
      return kv::key_sums::is_recorded(*on.sums().at(on.cache.lanes(), 0, entry, 0));
    };
    for (int layer = 0; layer < 3; ++layer) on.observe(on.cache.lanes().layers_only(layer, layer + 1));
    on.keeps.observe(on.exec, kv::signals{on.cache.lanes()}, on.state.columns_from(0));
    CHECK_FALSE(recorded(0));
    kv::lanes uneven = on.cache.lanes();
    std::vector<int> counts(6, 3);
    counts[4] = 1;
    uneven.count = {counts.data(), 6, 2, 1};
    on.observe(uneven);
    CHECK(recorded(0));
    CHECK_FALSE(recorded(1));
    CHECK(same_bits(on.features(on.sums()), on.features({})));
  }

  TEST_CASE("a policy without a residual keeps no sums") {
    kv::shape const model{.layers = 36, .query_heads = 32, .kv_heads = 8, .head_dim = 128};
    CHECK(kv::record_key_sums{false}.columns(model, 16).empty());
    CHECK(kv::record_key_sums{true}.columns(model, 16)[0].bytes == 4);
    kv::shape const small{.layers = 3, .query_heads = 5, .kv_heads = 5, .head_dim = 64};
    CHECK(kv::record_key_sums{true}.columns(small, 16)[0].bytes == 20);
  }
}

}  // namespace
