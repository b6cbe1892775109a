// SPDX-License-Identifier: Apache-2.0
// The device's feature_sums and residual against the host's.

#include "support/device.hpp"
#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

constexpr float lowest = -std::numeric_limits<float>::infinity();

/// A residual head with weights of its own.
struct owned_head {
  std::vector<float> parts[10];
  kv::residual_head view;

  owned_head(int dims, int width, int hidden, double size, dice random) {
    int const phi = 3 * dims + 1;
    int const sizes[] = {width * phi, width, width * dims, width, width * dims, width, hidden * (phi + width), hidden,
                         hidden,      1};
    for (std::size_t i = 0; i < 10; ++i) {
      for (int n = 0; n < sizes[i]; ++n) parts[i].push_back(static_cast<float>(random.real(size)));
    }
    float const** const fields[] = {&view.w_q,      &view.w_q_bias, &view.w_k,      &view.w_k_bias, &view.w_v,
                                    &view.w_v_bias, &view.fc1,      &view.fc1_bias, &view.fc2,      &view.fc2_bias};
    for (std::size_t i = 0; i < 10; ++i) *fields[i] = parts[i].data();
    view.dims = dims;
    view.width = width;
    view.hidden = hidden;
    view.alpha = 2;
  }
};

launch_numbers numbers(int threads) {
  launch_numbers made;
  made.entry_threads = threads;
  made.processors = 3;
  return made;
}

/// Features, and scores with what the head adds.
struct answer {
  std::vector<float> features, scores;

  void make(auto& exec, kv::lanes const& batch, kv::turn_queries const& turn, kv::residual_head const& head,
            kv::residual_options const& how) {
    std::vector<float> temp_storage(as_size(kv::ops::residual_t::scratch_floats(head, batch.capacity)), NAN);
    kv::token_features const of{features.data(), head.dims, batch.capacity};
    kv::score_view const out = kv::contiguous_scores(batch, kv::granularity::sequence, scores.data(), batch.capacity);
    kv::ops::residual(exec, of, turn, head, how, out, temp_storage.data());
    if constexpr (requires { exec.check(); }) exec.check();
  }
};

/// Equal within `share` of the largest score, NaN and -inf where the other has them.
bool alike(std::vector<float> const& a, std::vector<float> const& b, float share) {
  float largest = 1;
  for (float const each : a) largest = std::isfinite(each) ? std::max(largest, std::abs(each)) : largest;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (a[i] != b[i] && !(std::abs(a[i] - b[i]) <= share * largest)) return false;
  }
  return true;
}

/// One sequence of `count` entries, of which a few at both ends are candidates, and a span from entry `span` on.
struct long_sequence {
  std::vector<int> position, rows;
  std::vector<int> count;
  answer given;
  kv::lanes lanes;
  kv::turn_queries turn;

  long_sequence(int entries, int bound, int dims, int span) : position(as_size(bound)), count(1, entries) {
    std::iota(position.begin(), position.end(), 0);
    rows = {span, entries};
    dice random(3);
    for (int i = 0; i < (bound + 1) * dims; ++i) given.features.push_back(static_cast<float>(random.real(1)));
    given.scores.assign(position.size(), lowest);
    for (int i = 0; i < 3; ++i) given.scores[as_size(i)] = static_cast<float>(i);
    for (int i = entries - 3; i < entries; ++i) given.scores[as_size(i)] = 1;
    lanes = {.layer_end = 1,
             .heads = 1,
             .capacity = bound,
             .count = {count.data(), 0, 0, 0},
             .position = {position.data(), 0, 0, 0}};
    turn.heads = 1;
    turn.rows = 2;
    turn.position = {rows.data(), 0, 0, 0};
  }
};

TEST_SUITE("device/residual") {
  TEST_CASE("sums of keys and memory are the host's, bit for bit") {
    holds("any cache", 50, [] {
      mock_options shape = any_mock();
      shape.skew = 0;
      shape.shared_entries = true;
      filled_cache cache(shape);
      filled_queries memory(cache, *rc::gen::element(kv::codec::f32, kv::codec::bf16), 1, 1);
      auto const capacity = as_size(kv::token_features::scratch_floats(cache.lanes(), shape.model.head_dim));
      std::vector<float> expected(capacity, 3.0f), found(capacity, 3.0f), none(capacity);
      kv::score_view const among = kv::contiguous_scores(cache.lanes(), kv::granularity::sequence, none.data(), 1);
      kv::host_executor host;
      host.reserve(4096);
      device_executor device(numbers(*rc::gen::element(32, 64, 128)), shape.seed);
      auto const sum = [&](auto& exec, std::vector<float>& to) {
        kv::ops::feature_sums(exec, kv::keys_of(cache.view()), memory.view(), kv::key_sums{}, among,
                              kv::token_features{to.data(), shape.model.head_dim, shape.bound});
      };
      sum(host, expected);
      sum(device, found);
      device.check();
      RC_ASSERT(same_bits(expected, found));
    });
  }

  TEST_CASE("recorded sums of keys are the host's, bit for bit, and are read") {
    holds("any cache", 50, [] {
      mock_options shape = any_mock();
      shape.skew = 0;
      shape.shared_entries = true;
      filled_cache cache(shape);
      filled_queries memory(cache, kv::codec::f32, 1, 1);
      int const each = kv::key_sums::channels_of_a_lane(shape.model);
      auto const lanes = as_size(cache.lane_count());
      std::int64_t const row = std::int64_t{each} * shape.bound;
      std::int64_t const layer = row * shape.model.kv_heads;
      auto const table = [&](std::vector<float>& of) {
        return kv::key_sums{{of.data(), layer * shape.model.layers, layer, row}, each, shape.model.layers};
      };
      std::vector<float> expected(lanes * as_size(row)), found = expected;
      kv::host_executor host;
      host.reserve(kv::implementation<kv::ops::record_key_sums_t, kv::host>::scratch(shape.model, shape.bound));
      device_executor device(numbers(*rc::gen::element(32, 64, 128)), shape.seed);
      kv::ops::record_key_sums(host, kv::keys_of(cache.view()), cache.lanes(), table(expected));
      kv::ops::record_key_sums(device, kv::keys_of(cache.view()), cache.lanes(), table(found));
      device.check();
      RC_ASSERT(same_bits(expected, found));
      for (std::size_t i = 0; i < found.size(); i += 3) found[i] *= 2;  // so that it matters which ones are read
      auto const capacity = as_size(kv::token_features::scratch_floats(cache.lanes(), shape.model.head_dim));
      std::vector<float> from_host(capacity), from_device(capacity);
      kv::score_view const among = kv::contiguous_scores(cache.lanes(), kv::granularity::sequence, found.data(), 1);
      for (auto* const to : {&from_host, &from_device}) {
        kv::token_features const out{to->data(), shape.model.head_dim, shape.bound};
        if (to == &from_host) {
          kv::ops::feature_sums(host, kv::keys_of(cache.view()), memory.view(), table(found), among, out);
        } else {
          kv::ops::feature_sums(device, kv::keys_of(cache.view()), memory.view(), table(found), among, out);
        }
      }
      device.check();
      RC_ASSERT(same_bits(from_host, from_device));
    });
  }

  TEST_CASE("scores of a head are the host's to 2e-5 of the largest") {
    holds("any turn", 40, [] {
      mock_options shape = any_mock(4);
      shape.shared_entries = true;
      filled_cache cache(shape);
      filled_queries rows(cache, kv::codec::f32, *rc::gen::element(1, 9, 33), *rc::gen::element(33, 40));
      int const dims = shape.model.head_dim;
      bool const wide = dims <= 33;
      owned_head const head(dims, *rc::gen::element(4, 8, wide ? 288 : 128), *rc::gen::element(1, 7, wide ? 256 : 65),
                            1 / std::sqrt(dims + 1.0), cache.random());
      dice& random = cache.random();
      answer given;
      for (std::int64_t i = 0; i < kv::token_features::scratch_floats(cache.lanes(), dims); ++i) {
        bool const strange = shape.rows == content::troubled && random.chance(1);
        given.features.push_back(strange ? NAN : static_cast<float>(random.real(6)));
      }
      for (int i = 0; i < shape.sequences * shape.bound; ++i) {
        given.scores.push_back(random.chance(30) ? lowest : static_cast<float>(random.real(2)));
      }
      std::vector<int> begin, end;
      for (int s = 0; s < shape.sequences; ++s) {
        begin.push_back(random.below(rows.rows()));
        end.push_back(random.between(begin.back(), rows.rows()));
      }
      kv::turn_queries turn{rows.view()};
      if (any_bool()) turn.span_begin = begin.data(), turn.span_end = end.data();
      kv::residual_options const how{*rc::gen::element(1, 32), *rc::gen::element(true, true, false)};
      answer expected = given, found = given;
      kv::host_executor host;
      device_executor device(numbers(*rc::gen::element(32, 64, 128, 256)), shape.seed);
      expected.make(host, cache.lanes(), turn, head.view, how);
      found.make(device, cache.lanes(), turn, head.view, how);
      RC_ASSERT(alike(expected.scores, found.scores, 2e-5f));
    });
  }

  TEST_CASE("a span and a sequence that are longer than the room holds at once") {
    auto const compare = [](long_sequence const& of, kv::residual_head const& head) {
      answer expected = of.given, found = of.given, again = of.given;
      kv::host_executor host;
      device_executor device(numbers(64), 1), other(numbers(32), 2);
      expected.make(host, of.lanes, of.turn, head, {});
      found.make(device, of.lanes, of.turn, head, {});
      again.make(other, of.lanes, of.turn, head, {});
      CHECK(alike(expected.scores, found.scores, 2e-5f));
      CHECK(found.scores != of.given.scores);
      CHECK(found.scores == again.scores);
    };
    compare(long_sequence(1090, 1100, 5, 20), owned_head(5, 4, 7, 0.5, dice(1)).view);
    compare(long_sequence(470, 480, 1, 467), owned_head(1, 128, 1, 0.5, dice(2)).view);
  }

  TEST_CASE("alpha is clipped, and 0 leaves everything as it is") {
    long_sequence const of(20, 30, 5, 12);
    owned_head head(5, 4, 7, 0.5, dice(4));
    auto const scores_with = [&](float alpha) {
      answer found = of.given;
      device_executor device;
      head.view.alpha = alpha;
      found.make(device, of.lanes, of.turn, head.view, {});
      if (alpha == 0) CHECK(found.features == of.given.features);
      return found.scores;
    };
    CHECK(scores_with(0) == of.given.scores);
    CHECK(scores_with(7) == scores_with(5));
    CHECK(scores_with(-9) == scores_with(-5));
    CHECK(scores_with(4) != scores_with(5));
  }
}

}  // namespace
