// Logits of a lane: its keys tile by tile against packed query rows.
#pragma once

#include <algorithm>
#include <cmath>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/ops/host/block_kernels.hpp>
#include <kvpolicy/ops/host/rows.hpp>

namespace KVPOLICY_NAMESPACE::detail {

inline constexpr int most_rows = 32;  ///< rows of the larger block

/// Query rows side by side, and what the kernels say of each.
struct row_block {
  float* packed = nullptr;
  int rows = 0;
  bool few = false;  ///< so few are filled that each is multiplied alone
  block_kernels const* kernels = nullptr;
  int seen[most_rows] = {};
  float share[most_rows] = {};
  float lse[most_rows] = {};
  float highest[most_rows] = {};
  float sum[most_rows] = {};

  /// 16 or 32 rows, filled or not.
  void set_rows(isa speaks, int count) {
    rows = count;
    kernels = count == 16 ? &blocks_for<16>(speaks) : &blocks_for<32>(speaks);
  }
};

/// The rows of one lane's query heads: `count` of each from `begin` on.
struct row_range {
  int begin = 0;
  int count = 0;
  int group = 1;
};

class lane_logits {
 public:
  static constexpr int rooms = 4;  ///< blocks that can be packed at the same time

  static std::size_t scratch(shape const& model) {
    auto const d = static_cast<std::size_t>(model.head_dim);
    return scratch_of<float>((rooms * most_rows + keys_of_a_tile + 1) * d);
  }

  lane_logits() = default;
  lane_logits(isa speaks, keys const& from, query_view const& rows, lane who, row_range range, scratch_arena& arena)
      : speaks_(speaks), keys_(&from), rows_(&rows), who_(who), range_(range), dims_(from.rows.dims) {
    auto const d = static_cast<std::size_t>(dims_);
    packed_ = arena.take<float>((rooms * most_rows + keys_of_a_tile + 1) * d);
    tile_ = packed_ + rooms * most_rows * d;
    row_ = tile_ + keys_of_a_tile * d;
    if (from.where.kind == locating::identity && from.rows.bases.data == nullptr) first_key_ = from.row(who, 0);
    scale_ = 1.0f / std::sqrt(static_cast<float>(dims_));
    in_pairs_ = speaks == isa::avx512_bf16 && from.rows.element == codec::bf16 && from.rows.contiguous() &&
                dims_ % 2 == 0 && rows_are_bf16();
  }

  [[nodiscard]] isa speaks() const { return speaks_; }

  [[nodiscard]] row_block room(int which) const {
    row_block block;
    block.packed = packed_ + static_cast<std::ptrdiff_t>(which) * most_rows * dims_;
    return block;
  }

  /// Rows [first, first + count), counted head by head, side by side; zeros behind them.
  void pack(row_block& block, int first, int count) {
    block.few = count <= few_rows;
    std::fill_n(block.packed, static_cast<std::ptrdiff_t>(block.rows) * dims_, 0.0f);
    for (int i = 0; i < count; ++i) {
      load(first + i);
      in_pairs_ ? pack_pairs(block, i) : pack_floats(block, i);
    }
  }

  /// Makes the keys of entries [first, first + tile) the current tile; returns how many there are below `end`.
  int take(int first, int end) {
    int const count = std::min(keys_of_a_tile, end - first);
    int const there = std::min(2 * keys_of_a_tile, end - first);
    if (first_key_ != nullptr) {
      std::byte const* key = first_key_ + first * keys_->rows.token;
      for (int k = 0; k < there; ++k, key += keys_->rows.token) address_[k] = key;
    } else {
      for (int k = 0; k < there; ++k) address_[k] = keys_->row(who_, first + k);
    }
    std::fill(address_ + there, address_ + 2 * keys_of_a_tile, address_[there - 1]);
    if (in_pairs_ || is_floats()) return count;
    for (int k = 0; k < count; ++k) widen(static_cast<std::byte const*>(address_[k]), tile_ + k * dims_);
    for (int k = 0; k < keys_of_a_tile; ++k) address_[k] = tile_ + std::min(k, count - 1) * dims_;
    return count;
  }

  /// Logits of the current tile's first `count` keys and a block's rows.
  void tile(row_block const& block, int count, float* to) const {
    block_kernels const& kernels = *block.kernels;
    auto const kernel = block.few   ? in_pairs_ ? kernels.few_bf16 : kernels.few
                        : in_pairs_ ? kernels.logits_bf16
                                    : kernels.logits;
    kernel(address_, count, dims_, block.packed, scale_, to);
  }

  /// Logits of entries [begin, end), from `to` on.
  void all(row_block const& block, int begin, int end, float* to) {
    for (int e = begin; e < end; e += keys_of_a_tile) {
      int const count = take(e, end);
      tile(block, count, to + static_cast<std::ptrdiff_t>(e - begin) * block.rows);
    }
  }

 private:
  /// Every address is one that a float may have if two neighbouring ones are: rows lie at multiples of a stride.
  [[nodiscard]] bool is_floats() const {
    if (keys_->rows.element != codec::f32 || !keys_->rows.contiguous()) return false;
    std::uintptr_t all = 0;
    for (void const* each : address_) all |= reinterpret_cast<std::uintptr_t>(each);
    return all % alignof(float) == 0;
  }

  void widen(std::byte const* from, float* to) const {
    if (keys_->rows.contiguous()) return blocks_for<16>(speaks_).widen(keys_->rows.element, from, dims_, to);
    load_row(keys_->rows.element, from, keys_->rows.dim, dims_, to);
  }

  /// Row i of the range into row_.
  void load(int i) {
    int const row = rows_->stored(who_, range_.begin + i % range_.count);
    std::byte const* const from = rows_->at(who_, who_.head * range_.group + i / range_.count, row);
    load_row(rows_->element, from, bytes_of(rows_->element), dims_, row_);
  }

  /// Rows that bf16 holds exactly, whatever they are stored as, lose nothing in an instruction of bf16 pairs.
  bool rows_are_bf16() {
    if (rows_->element == codec::bf16) return true;
    for (int i = 0; i < range_.count * range_.group; ++i) {
      load(i);
      for (int d = 0; d < dims_; ++d) {
        if ((same_bits<std::uint32_t>(row_[d]) & 0xFFFFu) != 0) return false;
      }
    }
    return true;
  }

  void pack_floats(row_block& block, int i) const {
    std::ptrdiff_t const step = block.few ? 1 : block.rows;
    float* const to = block.packed + (block.few ? std::ptrdiff_t{i} * dims_ : i);
    for (int d = 0; d < dims_; ++d) to[d * step] = row_[d];
  }

  void pack_pairs(row_block& block, int i) const {
    std::ptrdiff_t const step = block.few ? 1 : block.rows;
    float* const to = block.packed + (block.few ? std::ptrdiff_t{i} * (dims_ / 2) : i);
    for (int d = 0; d < dims_; d += 2) {
      std::uint32_t const low = same_bits<std::uint32_t>(row_[d]) >> 16;
      to[d / 2 * step] = same_bits<float>(low | (same_bits<std::uint32_t>(row_[d + 1]) & 0xFFFF0000u));
    }
  }

  isa speaks_ = isa::portable;
  keys const* keys_ = nullptr;
  query_view const* rows_ = nullptr;
  lane who_{};
  row_range range_{};
  int dims_ = 0;
  bool in_pairs_ = false;
  std::byte const* first_key_ = nullptr;  ///< where keys follow one another at a stride
  float scale_ = 0;
  float* packed_ = nullptr;
  float* tile_ = nullptr;
  float* row_ = nullptr;
  void const* address_[2 * keys_of_a_tile] = {};
};

}  // namespace KVPOLICY_NAMESPACE::detail
