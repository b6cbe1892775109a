// SPDX-License-Identifier: Apache-2.0
// Host implementation of rerotate. An angle is the sum of a fine, a coarse and a far step, so three small tables
// contain all sines up to 65,536 positions.
#pragma once

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/gather_rows.hpp>
#include <kvpolicy/ops/host/kernels/element_rows.hpp>
#include <kvpolicy/ops/host/kernels/rope.hpp>
#include <kvpolicy/ops/host/unit_marks.hpp>
#include <kvpolicy/ops/rerotate.hpp>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::rerotate_t, host> {
  static std::size_t scratch(cache const& in) {
    auto const dims = static_cast<std::size_t>(in.k.channels);
    return detail::scratch_of<double>(table_size(in)) + detail::scratch_of<float>(steps * dims) +
           detail::scratch_of<double>(dims) + 3 * detail::scratch_of<float>(dims);
  }

  static void run(host_executor& exec, lanes const& batch, cache const& in, rope const& how,
                  first_keys const& first = first_keys()) {
    tables const made = make_tables(exec, in, how);
    bool const alone =
        detail::lanes_of_row(batch.position, batch) == 1 && (batch.position.sequence != 0 || batch.sequences == 1);
    exec.for_each(batch.size(), [&](int i, int worker) {
      lane const one = batch.at(i);
      turning now = turning_of(exec, in, made, worker);
      int const count = *batch.count.row(one);
      int const* const position = batch.position.row(one);
      for (int e = 0; e < count; ++e) {
        if (position[e] == e) continue;
        int const from = first.written.data != nullptr ? turn_from(in, one, e, first, made) : position[e];
        if (from != e) turn(in, one, e, e - from, now);
      }
      if (alone) number(batch, one);
    });
    if (alone) return;
    for (int i = 0; i < batch.size(); ++i) number(batch, batch.at(i));  // shared positions: all keys are rotated first
  }

 private:
  static constexpr int steps = 64;      ///< of the fine table, 1 position each, and of the coarse one, 64 each
  static constexpr int far_steps = 16;  ///< 4,096 positions each

  /// Tables that are computed once for all workers, in the caller's scratch. A row has all cosines, then all sines.
  struct tables {
    int pairs;
    rope_style style;
    double const* frequency;                ///< radians per position of each pair
    float const* fine;                      ///< [64][2][pairs]
    double const* coarse;                   ///< [64][2][pairs]
    double const* far;                      ///< [16][2][pairs]
    std::int64_t first_byte;                ///< of a row, from which on its channels turn
    detail::rope_kernels::function halves;  ///< null, unless a key's halves turn and its channels are contiguous
  };
  static std::size_t table_size(cache const& in) {
    return static_cast<std::size_t>(steps + far_steps + 1) * static_cast<std::size_t>(in.k.channels);
  }
  static tables make_tables(host_executor& exec, cache const& in, rope const& how) {
    int const dims = detail::turned_dims(in, how);
    int const pairs = dims / 2;
    detail::scratch_arena arena(exec.scratch(0));
    double* const frequency = arena.take<double>(table_size(in));
    float* const fine = arena.take<float>(static_cast<std::size_t>(steps * in.k.channels));
    for (int pair = 0; pair < pairs; ++pair)
      frequency[pair] = how.frequency ? how.frequency[pair] : std::pow(how.theta, -2.0 * pair / dims);
    double* const coarse = frequency + in.k.channels;
    double* const far = coarse + steps * dims;
    fill_table(frequency, pairs, 1, steps, coarse);
    for (int i = 0; i < steps * dims; ++i) fine[i] = static_cast<float>(coarse[i]);
    fill_table(frequency, pairs, steps, steps, coarse);
    fill_table(frequency, pairs, steps * steps, far_steps, far);
    bool const halves = how.style == rope_style::neox && in.k.channel_stride == bytes_of(in.k.element);
    return {.pairs = pairs,
            .style = how.style,
            .frequency = frequency,
            .fine = fine,
            .coarse = coarse,
            .far = far,
            .first_byte = detail::turned_channels_of(in).begin * in.k.channel_stride,
            .halves = halves ? detail::rope_of_isa[exec.simd_level()].of(in.k.element) : nullptr};
  }

  /// Row i of a table is for a turn back by i * unit positions. Of eight rows one is computed by cos and sin, and so
  /// are the first eight; the others are products of these.
  static void fill_table(double const* frequency, int pairs, int unit, int rows, double* table) {
    constexpr int computed = 8;
    for (int i = 0; i < rows; ++i) {
      double* const row = table + i * 2 * pairs;
      if (i < computed || i % computed == 0) {
        angles_of(frequency, pairs, -i * unit, row);
      } else {
        add_angles(table + i / computed * computed * 2 * pairs, table + i % computed * 2 * pairs, pairs, row);
      }
    }
  }
  static void angles_of(double const* frequency, int pairs, std::int64_t positions, double* row) {
    auto const turned = static_cast<double>(positions);
    for (int pair = 0; pair < pairs; ++pair) {
      row[pair] = std::cos(turned * frequency[pair]);
      row[pairs + pair] = std::sin(turned * frequency[pair]);
    }
  }
  /// The cosines and sines of sums of two angles.
  template <class T, class Made>
  KVPOLICY_VECTORIZED static void add_angles(T const* a, T const* b, int pairs, Made* row) {
    for (int i = 0; i < pairs; ++i) {
      row[i] = static_cast<Made>(a[i] * b[i] - a[pairs + i] * b[pairs + i]);
      row[pairs + i] = static_cast<Made>(a[pairs + i] * b[i] + a[i] * b[pairs + i]);
    }
  }

  /// A worker's memory. Neighbouring rows mostly turn by nearly the same angle.
  struct turning {
    tables by;
    double* wide;  ///< for a multiple of 4,096 positions that no table has
    float* upper;  ///< cosines and sines for a multiple of 64 positions, which seldom changes
    float* row;
    float* angle;  ///< cosines and sines
    int upper_step = -1;
  };
  static turning turning_of(host_executor& exec, cache const& in, tables const& made, int worker) {
    detail::scratch_arena arena(exec.scratch(worker));
    auto const dims = static_cast<std::size_t>(in.k.channels);
    (void)arena.take<double>(table_size(in));
    (void)arena.take<float>(steps * dims);
    return {.by = made,
            .wide = arena.take<double>(dims),
            .upper = arena.take<float>(dims),
            .row = arena.take<float>(dims),
            .angle = arena.take<float>(dims)};
  }

  /// Copies a key before its first turn, or brings the copy back. Returns the position that the key now has.
  static int turn_from(cache const& in, lane one, int e, first_keys const& first, tables const& by) {
    constexpr int width = 2;
    int const bytes = 2 * by.pairs * width;
    int const together = in.k.channel_stride == width ? bytes : width;  // channels may be apart
    std::byte* key = in.k.row(one.layer, in.where.at(one, e), one.head) + by.first_byte;
    std::byte* const copy = first.keys.row(one) + std::int64_t{e} * bytes;
    int& written = first.written.row(one)[e];
    for (int at = 0; at < bytes; at += together, key += in.k.channel_stride) {
      bool const back = written != 0;
      std::memcpy(back ? key : copy + at, back ? copy + at : key, static_cast<std::size_t>(together));
    }
    if (written == 0) written = in.lanes.position.row(one)[e] + 1;
    return written - 1;
  }

  /// The cosines and sines of a turn back by `upper` times 64 positions.
  static void make_upper(turning& now, int upper) {
    tables const& by = now.by;
    int const far = upper / steps;
    double const* angle = by.far + far % far_steps * 2 * by.pairs;
    if (far >= far_steps) {
      angles_of(by.frequency, by.pairs, -(std::int64_t{far} * steps * steps), now.wide);
      angle = now.wide;
    }
    add_angles(angle, by.coarse + upper % steps * 2 * by.pairs, by.pairs, now.upper);
  }

  static void turn(cache const& in, lane this_lane, int e, int step, turning& now) {
    tables const& by = now.by;
    std::int64_t const distance = std::abs(std::int64_t{step});  // mostly back, since entries before it were dropped
    if (auto const upper = static_cast<int>(distance / steps); upper != now.upper_step) {
      make_upper(now, upper);
      now.upper_step = upper;
    }
    float const* const fine = by.fine + distance % steps * 2 * by.pairs;
    std::byte* const key = in.k.row(this_lane.layer, in.where.at(this_lane, e), this_lane.head) + by.first_byte;
    if (by.halves != nullptr && step < 0) return by.halves(key, by.pairs, now.upper, fine);
    turn_any(in, key, step, fine, now);
  }

  /// Turns channels of any style and stride, forward or back.
  static void turn_any(cache const& in, std::byte* key, int step, float const* fine, turning& now) {
    int const pairs = now.by.pairs;
    float* const cosine = now.angle;
    float* const sine = cosine + pairs;
    add_angles(now.upper, fine, pairs, cosine);
    for (int pair = 0; step > 0 && pair < pairs; ++pair) sine[pair] = -sine[pair];
    bool const halves = now.by.style == rope_style::neox;
    detail::load_row(in.k.element, key, in.k.channel_stride, 2 * pairs, now.row);
    float* const first = now.row;
    float* const second = halves ? now.row + pairs : now.row + 1;
    int const stride = halves ? 1 : 2;
    for (int pair = 0; pair < pairs; ++pair) {
      float const x = first[stride * pair], y = second[stride * pair];
      first[stride * pair] = x * cosine[pair] - y * sine[pair];
      second[stride * pair] = y * cosine[pair] + x * sine[pair];
    }
    detail::store_row(in.k.element, now.row, in.k.channel_stride, 2 * pairs, key);
  }

  /// Positions become the ordinals.
  static void number(lanes const& batch, lane one) {
    int* const position = batch.position.row(one);
    int const count = *batch.count.row(one);
    for (int e = 0; e < count; ++e) position[e] = e;
  }
};

}  // namespace KVPOLICY_NAMESPACE
