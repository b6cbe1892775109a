// SPDX-License-Identifier: Apache-2.0
// The tables of a whole model, without rows of K and V, and a random decision, for verbs that edit tables.
#pragma once

#include "model.hpp"

namespace bench {

/// A pool of slots, and a list of slots for every lane. Lists are in scattered order, as after a long time of use. Slot
/// 0 is the dead slot.
struct listed_model {
  static constexpr int lanes = 36 * 8;

  /// Each lane has `entries` entries, of which a random choice of `kept` is kept. `entries` is a power of two.
  listed_model(int entries, int kept)
      : bound(entries),
        list(static_cast<std::size_t>(lanes) * static_cast<std::size_t>(entries)),
        position(list.size()),
        count(lanes),
        ordinal(static_cast<std::size_t>(lanes) * static_cast<std::size_t>(kept)),
        offset(lanes + 1),
        seen(lanes, entries) {
    noise from(5);
    for (int i = 0; i < lanes; ++i) {
      offset[static_cast<std::size_t>(i)] = std::int64_t{i} * kept;
      int* to = ordinal.data() + std::int64_t{i} * kept;
      for (int e = 0, left = kept; e < entries; ++e) {
        if (from.below(entries - e) >= left) continue;
        *to++ = e;
        --left;
      }
    }
    offset[lanes] = std::int64_t{lanes} * kept;
    reset();
  }
  listed_model(listed_model const&) = delete;  // views point into this object
  listed_model& operator=(listed_model const&) = delete;

  [[nodiscard]] static double bytes(int entries) { return 4.0 * lanes * entries * 3; }

  /// Restores the initial lists, positions and counts.
  void reset() {
    for (std::size_t i = 0; i < list.size(); ++i) {
      auto const e = static_cast<std::int64_t>(i) % bound;
      std::int64_t const lane = static_cast<std::int64_t>(i) / bound;
      list[i] = 1 + static_cast<int>((e * 40503 + lane * 977) % bound);
      position[i] = static_cast<int>(e);
    }
    std::fill(count.begin(), count.end(), bound);
  }

  [[nodiscard]] kv::by_lane<int> rows_of(std::vector<int>& table) const {
    return {table.data(), 0, std::int64_t{8} * bound, bound};
  }

  /// Planes have strides, and no memory.
  kv::cache view() {
    constexpr std::int64_t row = 256;  // 128 numbers in bf16
    kv::plane const rows{.element = kv::codec::bf16,
                         .channels = 128,
                         .layer_stride = 8 * row * (bound + 1),
                         .unit_stride = row,
                         .head_stride = row * (bound + 1),
                         .channel_stride = 2};
    kv::by_lane<int> const slots = rows_of(list);
    kv::cache made{.shape = whole_model, .k = rows, .v = rows};
    made.where = kv::slot_map({slots.data, slots.sequence, slots.layer, slots.head}, bound + 1);
    made.lanes = {.layer_end = 36,
                  .heads = 8,
                  .capacity = bound,
                  .count = {count.data(), 0, 8, 1},
                  .position = rows_of(position)};
    return made;
  }

  kv::keep_set keep() {
    return {.lanes = view().lanes,
            .indptr = offset.data(),
            .indices = ordinal.data(),
            .entry_count = seen.data(),
            .capacity = static_cast<std::int64_t>(ordinal.size()),
            .report = &told};
  }

  /// Row `i` of a table of this model.
  [[nodiscard]] int* row(std::vector<int>& table, int i) const { return table.data() + std::int64_t{i} * bound; }

  int bound;
  std::vector<int> list, position, count;
  std::vector<int> ordinal;
  std::vector<std::int64_t> offset;
  std::vector<int> seen;
  kv::report told;
};

}  // namespace bench
