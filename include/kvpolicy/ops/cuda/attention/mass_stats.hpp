// SPDX-License-Identifier: Apache-2.0
// Computes the softmax statistics of each row: first over stretches of entries, then over the stretches in their order.
#pragma once

#include <cmath>
#include <kvpolicy/ops/cuda/attention/tiles.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// Running softmax statistics: the highest logit so far, and the sum of e^(logit - row_max). A NaN makes the sum NaN
/// and is never the highest.
struct running_sum {
  float row_max;
  float sum;

  [[nodiscard]] KVPOLICY_HD static running_sum nothing() { return {lowest(), 0}; }
  [[nodiscard]] KVPOLICY_HD static float lowest() { return same_bits<float>(0xFF800000u); }
  /// What is subtracted in the exponent: row_max, or 0 where there is no logit above -inf.
  [[nodiscard]] KVPOLICY_HD static float exp_offset(float row_max) { return row_max == lowest() ? 0.0f : row_max; }

  [[nodiscard]] KVPOLICY_HD running_sum with(running_sum const& more) const {
    float const now = more.row_max > row_max ? more.row_max : row_max;
    float const zero = exp_offset(now);
    return {now, sum * ::expf(row_max - zero) + more.sum * ::expf(more.row_max - zero)};
  }
  /// A logit that is in the softmax and belongs to no entry.
  [[nodiscard]] KVPOLICY_HD static running_sum of_sink(float logit) { return {logit, 1.0f}; }
  [[nodiscard]] KVPOLICY_HD row_sums finished() const { return {exp_offset(row_max), 1.0f / sum}; }
};

/// Where the statistics of a batch are in scratch. A slot is a row of one query head of the lane or, where the group is
/// reduced before the softmax, a row of the whole group. `Part` is what is known of a row after a stretch, and `Whole`
/// what follows from all of them.
template <class Part, class Whole>
struct storage_of_rows {
  static constexpr int most_rows = 1024;      ///< rows of a query head whose statistics are in scratch at the same time
  static constexpr int most_stretches = 64;   ///< stretches of a lane
  static constexpr int least_stretch = 1024;  ///< a lane has one stretch for each so many entries of its bound
  static constexpr int slots_of_launch = 256;  ///< slots of a launch; more if one row has more heads

  Part* part = nullptr;    ///< [lane][stretch][slots]
  Whole* whole = nullptr;  ///< [lane][most_rows * group]
  int slots = 0;           ///< slots of a launch
  int slots_of_lane = 0;   ///< most_rows * group
  int stretches = 0;
  int stretch = 0;  ///< entries of a stretch; depends on the bound alone, so that sums do not depend on the launch

  storage_of_rows(int group, int bound, int lanes, std::byte* scratch) {
    slots = group > slots_of_launch ? group : slots_of_launch;
    slots_of_lane = most_rows * group;
    int const wanted = (bound + least_stretch - 1) / least_stretch;
    stretches = wanted < 1 ? 1 : wanted < most_stretches ? wanted : most_stretches;
    int const even = (bound + stretches - 1) / stretches;
    stretch = (even + tile_entries - 1) / tile_entries * tile_entries;
    part = reinterpret_cast<Part*>(scratch);
    whole = scratch != nullptr ? reinterpret_cast<Whole*>(part + parts(lanes)) : nullptr;
  }
  [[nodiscard]] std::size_t bytes(int lanes) const {
    return parts(lanes) * sizeof(Part) +
           static_cast<std::size_t>(lanes) * static_cast<std::size_t>(slots_of_lane) * sizeof(Whole);
  }
  /// How many rows of a head one launch handles.
  [[nodiscard]] int rows_of_launch(int group) const { return slots / group; }

  [[nodiscard]] KVPOLICY_HD Part* part_of(int lane, int stretch_number) const {
    return part + (static_cast<std::int64_t>(lane) * stretches + stretch_number) * slots;
  }
  [[nodiscard]] KVPOLICY_HD Whole* whole_of(int lane) const {
    return whole + static_cast<std::int64_t>(lane) * slots_of_lane;
  }

 private:
  [[nodiscard]] std::size_t parts(int lanes) const {
    return static_cast<std::size_t>(lanes) * static_cast<std::size_t>(stretches) * static_cast<std::size_t>(slots);
  }
};
using sums_storage = storage_of_rows<running_sum, row_sums>;

/// Adds a tile's logits of one row to its statistics, by one warp.
template <class Block>
KVPOLICY_HD void add_row(Block& block, attention_storage const& tile, float const* logits, int row, float scale,
                         running_sum* sum) {
  float row_max = running_sum::lowest();
  for (int e = lane_id(block); e < tile_entries; e += warp_size) {
    float const value = logits[e] * scale;
    if (tile.sees(row, e) && value > row_max) row_max = value;
  }
  row_max = block.reduce_warp(row_max, max_op{});
  float const zero = running_sum::exp_offset(row_max);
  float all = 0;
  for (int e = lane_id(block); e < tile_entries; e += warp_size) {
    if (tile.sees(row, e)) all += ::expf(logits[e] * scale - zero);
  }
  all = block.reduce_warp(all, plus_op{});
  if (lane_id(block) == 0) *sum = sum->with({row_max, all});
}
/// The same for rows [0, count) of the tile.
template <class Block>
KVPOLICY_HD void add_rows(Block& block, attention_storage const& tile, int count, running_sum* sums) {
  for (int i = warp_id(block); i < count; i += block.threads() / warp_size)
    add_row(block, tile, tile.logits + i * tile_pitch, i, tile.scale[i], sums + i);
}

/// Adds the rows of tiles to the statistics of a launch: add(tile, part, sums).
template <class Part, class Add>
struct sums_reduction {
  struct entry_total {};

  Part* parts;
  Add const& add_rows;
  no_sums sums{};

  template <class Block>
  KVPOLICY_HD void prepare(Block&, lane_tile const& of, tile_part const& at) const {
    add_rows(of, at, parts);
  }
  KVPOLICY_HD void add(lane_tile const&, tile_part const&, int, entry_total) const {}
  KVPOLICY_HD void put(lane_tile const&, int, entry_total) const {}
};

/// Computes the statistics of one stretch of one lane by one block.
template <class Block, class Product, class Part, class Whole, class Add>
KVPOLICY_HD void sum_stretch(Block& block, attention_task const& task, Product const& product,
                             storage_of_rows<Part, Whole> const& to, Add const& add) {
  int const index = block.index() / to.stretches, number = block.index() % to.stretches;
  shared_arena arena(block);
  auto* const sums = arena.template take<Part>(to.slots);
  for (int i = block.thread(); i < to.slots; i += block.threads()) sums[i] = Part::nothing();
  reduce_piece(block, task, product, task.scores.lanes.at(index), number * to.stretch, to.stretch,
               sums_reduction<Part, Add>{sums, add}, arena);
  block.sync();
  for (int i = block.thread(); i < to.slots; i += block.threads()) to.part_of(index, number)[i] = sums[i];
}
/// The shared memory that it takes.
template <class Product, class Part, class Whole>
[[nodiscard]] std::size_t shared_of_stretch(Product const& product, storage_of_rows<Part, Whole> const& to) {
  return shared_of_reduction<sums_reduction<Part, no_sums>>() + shared_arena::bytes_of_piece<Part>(to.slots) +
         product.bytes();
}

/// One block for each stretch of a lane. The heads of a row are neighbours in `task`.
template <class Product>
struct sums_kernel {
  attention_task task;
  Product product;
  sums_storage to;

  [[nodiscard]] std::size_t shared() const { return shared_of_stretch(product, to); }

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    sum_stretch(block, task, product, to, [&](lane_tile const& of, tile_part const& at, running_sum* sums) {
      task.on_logits ? add_groups(block, of, at, sums) : add_rows(block, of.tile, at.count, sums + at.base);
    });
  }

 private:
  /// Adds the groups of rows that end in this tile. Their logits are reduced first, and stored one after another over
  /// the tile's rows.
  template <class Block>
  KVPOLICY_HD void add_groups(Block& block, lane_tile const& of, tile_part const& at, running_sum* sums) const {
    for (int e = block.thread(); e < tile_entries; e += block.threads()) {
      float* to_row = of.tile.logits + e;
      of.reduce_series(
          at, e, task.group_maximum, [&](int i) { return of.tile.logit(i, e) * task.logit_weight; },
          [&](int, float inner) {
            *to_row = inner;
            to_row += tile_pitch;
          });
    }
    block.sync();
    int const first = task.group - 1 - at.base % task.group;  // the row of the tile that completes a group
    for (int k = warp_id(block); first + k * task.group < at.count; k += block.threads() / warp_size) {
      int const i = first + k * task.group;
      add_row(block, of.tile, of.tile.logits + k * tile_pitch, i, 1.0f, sums + (at.base + i) / task.group);
    }
  }
};

/// Combines the statistics of the stretches of a slot, in their order, and its sink, one thread for each slot. `first`
/// is the first slot of this launch.
template <class Storage>
struct finalize_body {
  Storage of;
  int first;
  attention_task task;

  KVPOLICY_HD void operator()(std::int64_t i) const {
    int const lane = static_cast<int>(i / of.slots);
    int const slot = static_cast<int>(i % of.slots);
    if (first + slot >= of.slots_of_lane) return;
    auto all = of.part_of(lane, 0)[slot];
    for (int s = 1; s < of.stretches; ++s) all = all.with(of.part_of(lane, s)[slot]);
    if (task.has_sinks()) all = all.with(all.of_sink(task.sink(lane, first + slot)));
    of.whole_of(lane)[first + slot] = all.finished();
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail
