// Logits of a tile in float32: chunks of keys and rows meet in shared memory. For keys of any type, size and alignment.
#pragma once

#include <kvpolicy/ops/cuda/attention_task.hpp>
#include <kvpolicy/ops/cuda/query_rows.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// Four floats that are read and written at once.
struct alignas(16) four_floats {
  float of[4];
};

/// Elements of a plane's rows, four at a time where that is one load.
struct fours_of {
  codec element = codec::f32;
  int dims = 0;
  std::int64_t dim = 0;  ///< bytes between elements
  bool at_once = false;  ///< four elements that begin at a multiple of four are one aligned load

  /// Elements d .. d + 3 of a row, zeros behind the last; all zeros where there is no row.
  [[nodiscard]] KVPOLICY_HD four_floats at(std::byte const* row, int d) const {
    four_floats made{};
    if (row == nullptr) return made;
    std::byte const* const from = row + d * dim;
    if (at_once && d + 4 <= dims) {
      if (element == codec::f32) return *reinterpret_cast<four_floats const*>(from);
      auto const raw = *reinterpret_cast<std::uint64_t const*>(from);
      for (int i = 0; i < 4; ++i) {
        auto const one = static_cast<std::uint16_t>(raw >> (16 * i));
        made.of[i] = element == codec::f16 ? from_f16(one) : from_bf16(one);
      }
      return made;
    }
    for (int i = 0; i < 4 && d + i < dims; ++i) made.of[i] = element_at(element, from + i * dim);
    return made;
  }
};

[[nodiscard]] inline fours_of fours_in(plane const& rows) {
  return {rows.element, rows.dims, rows.dim,
          rows.contiguous() && alignment_of(rows, true) >= 4 * bytes_of(rows.element)};
}
[[nodiscard]] inline fours_of fours_in(query_view const& rows) {
  return {rows.element, rows.dims, bytes_of(rows.element), alignment_of(rows) >= 4 * bytes_of(rows.element)};
}

/// A logit alone, as the tensor cores' are not where a number is not finite.
[[nodiscard]] KVPOLICY_HD inline float plain_product(fours_of const& keys, fours_of const& rows, std::byte const* key,
                                                     std::byte const* row) {
  float sum = 0;
  for (int d = 0; d < keys.dims; d += 4) {
    four_floats const a = keys.at(key, d);
    four_floats const b = rows.at(row, d);
    for (int i = 0; i < 4; ++i) sum += a.of[i] * b.of[i];
  }
  return sum;
}

/// Logits by multiplication and addition of floats. A thread has four entries of four rows; each logit is the sum of
/// chunks in their order, whatever the number of threads.
class fma_product {
 public:
  static constexpr int chunk = 32;  ///< dims at once

  fours_of keys;
  fours_of rows;

  [[nodiscard]] std::size_t bytes() const {
    return shared_arena::bytes_of_piece<float>(chunk * tile_pitch) + shared_arena::bytes_of_piece<float>(chunk * pitch);
  }
  [[nodiscard]] KVPOLICY_HD int tile() const { return tile_rows; }

  /// Rows of a launch are read where they are: nothing is prepared.
  template <class Block>
  KVPOLICY_HD void prepare(Block&, attention_task const&, used_rows const&, lane, shared_arena const&, int) const {}

  /// The room's keys and `count` rows become its logits, unscaled. Begins with a barrier, ends without one.
  template <class Block>
  KVPOLICY_HD void run(Block& block, attention_task const&, used_rows const&, lane,
                       attention_storage const& temp_storage, shared_arena arena, int, int count) const {
    auto* const key = arena.take<float>(chunk * tile_pitch);
    auto* const row = arena.take<float>(chunk * pitch);
    for (int d = 0; d < keys.dims; d += chunk) {
      block.sync();
      stage(block, keys, temp_storage.key, tile_entries, d, key, tile_pitch);
      stage(block, rows, temp_storage.query, tile_rows, d, row, pitch);
      block.sync();
      for (int item = block.thread(); item < tile_entries / 4 * ((count + 3) / 4); item += block.threads()) {
        int const e = item % (tile_entries / 4) * 4;
        int const r = item / (tile_entries / 4) * 4;
        multiply(key + e, row + r, d == 0, temp_storage.logits + r * tile_pitch + e);
      }
    }
  }

 private:
  static constexpr int pitch = tile_rows + 4;

  /// Dims [d, d + chunk) of `count` rows, so that a dim's lie side by side.
  template <class Block>
  KVPOLICY_HD static void stage(Block& block, fours_of const& from, std::byte const* const* where, int count, int d,
                                float* to, int to_pitch) {
    for (int i = block.thread(); i < count * (chunk / 4); i += block.threads()) {
      int const part = i % (chunk / 4) * 4;
      int const row = i / (chunk / 4);
      four_floats const some = d + part < from.dims ? from.at(where[row], d + part) : four_floats{};
      for (int k = 0; k < 4; ++k) to[(part + k) * to_pitch + row] = some.of[k];
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
