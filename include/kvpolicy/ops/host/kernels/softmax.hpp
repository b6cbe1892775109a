// SPDX-License-Identifier: Apache-2.0
// The softmax of blocks of rows, for each instruction set.
//
// This is an online softmax: `advance` processes one stretch of entries, and `finalize` gives each stretch the factor
// for the final maximum and sum. A block has 4, 16 or 32 interleaved rows: value (entry e, row r) is at [e * rows + r].
// So no step adds across a vector until the last one. A vector has some rows of one entry, or, where a block
// has few rows, a few entries.
#pragma once

#include <kvpolicy/core/config.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/simd/operations.hpp>
#include <limits>

namespace KVPOLICY_NAMESPACE::detail {

/// Rows of the smallest block, for a decode step or a memory, which would leave most of a larger block empty.
inline constexpr int few_rows = 4;

/// Rows of the largest block.
inline constexpr int most_rows = 32;

/// Values of a block over a stretch of entries: logits, which `advance` or `apply_lse` turns into unnormalised
/// probabilities. Row r sees entry first + e if first + e < visible[r]. Rows that only fill up the block see nothing.
/// Where a vector has several entries, functions overwrite what follows the last one, up to a whole vector.
struct block_view {
  float* values;
  int first;           ///< the ordinal of the first entry
  int count;           ///< how many entries the stretch has
  int const* visible;  ///< for each row, how many entries it sees
  float* scale;        ///< for each row, its maximum after `advance`, and after `finalize` the factor of its values
};

/// A family's kernels for blocks of each number of rows.
template <class Kernels>
struct by_rows {
  Kernels few;
  Kernels sixteen;
  Kernels most;

  [[nodiscard]] constexpr Kernels const& operator[](int rows) const {
    return rows == few_rows ? few : rows == 16 ? sixteen : most;
  }
};

/// The softmax of blocks of a fixed number of rows: 4, 16 or 32.
struct block_softmax {
  /// One stretch of an online softmax. Logits become e^(logit - maximum of the row so far), `scale` becomes that
  /// maximum, and row_max and sum [rows] are updated. The stretches of a row are processed in order, while each is in
  /// the cache.
  void (*advance)(block_view const& block, float* row_max, float* sum);
  /// Follows the last stretch: `scale` [stretches][rows] becomes the factor that normalises each stretch's values.
  void (*finalize)(float* scale, int stretches, int const* visible, float const* row_max, float const* sum);
  /// Each of `count` logits x becomes cap tanh(x / cap).
  void (*cap)(float* logits, int count, float cap);
  /// Logits become e^(logit - lse), and scale 1.
  void (*apply_lse)(block_view const& block, float const* lse);
  /// Reduces the block's rows to their sum or maximum, which overwrites out[e], or is combined with it if `grow`.
  void (*reduce)(block_view const& block, bool maximum, bool grow, float* out);
  /// Overwrites into[e][r] with a head's probabilities, or combines it with them by sum or maximum if `grow`.
  void (*gather_head)(block_view const& block, bool maximum, bool grow, float* into);
};
using softmax_kernels = by_rows<block_softmax>;

}  // namespace KVPOLICY_NAMESPACE::detail

#define KVPOLICY_FAMILY softmax
#include <kvpolicy/ops/host/simd/each_isa.hpp>
