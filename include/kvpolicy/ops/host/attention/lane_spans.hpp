// SPDX-License-Identifier: Apache-2.0
// Computes the most attention that a lane's entries receive from rows that are about them: chunk by chunk, blocks of
// query rows times tiles of keys.
#pragma once

#include <algorithm>
#include <cmath>
#include <kvpolicy/ops/host/attention/lane_logits.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/span_attention.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// Rows [first, first + count) of a lane, and the entries that they are about.
struct row_chunk {
  int first = 0;
  int count = 0;
  ordinal_range about{};
};

/// The span attention of one lane. The softmax of a block of rows runs over the keys of rows and the first entries,
/// which only its maximum and sum remember, and then over the entries of the chunk, whose probabilities stay. The heads
/// of a row are neighbours in a block, so that a block sees few keys of rows that it does not need. Some blocks share a
/// pass over the keys.
class lane_spans {
 public:
  static std::size_t scratch(shape const& model, int bound) {
    return scratch_of<float>(floats_of_values(bound)) + scratch_of<float>(most_blocks * floats_of_scales) +
           2 * lane_logits::scratch(model);
  }

  /// `own` are the keys of rows, without memory if there are none.
  lane_spans(host_executor const& exec, keys const& from, keys const& own, row_targets const& targets,
             span_attention_options const& how, score_view const& out, lane one, std::span<std::byte> memory)
      : targets_(targets),
        lane_(one),
        how_(how),
        entries_(out.lanes.committed(one)),
        count_(targets.rows.rows > 0 ? targets.rows.valid(one) : 0),
        group_(targets.rows.rows > 0 ? targets.rows.heads / out.lanes.heads : 1),
        has_own_(has_memory(own.rows)) {
    scratch_arena arena(memory);
    values_ = arena.take<float>(floats_of_values(out.lanes.capacity));
    scales_ = arena.take<float>(most_blocks * floats_of_scales);
    entry_products_ = lane_logits(exec, from, targets_.rows, one, {0, count_, group_}, arena);
    if (has_own_) own_products_ = lane_logits(exec, own, targets_.rows, one, {0, count_, group_}, arena);
  }

  void compute(float* most) {
    std::fill_n(most, entries_, 0.0f);
    for (row_chunk chunk = next(0); chunk.count > 0; chunk = next(chunk.first + chunk.count)) {
      int const entries = chunk.about.end - chunk.about.begin;
      if (entries <= 0) continue;
      int const tiles = (entries + keys_of_a_tile - 1) / keys_of_a_tile;
      stretch_ = keys_of_a_tile * std::max(least_tiles, (tiles + most_stretches - 1) / most_stretches);
      room_ = std::max(entries, keys_of_a_tile * least_tiles);
      for (int first = 0; first < chunk.count * group_;) first = compute(chunk, first, most);
      add_padding(chunk.about, most);
    }
  }

 private:
  static constexpr int most_blocks = lane_logits::storage;
  static constexpr int most_stretches = 64;  ///< for as many there are scales
  static constexpr int least_tiles = 20;     ///< of a stretch: its logits of 32 rows, 60 KiB, stay in a cache
  static constexpr int most_shared = 4096;   ///< entries of a chunk for which several blocks have memory
  static constexpr int floats_of_scales = most_rows * most_stretches;

  static std::size_t floats_of_values(int bound) {
    int const shared = std::max(std::min(bound, most_shared), keys_of_a_tile * least_tiles);
    return static_cast<std::size_t>(most_rows) * static_cast<std::size_t>(std::max(bound, most_blocks * shared)) + 16;
  }

  /// The chunk whose first row is `first`; without rows after the last.
  [[nodiscard]] row_chunk next(int first) const {
    row_chunk made{first, 0, {}};
    if (first >= count_) return made;
    made.about = targets_.of(lane_, first, entries_);
    while (first + made.count < count_ && targets_.alike(lane_, first, first + made.count, entries_)) ++made.count;
    return made;
  }
  [[nodiscard]] float sink_of(int head) const {
    return entry_products_.has_sinks() ? entry_products_.sink(head) : row_block::no_sink;
  }
  /// Adds what rows of zeros that fill the chunk up give to each of its entries.
  void add_padding(ordinal_range about, float* to) const {
    int const missing = targets_.chunks.missing_in(about);
    if (missing == 0) return;
    float share = 0;
    for (int h = 0; h < group_; ++h) share += share_of_padding(about.end - about.begin, missing, sink_of(h));
    for (int e = about.begin; e < about.end; ++e) to[e] += share;
  }

  /// Blocks of rows that share a pass, of a chunk's rows from `first` to `end`, all heads of each in turn.
  struct pass {
    row_block block[most_blocks];
    int first[most_blocks + 1] = {};
    int count = 0;
  };
  [[nodiscard]] int rows_of(pass const& of, int b) const {
    return std::min(of.block[b].rows, of.first[b + 1] - of.first[b]);
  }

  /// Packs a pass from the chunk's row `first` on.
  pass packed(lane_logits& with, row_chunk const& chunk, int first) const {
    pass made;
    int const most = room_ <= most_shared ? most_blocks : 1;
    for (; made.count < most && first < chunk.count * group_; ++made.count) {
      row_block& block = made.block[made.count];
      block = with.block_storage(made.count);
      block.set_rows(with.simd_level(), with.rows_for(chunk.count * group_ - first));
      int const count = std::min(block.rows, chunk.count * group_ - first);
      with.pack_each(block, count,
                     [&](int i) { return (first + i) % group_ * count_ + chunk.first + (first + i) / group_; });
      block.begin_softmax();
      see_padding(block, count, targets_.chunks.missing_in(chunk.about));
      first = made.first[made.count + 1] = (made.first[made.count] = first) + count;
    }
    return made;
  }

  /// Adds the logits of so many keys of zeros to the softmax of `count` rows.
  static void see_padding(row_block& block, int count, int missing) {
    for (int r = 0; r < count && missing > 0; ++r) {
      float const most = std::max(block.row_max[r], 0.0f);
      block.sum[r] = block.sum[r] * std::exp(block.row_max[r] - most) + static_cast<float>(missing) * std::exp(-most);
      block.row_max[r] = most;
    }
  }

  /// The s-th stretch in a block's memory, of keys from `e` on.
  [[nodiscard]] block_view stretch_of(pass& of, int b, int end, int s, int e) const {
    row_block const& block = of.block[b];
    float* const values = values_ + std::ptrdiff_t{b} * most_rows * room_ + std::ptrdiff_t{s} * stretch_ * block.rows;
    return {values, e, std::min(stretch_, end - e), block.visible, scales_ + b * floats_of_scales + s * block.rows};
  }
  /// Runs the softmax of blocks on over keys [begin, end), a stretch at a time. Stretches share memory, or stand there
  /// one after another if `apart`.
  void advance(lane_logits& products, pass& of, int begin, int end, bool apart) {
    lane_logits::amx_registers const registers = products.acquire(of.block[0]);
    for (int e = begin, s = 0; e < end; e += stretch_, s += apart ? 1 : 0) {
      for (int at = e; at < std::min(end, e + stretch_); at += keys_of_a_tile) {
        int const keys = products.load_tile(at, end);
        for (int b = 0; b < of.count; ++b) {
          float* const to = stretch_of(of, b, end, s, e).values + std::ptrdiff_t{at - e} * of.block[b].rows;
          products.multiply_tile(of.block[b], keys, to);
        }
      }
      for (int b = 0; b < of.count; ++b) {
        row_block& block = of.block[b];
        block.softmax->advance(stretch_of(of, b, end, s, e), block.row_max, block.sum);
      }
    }
  }

  /// Computes a pass of a chunk's rows from `first` on, raises `most` to what they give, and returns the row after it.
  int compute(row_chunk const& chunk, int first, float* most) {
    pass of = packed(entry_products_, chunk, first);
    int const end = of.first[of.count];
    if (has_own_) {
      pass own = packed(own_products_, chunk, first);
      for (int b = 0; b < own.count; ++b) {
        for (int i = 0; i < rows_of(own, b); ++i)
          own.block[b].visible[i] = chunk.first + (own.first[b] + i) / group_ + 1;
      }
      advance(own_products_, own, chunk.first, chunk.first + (end - 1) / group_ + 1, false);
      for (int b = 0; b < of.count; ++b) {
        std::copy_n(own.block[b].row_max, most_rows, of.block[b].row_max);
        std::copy_n(own.block[b].sum, most_rows, of.block[b].sum);
      }
    }
    auto const see = [&](int entries) {
      for (int b = 0; b < of.count; ++b) std::fill_n(of.block[b].visible, rows_of(of, b), entries);
    };
    int const near = std::min(how_.sinks, chunk.about.begin);
    see(near);
    advance(entry_products_, of, 0, near, false);
    see(chunk.about.end);
    advance(entry_products_, of, chunk.about.begin, chunk.about.end, true);
    for (int b = 0; b < of.count; ++b) take(of, b, chunk, most);
    return end;
  }
  /// Raises `most` to the highest probabilities of a block's rows, or adds all of them in chunks of entries.
  void take(pass& of, int b, row_chunk const& chunk, float* most) const {
    row_block const& block = of.block[b];
    ordinal_range const about = chunk.about;
    int const stretches = (about.end - about.begin + stretch_ - 1) / stretch_;
    float* const scales = scales_ + b * floats_of_scales;
    block.softmax->finalize(scales, stretches, block.visible, block.row_max, block.sum);
    for (int i = 0; i < rows_of(of, b) && how_.divide_by.data != nullptr; ++i) {
      int const row = chunk.first + (of.first[b] + i) / group_;
      float const by = how_.divide_by.row(lane_)[targets_.rows.stored(lane_, row)];
      for (int s = 0; s < stretches; ++s) scales[std::ptrdiff_t{s} * block.rows + i] /= by;
    }
    for (int e = about.begin, s = 0; e < about.end; e += stretch_, ++s) {
      block.softmax->reduce(stretch_of(of, b, about.end, s, e), targets_.chunks.size == 0, true, most + e);
    }
  }

  row_targets targets_;
  lane lane_;
  span_attention_options const& how_;
  int entries_;
  int count_;  ///< valid rows
  int group_;
  bool has_own_;
  int stretch_ = 1;          ///< keys whose logits stay in a cache until the softmax has passed them
  int room_ = 1;             ///< keys for which a block has memory
  float* values_ = nullptr;  ///< logits, then unnormalised probabilities, of each block
  float* scales_ = nullptr;  ///< per block, stretch of the chunk and row: what turns values into probabilities
  lane_logits entry_products_{};
  lane_logits own_products_{};
};

}  // namespace KVPOLICY_NAMESPACE::detail
