// SPDX-License-Identifier: Apache-2.0
// Computes the softmax statistics of each row: first over stretches of entries, then over the stretches in their order.
#pragma once

#include <cmath>
#include <kvpolicy/ops/cuda/attention/task.hpp>
#include <kvpolicy/ops/cuda/fold.hpp>

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

/// Stands for statistics that are not known yet.
struct no_sums {
  KVPOLICY_HD row_sums operator()(attention_task const&, lane, int, int, int) const { return {}; }
};

/// Adds a tile's logits of one row to its statistics, by one warp.
template <class Block>
KVPOLICY_HD void add_row(Block& block, attention_storage const& temp_storage, float const* logits, int row, float scale,
                         running_sum* sum) {
  float row_max = running_sum::lowest();
  for (int e = lane_id(block); e < tile_entries; e += warp_size) {
    float const value = logits[e] * scale;
    if (temp_storage.sees(row, e) && value > row_max) row_max = value;
  }
  row_max = block.reduce_warp(row_max, max_op{});
  float const zero = running_sum::exp_offset(row_max);
  float all = 0;
  for (int e = lane_id(block); e < tile_entries; e += warp_size) {
    if (temp_storage.sees(row, e)) all += ::expf(logits[e] * scale - zero);
  }
  all = block.reduce_warp(all, plus_op{});
  if (lane_id(block) == 0) *sum = sum->with({row_max, all});
}

/// Computes the statistics of one stretch of one lane, one block each. The heads of a row are neighbours in `task`.
template <class Product>
struct sums_kernel {
  attention_task task;
  Product product;
  sums_storage to;

  [[nodiscard]] static std::size_t shared(Product const& product, sums_storage const& to) {
    return attention_storage::bytes() + shared_arena::bytes_of_piece<running_sum>(to.slots) + product.bytes();
  }

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    int const index = block.index() / to.stretches;
    int const number = block.index() % to.stretches;
    lane const this_lane = task.scores.lanes.at(index);
    shared_arena arena(block);
    attention_storage const temp_storage(arena, task.scaled());
    auto* const sums = arena.take<running_sum>(to.slots);
    for (int i = block.thread(); i < to.slots; i += block.threads()) sums[i] = running_sum::nothing();
    used_rows const used = used_rows_of(block, task, this_lane);
    int const all = used.count * task.group;
    int const begin = number * to.stretch;
    int const end = begin + to.stretch < used.entries ? begin + to.stretch : used.entries;
    if (begin < end && all > 0) product.prepare(block, task, used, this_lane, arena, all);
    for (int e = begin; e < end && all > 0; e += tile_entries) {
      block.sync();
      temp_storage.take_entries(block, task, used, this_lane, e, end);
      for (int base = 0; base < all; base += product.tile()) {
        int const count = all - base < product.tile() ? all - base : product.tile();
        block.sync();
        temp_storage.take_rows(block, task, used, this_lane, base, count, no_sums{});
        product.run(block, task, used, this_lane, temp_storage, arena, base, count);
        block.sync();
        temp_storage.apply_cap(block, task, count);
        add_rows(block, temp_storage, base, count, sums);
      }
    }
    block.sync();
    for (int i = block.thread(); i < to.slots; i += block.threads()) to.part_of(index, number)[i] = sums[i];
  }

 private:
  template <class Block>
  KVPOLICY_HD void add_rows(Block& block, attention_storage const& temp_storage, int base, int count,
                            running_sum* sums) const {
    if (!task.on_logits) {
      for (int i = warp_id(block); i < count; i += block.threads() / warp_size) {
        add_row(block, temp_storage, temp_storage.logits + i * tile_pitch, i, temp_storage.scale[i], sums + base + i);
      }
      return;
    }
    int const first = task.group - 1 - base % task.group;  // the row of the tile that completes a group
    reduce_groups(block, temp_storage, base, count);
    block.sync();
    for (int k = warp_id(block); first + k * task.group < count; k += block.threads() / warp_size) {
      int const i = first + k * task.group;
      add_row(block, temp_storage, temp_storage.logits + k * tile_pitch, i, 1.0f, sums + (base + i) / task.group);
    }
  }

  /// Reduces the logits of each group that ends in this tile, and stores the results one after another over the tile's
  /// rows.
  template <class Block>
  KVPOLICY_HD void reduce_groups(Block& block, attention_storage const& temp_storage, int base, int count) const {
    for (int e = block.thread(); e < tile_entries; e += block.threads()) {
      int head = base % task.group;
      int done = 0;
      for (int i = 0; i < count; ++i) {
        group_maximum ? fold_into(temp_storage.inner[e],
                                  temp_storage.logits[i * tile_pitch + e] * temp_storage.scale[i], true, head == 0)
                      : fold_into(temp_storage.inner[e],
                                  temp_storage.logits[i * tile_pitch + e] * temp_storage.scale[i] * logit_weight, false,
                                  head == 0);
        if (++head < task.group) continue;
        temp_storage.logits[done++ * tile_pitch + e] = temp_storage.inner[e];
        head = 0;
      }
    }
  }

 public:
  bool group_maximum = false;
  float logit_weight = 1;  ///< 1 / group for a mean of the group's logits, else 1
};

/// The sink logits of the slots of lanes. Where a slot is a row of the whole group, the group's sinks are reduced as
/// its logits are.
struct sink_of_slot {
  sink_logits sinks{};  ///< null: there are none
  lanes batch{};
  int group = 1;
  bool on_logits = false;
  bool group_maximum = false;
  float logit_weight = 1;

  [[nodiscard]] KVPOLICY_HD bool any() const { return sinks.data != nullptr; }
  [[nodiscard]] KVPOLICY_HD float operator()(int lane_index, int slot) const {
    lane const one = batch.at(lane_index);
    if (!on_logits) return sinks.at(one.layer, one.head * group + slot % group);
    float all = 0;
    for (int h = 0; h < group; ++h) {
      float const sink = sinks.at(one.layer, one.head * group + h);
      fold_into(all, group_maximum ? sink : sink * logit_weight, group_maximum, h == 0);
    }
    return all;
  }
};

/// Combines the statistics of the stretches of a slot, in their order, and its sink, one thread for each slot. `first`
/// is the first slot of this launch.
template <class Storage>
struct finalize_body {
  Storage of;
  int first;
  sink_of_slot sink;

  template <class Block>
  KVPOLICY_HD void operator()(Block&, std::int64_t i) const {
    int const lane = static_cast<int>(i / of.slots);
    int const slot = static_cast<int>(i % of.slots);
    if (first + slot >= of.slots_of_lane) return;
    auto all = of.part_of(lane, 0)[slot];
    for (int s = 1; s < of.stretches; ++s) all = all.with(of.part_of(lane, s)[slot]);
    if (sink.any()) all = all.with(all.of_sink(sink(lane, first + slot)));
    of.whole_of(lane)[first + slot] = all.finished();
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail
