// SPDX-License-Identifier: Apache-2.0
// query_moments, future_moments and quadratic_form against the reference, on the host and on the emulated device.

#include "reference/moments.hpp"

#include "support/device.hpp"
#include "support/verbs.hpp"

namespace moments_test {

using namespace kvpolicy_test;

/// The moments of some query heads of each lane, and a number more behind those of each lane, which no verb may write.
struct owned_moments {
  owned_moments(mock_cache const& of, int heads)
      : dims(of.model().head_dim), group(heads), mean_of(of, heads * dims), square_of(of, heads * dims * dims) {}

  [[nodiscard]] kv::moments_of_queries view(bool square = true) const {
    return {mean_of.view, square ? square_of.view : kv::by_lane<float>{}};
  }
  /// True if query head `head` of a lane's group has these moments. `size`: of the numbers whose sums may cancel.
  [[nodiscard]] bool has(reference::moments const& expected, kv::lane one, int head, double size) const {
    float const* const mean = mean_of.view.row(one) + head * dims;
    float const* const square = square_of.view.row(one) + head * dims * dims;
    for (int a = 0; a < dims; ++a) {
      if (!close(static_cast<double>(mean[a]), expected.mean[as_size(a)], size)) return false;
      for (int b = 0; b < dims; ++b) {
        double const found = static_cast<double>(square[a * dims + b]);
        if (!close(found, expected.square[as_size(a)][as_size(b)], size * size)) return false;
      }
    }
    return mean_of.is_sound() && square_of.is_sound();
  }
  int dims, group;
  owned_rows mean_of, square_of;
};

/// Any profile of means and covariances of f32, f16 or bf16, whose memory it has.
struct any_profile {
  any_profile(dice& random, kv::shape const& model) {
    kv::codec const element = any_float();
    how.style = *rc::gen::element(kv::rope_style::neox, kv::rope_style::gptj);
    how.dims = *rc::gen::element(0, 2, model.head_dim / 4 * 2);
    how.theta = *rc::gen::element(100.0, 10000.0);
    if (any_bool()) {
      for (int f = 0; f < model.head_dim / 2; ++f) turns.push_back(f == 1 ? 0 : f == 2 ? 1e-9 : random.real(3) + 3);
      how.frequency = turns.data();
    }
    view.rope = how;
    view.mean = drawn_heads(random, model, element, 1, model.head_dim, mean);
    view.square = drawn_heads(random, model, element, model.head_dim, model.head_dim, square);
  }
  [[nodiscard]] bool turns_pairs(int dims) const {
    int const turned = how.dims != 0 ? how.dims : dims;
    return turned >= 2 && turned % 2 == 0 && turned <= dims;
  }
  [[nodiscard]] reference::moments moments(kv::lane one, int head) const {
    reference::moments made{row(view.mean, one, head, 0), {}};
    for (int r = 0; r < view.square.rows; ++r) made.square.push_back(row(view.square, one, head, r));
    return made;
  }
  [[nodiscard]] reference::rope in_double(int dims) const {
    reference::rope made{how.theta, how.style == kv::rope_style::neox ? reference::rope_pairing::halves
                                                                      : reference::rope_pairing::pairs};
    for (int f = 0; how.frequency && f < (how.dims != 0 ? how.dims : dims) / 2; ++f)
      made.frequency.push_back(turns[as_size(f)]);
    return made;
  }
  kv::rope how{};
  kv::query_model view{};

 private:
  static reference::row row(kv::query_view const& from, kv::lane one, int head, int r) {
    reference::row made;
    for (int d = 0; d < from.dims; ++d) {
      made.push_back(static_cast<double>(
          kv::load(from.element, from.at(one, head, r) + std::ptrdiff_t{d} * kv::bytes_of(from.element))));
    }
    return made;
  }
  std::vector<std::byte> mean, square;
  std::vector<double> turns;
};

/// Where numbers are infinite, it depends on the order of the products whether they cancel.
bool forms_alike(std::span<float const> found, reference::row expected, double largest) {
  std::vector<float> finite(found.begin(), found.end());
  for (std::size_t e = 0; e < expected.size(); ++e) {
    if (std::isfinite(expected[e]) || std::isfinite(found[e])) continue;
    finite[e] = 0, expected[e] = 0;
  }
  comparison const result = compare(finite, expected, largest);
  RC_LOG() << result << '\n';
  return result.same;
}

TEST_SUITE("device/moments") {
  TEST_CASE("means and covariances of query rows are the reference's, on the host and on a device") {
    holds("query_moments == reference", 60, [] {
      mock_options const shape = any_batch({content::smooth, content::few});
      filled_cache cache(shape);
      int const rows = *rc::gen::element(1, 2, 33, 200, 0);
      filled_queries queries(cache, any_float(), rows, rows + *rc::gen::element(0, 0, 4));
      int const sinks = *rc::gen::element(0, 1, 4, 1000), group = cache.model().group();
      bool const by_position = any_bool();
      kv::query_view view = queries.view();
      if (!by_position) view.position = {};
      int const which = *rc::gen::inRange(-1, group);  // -1: all heads of the group at once
      if (which >= 0) view = kv::one_of_group(view, which, group);
      int const heads = which >= 0 ? 1 : group;
      device_executor device({}, shape.seed);
      owned_moments on_device(cache, heads);
      if (queries.rows() > 0) {
        kv::ops::query_moments(device, cache.lanes(), view, sinks, on_device.view());
        device.check();
      }
      for (kv::isa const level : every_isa) {
        kv::host_executor host(*rc::gen::element(1, 3), level);
        reserve_for<kv::ops::query_moments_t>(host, cache);
        owned_moments on_host(cache, heads);
        kv::ops::query_moments(host, cache.lanes(), view, sinks, on_host.view());
        for (int i = 0; i < cache.lane_count() * heads; ++i) {
          kv::lane const one = cache.lane_at(i / heads);
          int const head = which >= 0 ? which : i % heads;
          reference::matrix counted;
          for (int r = 0; r < queries.valid(one.sequence); ++r) {
            int const at = by_position ? queries.position(one.sequence, r) : r;
            if (at >= sinks) counted.push_back(queries.row(one.sequence, one.layer, one.head * group + head, r));
          }
          auto const expected = reference::moments_of(counted, as_size(cache.model().head_dim));
          RC_ASSERT(on_host.has(expected, one, i % heads, 2));
          RC_ASSERT(queries.rows() == 0 || on_device.has(expected, one, i % heads, 2));
        }
      }
    });
  }

  TEST_CASE("moments turn to positions that are to come as the mean of RoPE's matrices says") {
    holds("future_moments == reference", 60, [] {
      mock_options const shape = any_batch({content::smooth, content::few});
      filled_cache cache(shape);
      dice random(shape.seed);
      int const dims = cache.model().head_dim, group = cache.model().group();
      if (dims < 2) return;
      any_profile const profile(random, cache.model());
      if (!profile.turns_pairs(dims)) return;
      int const future = *rc::gen::element(0, 1, 7, 512);
      kv::host_executor host(*rc::gen::element(1, 3));
      device_executor device({}, shape.seed);
      reserve_for<kv::ops::future_moments_t>(host, cache);
      owned_moments on_host(cache, group), on_device(cache, group);
      kv::ops::future_moments(host, cache.lanes(), profile.view, future, on_host.view());
      kv::ops::future_moments(device, cache.lanes(), profile.view, future, on_device.view());
      device.check();
      for (int i = 0; i < cache.lane_count() * group; ++i) {
        kv::lane const one = cache.lane_at(i / group);
        std::size_t const turned = as_size(profile.how.dims != 0 ? profile.how.dims : dims);
        auto const by =
            reference::mean_rotation(profile.in_double(dims), turned, as_size(dims), cache.lanes().newest(one), future);
        auto const expected = reference::turned(by, profile.moments(one, one.head * group + i % group));
        RC_ASSERT(on_host.has(expected, one, i % group, 4));
        RC_ASSERT(on_device.has(expected, one, i % group, 4));
      }
      // In place they are the same bits.
      owned_moments once(cache, 1), apart(cache, 1), device_once(cache, 1);
      kv::query_model const one_head = kv::one_of_group(profile.view, group - 1, group);
      for (owned_moments const* const to : {&once, &device_once})
        kv::ops::future_moments(host, cache.lanes(), one_head, 0, to->view());
      kv::ops::future_moments(host, cache.lanes(), one_head, future, apart.view());
      kv::query_model const copied = once.view().model(cache.lanes(), dims, profile.how);
      kv::ops::future_moments(host, cache.lanes(), copied, future, once.view());
      RC_ASSERT(once.square_of.values == apart.square_of.values);
      RC_ASSERT(once.mean_of.values == apart.mean_of.values);
      kv::query_model const there = device_once.view().model(cache.lanes(), dims, profile.how);
      kv::ops::future_moments(device, cache.lanes(), there, future, device_once.view());
      device.check();
      RC_ASSERT(device_once.square_of.values == apart.square_of.values);
    });
  }

  TEST_CASE("quadratic forms of keys are the reference's in every layout and element type, here and on a device") {
    holds("quadratic_form == reference", 60, [] {
      mock_options const shape = any_batch({content::smooth, content::few, content::troubled});
      filled_cache cache(shape);
      dice random(shape.seed);
      any_profile const profile(random, cache.model());
      int const group = cache.model().group(), which = *rc::gen::inRange(0, group);
      kv::query_view const square = kv::one_of_group(profile.view.square, which, group);
      kv::keys const keys = kv::keys_of(cache.view());
      device_executor device({}, shape.seed);
      owned_scores on_device(cache.lanes());
      bool const smooth = shape.skew == 0;  // a device does not take elements that are not aligned
      if (smooth) kv::ops::quadratic_form(device, keys, square, old_plus_twice{}, on_device.view());
      device.check();
      auto const before = cache.save();
      for (kv::isa const level : every_isa) {
        kv::host_executor host(*rc::gen::element(1, 3), level);
        reserve_for<kv::ops::quadratic_form_t>(host, cache);
        owned_scores on_host(cache.lanes());
        kv::ops::quadratic_form(host, keys, square, old_plus_twice{}, on_host.view());
        for (int i = 0; i < cache.lane_count(); ++i) {
          kv::lane const one = cache.lane_at(i);
          auto const matrix = profile.moments(one, one.head * group + which).square;
          reference::row expected;
          for (reference::row const& key : cache.rows(of::keys, one, cache.committed(one))) {
            expected.push_back(0.5 + 2 * reference::quadratic_form(matrix, key));
          }
          double largest = 16.0 * cache.model().head_dim;
          for (double const each : expected) {
            if (shape.rows == content::troubled && std::isfinite(each))
              largest = std::max(largest, 16 * std::fabs(each));
          }
          RC_ASSERT(forms_alike(on_host.row(i, cache.committed(one)), expected, largest));
          RC_ASSERT(!smooth || forms_alike(on_device.row(i, cache.committed(one)), expected, largest));
        }
      }
      RC_ASSERT(cache.save() == before);
    });
  }

  TEST_CASE("every number of entries and channels, and a covariance that is singular") {
    for (int const dims : {1, 31, 32, 33, 64, 80, 128, 160}) {
      for (int const entries : {1, 23, 24, 25, 100}) {
        INFO("dims ", dims, ", entries ", entries);
        mock_cache cache({.model = {.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = dims}, .bound = entries});
        cache.put({}, up_to(entries));
        // S = u u^T, in parts that no single precision of k^T S k loses: u = (1, -1, 1, ...)
        std::vector<float> square;
        for (int i = 0; i < dims * dims; ++i) square.push_back((i / dims + i % dims) % 2 == 0 ? 1.0f : -1.0f);
        kv::query_view view{.base = reinterpret_cast<std::byte const*>(square.data()), .dims = dims};
        view.row = std::int64_t{4} * dims;
        view.heads = 1;
        view.rows = dims;
        reference::row expected;
        for (int e = 0; e < entries; ++e) {
          reference::row key;
          double product = 0;
          for (int d = 0; d < dims; ++d)
            key.push_back((e + 3 * d) % 7 - 3), product += (d % 2 == 0 ? 1 : -1) * key.back();
          cache.write(of::keys, {}, e, key);
          expected.push_back(product * product);
        }
        kv::host_executor exec;
        reserve_for<kv::ops::quadratic_form_t>(exec, cache);
        owned_scores out(cache.lanes());
        kv::ops::quadratic_form(exec, kv::keys_of(cache.view()), view, kv::replaced{}, out.view());
        CHECK(compare(out.row(0, entries), expected).same);
        if (entries == 25 && dims > 1) cache.write(of::keys, {}, 3, reference::row(as_size(dims), std::nan("")));
        kv::ops::quadratic_form(exec, kv::keys_of(cache.view()), view, kv::replaced{}, out.view());
        for (int e = 0; e < entries; ++e) {
          CHECK(std::isnan(out.row(0, entries)[as_size(e)]) == (entries == 25 && dims > 1 && e == 3));
        }
      }
    }
  }

  TEST_CASE("what they refuse") {
    mock_cache cache({.bound = 8});
    kv::host_executor exec;
    owned_scores out(cache.lanes());
    owned_moments moments(cache, cache.model().group());
    kv::keys const keys = kv::keys_of(cache.view());
    kv::query_view rows{.dims = keys.rows.channels, .heads = cache.model().kv_heads, .rows = keys.rows.channels};
    CHECK(error_of([&] { kv::ops::quadratic_form(exec, keys, rows, kv::replaced{}, out.view()); }) ==
          "quadratic_form: square = null, but each lane has a matrix");
    rows.base = cache.view().k.base;
    rows.rows = 1;
    CHECK(error_of([&] { kv::ops::quadratic_form(exec, keys, rows, kv::replaced{}, out.view()); }) ==
          "quadratic_form: square.rows = 1, but keys have " + std::to_string(keys.rows.channels) + " channels");
    CHECK(error_of([&] { kv::ops::query_moments(exec, cache.lanes(), rows, -1, moments.view()); }) ==
          "query_moments: sinks = -1, but a count cannot be negative");
    CHECK(error_of([&] { kv::ops::query_moments(exec, cache.lanes(), rows, 0, kv::moments_of_queries{}); }) ==
          "query_moments: out.mean = null, but a scorer asks its plan for memory by `spare_rows`");
    kv::query_model model;
    model.mean = rows;
    CHECK(error_of([&] { kv::ops::future_moments(exec, cache.lanes(), model, -1, moments.view()); }) ==
          "future_moments: future = -1, but a count cannot be negative");
    CHECK(error_of([&] { kv::ops::future_moments(exec, cache.lanes(), model, 1, moments.view()); }) ==
          "future_moments: query_model.square = null, but its turned form is asked for");
    kv::pre_rope_queries before;
    before.heads = cache.model().query_heads;
    before.dims = 1000;
    CHECK(error_of([&] { before.check("decide", cache.model()); }) ==
          "decide: pre_rope_queries.dims = 1000, but the shape says " + std::to_string(cache.model().head_dim) +
              " channels");
  }
}

}  // namespace moments_test
