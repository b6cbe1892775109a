// SPDX-License-Identifier: Apache-2.0
// pair_norms and future_queries against what they say, on the host and on the emulated device.

#include <complex>

#include "support/device.hpp"
#include "support/verbs.hpp"

namespace pair_norms_test {

using namespace kvpolicy_test;

/// A table of numbers for each lane, drawn.
struct drawn_rows : owned_rows {
  drawn_rows(dice& random, mock_cache const& of, int numbers) : owned_rows(of, numbers, 0) {
    for (float& each : values) each = static_cast<float>(random.real(2));
  }
};

/// Any profile of a model's queries of f32, f16 or bf16, whose memory it has.
struct any_profile {
  any_profile(dice& random, kv::shape const& model) {
    kv::codec const element = any_float();
    of.rope.style = *rc::gen::element(kv::rope_style::neox, kv::rope_style::gptj);
    of.rope.dims = *rc::gen::element(0, 2, model.head_dim / 4 * 2);
    if (any_bool()) {
      for (int f = 0; f < model.head_dim / 2; ++f) turns.push_back(random.real(3) + 3);
      of.rope.frequency = turns.data();
    }
    of.mean = drawn_heads(random, model, element, 1, model.head_dim, mean);
    of.radius = drawn_heads(random, model, element, 1, of.turned() / 2, radius);
  }
  [[nodiscard]] double number(kv::query_view const& from, kv::lane one, int head, int d) const {
    return static_cast<double>(kv::load(from.element, from.at(one, head, 0) + d * kv::bytes_of(from.element)));
  }
  kv::query_model of{};

 private:
  std::vector<std::byte> mean, radius;
  std::vector<double> turns;
};

TEST_SUITE("device/pair_norms") {
  TEST_CASE("sums of lengths of pairs are those of the rows, on the host and on a device") {
    holds("pair_norms == its formula", 60, [] {
      mock_options const shape = any_batch({content::smooth, content::few}, 6, true);
      filled_cache cache(shape);
      dice random(shape.seed);
      kv::keys const keys = kv::keys_of(cache.view());
      kv::key_pairs const pairs{*rc::gen::element(kv::rope_style::neox, kv::rope_style::gptj),
                                *rc::gen::inRange(0, keys.rows.channels / 2 + 1)};
      drawn_rows const weights(random, cache, std::max(1, pairs.count));
      kv::host_executor host(*rc::gen::element(1, 3));
      host.reserve(kv::implementation<kv::ops::pair_norms_t, kv::host>::scratch(cache.model(), shape.bound));
      device_executor device({}, shape.seed);
      owned_scores on_host(cache.lanes()), on_device(cache.lanes());
      kv::ops::pair_norms(host, keys, pairs, weights.view, old_plus_twice{}, on_host.view());
      kv::ops::pair_norms(device, keys, pairs, weights.view, old_plus_twice{}, on_device.view());
      device.check();
      for (int i = 0; i < cache.lane_count(); ++i) {
        kv::lane const one = cache.lane_at(i);
        reference::row expected;
        for (reference::row const& key : cache.rows(of::keys, one, cache.committed(one))) {
          double sum = 0;
          for (int f = 0; f < pairs.count; ++f) {
            double const length = std::hypot(key[as_size(pairs.first(f))], key[as_size(pairs.second(f))]);
            sum += static_cast<double>(weights.view.row(one)[f]) * length;
          }
          expected.push_back(0.5 + 2 * sum);
        }
        double const largest = 16.0 * std::max(1, pairs.count);
        RC_ASSERT(compare(on_host.row(i, cache.committed(one)), expected, largest).same);
        RC_ASSERT(compare(on_device.row(i, cache.committed(one)), expected, largest).same);
      }
    });
  }

  TEST_CASE("mean queries turn to positions that are to come, on the host and on a device") {
    holds("future_queries == its formula", 60, [] {
      mock_options const shape = any_batch({content::smooth, content::few}, 6, true);
      filled_cache cache(shape);
      dice random(shape.seed);
      if (cache.model().head_dim < 2) return;
      any_profile const profile(random, cache.model());
      kv::query_model const& model = profile.of;
      if (model.turned() % 2 != 0 || model.turned() > cache.model().head_dim) return;
      kv::future_positions const to{*rc::gen::element(1, 3, 17), any_bool()};
      int const group = cache.model().group(), dims = cache.model().head_dim, pairs = model.turned() / 2;
      kv::host_executor host(*rc::gen::element(1, 3));
      device_executor device({}, shape.seed);
      drawn_rows rows(random, cache, group * to.rows() * dims), spread(random, cache, group * pairs);
      drawn_rows other_rows(random, cache, group * to.rows() * dims), other_spread(random, cache, group * pairs);
      kv::ops::future_queries(host, cache.lanes(), model, to, kv::future_rows{rows.view, spread.view});
      kv::ops::future_queries(device, cache.lanes(), model, to, kv::future_rows{other_rows.view, other_spread.view});
      device.check();
      RC_ASSERT(rows.values == other_rows.values);
      RC_ASSERT(spread.values == other_spread.values);
      for (int i = 0; i < cache.lane_count() * group; ++i) {
        kv::lane const one = cache.lane_at(i / group);
        int const head = one.head * group + i % group;
        float const* const found = rows.view.row(one) + i % group * to.rows() * dims;
        for (int d = model.turned(); d < dims; ++d)
          RC_ASSERT(static_cast<double>(found[d]) == profile.number(model.mean, one, head, d));
        for (int f = 0; f < pairs; ++f) {
          double const turns =
              model.rope.frequency ? model.rope.frequency[f] : std::pow(10000.0, -2.0 * f / model.turned());
          std::complex<double> const mean(profile.number(model.mean, one, head, model.first_of(f)),
                                          profile.number(model.mean, one, head, model.second_of(f)));
          std::complex<double> all = 0;
          for (int r = 0; r < to.offsets; ++r) {
            double const at = cache.lanes().newest(one) + 1 + std::ldexp(1.0, r);
            std::complex<double> const now = mean * std::polar(1.0, at * turns);
            all += now / static_cast<double>(to.offsets);
            if (to.mean && r + 1 < to.offsets) continue;
            std::complex<double> const expected = to.mean ? all : now;
            float const* const row = found + (to.mean ? 0 : r) * dims;
            RC_ASSERT(std::fabs(static_cast<double>(row[model.first_of(f)]) - expected.real()) < 1e-5);
            RC_ASSERT(std::fabs(static_cast<double>(row[model.second_of(f)]) - expected.imag()) < 1e-5);
          }
          double const longer = profile.number(model.radius, one, head, f) - std::abs(mean);
          RC_ASSERT(std::fabs(static_cast<double>(spread.view.row(one)[i % group * pairs + f]) - longer) < 1e-5);
        }
      }
    });
  }

  TEST_CASE("what they refuse") {
    mock_cache cache({.bound = 8});
    kv::host_executor exec;
    owned_scores out(cache.lanes());
    kv::keys const keys = kv::keys_of(cache.view());
    CHECK(error_of([&] {
            kv::ops::pair_norms(exec, keys, kv::key_pairs{}, kv::by_lane<float>{}, kv::replaced{}, out.view());
          }) == "pair_norms: weights = null, but each pair has one");
    kv::key_pairs const many{.count = 1000};
    CHECK(error_of([&] { kv::ops::pair_norms(exec, keys, many, out.view().rows, kv::replaced{}, out.view()); }) ==
          "pair_norms: pairs.count = 1000, but keys have " + std::to_string(keys.rows.channels) + " channels");
    CHECK(error_of([&] {
            kv::ops::future_queries(exec, cache.lanes(), kv::query_model{}, kv::future_positions{.offsets = 32},
                                    kv::future_rows{});
          }) == "future_queries: offsets = 32, but they are 1, 2, 4, ..., at most 31 of them");
    kv::query_model model;
    kv::shape const about = cache.model();
    CHECK(error_of([&] { model.check("decide", about); }) ==
          "decide: query_model.mean = null, but a signal is the engine's memory");
  }
}

}  // namespace pair_norms_test
