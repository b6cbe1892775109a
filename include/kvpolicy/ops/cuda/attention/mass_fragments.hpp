// SPDX-License-Identifier: Apache-2.0
// Attention masses that add up over rows and heads: the statistics of rows and the masses of entries, with all weights
// of a warp's entries in registers.
#pragma once

#include <cmath>
#include <kvpolicy/ops/cuda/attention/fragments.hpp>
#include <kvpolicy/ops/cuda/attention/mass_rows.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// Computes the statistics of one stretch of one lane, one block each, in powers of two. The entries of each 128 that a
/// warp takes at once are a class. Each thread keeps statistics of its entries of a class, so that they do not depend
/// on the number of warps. At the end they are combined in a fixed order.
template <class Product>
struct fragment_sums_kernel {
  attention_task task;
  Product product;
  sums_storage to;

  using entries_at_once = typename Product::entries;
  static constexpr int least_blocks = entries_at_once::splits ? 2 : 3;  // with 3, f32 would spill registers
  static constexpr int classes = tile_entries / entries_at_once::count;

  [[nodiscard]] std::size_t shared() const {
    return product.bytes() + static_cast<std::size_t>(product.capacity()) * Product::statistics_bytes;
  }

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    int const index = block.index() / to.stretches;
    int const number = block.index() % to.stretches;
    lane const this_lane = task.scores.lanes.at(index);
    shared_arena arena(block);
    fragment_rows const rows = product.rows_in(arena);
    auto* const state = arena.take<two_sums>(product.capacity() / 16 * warp_size * classes);
    used_rows const used = used_rows_of(block, task, this_lane);
    ordinal_range const entries{number * to.stretch, min_op{}(number * to.stretch + to.stretch, used.entries)};
    int const all = entries.begin < entries.end ? used.rows() : 0;
    running_sum* const out = to.part_of(index, number);
    for (int base = 0; base < all; base += product.capacity()) {
      int const count = min_op{}(all - base, product.capacity());
      product.take_rows(block, used, rows, base, count, no_sums{});
      for (int c = warp_id(block); c < classes; c += block.threads() / warp_size) {
        auto* const mine = state + c * (product.capacity() / 16) * warp_size + lane_id(block);
        add_class(block, used, entries, c, rows, count, mine);
      }
      block.sync();
      for (int i = block.thread(); i < count; i += block.threads()) {
        out[base + i] = combined(state + i / 16 * warp_size + i % 8 * 4, i / 8 % 2, rows.weight[i].scale);
      }
    }
    for (int i = all + block.thread(); i < to.slots; i += block.threads()) out[i] = running_sum::nothing();
  }

 private:
  /// Statistics of rows g and g + 8 of sixteen over a thread's entries. The maxima are those of unscaled logits.
  struct alignas(16) two_sums {
    running_sum of[2];
  };

  template <class Block>
  KVPOLICY_HD void add_class(Block& block, used_rows const& used, ordinal_range entries, int c,
                             fragment_rows const& rows, int count, two_sums* state) const {
    for (int n = 0; 16 * n < count; ++n) state[n * warp_size] = {running_sum::nothing(), running_sum::nothing()};
    for (int e = entries.begin + c * entries_at_once::count; e < entries.end; e += tile_entries) {
      entries_at_once some;
      some.load(block, task.from, used.lane, e, entries.end);
      some.settle(block, used, e, entries.end);
      for (int n = 0; 16 * n < count; ++n) {
        typename Product::logits logits = product.multiply(block, some, rows, n);
        bool const open = some.all_seen && 16 * n + 16 <= count;
        two_sums sums = state[n * warp_size];
        for (int upper = 0; upper < 2; ++upper) {
          fragment_weight const& row = rows.weight[16 * n + 8 * upper + lane_id(block) / 4];
          if (!open) hide(some, row.position, upper, logits);
          add_logits(logits, upper, row.scale, sums.of[upper]);
        }
        state[n * warp_size] = sums;
      }
    }
  }

  KVPOLICY_HD static void hide(entries_at_once const& some, int row_position, int upper,
                               typename Product::logits& logits) {
    for (int i = 0; i < entries_at_once::of_thread; ++i) {
      if (some.position[i] > row_position) logits.at(upper, i) = running_sum::lowest();
    }
  }

  /// Adds this thread's logits of a row.
  KVPOLICY_HD static void add_logits(typename Product::logits const& logits, int upper, float scale, running_sum& to) {
    running_sum now{to.row_max, 0};
    for (int i = 0; i < entries_at_once::of_thread; ++i) now.row_max = ::fmaxf(now.row_max, logits.at(upper, i));
    float const zero = running_sum::exp_offset(now.row_max) * scale;
    // Not to.row_max * scale - zero: as one fused operation it would leave a rounding where the maximum stays.
    now.sum = to.sum * power_of_two((to.row_max - running_sum::exp_offset(now.row_max)) * scale);
    for (int i = 0; i < entries_at_once::of_thread; ++i) {
      now.sum += power_of_two(logits.at(upper, i) * scale - zero);
    }
    to = now;
  }

  /// Combines the statistics of a row, of all classes and threads. The maximum becomes that of scaled logits.
  KVPOLICY_HD running_sum combined(two_sums const* state, int row, float scale) const {
    int const of_class = product.capacity() / 16 * warp_size;
    running_sum all = running_sum::nothing();
    for (int i = 0; i < classes * 4; ++i)
      all.row_max = ::fmaxf(all.row_max, state[i / 4 * of_class + i % 4].of[row].row_max);
    float const zero = running_sum::exp_offset(all.row_max) * scale;
    for (int i = 0; i < classes * 4; ++i) {
      running_sum const& one = state[i / 4 * of_class + i % 4].of[row];
      all.sum += one.sum * power_of_two(one.row_max * scale - zero);
    }
    return {all.row_max * scale, all.sum};
  }
};

/// As finalize_body, in powers of two. What is left of a row is the logarithm of its sum, to which all its weights add
/// up to 1.
struct finalize_fragments {
  sums_storage of;
  int first;
  attention_task task;

  KVPOLICY_HD void operator()(std::int64_t i) const {
    int const lane = static_cast<int>(i / of.slots);
    int const slot = static_cast<int>(i % of.slots);
    if (first + slot >= of.slots_of_lane) return;
    float const sunk = task.has_sinks() ? task.sink(lane, first + slot) * log2_of_e : running_sum::lowest();
    float row_max = ::fmaxf(running_sum::lowest(), sunk);
    for (int s = 0; s < of.stretches; ++s) row_max = ::fmaxf(row_max, of.part_of(lane, s)[slot].row_max);
    float const zero = running_sum::exp_offset(row_max);
    float all = 0;
    for (int s = 0; s < of.stretches; ++s) {
      running_sum const one = of.part_of(lane, s)[slot];
      all += one.sum * power_of_two(one.row_max - zero);
    }
    if (task.has_sinks()) all += power_of_two(sunk - zero);
    of.whole_of(lane)[first + slot] = {zero + ::log2f(all), 1};
  }
};

/// Each warp takes some entries at a time. Pieces have a multiple of 32.
///
/// Loads that do not depend on each other are under way together: a block asks for a fault and for the count of a lane
/// at the same time, and loads its first keys before it packs rows. With a fault it reads no keys, because tables of
/// slots may be what is wrong.
template <class Product>
struct fragment_mass_kernel : mass_pieces {
  using entries_at_once = typename Product::entries;

  Product product;

  static constexpr int least_blocks = entries_at_once::splits ? 2 : 3;  // with 3, f32 would spill registers

  [[nodiscard]] std::size_t shared() const { return product.bytes(); }

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    std::uint64_t const fault = *faults.data;
    lanes const& batch = task.scores.lanes;
    piece const at = of(block.index());
    int const count = batch.committed(batch.at(at.first));
    if (fault != device_error::nothing) return;
    for (int i = 0; i < at.together; ++i) add_lane(block, batch.at(at.first + i), i, at.begin, at.out);
    finish(block, at, count);
  }

 private:
  /// The masses of a thread's entries.
  struct masses_of_thread {
    float of[static_cast<std::size_t>(entries_at_once::of_thread)];
  };

  /// Adds the masses of the i-th lane of the segment. The entries of a warp are loaded once for all rows.
  template <class Block>
  KVPOLICY_HD void add_lane(Block& block, lane this_lane, int i, int begin, float* out) const {
    shared_arena arena(block);
    fragment_rows const rows = product.rows_in(arena);
    int const end = min_op{}(begin + entries, task.scores.lanes.committed(this_lane));
    int const step = block.threads() / warp_size * entries_at_once::count;
    entries_at_once some;
    found_rows found;
    for (int e = begin; e < end; e += step) {
      int const mine = e + warp_id(block) * entries_at_once::count;
      if (mine < end) some.load(block, task.from, this_lane, mine, end);
      if (e == begin) found = used_rows_of(block, task, this_lane);
      used_rows const used{found, task, this_lane};
      masses_of_thread total{};
      for (int base = 0; base < used.rows(); base += product.capacity()) {
        int const count = min_op{}(used.rows() - base, product.capacity());
        bool const packed = e > begin && used.rows() <= product.capacity();
        if (!packed) product.take_rows(block, used, rows, base, count, sums);
        if (mine >= end) continue;
        if (base == 0) some.settle(block, used, mine, end);
        add_rows(block, some, rows, count, total);
      }
      if (mine < end) put(block, used, i, mine, end, total, out);
    }
  }

  template <class Block>
  KVPOLICY_HD void add_rows(Block& block, entries_at_once const& some, fragment_rows const& rows, int count,
                            masses_of_thread& total) const {
    for (int n = 0; 16 * n < count; ++n) {
      typename Product::logits const logits = product.multiply(block, some, rows, n);
      bool const open = some.all_seen && 16 * n + 16 <= count;
      fragment_weight const* const row = rows.weight + 16 * n + static_cast<unsigned>(lane_id(block)) / 4;
      open ? add_weights<true>(some, logits, row, total) : add_weights<false>(some, logits, row, total);
    }
  }

  /// Adds what rows g and g + 8 of sixteen weigh this thread's logits with. `Open`: they see all of their entries.
  template <bool Open>
  KVPOLICY_HD static void add_weights(entries_at_once const& some, typename Product::logits const& logits,
                                      fragment_weight const* rows, masses_of_thread& total) {
    for (int upper = 0; upper < 2; ++upper) {
      fragment_weight const row = rows[8 * upper];
      for (int i = 0; i < entries_at_once::of_thread; ++i) {
        float const power = power_of_two(logits.at(upper, i) * row.scale - row.offset);
        if (Open || some.position[i] <= row.position) total.of[i] += power;
      }
    }
  }

  /// Eight threads have the same entries and different rows. They become neighbours, of which the i-th has the whole
  /// mass of their i-th entry.
  template <class Block>
  KVPOLICY_HD void put(Block& block, used_rows const& used, int i, int begin, int end, masses_of_thread& total,
                       float* out) const {
    int const id = lane_id(block);
    for (float& each : total.of) each = block.shuffle(each, id % 8 * 4 + id / 8);
    float const mass = block.template reduce_warp_batched<8>(total.of, plus_op{});
    int const at = begin + entries_at_once::in_warp(id / 8, id % 8);
    if (id % 8 < entries_at_once::of_thread && at < end) how.put(mass, used, i, out[at]);
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail
