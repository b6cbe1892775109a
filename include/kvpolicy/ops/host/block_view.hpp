// A view of a block of query rows, and the table of the kernels that compute it.
#pragma once

#include <kvpolicy/core/codec.hpp>
#include <kvpolicy/core/config.hpp>
#include <kvpolicy/ops/host/row_tiles.hpp>

namespace KVPOLICY_NAMESPACE::detail {

/// Keys that are multiplied in one call. It is a multiple of the step of every kernel.
inline constexpr int keys_of_a_tile = 24;

/// How many keys ahead a key is prefetched when keys are multiplied one by one.
inline constexpr int keys_ahead = 8;

/// Rows of the smallest block, for a decode step or a memory, which would leave most of a larger block empty.
inline constexpr int few_rows = 4;

/// Rows of the largest block.
inline constexpr int most_rows = 32;

/// Unnormalised probabilities of a block. Row r sees entry first + e if first + e < seen[r], and the factor `scale[r]`
/// normalises its values. Rows that only fill up the block see nothing.
struct block_view {
  float* values;
  int first;
  int count;
  int const* seen;
  float* scale;
};

/// The softmax of a block of `most_rows` rows, whose logits are computed twice instead of being stored.
struct swept_rows {
  void const* packed = nullptr;
  int const* seen = nullptr;  ///< the entries that a row sees
  int all_see = 0;            ///< the entries that all rows see
  unsigned there = 0;         ///< a bit for each row that is not only there to fill up the block
  float* row_max = nullptr;   ///< the maximum of a row's logits so far
  float* sum = nullptr;       ///< the sum of e^(logit - maximum) so far; for the second pass, 1 / that of all entries
};

/// A tile of keys, of which the first `count` count.
struct swept_keys {
  void const* const* keys = nullptr;  ///< behind them are the keys of the next tile, which may be prefetched
  int first = 0;                      ///< the entry of the first key
  int count = 0;
  int dims = 0;
  float scale = 0;
  void* copy = nullptr;   ///< memory for the keys, padded with zeros to a multiple of 32 dims
  float* mass = nullptr;  ///< null in the first pass; the second pass adds each key's mass to it
};

/// The kernels of blocks with one number of rows.
struct block_kernels {
  using kernel = void (*)(void const* const* keys, int count, int dims, void const* packed, float scale, float* out);
  /// out[k][r] = scale * key k . row r; `packed` [dims][rows] floats, or [dims / 2][rows] pairs of bf16. There are
  /// keys_of_a_tile more pointers after the last key. Their targets may be prefetched, and are not read.
  kernel logits = nullptr;
  /// The same for bf16 keys and rows, with one instruction per pair; null if the processor has no such instruction.
  kernel logits_bf16 = nullptr;
  /// The same with a matrix unit, for bf16 keys and rows, for bf16 keys and float rows, and for f16 keys and float
  /// rows; null if the processor has none. `packed` is of row_tiles, and `pack_tiles` packs row i of it. They are
  /// called between `begin_tiles` and `end_tiles`, which set up and release a thread's tile registers.
  kernel tiles_bf16 = nullptr;
  kernel tiles_split = nullptr;
  kernel tiles_f16 = nullptr;
  /// For bf16 keys and rows, one of two passes of some blocks of `most_rows` rows over a tile of keys (`amx_sweeps`);
  /// null if the processor has no matrix unit, and in the tables of smaller blocks.
  void (*sweep_bf16)(swept_keys const& of, swept_rows const* rows, int blocks) = nullptr;
  void (*pack_tiles)(row_tiles const& layout, float const* row, int dims, int i, float* to) = nullptr;
  void (*begin_tiles)() = nullptr;
  void (*end_tiles)() = nullptr;
  /// For blocks of few rows, `packed` of `logits` is [row][dims]. The next three take quads instead, if the processor
  /// has them: a vector has four numbers of each row. This one takes [dims / 4][row][4 floats]; 4 divides dims.
  kernel quads = nullptr;
  /// For bf16 keys and rows: [dims / 8][row][4 pairs]; 8 divides dims.
  kernel quads_bf16 = nullptr;
  /// For bf16 keys and float rows. A float is split into two bf16 numbers, whose sum has 16 bits of precision:
  /// [dims / 8][2][row][4 pairs].
  kernel quads_split = nullptr;
  /// For f16 and for bf16 keys: [row][dims], where `rows_multiple` divides dims. Null where another one is as fast.
  kernel rows_f16 = nullptr;
  kernel rows_bf16 = nullptr;
  int rows_multiple = 16;
  /// Converts a row of contiguous elements to floats.
  void (*widen)(codec element, std::byte const* from, int dims, float* to) = nullptr;
  /// One stretch of an online softmax. Logits become e^(logit - maximum of the row so far), `scale` becomes that
  /// maximum, and row_max and sum [rows] are updated. The stretches of a row are processed in order, while each is in
  /// the cache.
  void (*advance)(block_view const& block, float* row_max, float* sum) = nullptr;
  /// Follows the last stretch: `scale` [stretches][rows] becomes the factor that normalises each stretch's values.
  void (*finalize)(float* scale, int stretches, int const* seen, float const* row_max, float const* sum) = nullptr;
  /// Each of `count` logits x becomes cap tanh(x / cap).
  void (*cap)(float* logits, int count, float cap) = nullptr;
  /// Logits become e^(logit - lse), and scale 1.
  void (*normalise)(block_view const& block, float const* lse) = nullptr;
  /// Reduces the block's rows to their sum or maximum, which overwrites out[e], or is combined with it if `grow`.
  void (*reduce)(block_view const& block, bool maximum, bool grow, float* out) = nullptr;
  /// Overwrites into[e][r] with a head's probabilities, or combines it with them by sum or maximum if `grow`.
  void (*gather_head)(block_view const& block, bool maximum, bool grow, float* into) = nullptr;
};

}  // namespace KVPOLICY_NAMESPACE::detail
