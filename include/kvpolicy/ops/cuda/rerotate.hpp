// SPDX-License-Identifier: Apache-2.0
// Device implementation of rerotate. As on the host, an angle is the sum of a coarse and a fine step.
#pragma once

#include <cmath>
#include <kvpolicy/ops/cuda/moves/move_lists.hpp>
#include <kvpolicy/ops/cuda/moves/rows.hpp>
#include <kvpolicy/ops/rerotate.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// A rounded product, which is not fused into a multiply-add: rotated keys then have the same bits as on the host.
[[nodiscard]] KVPOLICY_HD inline float rounded_product(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

/// For each pair of channels, in scratch: its radians per position, and the cosine and sine of 0 to 63 positions.
struct turn_tables {
  static constexpr int fine_steps = 64;
  double* frequency = nullptr;  ///< [pairs]
  double* fine = nullptr;       ///< [64][pairs][2]
  int pairs = 0;

  [[nodiscard]] static constexpr std::size_t bytes(int pairs) {
    return static_cast<std::size_t>(1 + 2 * fine_steps) * static_cast<std::size_t>(pairs) * sizeof(double);
  }
};

struct make_turn_tables {
  turn_tables tables;
  rope how;

  KVPOLICY_HD void operator()(std::int64_t i) const {
    auto const step = static_cast<int>(i / tables.pairs);
    auto const pair = static_cast<int>(i % tables.pairs);
    double const frequency = how.frequency ? how.frequency[pair] : ::pow(how.theta, -2.0 * pair / (2 * tables.pairs));
    if (step == 0) tables.frequency[pair] = frequency;
    tables.fine[2 * i] = ::cos(step * frequency);
    tables.fine[2 * i + 1] = ::sin(step * frequency);
  }
};

/// The cosine and sine of a pair, for one thread. Neighbouring entries mostly rotate by the same angle.
struct pair_turn {
  int pair;
  double coarse_cosine = 1;
  double coarse_sine = 0;
  int coarse = 0;  ///< a multiple of 64 positions, which rarely changes
  int step = 0;
  float cosine = 1;
  float sine = 0;

  KVPOLICY_HD void turn_by(turn_tables const& tables, int wanted) {
    constexpr int fine_steps = turn_tables::fine_steps;
    if (wanted == step) return;
    int const multiple = (wanted >= 0 ? wanted : wanted - fine_steps + 1) / fine_steps * fine_steps;
    if (multiple != coarse) {
      double const angle = multiple * tables.frequency[pair];
      coarse_cosine = ::cos(angle);
      coarse_sine = ::sin(angle);
      coarse = multiple;
    }
    double const* const fine = tables.fine + 2 * (std::int64_t{wanted - multiple} * tables.pairs + pair);
    cosine = static_cast<float>(coarse_cosine * fine[0] - coarse_sine * fine[1]);
    sine = static_cast<float>(coarse_sine * fine[0] + coarse_cosine * fine[1]);
    step = wanted;
  }

  KVPOLICY_HD void turn(float& x, float& y) const {
    float const turned_x = rounded_product(x, cosine) - rounded_product(y, sine);
    y = rounded_product(y, cosine) + rounded_product(x, sine);
    x = turned_x;
  }
};

/// Rotates the keys of a piece of a lane's entries, one block for each piece. A thread rotates one pair of channels of
/// a run of entries.
struct turn_kernel {
  kvpolicy::lanes lanes;
  plane keys;
  locator where;
  turn_tables tables;
  rope_style style;
  int pieces;  ///< pieces of a lane
  int entries_of_a_piece;
  std::int64_t first_byte;  ///< of a row, from which on its channels turn
  first_keys copies;        ///< the next kernel notes which of them were written

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    lane const one = lanes.at(block.index() / pieces);
    int const count = *lanes.count.row(one);
    int const begin = block.index() % pieces * entries_of_a_piece;
    int const end = count - begin < entries_of_a_piece ? count : begin + entries_of_a_piece;
    int const wide = tables.pairs < block.threads() ? tables.pairs : block.threads();
    int const runs = block.threads() / wide;
    int const run = block.thread() / wide;
    if (run >= runs || begin >= end) return;
    int const entries = (end - begin + runs - 1) / runs;
    int const first = begin + run * entries;
    int const last = end - first < entries ? end : first + entries;
    for (int pair = block.thread() % wide; pair < tables.pairs; pair += wide) turn_run(one, pair, first, last);
  }

 private:
  static constexpr int entries_at_once = 4;

  KVPOLICY_HD void turn_run(lane one, int pair, int first, int last) const {
    pair_turn now{pair};
    for (int e = first; e < last; e += entries_at_once) turn_few(one, now, e, last);
  }

  /// Rotates a few entries. All of them are loaded before the first is stored, so that the thread waits for memory
  /// once.
  KVPOLICY_HD void turn_few(lane one, pair_turn& now, int first, int last) const {
    bool const halves = style == rope_style::neox;
    int const x_channel = halves ? now.pair : 2 * now.pair, y_channel = x_channel + (halves ? tables.pairs : 1);
    std::int64_t const x_at = x_channel * keys.channel_stride, y_at = y_channel * keys.channel_stride;
    int const* const position = lanes.position.row(one);
    int const* const written = copies.written.data != nullptr ? copies.written.row(one) : nullptr;
    std::byte* row[entries_at_once] = {};
    int step[entries_at_once] = {};
    float x[entries_at_once] = {}, y[entries_at_once] = {};
    for (int i = 0; i < entries_at_once; ++i) {
      int const e = first + i;
      step[i] = e < last ? e - position[e] : 0;
      if (step[i] == 0) continue;
      row[i] = keys.row(one.layer, where.at(one, e), one.head) + first_byte;
      std::byte const* from = row[i];
      std::int64_t dim = keys.channel_stride;
      std::int64_t const width = bytes_of(keys.element);
      std::byte* const copy =
          written != nullptr ? copies.keys.row(one) + std::int64_t{e} * 2 * tables.pairs * width : nullptr;
      if (copy != nullptr && written[e] != 0) {
        from = copy;
        dim = width;
        step[i] = e + 1 - written[e];
      }
      x[i] = element_at(keys.element, from + x_channel * dim);
      y[i] = element_at(keys.element, from + y_channel * dim);
      if (copy == nullptr || from == copy) continue;
      put_element(keys.element, x[i], copy + x_channel * width);
      put_element(keys.element, y[i], copy + y_channel * width);
    }
    for (int i = 0; i < entries_at_once; ++i) {
      if (row[i] == nullptr) continue;
      if (step[i] != 0) {  // 0: a key is where it was when it was copied
        now.turn_by(tables, step[i]);
        now.turn(x[i], y[i]);
      }
      put_element(keys.element, x[i], row[i] + x_at);
      put_element(keys.element, y[i], row[i] + y_at);
    }
  }
};

/// Notes which keys were copied, and at which positions.
struct note_copies {
  kvpolicy::lanes lanes;
  by_lane<int> written;

  KVPOLICY_HD void operator()(std::int64_t i) const {
    lane const one = lanes.at(static_cast<int>(i / lanes.capacity));
    auto const e = static_cast<int>(i % lanes.capacity);
    if (e >= *lanes.count.row(one)) return;
    int const position = lanes.position.row(one)[e];
    int& copied = written.row(one)[e];
    if (position != e && copied == 0) copied = position + 1;
  }
};

/// Sets positions to ordinals. Of lanes that share positions, the first writes them.
struct number_entries {
  kvpolicy::lanes lanes;

  KVPOLICY_HD void operator()(std::int64_t i) const {
    lane const one = lanes.at(static_cast<int>(i / lanes.capacity));
    auto const e = static_cast<int>(i % lanes.capacity);
    if (e < *lanes.count.row(one) && leads_row(lanes.position, lanes, one)) lanes.position.row(one)[e] = e;
  }
};

}  // namespace detail

/// Takes three launches: tables of sines, keys, and positions, which lanes may share; four with copies.
/// `rope.frequency` is memory of the executor.
template <kernel_backend Backend>
struct implementation<ops::rerotate_t, Backend> {
  [[nodiscard]] static std::size_t scratch(cache const& in) {
    return detail::turn_tables::bytes((in.k.channels + 1) / 2);
  }

  /// Throws if keys cannot be rotated, before rows move.
  static void refuse(cache const& in) { detail::check_aligned("rerotate", "k", in.k); }

  template <class Executor>
  static void run(Executor& exec, lanes const& batch, cache const& in, rope const& how,
                  first_keys const& first = first_keys()) {
    detail::check_scratch("rerotate", exec, scratch(in));
    refuse(in);
    detail::turn_tables tables;
    detail::turned_channels const turned = detail::turned_channels_of(in);
    tables.pairs = detail::turned_dims(in, how) / 2;
    tables.frequency = reinterpret_cast<double*>(exec.scratch());
    tables.fine = tables.frequency + tables.pairs;
    detail::launch_each(exec, std::int64_t{detail::turn_tables::fine_steps} * tables.pairs,
                        detail::make_turn_tables{tables, how});
    int const entries = exec.config().entries_of_a_block;
    int const pieces = (batch.capacity + entries - 1) / entries;
    detail::launch_unless_fault(exec, launch_shape{batch.size() * pieces, exec.threads().row, 0},
                                detail::turn_kernel{batch, in.k, in.where, tables, how.style, pieces, entries,
                                                    turned.begin * in.k.channel_stride, first});
    std::int64_t const all = std::int64_t{batch.size()} * batch.capacity;
    if (first.written.data != nullptr) {
      detail::launch_each_unless_fault(exec, all, detail::note_copies{batch, first.written});
    }
    detail::launch_each_unless_fault(exec, all, detail::number_entries{batch});
  }
};

}  // namespace KVPOLICY_NAMESPACE
