// SPDX-License-Identifier: Apache-2.0
// Attention masses that add up over rows and heads: the statistics of rows and the masses of entries, with all weights
// of a warp's entries in registers.
#pragma once

#include <cmath>
#include <kvpolicy/ops/cuda/attention/fragments.hpp>
#include <kvpolicy/ops/cuda/attention/mass_rows.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// The lowest position of a launch's rows.
[[nodiscard]] KVPOLICY_HD inline int first_position(attention_task const& task, used_rows const& used, lane this_lane) {
  return task.sees_all() || used.count == 0 ? 0 : task.position_of(this_lane, used.begin);
}

/// Computes the statistics of one stretch of one lane, one block each, in powers of two. Entries [32c, 32c + 32) of
/// each 128 are those of class c. Each thread keeps statistics of its entries of a class, so that they do not depend on
/// the number of warps. At the end they are combined in a fixed order.
template <class Product>
struct fragment_sums_kernel {
  attention_task task;
  Product product;
  sums_storage to;

  static constexpr int least_blocks = 3;
  static constexpr int classes = tile_entries / warp_size;

  [[nodiscard]] static std::size_t shared(Product const& product, sums_storage const&) {
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
    int const all = entries.begin < entries.end ? used.count * task.group : 0;
    running_sum* const out = to.part_of(index, number);
    for (int base = 0; base < all; base += product.capacity()) {
      int const count = min_op{}(all - base, product.capacity());
      product.take_rows(block, task, used, this_lane, rows, base, count, no_sums{});
      for (int c = warp_id(block); c < classes; c += block.threads() / warp_size) {
        auto* const mine = state + c * (product.capacity() / 16) * warp_size + lane_id(block);
        add_class(block, used, this_lane, entries, c, rows, count, mine);
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
  KVPOLICY_HD void add_class(Block& block, used_rows const& used, lane this_lane, ordinal_range entries, int c,
                             fragment_rows const& rows, int count, two_sums* state) const {
    int const first = first_position(task, used, this_lane);
    for (int n = 0; 16 * n < count; ++n) state[n * warp_size] = {running_sum::nothing(), running_sum::nothing()};
    for (int e = entries.begin + c * warp_size; e < entries.end; e += tile_entries) {
      warp_entries<Product::spans> some{};
      product.take_entries(block, task, used, this_lane, e, entries.end, first, some);
      for (int n = 0; 16 * n < count; ++n) {
        fragment_logits logits = product.multiply(block, some, rows, n);
        bool const open = some.all_seen && 16 * n + 16 <= count;
        two_sums sums = state[n * warp_size];
        for (int upper = 0; upper < 2; ++upper) {
          row_weight const& row = rows.weight[16 * n + 8 * upper + lane_id(block) / 4];
          if (!open) hide(some.seen_from(block, row.position), upper, logits);
          add_logits(logits, upper, row.scale, sums.of[upper]);
        }
        state[n * warp_size] = sums;
      }
    }
  }

  KVPOLICY_HD static void hide(unsigned seen, int upper, fragment_logits& logits) {
    for (int i = 0; i < 8; ++i) {
      if ((seen >> i & 1u) == 0) logits.at(upper, i) = running_sum::lowest();
    }
  }

  /// Adds this thread's eight logits of a row.
  KVPOLICY_HD static void add_logits(fragment_logits const& logits, int upper, float scale, running_sum& to) {
    running_sum now{to.row_max, 0};
    for (int i = 0; i < 8; ++i) now.row_max = ::fmaxf(now.row_max, logits.at(upper, i));
    float const zero = running_sum::exp_offset(now.row_max) * scale;
    now.sum = to.sum * power_of_two(to.row_max * scale - zero);
    for (int i = 0; i < 8; ++i) now.sum += power_of_two(logits.at(upper, i) * scale - zero);
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

/// As finalize_body, in powers of two.
struct finalize_fragments {
  sums_storage of;
  int first;
  sink_of_slot sink;

  template <class Block>
  KVPOLICY_HD void operator()(Block&, std::int64_t i) const {
    int const lane = static_cast<int>(i / of.slots);
    int const slot = static_cast<int>(i % of.slots);
    if (first + slot >= of.slots_of_lane) return;
    float const sunk = sink.any() ? sink(lane, first + slot) * log2_of_e : running_sum::lowest();
    float row_max = ::fmaxf(running_sum::lowest(), sunk);
    for (int s = 0; s < of.stretches; ++s) row_max = ::fmaxf(row_max, of.part_of(lane, s)[slot].row_max);
    float const zero = running_sum::exp_offset(row_max);
    float all = 0;
    for (int s = 0; s < of.stretches; ++s) {
      running_sum const one = of.part_of(lane, s)[slot];
      all += one.sum * power_of_two(one.row_max - zero);
    }
    if (sink.any()) all += power_of_two(sunk - zero);
    of.whole_of(lane)[first + slot] = {zero, 1.0f / all};
  }
};

/// As known_sums, in powers of two.
struct known_fragment_sums {
  known_sums of;
  KVPOLICY_HD row_sums operator()(attention_task const& task, lane this_lane, int head, int row, int stored) const {
    row_sums found = of(task, this_lane, head, row, stored);
    if (of.given) found.row_max *= log2_of_e;
    return found;
  }
};

/// One block for each piece of a segment, which handles lane after lane. A warp takes 32 entries at a time.
template <class Product>
struct fragment_mass_kernel {
  attention_task task;
  Product product;
  known_sums sums;
  mass_reduction how;
  int pieces;
  int entries;  ///< entries of a piece, a multiple of tile_entries

  static constexpr int least_blocks = 3;

  [[nodiscard]] static std::size_t shared(Product const& product) { return product.bytes(); }

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    score_view const& out = task.scores;
    int const segment = block.index() / pieces;
    int const begin = block.index() % pieces * entries;
    int const together = out.lanes.size() / out.segments();
    int const first = first_lane(out.lanes, out.decides, segment);
    for (int i = 0; i < together; ++i) add_lane(block, out.lanes.at(first + i), i, begin, out.row(segment));
    how.finish(block, task, out.row(segment), begin, begin + entries, out.lanes.committed(out.lanes.at(first)));
  }

 private:
  /// Adds the masses of the i-th lane of the segment. The entries of a warp are loaded once for all rows.
  template <class Block>
  KVPOLICY_HD void add_lane(Block& block, lane this_lane, int i, int begin, float* out) const {
    shared_arena arena(block);
    fragment_rows const rows = product.rows_in(arena);
    used_rows const used = used_rows_of(block, task, this_lane);
    int const first = first_position(task, used, this_lane);
    int const all = used.count * task.group;
    int const end = min_op{}(begin + entries, used.entries);
    bool const once = all <= product.capacity();
    known_fragment_sums const weights{sums};
    if (once && begin < end) product.take_rows(block, task, used, this_lane, rows, 0, all, weights);
    for (int e = begin; e < end; e += block.threads()) {
      int const mine = e + warp_id(block) * warp_size;
      warp_entries<Product::spans> some{};
      if (mine < end) product.take_entries(block, task, used, this_lane, mine, end, first, some);
      float total[8] = {};
      for (int base = 0; base < all; base += product.capacity()) {
        int const count = min_op{}(all - base, product.capacity());
        if (!once) product.take_rows(block, task, used, this_lane, rows, base, count, weights);
        if (mine < end) add_rows(block, some, rows, count, total);
      }
      if (mine < end) put(block, used, i, mine, end, total, out);
    }
  }

  template <class Block>
  KVPOLICY_HD void add_rows(Block& block, warp_entries<Product::spans> const& some, fragment_rows const& rows,
                            int count, float (&total)[8]) const {
    for (int n = 0; 16 * n < count; ++n) {
      fragment_logits const logits = product.multiply(block, some, rows, n);
      bool const open = some.all_seen && 16 * n + 16 <= count;
      for (int upper = 0; upper < 2; ++upper) {
        row_weight const row = rows.weight[16 * n + 8 * upper + lane_id(block) / 4];
        unsigned const seen = open ? 0xFFu : some.seen_from(block, row.position);
        for (int i = 0; i < 8; ++i) {
          float const power = power_of_two(logits.at(upper, i) * row.scale - row.offset);
          if ((seen >> i & 1u) != 0) total[i] += power * row.share;
        }
      }
    }
  }

  /// Eight threads have the same entries and different rows. They become neighbours, of which the i-th has the whole
  /// mass of their i-th entry.
  template <class Block>
  KVPOLICY_HD void put(Block& block, used_rows const& used, int i, int begin, int end, float (&total)[8],
                       float* out) const {
    int const id = lane_id(block);
    for (int k = 0; k < 8; ++k) total[k] = block.shuffle(total[k], id % 8 * 4 + id / 8);
    float const mass = block.template reduce_warp_batched<8>(total, plus_op{});
    int const at = begin + entry_in_warp(id / 8, id % 8);
    if (at < end) how.put(mass, task, used, i, out[at]);
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail
