// SPDX-License-Identifier: Apache-2.0
// The passes of a selection over scores, for each instruction set.
#pragma once

#include <cstdint>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/prefetch.hpp>
#include <kvpolicy/ops/host/simd/operations.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// How far ahead a pass prefetches scores from memory: one memory page, because hardware prefetchers stop at its end.
inline constexpr int floats_ahead = 1024;

/// How far ahead a pass prefetches the memory to which it writes.
inline constexpr int ordinals_ahead = 256;

/// How many scores are above a bracket and inside it, and how many are NaN.
struct bracket_counts {
  int above;
  int inside;
  int nan;
};

/// The scores that a pass lists: those above `lowest`, and the first `ties` equal to it. They are at most `most`.
struct listed_scores {
  float lowest;
  int ties;
  int most;
};

/// Keys of a sample of scores, which is evenly spaced in pieces of a few neighbours.
struct sample_keys {
  static constexpr int size = 1024;
  static constexpr int piece = 8;
  std::uint32_t keys[size];
  std::uint32_t low;
  std::uint32_t high;
};

/// `low <= high`, and no limit is NaN.
struct select_kernels {
  /// Counts the scores above `high` and the NaNs, and copies the bits of scores in [low, high] to `inside`. That array
  /// has `count` elements, and may be the memory of the scores. If low == high, these scores are only counted.
  bracket_counts (*bracket)(float const* scores, int count, float low, float high, std::uint32_t* inside);
  /// Writes, in ascending order, the ordinals `first` + e of these scores, and returns their number. Nothing is written
  /// from `to[which.most]` on. Meanwhile it prefetches `ahead`.
  int (*emit)(float const* scores, int count, int first, listed_scores which, int* to, row_prefetcher& ahead);
  /// Takes a sample of `count` >= size scores.
  void (*sample)(float const* scores, int count, sample_keys& to);
};

}  // namespace KVPOLICY_NAMESPACE::detail

#define KVPOLICY_FAMILY select
#include <kvpolicy/ops/host/simd/each_isa.hpp>
