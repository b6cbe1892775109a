// SPDX-License-Identifier: Apache-2.0
// Computes the logits of a lane: tiles of its keys times packed query rows.
#pragma once

#include <algorithm>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/ops/host/attention/row_block.hpp>
#include <kvpolicy/ops/host/kernels/element_rows.hpp>
#include <kvpolicy/ops/host/kernels/logits.hpp>
#include <kvpolicy/ops/host/lane_rows.hpp>
#include <kvpolicy/ops/host/prefetch.hpp>
#include <limits>

namespace KVPOLICY_NAMESPACE::detail {

/// Multiplies packed query rows by the keys of a lane, a tile of keys at a time: `pack` packs rows into a block,
/// `load_tile` finds a tile's keys, and `multiply_tile` writes its logits. `multiply_range` does both for a range of
/// entries.
class lane_logits {
 public:
  static constexpr int storage = 4;  ///< blocks that can be packed at the same time

  static std::size_t scratch(shape const& model) {
    auto const d = static_cast<std::size_t>(model.head_dim);
    return scratch_of<float>(storage * floats_of_a_block(model.head_dim) + floats_of_a_tile(model.head_dim) + d);
  }

  lane_logits() = default;
  lane_logits(host_executor const& exec, keys const& from, query_view const& rows, lane this_lane, row_range range,
              scratch_arena& arena)
      : simd_level_(exec.simd_level()),
        keys_(&from),
        rows_(&rows),
        lane_(this_lane),
        range_(range),
        dims_(from.rows.channels) {
    auto const d = static_cast<std::size_t>(dims_);
    packed_ = arena.take<float>(storage * floats_of_a_block(dims_) + floats_of_a_tile(dims_) + d);
    tile_ = packed_ + storage * floats_of_a_block(dims_);
    row_ = tile_ + floats_of_a_tile(dims_);
    key_addresses_ = lane_rows(from, this_lane);
    scale_ = scale_of(from.logits, dims_);
    soft_cap_ = from.logits.soft_cap;
    kernel_ = choose_kernel();
  }

  [[nodiscard]] isa simd_level() const { return simd_level_; }
  /// Sets the factor of products; the default is what the keys say, or 1 / sqrt(D).
  void scale_by(float factor) { scale_ = factor; }

  /// The size of a block for `left` remaining rows, of which it takes at most `most`.
  [[nodiscard]] int rows_for(int left, int most = most_rows) const {
    if (are_few()) return few_rows;
    return left > 16 && most > 16 ? most_rows : 16;
  }

  [[nodiscard]] row_block block_storage(int which) const {
    row_block block;
    block.packed = packed_ + static_cast<std::size_t>(which) * floats_of_a_block(dims_);
    return block;
  }

  /// Packs rows [first, first + count), which are numbered head by head; the rest of the block is zero.
  void pack(row_block& block, int first, int count) {
    pack_each(block, count, [&](int i) { return first + i; });
  }
  /// Packs `count` rows, of which row i has the number which(i).
  template <class Which>
  void pack_each(row_block& block, int count, Which const& which) {
    std::fill_n(block.packed, uses_amx() ? amx_layout::floats(dims_, block.rows) : std::ptrdiff_t{dims_} * block.rows,
                0.0f);
    std::fill_n(block.sink, most_rows, row_block::no_sink);
    for (int i = 0; i < count; ++i) {
      read_row(which(i));
      pack_row(kernel_, row_, dims_, i, block);
      if (has_sinks()) block.sink[i] = sink(which(i) / range_.count);
    }
  }

  /// The sink logit of a query head of the group.
  [[nodiscard]] float sink(int of_head) const {
    return keys_->logits.sinks.at(lane_.layer, lane_.head * range_.group + of_head);
  }
  /// The sink logits of the group, reduced as its logits are.
  [[nodiscard]] float group_sink(reduction how) const {
    float all = 0;
    for (int h = 0; h < range_.group; ++h) fold(all, sink(h), how, h == 0);
    return how == reduction::mean ? all / static_cast<float>(range_.group) : all;
  }
  [[nodiscard]] bool has_sinks() const { return keys_->logits.sinks.data != nullptr; }

  /// Makes the keys of entries [first, first + keys_of_a_tile) the current tile, and returns how many of them are below
  /// `end`. The addresses of the next tile are computed too, so that it can be prefetched.
  int load_tile(int first, int end) {
    int const count = std::min(keys_of_a_tile, end - first);
    int const available = std::min(2 * keys_of_a_tile, end - first);
    int reused = 0;
    if (first == next_first_ && end == end_) {
      reused = std::min(keys_of_a_tile, available);
      std::copy_n(next_addresses_, reused, address_);
    }
    key_addresses_.find(first + reused, first + available, address_ + reused);
    std::fill(address_ + available, address_ + 2 * keys_of_a_tile, address_[available - 1]);
    next_first_ = first + keys_of_a_tile;
    end_ = end;
    std::copy_n(address_ + keys_of_a_tile, keys_of_a_tile, next_addresses_);
    if (reads_keys()) return count;
    tile_prefetcher next{next_addresses_, dims_ * bytes_of(keys_->rows.element)};
    for (int k = 0; k < count; ++k) {
      for (int at = 0; at < next.bytes; at += 64) next.next();
      convert_row(simd_level_, keys_->rows.element, static_cast<std::byte const*>(address_[k]),
                  keys_->rows.channel_stride, dims_, tile_ + k * dims_);
    }
    if (keys_->rows.scales.data != nullptr) {
      for (int k = 0; k < count; ++k) scale_row(keys_->scale(lane_, first + k), dims_, tile_ + k * dims_);
    }
    for (int k = 0; k < keys_of_a_tile; ++k) address_[k] = tile_ + std::min(k, count - 1) * dims_;
    return count;
  }

  /// A thread's AMX registers, if the products of some blocks use them.
  class amx_registers {
   public:
    explicit amx_registers(block_products const* of) : of_(of) {
      if (of_ != nullptr) of_->begin_amx();
    }
    amx_registers(amx_registers const&) = delete;
    amx_registers& operator=(amx_registers const&) = delete;
    ~amx_registers() {
      if (of_ != nullptr) of_->end_amx();
    }

   private:
    block_products const* of_;
  };
  [[nodiscard]] amx_registers acquire(row_block const& block) const {
    return amx_registers(uses_amx() ? block.products : nullptr);
  }

  /// Computes the logits of the first `count` keys of the current tile and a block's rows, whose registers are
  /// acquired.
  void multiply_tile(row_block const& block, int count, float* to) const {
    block.products->of(kernel_)(address_, count, dims_, block.packed, scale_, to);
    if (soft_cap_ > 0) block.softmax->cap(to, count * block.rows, soft_cap_);
  }

  /// Computes the logits of entries [begin, end), and writes them to `to`. Entries from `end` to `last` come next, and
  /// are prefetched. Either `end` equals `last`, or `end - begin` is a multiple of `keys_of_a_tile`.
  void multiply_range(row_block const& block, int begin, int end, int last, float* to) {
    amx_registers const registers = acquire(block);
    for (int e = begin; e < end; e += keys_of_a_tile) {
      int const count = load_tile(e, last);
      multiply_tile(block, count, to + static_cast<std::ptrdiff_t>(e - begin) * block.rows);
    }
  }

  /// True if logits need not be stored, because `sweep` computes them in each of two passes.
  [[nodiscard]] bool has_sweeps() const {
    return kernel_ == product_kernel::amx_bf16 && !(soft_cap_ > 0) && scale_ > 0;
  }

  /// One pass of some blocks of rows over entries [0, end): the first one if `mass` is null.
  void sweep(row_block const& of, swept_rows const* rows, int blocks, int end, float* mass) {
    amx_registers const registers = acquire(of);
    for (int e = 0; e < end; e += keys_of_a_tile) {
      int const count = load_tile(e, end);
      float* const to = mass == nullptr ? nullptr : mass + e;
      of.products->sweep_bf16({address_, e, count, dims_, scale_, tile_, to}, rows, blocks);
    }
  }

 private:
  /// Packed tiles of rows take more memory than rows in any other layout.
  static std::size_t floats_of_a_block(int dims) {
    return static_cast<std::size_t>(amx_layout::floats(dims, most_rows));
  }
  /// A tile of keys as floats, or as bf16 that are padded for a matrix unit.
  static std::size_t floats_of_a_tile(int dims) {
    int const padded = amx_layout::tiles(dims) * amx_layout::dims_of_a_tile;
    return static_cast<std::size_t>(keys_of_a_tile * std::max(dims, padded / 2));
  }
  [[nodiscard]] bool are_few() const { return range_.count * range_.group <= few_rows; }
  /// True if the kernel reads keys as they are.
  [[nodiscard]] bool reads_keys() const {
    if (kernel_ != product_kernel::rows_interleaved && kernel_ != product_kernel::rows &&
        kernel_ != product_kernel::four_dims)
      return true;
    return keys_->rows.element == codec::f32 && keys_->rows.contiguous();
  }

  [[nodiscard]] bool uses_amx() const {
    return kernel_ == product_kernel::amx_bf16 || kernel_ == product_kernel::amx_bf16_parts ||
           kernel_ == product_kernel::amx_f16;
  }

  /// With AMX, 16-bit keys and more than 4 rows use the `amx_*` kernels. Other blocks of more than 4 rows use
  /// `rows_interleaved`, or its variant for bf16 if keys and rows are bf16 and the processor multiplies pairs of bf16.
  /// For 4 rows or fewer the order is: `four_dims_bf16` or `four_dims_bf16_parts`, `rows_f16` or `rows_bf16`,
  /// `four_dims`, `rows`.
  product_kernel choose_kernel() {
    bool const bf16 = simd_level_ >= isa::avx512_bf16 && keys_->rows.element == codec::bf16 && keys_->rows.contiguous();
    if (!are_few() && simd_level_ == isa::amx) {
      if (bf16) return rows_are_bf16() ? product_kernel::amx_bf16 : product_kernel::amx_bf16_parts;
      if (keys_->rows.element == codec::f16 && keys_->rows.contiguous()) return product_kernel::amx_f16;
    }
    if (!are_few())
      return bf16 && dims_ % 2 == 0 && rows_are_bf16() ? product_kernel::rows_interleaved_bf16
                                                       : product_kernel::rows_interleaved;
    if (bf16 && dims_ % 8 == 0)
      return rows_are_bf16() ? product_kernel::four_dims_bf16 : product_kernel::four_dims_bf16_parts;
    block_products const& few = logits_of_isa[simd_level_].few;
    codec const element = keys_->rows.element;
    if (keys_->rows.contiguous() && dims_ % few.numbers_of_a_vector == 0 &&
        (element == codec::f16 || element == codec::bf16)) {
      product_kernel const read = element == codec::f16 ? product_kernel::rows_f16 : product_kernel::rows_bf16;
      if (few.of(read) != nullptr) return read;
    }
    return dims_ % 4 == 0 && few.of(product_kernel::four_dims) != nullptr ? product_kernel::four_dims
                                                                          : product_kernel::rows;
  }

  /// Loads row i of the range into row_.
  void read_row(int i) {
    int const row = rows_->stored(lane_, range_.begin + i % range_.count);
    std::byte const* const from = rows_->at(lane_, lane_.head * range_.group + i / range_.count, row);
    load_row(rows_->element, from, bytes_of(rows_->element), dims_, row_);
  }

  /// True if bf16 represents all rows exactly. Then instructions on bf16 pairs lose nothing.
  bool rows_are_bf16() {
    if (rows_->element == codec::bf16) return true;
    for (int i = 0; i < range_.count * range_.group; ++i) {
      read_row(i);
      for (int d = 0; d < dims_; ++d) {
        if ((same_bits<std::uint32_t>(row_[d]) & 0xFFFFu) != 0) return false;
      }
    }
    return true;
  }

  isa simd_level_ = isa::portable;
  keys const* keys_ = nullptr;
  query_view const* rows_ = nullptr;
  lane lane_{};
  row_range range_{};
  int dims_ = 0;
  product_kernel kernel_ = product_kernel::rows_interleaved;
  lane_rows key_addresses_{};
  int next_first_ = -1;  ///< the first entry of the tile after the current one
  int end_ = 0;
  float scale_ = 0;
  float soft_cap_ = 0;  ///< 0: none
  float* packed_ = nullptr;
  float* tile_ = nullptr;
  float* row_ = nullptr;
  void const* address_[2 * keys_of_a_tile] = {};
  void const* next_addresses_[keys_of_a_tile] =
      {};  ///< of the tile from entry `next_first_` on; the last call computed it
};

/// Adds to mass[e] the probabilities that rows [0, rows) give to each entry e. fill(block, first, count) fills a block
/// with rows [first, first + count). As many blocks as can be packed share a pass, which ends where none of their rows
/// sees more. Needs `logits.has_sweeps()`.
template <class Fill>
void add_mass_by_sweeps(lane_logits& logits, Fill const& fill, int rows, float* mass) {
  for (int begin = 0; begin < rows; begin += lane_logits::storage * most_rows) {
    row_block block[lane_logits::storage];
    swept_rows swept[lane_logits::storage];
    int blocks = 0;
    int end = 0;
    for (int first = begin; first < rows && blocks < lane_logits::storage; first += most_rows, ++blocks) {
      int const count = std::min(most_rows, rows - first);
      row_block& one = block[blocks];
      one = logits.block_storage(blocks);
      one.set_rows(logits.simd_level(), most_rows);
      fill(one, first, count);
      one.begin_softmax();
      end = std::max(end, *std::max_element(one.visible, one.visible + count));
      unsigned const there = std::numeric_limits<unsigned>::max() >> (most_rows - count);
      swept[blocks] = {one.packed, one.visible, *std::min_element(one.visible, one.visible + count),
                       there,      one.row_max, one.sum};
    }
    logits.sweep(block[0], swept, blocks, end, nullptr);
    for (int b = 0; b < blocks; ++b) {
      for (int r = 0; r < most_rows; ++r) block[b].sum[r] = block[b].visible[r] > 0 ? 1.0f / block[b].sum[r] : 0.0f;
    }
    logits.sweep(block[0], swept, blocks, end, mass);
  }
}

}  // namespace KVPOLICY_NAMESPACE::detail
