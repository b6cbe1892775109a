// SPDX-License-Identifier: Apache-2.0
// Logits of a tile on tensor cores: 16-bit keys are read from their rows, query rows are fragments in shared memory.
#pragma once

#include <kvpolicy/ops/cuda/attention/fma.hpp>
#include <kvpolicy/ops/cuda/attention/pairs.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// Computes logits of bf16 or f16 keys whose rows are aligned to 16 bytes and have a multiple of 8 elements. A query
/// row of another type is split into a sum of two numbers of the keys' type, which keeps 16 bits of it with bf16 keys
/// and 22 with f16 keys.
///
/// It does not matter which dim is which k of a fragment, as long as keys and rows agree. Thread t of four takes dims
/// 8t to 8t + 7 of 32, so that every load is 16 bytes and serves two products of k = 16.
class mma_product {
 public:
  float4_reader keys;
  float4_reader rows;
  int rows_in_shared = 8;  ///< rows that fit in shared memory, a multiple of 8
  bool split = false;      ///< each element of a row is split into two numbers

  /// With so many dims, eight split rows still fit in 48 KiB beside the rest.
  static constexpr int most_dims = 512;

  /// True if it can multiply these keys.
  [[nodiscard]] static bool takes(plane const& of) {
    bool const halves = of.element == codec::f16 || of.element == codec::bf16;
    bool const aligned = of.contiguous() && of.channels % 8 == 0 && alignment_of(of, true) == 16;
    return halves && aligned && of.channels <= most_dims;
  }
  /// The product for `count` rows of a lane, of which as many as fit in `shared` bytes stay in shared memory.
  [[nodiscard]] static mma_product of(plane const& from, query_view const& queries, int count, std::size_t shared) {
    mma_product made;
    made.keys = reader_of(from);
    made.rows = reader_of(queries);
    made.split = queries.element != from.element;
    std::size_t const capacity = shared / (made.row_bytes() + sizeof(float));
    std::size_t const wanted = (static_cast<std::size_t>(count) + 7) / 8 * 8;
    made.rows_in_shared = static_cast<int>(wanted < capacity ? wanted : capacity / 8 * 8);
    return made;
  }

  [[nodiscard]] std::size_t bytes() const {
    return static_cast<std::size_t>(rows_in_shared) * row_bytes() + shared_arena::bytes_of_piece<float>(rows_in_shared);
  }
  /// How many rows a tile of logits has.
  [[nodiscard]] KVPOLICY_HD int tile() const { return rows_in_shared < tile_rows ? rows_in_shared : tile_rows; }
  [[nodiscard]] KVPOLICY_HD static constexpr int overlap() { return 0; }

  /// Packs all rows of the launch before the first tile of entries, if they fit in shared memory.
  template <class Block>
  KVPOLICY_HD void prepare(Block& block, used_rows const& used, shared_arena arena) const {
    if (used.rows() <= rows_in_shared) pack(block, used, rows_in(arena), 0, used.rows());
  }

  /// Computes the unscaled logits of the tile's keys and of `count` rows from `base` on into `of.tile.logits`. Begins
  /// with a barrier and ends without one.
  template <class Block>
  KVPOLICY_HD void run(Block& block, lane_tile const& of, shared_arena arena, int base, int count) const {
    packed_rows packed = rows_in(arena);
    block.sync();
    if (of.rows() > rows_in_shared) {
      pack(block, of, packed, base, count);
      block.sync();
    } else {
      packed = {packed.dims + place(base, 0), packed.factor + base};
    }
    for (int i = block.thread(); i < count; i += block.threads()) of.tile.scale[i] = of.task.scale * packed.factor[i];
    if (keys.element == codec::bf16) {
      multiply_all<codec::bf16>(block, of.tile, packed, count);
    } else {
      multiply_all<codec::f16>(block, of.tile, packed, count);
    }
  }

  /// The largest magnitude of some elements of a row, as bits.
  [[nodiscard]] KVPOLICY_HD static unsigned largest_of(four_floats const& some) {
    unsigned largest = 0;
    for (float const each : some.of) largest = max_op{}(largest, same_bits<unsigned>(each) & 0x7FFFFFFFu);
    return largest;
  }
  /// The power of two, at most 2^60, that scales a row's largest magnitude to [1, 2), so that the f16 parts of the row
  /// keep most bits. By one warp, each thread of which has the largest magnitude of its elements.
  template <class Block>
  [[nodiscard]] KVPOLICY_HD static float prescale_of(Block& block, unsigned largest) {
    largest = max_op{}(block.reduce_warp(largest, max_op{}) >> 23, 67u);
    return largest > 252 ? 1.0f : same_bits<float>((254u - largest) << 23);
  }

 private:
  /// Rows in shared memory as fragments, and what makes up for the powers of two that they are multiplied by.
  struct packed_rows {
    row_piece* dims;
    float* factor;
  };
  [[nodiscard]] KVPOLICY_HD packed_rows rows_in(shared_arena& arena) const {
    auto* const dims = arena.take<row_piece>(rests() * (split ? 2 : 1));
    return {dims, arena.take<float>(rows_in_shared)};
  }
  /// Where the second numbers of split rows begin.
  [[nodiscard]] KVPOLICY_HD int rests() const { return rows_in_shared * spans() * 4; }
  /// How many spans of 32 dims a row has.
  [[nodiscard]] KVPOLICY_HD int spans() const { return (keys.dims + 31) / 32; }
  [[nodiscard]] std::size_t row_bytes() const { return static_cast<std::size_t>(spans()) * (split ? 128 : 64); }
  /// The index of dims [8c, 8c + 8) of row i in the packed rows: the four vectors that a quad of threads reads are
  /// neighbours.
  [[nodiscard]] KVPOLICY_HD int place(int i, int c) const { return (i / 8 * spans() + c / 4) * 32 + i % 8 * 4 + c % 4; }

  /// Packs rows [base, base + count) of a launch as fragments, one warp for each row. Rows behind them, up to a
  /// multiple of 8, are zeros.
  template <class Block>
  KVPOLICY_HD void pack(Block& block, used_rows const& used, packed_rows const& to, int base, int count) const {
    for (int i = warp_id(block); i < (count + 7) / 8 * 8; i += block.threads() / warp_size) {
      std::byte const* const row = i < count ? used.row(base + i).at : nullptr;
      float prescale = 1;
      if (split && keys.element == codec::f16) prescale = prescale_of(block, largest_of_row(block, row));
      for (int c = lane_id(block); c < 8 * spans(); c += warp_size) {
        four_floats dims = 4 * c < rows.dims ? rows.at<false>(row, 4 * c) : four_floats{};
        for (float& each : dims.of) each *= prescale;
        four_parts const made =
            keys.element == codec::bf16 ? split_four<codec::bf16, true>(dims) : split_four<codec::f16, true>(dims);
        row_piece* const at = to.dims + place(i, c / 2);
        for (int k = 0; k < 2; ++k) {
          at->word[c % 2 * 2 + k] = made.high.of[k];
          if (split) at[rests()].word[c % 2 * 2 + k] = made.rest.of[k];
        }
      }
      if (lane_id(block) == 0) to.factor[i] = 1.0f / prescale;
    }
  }
  template <class Block>
  [[nodiscard]] KVPOLICY_HD unsigned largest_of_row(Block& block, std::byte const* row) const {
    unsigned largest = 0;
    for (int d = 4 * lane_id(block); d < rows.dims; d += 4 * warp_size) {
      largest = max_op{}(largest, largest_of(rows.at<false>(row, d)));
    }
    return largest;
  }

  /// Computes all logits of the tile; a warp takes 32 entries at a time. The loops are unrolled so that the sums stay
  /// in registers.
  template <codec Element, class Block>
  KVPOLICY_HD void multiply_all(Block& block, attention_storage& tile, packed_rows const& packed, int count) const {
    for (int m = warp_id(block) * 32; m < tile_entries; m += block.threads()) {
      fragment_of_floats sum[2][tile_rows / 8] = {};
      bool numbers = true;
      multiply<Element>(block, tile, packed.dims, (count + 7) / 8, m, sum);
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
      for (int half = 0; half < 2; ++half) {
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
        for (int n = 0; n < tile_rows / 8; ++n) {
          if (n * 8 < count) numbers = put(block, tile, m + 16 * half, 8 * n, sum[half][n]) && numbers;
        }
      }
      if (!numbers) recompute_nan(block, tile, packed.factor, m, count);
    }
  }

  /// Multiplies entries [m, m + 32) by `blocks` groups of eight rows.
  template <codec Element, class Block>
  KVPOLICY_HD void multiply(Block& block, attention_storage const& tile, row_piece const* packed, int blocks, int m,
                            fragment_of_floats (&sum)[2][tile_rows / 8]) const {
    int const t = lane_id(block) % 4;
    std::byte const* from[4];
    for (int i = 0; i < 4; ++i) {
      std::byte const* const row = tile.key[m + 8 * i + lane_id(block) / 4];
      from[i] = row != nullptr ? row : tile.key[0];  // loads under a condition would wait for one another
    }
    for (int s = 0; s < spans(); ++s) {
      row_piece key[4];
      bool const has = 8 * (4 * s + t) < keys.dims;
      for (int i = 0; i < 4; ++i) {
        key[i] = *reinterpret_cast<row_piece const*>(from[i] + (has ? 16 * (4 * s + t) : 0));
      }
      for (int i = 0; i < 4 && !has; ++i) key[i] = {};
      block.sync_warp();  // mma needs the whole warp
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
      for (int n = 0; n < tile_rows / 8; ++n) {
        if (n >= blocks) continue;
        auto const* const at = packed + (n * spans() + s) * 32 + lane_id(block);
        multiply_pair<Element>(block, key, *at, sum[0][n], sum[1][n]);
        if (split) multiply_pair<Element>(block, key, at[rests()], sum[0][n], sum[1][n]);
      }
    }
  }

  template <codec Element, class Block>
  KVPOLICY_HD static void multiply_pair(Block& block, row_piece const (&key)[4], row_piece const& row,
                                        fragment_of_floats& lower, fragment_of_floats& upper) {
    for (int part = 0; part < 4; part += 2) {
      fragment_16x8 const b{{row.word[part], row.word[part + 1]}};
      fragment_16x16 const first{{key[0].word[part], key[1].word[part], key[0].word[part + 1], key[1].word[part + 1]}};
      fragment_16x16 const second{{key[2].word[part], key[3].word[part], key[2].word[part + 1], key[3].word[part + 1]}};
      block.template multiply_16x8x16<Element>(first, b, lower);
      block.template multiply_16x8x16<Element>(second, b, upper);
    }
  }

  /// The place in the tile's logits of element i of this thread's part of the fragment of entries m to m + 15 and rows
  /// n to n + 7.
  [[nodiscard]] KVPOLICY_HD static int place_of(int lane, int m, int n, int i) {
    return (n + lane % 4 * 2 + i % 2) * tile_pitch + m + lane / 4 + i / 2 * 8;
  }

  /// Stores a fragment of logits. False if one of them is NaN.
  template <class Block>
  [[nodiscard]] KVPOLICY_HD static bool put(Block& block, attention_storage& tile, int m, int n,
                                            fragment_of_floats const& sum) {
    bool numbers = true;
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
    for (int i = 0; i < 4; ++i) {
      numbers = numbers && sum.of[i] == sum.of[i];
      tile.logits[place_of(lane_id(block), m, n, i)] = sum.of[i];
    }
    return numbers;
  }

  /// Computes the NaN logits of this thread again without tensor cores: an infinite key times the second part of a
  /// split row can be NaN where the logit is not.
  template <class Block>
  KVPOLICY_HD void recompute_nan(Block& block, attention_storage& tile, float const* factor, int m, int count) const {
    for (int i = 0; i < 2 * 4 * ((count + 7) / 8); ++i) {
      int const at = place_of(lane_id(block), m + i % 8 / 4 * 16, i / 8 * 8, i % 4);
      int const e = at % tile_pitch, r = at / tile_pitch;
      float& logit = tile.logits[at];
      if (logit != logit && r < count) logit = plain_product(keys, rows, tile.key[e], tile.query[r]) / factor[r];
    }
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail
