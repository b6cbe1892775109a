// Sums of the softmax of each row: over stretches of entries, then over the stretches in their order.
#pragma once

#include <cmath>
#include <kvpolicy/ops/cuda/attention_task.hpp>
#include <kvpolicy/ops/cuda/fold.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// The highest logit so far, and the sum of e^(logit - it). A NaN makes the sum NaN and is never the highest.
struct running_sum {
  float high;
  float sum;

  [[nodiscard]] KVPOLICY_HD static running_sum nothing() { return {lowest(), 0}; }
  [[nodiscard]] KVPOLICY_HD static float lowest() { return same_bits<float>(0xFF800000u); }
  /// What e^x is taken against: logits of nothing but -inf, or none at all, have no highest.
  [[nodiscard]] KVPOLICY_HD static float against(float high) { return high == lowest() ? 0.0f : high; }

  [[nodiscard]] KVPOLICY_HD running_sum with(running_sum const& more) const {
    float const now = more.high > high ? more.high : high;
    float const zero = against(now);
    return {now, sum * ::expf(high - zero) + more.sum * ::expf(more.high - zero)};
  }
};

/// Where the sums of a batch lie in scratch. Slots are rows of all heads of a lane, or, reduced before the softmax, of
/// none in particular.
struct sums_storage {
  static constexpr int most_rows = 1024;       ///< of a query head, whose sums are there at the same time
  static constexpr int most_stretches = 64;    ///< of a lane
  static constexpr int least_stretch = 1024;   ///< entries
  static constexpr int slots_of_launch = 256;  ///< or those of one row, if they are more

  running_sum* part = nullptr;  ///< [lane][stretch][slots of a launch]
  row_sums* whole = nullptr;    ///< [lane][most_rows * group]
  int slots = 0;                ///< of a launch
  int held = 0;                 ///< most_rows * group
  int stretches = 0;
  int stretch = 0;  ///< entries; it depends on the bound alone, so that sums do not depend on the launch

  sums_storage(int group, int bound, int lanes, std::byte* scratch) {
    slots = group > slots_of_launch ? group : slots_of_launch;
    held = most_rows * group;
    int const wanted = (bound + least_stretch - 1) / least_stretch;
    stretches = wanted < 1 ? 1 : wanted < most_stretches ? wanted : most_stretches;
    int const even = (bound + stretches - 1) / stretches;
    stretch = (even + tile_entries - 1) / tile_entries * tile_entries;
    part = reinterpret_cast<running_sum*>(scratch);
    whole = scratch != nullptr ? reinterpret_cast<row_sums*>(scratch) + parts(lanes) : nullptr;
  }
  [[nodiscard]] std::size_t bytes(int lanes) const {
    return (parts(lanes) + static_cast<std::size_t>(lanes) * static_cast<std::size_t>(held)) * sizeof(row_sums);
  }
  /// Rows of a head whose sums one launch makes.
  [[nodiscard]] int rows_of_launch(int group) const { return slots / group; }

  [[nodiscard]] KVPOLICY_HD running_sum* part_of(int lane, int stretch_number) const {
    return part + (static_cast<std::int64_t>(lane) * stretches + stretch_number) * slots;
  }
  [[nodiscard]] KVPOLICY_HD row_sums* whole_of(int lane) const {
    return whole + static_cast<std::int64_t>(lane) * held;
  }

 private:
  [[nodiscard]] std::size_t parts(int lanes) const {
    return static_cast<std::size_t>(lanes) * static_cast<std::size_t>(stretches) * static_cast<std::size_t>(slots);
  }
};
static_assert(sizeof(running_sum) == sizeof(row_sums));

/// No sums are known yet: rows are scaled and nothing else.
struct no_sums {
  KVPOLICY_HD row_sums operator()(attention_task const&, lane, int, int, int) const { return {}; }
};

/// A block a stretch of a lane. Rows of `task` have their heads side by side.
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
    lane const this_lane = task.among.lanes.at(index);
    shared_arena arena(block);
    attention_storage const temp_storage(arena);
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
    int const first = task.group - 1 - base % task.group;  // the row of the tile at which a group is complete
    reduce_groups(block, temp_storage, base, count);
    block.sync();
    for (int k = warp_id(block); first + k * task.group < count; k += block.threads() / warp_size) {
      int const i = first + k * task.group;
      add_row(block, temp_storage, temp_storage.logits + k * tile_pitch, i, 1.0f, sums + (base + i) / task.group);
    }
  }

  /// The logits of each group that ends in this tile, one after another, where the tile's rows were.
  template <class Block>
  KVPOLICY_HD void reduce_groups(Block& block, attention_storage const& temp_storage, int base, int count) const {
    for (int e = block.thread(); e < tile_entries; e += block.threads()) {
      int head = base % task.group;
      int done = 0;
      for (int i = 0; i < count; ++i) {
        group_maximum ? fold_into(temp_storage.inner[e],
                                  temp_storage.logits[i * tile_pitch + e] * temp_storage.scale[i], true, head == 0)
                      : fold_into(temp_storage.inner[e],
                                  temp_storage.logits[i * tile_pitch + e] * temp_storage.scale[i] * group_share, false,
                                  head == 0);
        if (++head < task.group) continue;
        temp_storage.logits[done++ * tile_pitch + e] = temp_storage.inner[e];
        head = 0;
      }
    }
  }

  /// A warp adds a tile's logits of one row.
  template <class Block>
  KVPOLICY_HD void add_row(Block& block, attention_storage const& temp_storage, float const* logits, int row,
                           float scale, running_sum* sum) const {
    float high = running_sum::lowest();
    for (int e = lane_id(block); e < tile_entries; e += warp_size) {
      float const value = logits[e] * scale;
      if (temp_storage.sees(row, e) && value > high) high = value;
    }
    high = warp_reduce(block, high, take_higher{});
    float const zero = running_sum::against(high);
    float all = 0;
    for (int e = lane_id(block); e < tile_entries; e += warp_size) {
      if (temp_storage.sees(row, e)) all += ::expf(logits[e] * scale - zero);
    }
    all = warp_reduce(block, all, add_up{});
    if (lane_id(block) == 0) *sum = sum->with({high, all});
  }

 public:
  bool group_maximum = false;
  float group_share = 1;  ///< a mean of the group's logits: 1 / group
};

/// A thread a slot: what the stretches say of it, in their order. `first`: the first slot of this launch.
struct settle_body {
  sums_storage of;
  int first;

  template <class Block>
  KVPOLICY_HD void operator()(Block&, std::int64_t i) const {
    int const lane = static_cast<int>(i / of.slots);
    int const slot = static_cast<int>(i % of.slots);
    if (first + slot >= of.held) return;
    running_sum all = of.part_of(lane, 0)[slot];
    for (int s = 1; s < of.stretches; ++s) all = all.with(of.part_of(lane, s)[slot]);
    of.whole_of(lane)[first + slot] = {running_sum::against(all.high), 1.0f / all.sum};
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail
