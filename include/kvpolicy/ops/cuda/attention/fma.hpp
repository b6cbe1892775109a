// SPDX-License-Identifier: Apache-2.0
// Logits of a tile by float32 multiply-adds, from chunks of keys and rows in shared memory. It takes keys of any type,
// size and alignment.
#pragma once

#include <kvpolicy/ops/cuda/attention/pairs.hpp>
#include <kvpolicy/ops/cuda/attention/query_rows.hpp>
#include <kvpolicy/ops/cuda/attention/task.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// Reads elements of rows as floats, four at a time, by one load where they are contiguous and aligned.
struct float4_reader {
  codec element = codec::f32;
  int dims = 0;
  std::int64_t dim = 0;  ///< bytes between elements
  bool at_once = false;  ///< four elements that begin at a multiple of four are one aligned load

  /// Elements d to d + 3 of a row. Elements after the last are 0, and all four are 0 if `row` is null. Without
  /// `MayBeFp8` it is less code.
  template <bool MayBeFp8 = true>
  [[nodiscard]] KVPOLICY_HD four_floats at(std::byte const* row, int d) const {
    four_floats made{};
    if (row == nullptr) return made;
    std::byte const* const from = row + d * dim;
    if (at_once && d + 4 <= dims) {
      if (element == codec::f32) return *reinterpret_cast<four_floats const*>(from);
      if (MayBeFp8 && is_fp8(element)) {
        auto const raw = *reinterpret_cast<std::uint32_t const*>(from);
        for (int i = 0; i < 4; ++i) made.of[i] = from_fp8(element, static_cast<std::uint8_t>(raw >> (8 * i)));
        return made;
      }
      auto const raw = *reinterpret_cast<std::uint64_t const*>(from);
      for (int i = 0; i < 4; ++i) {
        auto const one = static_cast<std::uint16_t>(raw >> (16 * i));
        made.of[i] = element == codec::f16 ? from_f16(one) : from_bf16(one);
      }
      return made;
    }
    for (int i = 0; i < 4 && d + i < dims; ++i) {
      made.of[i] = MayBeFp8 ? any_element_at(element, from + i * dim) : element_at(element, from + i * dim);
    }
    return made;
  }
};

[[nodiscard]] inline float4_reader reader_of(plane const& rows) {
  return {rows.element, rows.channels, rows.channel_stride,
          rows.contiguous() && alignment_of(rows, true) >= 4 * bytes_of(rows.element)};
}
[[nodiscard]] inline float4_reader reader_of(query_view const& rows) {
  return {rows.element, rows.dims, bytes_of(rows.element), alignment_of(rows) >= 4 * bytes_of(rows.element)};
}

/// One unscaled logit, computed apart: the tensor cores' result is wrong where a number is not finite.
[[nodiscard]] KVPOLICY_HD inline float plain_product(float4_reader const& keys, float4_reader const& rows,
                                                     std::byte const* key, std::byte const* row) {
  float sum = 0;
  for (int d = 0; d < keys.dims; d += 4) {
    four_floats const a = keys.at(key, d);
    four_floats const b = rows.at(row, d);
    for (int i = 0; i < 4; ++i) sum += a.of[i] * b.of[i];
  }
  return sum;
}

/// Computes logits by multiplying and adding floats. A thread computes those of four entries and four rows. A logit is
/// the sum of its chunks in their order, so its bits do not depend on the number of threads.
class fma_product {
 public:
  static constexpr int chunk = 32;  ///< dims in shared memory at once

  float4_reader keys;
  float4_reader rows;
  bool scaled = false;  ///< keys have scales, which are in shared memory too

  [[nodiscard]] static fma_product of(plane const& keys, query_view const& rows) {
    return {reader_of(keys), reader_of(rows), keys.scales.data != nullptr};
  }
  [[nodiscard]] std::size_t bytes() const {
    return shared_arena::bytes_of_piece<float>(chunk * tile_pitch) + shared_arena::bytes_of_piece<float>(chunk * pitch);
  }
  [[nodiscard]] KVPOLICY_HD int tile() const { return tile_rows; }
  /// How many entries at either end of a tile of entries are there for their neighbours alone.
  [[nodiscard]] KVPOLICY_HD static constexpr int overlap() { return 0; }

  /// Does nothing: `run` reads the rows where they are.
  template <class Block>
  KVPOLICY_HD void prepare(Block&, used_rows const&, shared_arena const&) const {}

  /// Computes the unscaled logits of the tile's keys and `count` rows into `of.tile.logits`. Begins with a barrier and
  /// ends without one.
  template <class Block>
  KVPOLICY_HD void run(Block& block, lane_tile const& of, shared_arena arena, int, int count) const {
    auto* const key = arena.take<float>(chunk * tile_pitch);
    auto* const row = arena.take<float>(chunk * pitch);
    for (int d = 0; d < keys.dims; d += chunk) {
      block.sync();
      stage(block, keys, of.tile.key, scaled ? of.tile.key_scale : nullptr, tile_entries, d, key, tile_pitch);
      stage(block, rows, of.tile.query, nullptr, tile_rows, d, row, pitch);
      block.sync();
      for (int item = block.thread(); item < tile_entries / 4 * ((count + 3) / 4); item += block.threads()) {
        int const e = item % (tile_entries / 4) * 4;
        int const r = item / (tile_entries / 4) * 4;
        multiply(key + e, row + r, d == 0, of.tile.logits + r * tile_pitch + e);
      }
    }
  }

 private:
  static constexpr int pitch = tile_rows + 4;

  /// Copies dims [d, d + chunk) of `count` rows to shared memory, transposed: the rows' values of one dim are
  /// neighbours. Each row is multiplied by its `scale`, unless that is null.
  template <class Block>
  KVPOLICY_HD static void stage(Block& block, float4_reader const& from, std::byte const* const* where,
                                float const* scale, int count, int d, float* to, int to_pitch) {
    for (int i = block.thread(); i < count * (chunk / 4); i += block.threads()) {
      int const part = i % (chunk / 4) * 4;
      int const row = i / (chunk / 4);
      four_floats const some = d + part < from.dims ? from.at(where[row], d + part) : four_floats{};
      float const factor = scale != nullptr ? scale[row] : 1.0f;
      for (int k = 0; k < 4; ++k) to[(part + k) * to_pitch + row] = some.of[k] * factor;
    }
  }

  KVPOLICY_HD static void multiply(float const* key, float const* row, bool first, float* to) {
    float sum[4][4] = {};
    for (int d = 0; d < chunk; ++d) {
      four_floats const k = *reinterpret_cast<four_floats const*>(key + d * tile_pitch);
      four_floats const q = *reinterpret_cast<four_floats const*>(row + d * pitch);
      for (int r = 0; r < 4; ++r) {
        for (int e = 0; e < 4; ++e) sum[r][e] += q.of[r] * k.of[e];
      }
    }
    for (int r = 0; r < 4; ++r) {
      auto* const at = reinterpret_cast<four_floats*>(to + r * tile_pitch);
      four_floats made = first ? four_floats{} : *at;
      for (int e = 0; e < 4; ++e) made.of[e] += sum[r][e];
      *at = made;
    }
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail
