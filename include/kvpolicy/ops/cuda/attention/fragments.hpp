// SPDX-License-Identifier: Apache-2.0
// Attention weights of a few entries by one warp, in registers: the keys are loaded once for all rows, tensor cores
// compute the logits, and exponentials are taken where the products are.
#pragma once

#include <cmath>
#include <kvpolicy/ops/cuda/attention/fragment_keys.hpp>
#include <kvpolicy/ops/cuda/attention/mma.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// A row weighs a logit x with 2^(x * scale - offset), if the entry is at a position up to `position`.
struct alignas(16) fragment_weight {
  float scale;
  float offset;
  int position;
  float prescale;  ///< what the row's elements are multiplied by; `scale` makes up for it
};

/// The packed query rows of a launch in shared memory, or as many of them as fit.
struct fragment_rows {
  fragment_16x16* packed;
  fragment_weight* weight;
  std::byte const** row;  ///< null after the last
  int* not_finite;        ///< for each sixteen rows; not 0: a number of theirs is not finite
};

/// Logits of sixteen rows and of a warp's entries, in `Tiles` tiles of eight. With g = lane / 4 and t = lane % 4, a
/// thread has those of rows g and g + 8 and of the entries 8j + 2t and 8j + 2t + 1.
template <int Tiles>
struct fragment_logits {
  fragment_of_floats of[static_cast<std::size_t>(Tiles)] = {};

  /// The logit of row g + 8 * `upper` and of the thread's i-th entry.
  [[nodiscard]] KVPOLICY_HD float& at(int upper, int i) { return of[i / 2].of[2 * upper + i % 2]; }
  [[nodiscard]] KVPOLICY_HD float at(int upper, int i) const { return of[i / 2].of[2 * upper + i % 2]; }
};

/// Computes logits of bf16, f16 or f32 keys of at most 32 * Spans dims. A warp loads its keys once, and multiplies them
/// by all rows, sixteen at a time. In a packed row, the dims that a thread of four loads of a key belong to that
/// thread, so that keys are multiplied as they are loaded, sixteen bytes at a time.
///
/// Rows that have not the keys' type are split as mma_product splits them. Keys of f32 are split as well, into two
/// numbers of f16: the products of the first numbers, and of each first number and the other rest, keep 22 bits of an
/// element of a key of at least 2^-9, and of an element of a row near the row's largest; smaller ones keep fewer bits,
/// but the same absolute error. Where a key is beyond f16, or a row is not finite, the logits are computed by
/// multiply-adds.
template <codec Element, int Spans>
class fragment_product {
 public:
  using entries = fragment_entries<Element, Spans>;
  using logits = fragment_logits<entries::tiles>;

  mma_product product;
  bool copied = false;  ///< rows have the keys' type, and are copied sixteen bytes at a time

  static constexpr codec multiplied = entries::multiplied;
  static constexpr int rows_at_once = 16;
  /// The bytes that the statistics of a row need in shared memory: 8 for each class of entries and each of four
  /// threads.
  static constexpr int statistics_bytes = 32 * tile_entries / entries::count;

  [[nodiscard]] static bool takes(plane const& of) {
    bool const loads = of.contiguous() && of.channels % entries::dims_of_load == 0 && alignment_of(of, true) == 16;
    return loads && of.element == Element && of.channels <= 32 * Spans;
  }
  /// The product for `count` rows of a lane, of which as many as fit in `shared` bytes are in shared memory at once.
  [[nodiscard]] static fragment_product of(plane const& from, query_view const& queries, int count,
                                           std::size_t shared) {
    fragment_product made{mma_product::of(from, queries, 8, shared)};
    made.product.split = queries.element != multiplied || Element != multiplied;
    made.copied = !made.product.split && alignment_of(queries) == 16;
    // A byte more a row than the word for sixteen rows needs.
    std::size_t const capacity =
        (shared - 16) / (made.row_bytes() + statistics_bytes + 1) / rows_at_once * rows_at_once;
    std::size_t const wanted = (static_cast<std::size_t>(count) + rows_at_once - 1) / rows_at_once * rows_at_once;
    made.product.rows_in_shared = static_cast<int>(wanted < capacity ? wanted : capacity);
    return made;
  }

  /// How many rows are in shared memory at once.
  [[nodiscard]] KVPOLICY_HD int capacity() const { return product.rows_in_shared; }
  [[nodiscard]] std::size_t bytes() const {
    return static_cast<std::size_t>(capacity()) * row_bytes() +
           shared_arena::bytes_of_piece<int>(capacity() / rows_at_once);
  }
  [[nodiscard]] KVPOLICY_HD fragment_rows rows_in(shared_arena& arena) const {
    auto* const packed = arena.take<fragment_16x16>(capacity() * Spans * 4 * parts());
    auto* const weight = arena.take<fragment_weight>(capacity());
    auto* const row = arena.take<std::byte const*>(capacity());
    return {packed, weight, row, arena.take<int>(capacity() / rows_at_once)};
  }

  /// Packs rows [base, base + count) of a launch. Up to a multiple of 16, rows of zeros that see nothing follow. Begins
  /// and ends with a barrier.
  template <class Block, class Sums>
  KVPOLICY_HD void take_rows(Block& block, used_rows const& used, fragment_rows const& to, int base, int count,
                             Sums const& sums_of) const {
    int const all = (count + rows_at_once - 1) / rows_at_once * rows_at_once;
    block.sync();
    for (int i = block.thread(); i < all / rows_at_once; i += block.threads()) to.not_finite[i] = 0;
    // What a thread's last row weighs is on its way while rows are packed.
    int mine = -1;
    fragment_weight now{};
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
    for (int i = block.thread(); i < all; i += block.threads()) {
      if (mine >= 0) note(now, to.weight[mine]);
      mine = i;
      query_row const one = i < count ? used.row(base + i) : query_row{};
      now.offset = i < count ? sums_of(used, one).row_max : 0.0f;
      now.position = one.last;
      to.row[i] = one.at;
      to.weight[i].scale = used.task.scale * (log2_of_e / entries::prescale);
    }
    block.sync();
    copied ? copy(block, to, all) : convert(block, to, all);
    if (mine >= 0) note(now, to.weight[mine]);
    block.sync();
  }

  /// Computes the unscaled logits of a warp's entries and of rows 16n to 16n + 15.
  template <class Block>
  [[nodiscard]] KVPOLICY_HD logits multiply(Block& block, entries const& some, fragment_rows const& rows, int n) const {
    logits made;
    fragment_16x16 const* const at = rows.packed + n * Spans * 64 + lane_id(block);
    fragment_16x16 const* const rest_at = at + capacity() * Spans * 4;
    block.sync_warp();  // mma needs the whole warp
    if constexpr (entries::splits) {
      add_products(block, at, made, some.key[0], some.key[1]);
      add_products(block, rest_at, made, some.key[0]);
      if (some.beyond || rows.not_finite[n] != 0) compute_apart(block, some, rows, n, made);
    } else {
      add_products(block, at, made, some.key[0]);
      if (!product.split) return made;
      logits rest;
      add_products(block, rest_at, rest, some.key[0]);
      for (int i = 0; i < 4 * entries::tiles; ++i) {
        made.of[i / 4].of[i % 4] = with_rest(made.of[i / 4].of[i % 4], rest.of[i / 4].of[i % 4]);
      }
    }
    return made;
  }

 private:
  [[nodiscard]] KVPOLICY_HD int parts() const { return product.split ? 2 : 1; }
  [[nodiscard]] std::size_t row_bytes() const {
    return static_cast<std::size_t>(parts()) * Spans * 64 + sizeof(fragment_weight) + sizeof(std::byte const*);
  }

  KVPOLICY_HD static void note(fragment_weight const& of, fragment_weight& to) {
    to.offset = of.offset;
    to.position = of.position;
  }

  /// Adds the products of second numbers. They are left out where a key is infinite: the products of first numbers have
  /// the right result there, and with second numbers of the other sign the sum would be NaN.
  [[nodiscard]] KVPOLICY_HD static float with_rest(float logit, float rest) {
    return ::fabsf(logit) < same_bits<float>(0x7F800000u) ? logit + rest : logit;
  }

  /// Adds the products of sixteen rows and of each part of the keys that is given.
  template <class Block, class... Keys>
  KVPOLICY_HD static void add_products(Block& block, fragment_16x16 const* rows, logits& to, Keys const&... keys) {
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
    for (int s = 0; s < 2 * Spans; ++s) {
      fragment_16x16 const of_rows = rows[s * 32];
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
      for (int j = 0; j < entries::tiles; ++j) {
        auto const half = [&](auto const& of) {
          return fragment_16x8{{of[s / 2][j].word[s % 2 * 2], of[s / 2][j].word[s % 2 * 2 + 1]}};
        };
        (block.template multiply_16x8x16<multiplied>(of_rows, half(keys), to.of[j]), ...);
      }
    }
  }

  /// The logits of sixteen rows by multiply-adds, times what rows and keys are multiplied by.
  template <class Block>
  KVPOLICY_HD void compute_apart(Block& block, entries const& some, fragment_rows const& rows, int n,
                                 logits& to) const {
    for (int upper = 0; upper < 2; ++upper) {
      int const row = 16 * n + 8 * upper + lane_id(block) / 4;
      for (int i = 0; i < entries::of_thread; ++i) to.at(upper, i) = 0;
      for (int d = 0; d < product.keys.dims; d += 4) {
        four_floats const asked = product.rows.at<false>(rows.row[row], d);
        for (int i = 0; i < entries::of_thread; ++i) {
          std::byte const* const at = block.shuffle(some.row, entries::in_warp(lane_id(block), i));
          auto const key = *reinterpret_cast<four_floats const*>(at + 4 * d);
          for (int k = 0; k < 4; ++k) to.at(upper, i) += asked.of[k] * key.of[k];
        }
      }
      for (int i = 0; i < entries::of_thread; ++i) to.at(upper, i) *= rows.weight[row].prescale * entries::prescale;
    }
  }

  /// The place of the first four of dims [8c, 8c + 8) of row i, as keys have them, which belong to thread c % 4 of
  /// four. The others are 32 places behind.
  [[nodiscard]] KVPOLICY_HD static int place(int i, int c) { return (i / 16 * Spans + c / 4) * 64 + i % 8 * 4 + c % 4; }

  /// Copies rows i and i + 8, which share fragments, by the same thread.
  template <class Block>
  KVPOLICY_HD void copy(Block& block, fragment_rows const& to, int count) const {
    constexpr int chunks = 4 * Spans;
    for (int k = block.thread(); k < count / 2 * chunks; k += block.threads()) {
      int const c = k % chunks;
      int const i = k / (8 * chunks) * 16 + k / chunks % 8;
      row_piece const lower = chunk_of(to.row, i, c);
      row_piece const upper = chunk_of(to.row, i + 8, c);
      fragment_16x16* const at = to.packed + place(i, c);
      at[0] = {{lower.word[0], upper.word[0], lower.word[1], upper.word[1]}};
      at[32] = {{lower.word[2], upper.word[2], lower.word[3], upper.word[3]}};
    }
  }
  /// Dims [8c, 8c + 8) of the i-th row. A load in any case, since loads under a condition would wait for one another.
  [[nodiscard]] KVPOLICY_HD row_piece chunk_of(std::byte const* const* rows, int i, int c) const {
    bool const has = rows[i] != nullptr && 8 * c < product.keys.dims;
    auto numbers = *reinterpret_cast<row_piece const*>(has ? rows[i] + 16 * c : rows[0]);
    for (std::uint32_t& each : numbers.word) each = has ? each : 0;
    return numbers;
  }

  /// Converts each row by one warp, of which each thread has four dims.
  template <class Block>
  KVPOLICY_HD void convert(Block& block, fragment_rows const& to, int count) const {
    static_assert(8 * Spans <= warp_size);
    int const id = lane_id(block);
    int const first = entries::first_dim(id / 2, id % 2);
    bool const has = id < 8 * Spans && first < product.keys.dims;
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
    for (int i = warp_id(block); i < count; i += block.threads() / warp_size) {
      four_floats dims = has ? product.rows.at<false>(to.row[i], first) : four_floats{};
      // By the member: with a constant, the kernel of bf16 keys spills registers.
      bool const scales = product.split && product.keys.element != codec::bf16;
      float const prescale = scales ? mma_product::prescale_of(block, mma_product::largest_of(dims)) : 1.0f;
      for (float& each : dims.of) each *= prescale;
      four_parts const made = split_four<multiplied, true>(dims);
      if (id < 8 * Spans) {
        put(to.packed, i, id, made.high);
        if (product.split) put(to.packed + capacity() * Spans * 4, i, id, made.rest);
      }
      if (entries::splits && beyond_f16(made.high) != 0) to.not_finite[i / rows_at_once] = 1;
      if (id == 0) {
        to.weight[i].scale /= prescale;
        to.weight[i].prescale = prescale;
      }
    }
  }
  /// Puts four dims of row i: those of half of a chunk.
  KVPOLICY_HD static void put(fragment_16x16* packed, int i, int half, two_pairs const& dims) {
    fragment_16x16& to = packed[place(i, half / 2) + half % 2 * 32];
    for (int k = 0; k < 2; ++k) to.of[2 * k + i / 8 % 2] = dims.of[k];
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail
