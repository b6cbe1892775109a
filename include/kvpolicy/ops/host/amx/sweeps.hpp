// SPDX-License-Identifier: Apache-2.0
// Attention mass on AMX, in two passes over bf16 keys that write no logits to memory, and the table of AMX's kernels.
//
// A bf16 key of 128 dims has 256 bytes, and its logits of 32 rows have 128. To write the logits, and to read them again
// when the sums of the softmax are known, takes longer than to multiply twice. And several blocks of rows share a pass.
#pragma once

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <kvpolicy/ops/host/amx/products.hpp>
#include <kvpolicy/ops/host/kernels/softmax.hpp>
#include <kvpolicy/ops/host/prefetch.hpp>
#include <limits>

namespace KVPOLICY_NAMESPACE::detail {

/// Both passes over a tile of keys. The first one updates the maximum and the sum of each row's softmax, the second one
/// adds up the probabilities that a key gets.
struct amx_sweeps {
  static constexpr int columns = most_rows / 16;

  [[gnu::target(KVPOLICY_AMX)]] static void run(swept_keys const& of, swept_rows const* rows, int blocks) {
    of.mass == nullptr ? pass<false>(of, rows, blocks) : pass<true>(of, rows, blocks);
  }

 private:
  using products = amx_products<most_rows, codec::bf16, 1>;
  using parts_of_keys = products::parts_of_keys;  ///< of 32 dims; bf16 keys are one part

  /// The products of a block are added while the softmax of the block before it is computed: a matrix unit multiplies
  /// while the core does something else.
  template <bool AddsMass>
  [[gnu::target(KVPOLICY_AMX)]] static void pass(swept_keys const& of, swept_rows const* rows, int blocks) {
    alignas(64) float logits[2][keys_of_a_tile * most_rows];
    alignas(64) float mass[keys_of_a_tile * 16];  // sixteen parts of each key's mass
    std::fill_n(mass, AddsMass ? keys_of_a_tile * 16 : 0, 0.0f);
    copy_keys(of);
    int const lines = (products::bytes * of.dims + 63) / 64 * keys_of_a_tile;
    lines_prefetcher next{{of.keys + keys_of_a_tile, products::bytes * of.dims},
                          (lines + keys_of_a_tile * blocks - 1) / (keys_of_a_tile * blocks),
                          lines};
    products::clear();
    for (int tile = 0; tile < amx_layout::tiles(of.dims); ++tile) multiply(of, rows[0], tile);
    products::store(logits[0]);
    for (int b = 0; b < blocks; ++b) {
      swept_rows const* const following = b + 1 < blocks ? rows + b + 1 : nullptr;
      float* const then = logits[(b + 1) % 2];
      if (of.first + keys_of_a_tile <= rows[b].all_see) {
        softmax<AddsMass, true>{of, rows[b], logits[b % 2], mass}.run(next, following, then);
      } else {
        softmax<AddsMass, false>{of, rows[b], logits[b % 2], mass}.run(next, following, then);
      }
    }
    if constexpr (AddsMass) {
      for (int k = 0; k < of.count; ++k) {
        of.mass[k] += avx512::reduce_add(avx512::load(mass + std::ptrdiff_t{16} * k));
      }
    }
  }

  /// Prefetches the next tile of keys, some lines with each key and block.
  struct lines_prefetcher {
    tile_prefetcher tile;
    int each;
    int left;  ///< lines; after the last one there is no address

    KVPOLICY_OP void next() {
      int const some = std::min(each, left);
      for (int i = 0; i < some; ++i) tile.next();
      left -= some;
    }
  };

  /// Copies the keys, 32 dims after 32 dims.
  KVPOLICY_AMX_OP static void copy_keys(swept_keys const& of) {
    auto* const to = static_cast<parts_of_keys*>(of.copy);
    for (int d = 0; d < of.dims; d += amx_layout::dims_of_a_tile) {
      for (int k = 0; k < keys_of_a_tile; ++k) {
        auto const* const from = static_cast<std::byte const*>(of.keys[k]) + std::ptrdiff_t{products::bytes} * d;
        products::split(from, of.dims - d, k, to[d / amx_layout::dims_of_a_tile]);
      }
    }
    __asm__ __volatile__("" ::: "memory");  // intrinsics of g++ 12 do not say that tiles read memory
  }

  /// Adds the products of a block's rows and 32 dims of the copied keys.
  KVPOLICY_AMX_OP static void multiply(swept_keys const& of, swept_rows const& rows, int tile) {
    auto const* const keys = static_cast<parts_of_keys const*>(of.copy);
    products::multiply(keys[tile][0], static_cast<std::byte const*>(rows.packed) + 1024 * columns * tile);
  }

  /// The softmax of a block over a tile of keys. `All`: each of its rows sees all of these keys.
  template <bool AddsMass, bool All>
  struct softmax {
    swept_keys const& of;
    swept_rows const& rows;
    float const* logits;  ///< not scaled yet
    float* mass;

    /// Adds the products of the block that follows meanwhile, if there is one, and writes them to `then`. A core looks
    /// only some hundreds of instructions ahead: after the products of 32 dims it takes a few keys.
    [[gnu::target(KVPOLICY_AMX)]] void run(lines_prefetcher& next, swept_rows const* following, float* then) const {
      __m512 shift[] = {begin(0), begin(1)};  ///< what is subtracted from logits
      __m512 sum[] = {begin_sum(0, shift[0]), begin_sum(1, shift[1])};
      int const tiles = amx_layout::tiles(of.dims);
      int const some = (keys_of_a_tile + tiles - 1) / tiles;
      products::clear();
      for (int tile = 0, k = 0; tile < tiles; ++tile) {
        if (following != nullptr) multiply(of, *following, tile);
        for (int const end = std::min(k + some, keys_of_a_tile); k < end; ++k) {
          next.next();
          take(k, shift, sum);
        }
      }
      if (following != nullptr) products::store(then);
      if constexpr (!AddsMass) {
        for (int c = 0; c < columns; ++c) _mm512_storeu_ps(rows.sum + 16 * c, sum[c]);
      }
    }

   private:
    static constexpr __mmask16 every = 0xFFFF;  ///< without a mask, g++ 12 warns inside its own header
    static constexpr float lowest = -std::numeric_limits<float>::infinity();

    /// The logits of key k and sixteen rows.
    KVPOLICY_AMX_OP __m512 logit(int k, int c) const {
      __m512 const product = _mm512_load_ps(logits + k * most_rows + 16 * c);
      __m512 const scaled = _mm512_mul_ps(product, _mm512_set1_ps(of.scale));
      if constexpr (All) return scaled;
      __m512i const visible = _mm512_loadu_si512(rows.visible + 16 * c);
      __mmask16 const sees = _mm512_cmpgt_epi32_mask(visible, _mm512_set1_epi32(of.first + k));
      return _mm512_mask_mov_ps(_mm512_set1_ps(lowest), sees, scaled);
    }

    /// Returns the maxima of sixteen rows. The first pass raises them by the logits of these keys.
    KVPOLICY_AMX_OP __m512 begin(int c) const {
      __m512 const before = _mm512_loadu_ps(rows.row_max + 16 * c);
      if constexpr (AddsMass) return before;
      __m512 most[] = {before, before, before, before};  // one alone would make each maximum wait for the one before it
      for (int k = 0; k < keys_of_a_tile; k += 4) {
        for (int i = 0; i < 4; ++i) most[i] = higher(logit(k + i, c), most[i]);
      }
      return higher(higher(most[0], most[1]), higher(most[2], most[3]));
    }
    /// Returns the sums of the rows before these keys, or what the second pass multiplies by. Of the maxima in `shift`
    /// those become 0 whose rows have seen nothing.
    KVPOLICY_AMX_OP __m512 begin_sum(int c, __m512& shift) const {
      __m512 const sum = _mm512_loadu_ps(rows.sum + 16 * c);
      __m512 const before = _mm512_loadu_ps(rows.row_max + 16 * c);
      if constexpr (!AddsMass) _mm512_storeu_ps(rows.row_max + 16 * c, shift);
      shift = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(shift, _mm512_set1_ps(lowest), _CMP_NEQ_UQ), shift);
      if constexpr (AddsMass) return sum;
      return _mm512_mul_ps(sum, exp_of(_mm512_sub_ps(before, shift)));
    }
    KVPOLICY_AMX_OP static __m512 exp_of(__m512 const& x) { return avx512::exp_of_shifted<most_rows>({x}).raw; }
    /// NaN of a maximum stays, that of a logit does not.
    KVPOLICY_AMX_OP static __m512 higher(__m512 const& value, __m512 const& most) {
      return _mm512_maskz_max_ps(every, value, most);
    }

    /// Adds what key k gets of each row to the row's sum or to the key's mass.
    KVPOLICY_AMX_OP void take(int k, __m512 const* shift, __m512* sum) const {
      float* const to = mass + std::ptrdiff_t{16} * k;
      __m512 all = AddsMass ? _mm512_load_ps(to) : _mm512_setzero_ps();
      for (int c = 0; c < columns; ++c) {
        auto const there = static_cast<__mmask16>(rows.there >> (16 * c));
        __m512 const part = _mm512_maskz_mov_ps(there, exp_of(_mm512_sub_ps(logit(k, c), shift[c])));
        if constexpr (AddsMass) {
          all = _mm512_fmadd_ps(part, sum[c], all);
        } else {
          sum[c] = _mm512_add_ps(sum[c], part);
        }
      }
      if constexpr (AddsMass) _mm512_store_ps(to, all);
    }
  };
};

/// The kernels of a processor with AMX.
template <int Rows>
struct amx_blocks {
  static constexpr amx_shapes shapes{};

  [[gnu::target(KVPOLICY_AMX)]] static void begin() { _tile_loadconfig(&shapes); }
  [[gnu::target(KVPOLICY_AMX)]] static void end() { _tile_release(); }

  static constexpr block_products kernels = [] {
    block_products made = avx512_bf16::logits_of_pairs[Rows];
    made.set(product_kernel::amx_f16, amx_products<Rows, codec::f16, 3>::all);
    made.set(product_kernel::amx_bf16, amx_products<Rows, codec::bf16, 1>::all);
    made.set(product_kernel::amx_bf16_parts, amx_products<Rows, codec::bf16, 3>::all);
    if constexpr (Rows == most_rows) made.sweep_bf16 = amx_sweeps::run;
    made.pack_for_amx = amx_rows::pack;
    made.begin_amx = begin;
    made.end_amx = end;
    return made;
  }();
};
inline constexpr logits_kernels logits_of_amx{avx512_bf16::logits_of_pairs.few, amx_blocks<16>::kernels,
                                              amx_blocks<most_rows>::kernels};

}  // namespace KVPOLICY_NAMESPACE::detail

#endif
