// SPDX-License-Identifier: Apache-2.0
// The entries of a lane that a warp works on at once, with their keys in registers as tensor cores take them.
#pragma once

#include <cmath>
#include <kvpolicy/ops/cuda/attention/pairs.hpp>
#include <kvpolicy/ops/cuda/attention/task.hpp>

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

/// The entries of a lane that a warp works on at once: 32 with keys of 16 bits, 16 with keys of 32 bits. It does not
/// matter which dim is which of a fragment, as long as keys and rows agree: a thread of four has eight dims of each 32,
/// four of them from first_dim(c, 0) on and four from first_dim(c, 1) on, so that it loads sixteen bytes at a time and
/// four threads load neighbours.
template <codec Element, int Spans>
class fragment_entries {
 public:
  static constexpr bool splits = Element == codec::f32;
  static constexpr codec multiplied = splits ? codec::f16 : Element;
  static constexpr int parts = splits ? 2 : 1;
  static constexpr int tiles = splits ? 2 : 4;  ///< of eight entries
  static constexpr int count = 8 * tiles;
  static constexpr int of_thread = 2 * tiles;  ///< entries whose logits a thread has
  static constexpr int dims_of_load = splits ? 4 : 8;
  /// What keys are multiplied by before they are split: the rest of a key of 2^-9 has all its bits then, and keys up to
  /// 1,023 are within f16.
  static constexpr float prescale = splits ? 64.0f : 1.0f;
  /// The keys of entries 8j + g, and zeros after their last dim. Until `settle`, keys of 32 bits are as they were
  /// loaded: the first four dims of eight, then the others. After it they are their first numbers, then the rests.
  row_piece key[static_cast<std::size_t>(parts)][static_cast<std::size_t>(Spans)][static_cast<std::size_t>(tiles)];
  std::byte const* row;                               ///< of entry `lane`
  int position[static_cast<std::size_t>(of_thread)];  ///< of the thread's entries; no_position where one takes no part
  bool all_seen;                                      ///< every row sees all entries
  bool beyond;                                        ///< a key is beyond f16

  /// Which of the warp's entries is the i-th of a thread.
  [[nodiscard]] KVPOLICY_HD static int in_warp(int lane, int i) { return i / 2 * 8 + lane % 4 * 2 + i % 2; }
  /// The dim from which chunk c of eight dims has the first four, or the others.
  [[nodiscard]] KVPOLICY_HD static int first_dim(int c, int half) {
    return splits ? c / 4 * 32 + half * 16 + c % 4 * 4 : 8 * c + 4 * half;
  }

  /// Loads the keys of entries [begin, begin + count) of a lane, up to `end`. In place of an entry after the last, the
  /// last is loaded, because loads under a condition would wait for one another. Collective of the warp.
  template <class Block>
  KVPOLICY_HD void load(Block& block, row_view const& from, lane this_lane, int begin, int end) {
    int const e = begin + lane_id(block) % count;
    row = from.row(this_lane, e < end ? e : end - 1);
    int const dims = from.rows.channels;
    for (int j = 0; j < tiles; ++j) {
      std::byte const* const at = block.shuffle(row, lane_id(block) / 4 + 8 * j);
      for (int s = 0; s < Spans * parts; ++s) {
        int const d = first_dim(s / parts * 4 + lane_id(block) % 4, s % parts);
        key[s % parts][s / parts][j] = *reinterpret_cast<row_piece const*>(at + (d < dims ? d * bytes_of(Element) : 0));
      }
    }
  }

  /// Finds which entries take part, and makes fragments of their keys. Collective of the warp.
  template <class Block>
  KVPOLICY_HD void settle(Block& block, used_rows const& used, int begin, int end) {
    int const e = begin + lane_id(block) % count;
    int const at = e < end ? used.position_of_entry(e) : no_position;
    all_seen = block.ballot(at <= used.oldest) == 0xFFFFFFFFu;
    for (int i = 0; i < of_thread; ++i) position[i] = block.shuffle(at, in_warp(lane_id(block), i));
    clear_after(lane_id(block) % 4, used.task.from.rows.channels);
    if constexpr (splits) beyond = block.ballot(split_keys()) != 0;
  }

 private:
  KVPOLICY_HD void clear_after(int t, int dims) {
    if (dims == 32 * Spans) return;
    for (int s = 0; s < Spans * parts; ++s) {
      if (first_dim(s / parts * 4 + t, s % parts) < dims) continue;
      for (int j = 0; j < tiles; ++j) key[s % parts][s / parts][j] = row_piece{};
    }
  }

  /// Splits keys of 32 bits. True if a first number is beyond f16.
  [[nodiscard]] KVPOLICY_HD bool split_keys() {
    std::uint32_t beyond_any = 0;
    for (int s = 0; s < Spans; ++s) {
      for (int j = 0; j < tiles; ++j) {
        row_piece& first = key[0][s][j];
        row_piece& rest = key[parts - 1][s][j];
        four_parts const lower = split_four<multiplied, false>(floats_of(first));
        four_parts const upper = split_four<multiplied, false>(floats_of(rest));
        beyond_any |= beyond_f16(lower.high) | beyond_f16(upper.high);
        first = {{lower.high.of[0], lower.high.of[1], upper.high.of[0], upper.high.of[1]}};
        rest = {{lower.rest.of[0], lower.rest.of[1], upper.rest.of[0], upper.rest.of[1]}};
      }
    }
    return beyond_any != 0;
  }
  /// Four dims of a key, scaled.
  [[nodiscard]] KVPOLICY_HD static four_floats floats_of(row_piece const& raw) {
    four_floats made;
    for (int i = 0; i < 4; ++i) made.of[i] = same_bits<float>(raw.word[i]) * prescale;
    return made;
  }
};

}  // namespace KVPOLICY_NAMESPACE::detail
