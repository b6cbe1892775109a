// SPDX-License-Identifier: Apache-2.0
// Attention weights of 32 entries by one warp, in registers: the keys are loaded once for all rows, tensor cores
// compute the logits, and exponentials are taken where the products are.
#pragma once

#include <cmath>
#include <kvpolicy/ops/cuda/attention/mma.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// e^x is 2^(x * this).
inline constexpr float log2_of_e = 1.44269504f;

/// 2^x by the GPU's own instruction. Results below 2^-126 are 0.
[[nodiscard]] KVPOLICY_HD inline float power_of_two(float x) {
#if defined(__CUDA_ARCH__)
  float power = 0;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
#else
  return x < -126.0f ? 0.0f : ::exp2f(x);
#endif
}

/// A row weighs a logit x with 2^(x * scale - offset) * share, if the entry is at a position up to `position`.
struct alignas(16) row_weight {
  float scale;
  float offset;
  float share;
  int position;
};

/// The packed query rows of a launch in shared memory, or as many of them as fit.
struct fragment_rows {
  fragment_16x16* packed;
  row_weight* weight;
  std::byte const** row;  ///< null after the last
};

/// Logits of sixteen rows and a warp's 32 entries. With g = lane / 4 and t = lane % 4, a thread has those of rows g and
/// g + 8 and of the eight entries 8j + 2t and 8j + 2t + 1.
struct fragment_logits {
  fragment_of_floats of[4] = {};

  /// The logit of row g + 8 * `upper` and of the thread's i-th entry.
  [[nodiscard]] KVPOLICY_HD float& at(int upper, int i) { return of[i / 2].of[2 * upper + i % 2]; }
  [[nodiscard]] KVPOLICY_HD float at(int upper, int i) const { return of[i / 2].of[2 * upper + i % 2]; }
};
/// Returns which of a warp's 32 entries is the i-th of a thread.
[[nodiscard]] KVPOLICY_HD inline int entry_in_warp(int lane, int i) { return i / 2 * 8 + lane % 4 * 2 + i % 2; }

/// The 32 entries of a lane that a warp works on.
template <int Spans>
struct warp_entries {
  /// Dims 8t to 8t + 7 of each 32, of the entries 8j + g; zeros after the last dim.
  eight_numbers key[static_cast<std::size_t>(Spans)][4];
  int position;    ///< of entry `lane`
  unsigned parts;  ///< a bit for each entry that takes part
  bool all_seen;   ///< every row sees all 32 entries

  /// A bit for each of the thread's eight entries that a row at this position sees. Collective of the warp.
  template <class Block>
  [[nodiscard]] KVPOLICY_HD unsigned seen_from(Block& block, int row_position) const {
    unsigned seen = 0;
    for (int i = 0; i < 8; ++i) {
      int const e = entry_in_warp(lane_id(block), i);
      bool const sees = block.shuffle(position, e) <= row_position && (parts >> e & 1u) != 0;
      seen |= (sees ? 1u : 0u) << i;
    }
    return seen;
  }
};

/// Computes logits of bf16 or f16 keys of at most 32 * Spans dims. A warp loads 32 keys once, and multiplies them by
/// all rows, sixteen at a time. Rows are split as mma_product splits them. In a packed row, dims 8t to 8t + 7 of each
/// 32 belong to thread t of four, so that keys are multiplied as they are loaded, sixteen bytes at a time.
template <codec Element, int Spans>
class fragment_product {
 public:
  mma_product product;
  bool copied = false;  ///< rows have the keys' type, and are copied sixteen bytes at a time

  static constexpr int spans = Spans;
  static constexpr int rows_at_once = 16;
  /// The bytes that the statistics of a row need in shared memory: 8 for each of four warps and four threads.
  static constexpr int statistics_bytes = 128;

  [[nodiscard]] static bool takes(plane const& of) {
    return mma_product::takes(of) && of.element == Element && of.channels <= 32 * Spans;
  }
  /// The product for `count` rows of a lane, of which as many as fit in `shared` bytes are in shared memory at once.
  [[nodiscard]] static fragment_product of(plane const& from, query_view const& queries, int count,
                                           std::size_t shared) {
    fragment_product made{mma_product::of(from, queries, 8, shared)};
    made.copied = !made.product.split && alignment_of(queries) == 16;
    std::size_t const capacity = shared / (made.row_bytes() + statistics_bytes) / rows_at_once * rows_at_once;
    std::size_t const wanted = (static_cast<std::size_t>(count) + rows_at_once - 1) / rows_at_once * rows_at_once;
    made.product.rows_in_shared = static_cast<int>(wanted < capacity ? wanted : capacity);
    return made;
  }

  /// How many rows are in shared memory at once.
  [[nodiscard]] KVPOLICY_HD int capacity() const { return product.rows_in_shared; }
  [[nodiscard]] std::size_t bytes() const { return static_cast<std::size_t>(capacity()) * row_bytes(); }
  [[nodiscard]] KVPOLICY_HD fragment_rows rows_in(shared_arena& arena) const {
    auto* const packed = arena.take<fragment_16x16>(capacity() * Spans * 4 * parts());
    auto* const weight = arena.take<row_weight>(capacity());
    return {packed, weight, arena.take<std::byte const*>(capacity())};
  }

  /// Packs rows [base, base + count) of a launch. Up to a multiple of 16, rows of zeros that see nothing follow. Begins
  /// and ends with a barrier.
  template <class Block, class Sums>
  KVPOLICY_HD void take_rows(Block& block, attention_task const& task, used_rows const& used, lane this_lane,
                             fragment_rows const& to, int base, int count, Sums const& sums_of) const {
    int const all = (count + rows_at_once - 1) / rows_at_once * rows_at_once;
    block.sync();
    for (int i = block.thread(); i < all; i += block.threads()) {
      to.row[i] = nullptr;
      to.weight[i] = {0, 0, 0, -1};
      if (i >= count) continue;
      int const head = used.head_of(task, base + i);
      int const row = used.row_of(task, base + i);
      int const stored = task.rows.stored(this_lane, used.begin + row);
      row_sums const sums = sums_of(task, this_lane, head, row, stored);
      to.row[i] = task.rows.at(this_lane, this_lane.head * task.group + head, stored);
      to.weight[i] = {task.scale * log2_of_e, sums.row_max, sums.scale,
                      task.sees_all() ? 0 : task.rows.position.row(this_lane)[stored]};
    }
    block.sync();
    copied ? copy(block, to, all) : convert(block, to, all);
    block.sync();
  }

  /// Loads the keys of entries [begin, begin + 32) of a lane, up to `end`. `first` is the lowest position of a row.
  /// In place of an entry after the last, the last is loaded, and takes no part: loads under a condition would wait for
  /// one another.
  template <class Block>
  KVPOLICY_HD void take_entries(Block& block, attention_task const& task, used_rows const& used, lane this_lane,
                                int begin, int end, int first, warp_entries<Spans>& to) const {
    bool const there = begin + lane_id(block) < end;
    int const e = there ? begin + lane_id(block) : end - 1;
    std::byte const* const row = task.from.row(this_lane, e);
    to.position = task.sees_all() ? 0 : task.scores.lanes.position.row(this_lane)[e];
    bool part = there && to.position < used.domain;
    if (part && task.candidates()) part = task.scores.rows.row(this_lane)[e] != same_bits<float>(0xFF800000u);
    to.parts = block.ballot(part);
    to.all_seen = block.ballot(part && to.position <= first) == 0xFFFFFFFFu;
    int const t = lane_id(block) % 4;
    for (int j = 0; j < 4; ++j) {
      std::byte const* const from = block.shuffle(row, lane_id(block) / 4 + 8 * j);
      for (int s = 0; s < Spans; ++s) {
        bool const has = 8 * (4 * s + t) < product.keys.dims;
        to.key[s][j] = *reinterpret_cast<eight_numbers const*>(from + (has ? 16 * (4 * s + t) : 0));
      }
    }
    for (int s = 0; s < Spans; ++s) {
      if (8 * (4 * s + t) < product.keys.dims) continue;
      for (int j = 0; j < 4; ++j) to.key[s][j] = eight_numbers{};
    }
  }

  /// Computes the unscaled logits of a warp's entries and of rows 16n to 16n + 15.
  template <class Block>
  [[nodiscard]] KVPOLICY_HD fragment_logits multiply(Block& block, warp_entries<Spans> const& entries,
                                                     fragment_rows const& rows, int n) const {
    fragment_logits made;
    fragment_16x16 const* const at = rows.packed + n * Spans * 64 + lane_id(block);
    block.sync_warp();  // mma needs the whole warp
    add_products(block, entries, at, made);
    if (!product.split) return made;
    fragment_logits rest;
    add_products(block, entries, at + capacity() * Spans * 4, rest);
    for (int j = 0; j < 4; ++j) {
      for (int i = 0; i < 4; ++i) made.of[j].of[i] = with_rest(made.of[j].of[i], rest.of[j].of[i]);
    }
    return made;
  }

 private:
  [[nodiscard]] KVPOLICY_HD int parts() const { return product.split ? 2 : 1; }
  [[nodiscard]] std::size_t row_bytes() const {
    return static_cast<std::size_t>(parts()) * Spans * 64 + sizeof(row_weight) + sizeof(std::byte const*);
  }

  /// Adds the products of second numbers. They are left out where a key is infinite: the products of first numbers have
  /// the right result there, and with second numbers of the other sign the sum would be NaN.
  [[nodiscard]] KVPOLICY_HD static float with_rest(float logit, float rest) {
    return ::fabsf(logit) < same_bits<float>(0x7F800000u) ? logit + rest : logit;
  }

  template <class Block>
  KVPOLICY_HD static void add_products(Block& block, warp_entries<Spans> const& entries, fragment_16x16 const* rows,
                                       fragment_logits& to) {
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
    for (int s = 0; s < 2 * Spans; ++s) {
      fragment_16x16 const of_rows = rows[s * 32];
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
      for (int j = 0; j < 4; ++j) {
        eight_numbers const& key = entries.key[s / 2][j];
        fragment_16x8 const of_keys{{key.of[s % 2 * 2], key.of[s % 2 * 2 + 1]}};
        block.template multiply_16x8x16<Element>(of_rows, of_keys, to.of[j]);
      }
    }
  }

  /// The place of dims [8c, 8c + 4) of row i, which belong to thread c % 4 of four. Dims [8c + 4, 8c + 8) are 32 places
  /// behind.
  [[nodiscard]] KVPOLICY_HD static int place(int i, int c) { return (i / 16 * Spans + c / 4) * 64 + i % 8 * 4 + c % 4; }
  KVPOLICY_HD static void put(fragment_16x16* packed, int i, int c, eight_numbers const& dims) {
    for (int k = 0; k < 4; ++k) packed[place(i, c) + k / 2 * 32].of[k % 2 * 2 + i / 8 % 2] = dims.of[k];
  }

  /// Copies rows i and i + 8, which share fragments, by the same thread.
  template <class Block>
  KVPOLICY_HD void copy(Block& block, fragment_rows const& to, int count) const {
    constexpr int chunks = 4 * Spans;
    for (int k = block.thread(); k < count / 2 * chunks; k += block.threads()) {
      int const c = k % chunks;
      int const i = k / (8 * chunks) * 16 + k / chunks % 8;
      eight_numbers const lower = chunk_of(to.row, i, c);
      eight_numbers const upper = chunk_of(to.row, i + 8, c);
      fragment_16x16* const at = to.packed + place(i, c);
      at[0] = {{lower.of[0], upper.of[0], lower.of[1], upper.of[1]}};
      at[32] = {{lower.of[2], upper.of[2], lower.of[3], upper.of[3]}};
    }
  }
  /// Dims [8c, 8c + 8) of the i-th row. A load in any case, since loads under a condition would wait for one another.
  [[nodiscard]] KVPOLICY_HD eight_numbers chunk_of(std::byte const* const* rows, int i, int c) const {
    bool const has = rows[i] != nullptr && 8 * c < product.keys.dims;
    auto numbers = *reinterpret_cast<eight_numbers const*>(has ? rows[i] + 16 * c : rows[0]);
    for (std::uint32_t& each : numbers.of) each = has ? each : 0;
    return numbers;
  }

  /// Converts each row by one warp.
  template <class Block>
  KVPOLICY_HD void convert(Block& block, fragment_rows const& to, int count) const {
    for (int i = warp_id(block); i < count; i += block.threads() / warp_size) {
      float const prescale = product.prescale_for(block, to.row[i]);
      for (int c = lane_id(block); c < 4 * Spans; c += warp_size) {
        mma_product::two_parts const made = product.split_chunk(to.row[i], c, prescale);
        put(to.packed, i, c, made.high);
        if (product.split) put(to.packed + capacity() * Spans * 4, i, c, made.rest);
      }
      if (lane_id(block) == 0) to.weight[i].scale /= prescale;
    }
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail
