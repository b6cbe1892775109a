// SPDX-License-Identifier: Apache-2.0
// Device implementations of row_norm and record_norms.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <kvpolicy/ops/cuda/moves/row_numbers.hpp>
#include <kvpolicy/ops/cuda/run/entries_of.hpp>
#include <kvpolicy/ops/row_norm.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Norms of rows of any type, size and alignment.
template <class Combine>
struct row_norm_kernel {
  row_view rows;
  Combine combine;
  score_view out;

  /// Computes the norm of each row, one warp for each row; consecutive threads read consecutive elements.
  template <class Block>
  KVPOLICY_HD void operator()(Block& block, int segment, ordinal_range of) const {
    lane const this_lane = out.lane_of(segment);
    float* const row = out.row(segment);
    int const warps = block.threads() / warp_size;
    for (int e = of.begin + warp_id(block); e < of.end; e += warps) {
      float const norm = norm_of(block, rows, this_lane, e);
      if (lane_id(block) == 0) row[e] = combine(row[e], norm);
    }
  }
};

/// Norms of rows of f32, f16 or bf16 whose pieces of 16 bytes are contiguous and aligned. Sixteen threads of a warp
/// read a row, and the warp has eight rows in flight.
template <class Combine>
struct wide_norm_kernel {
  row_view rows;
  Combine combine;
  score_view out;
  int pieces;  ///< of 16 bytes, in a row

  static constexpr int of_row = 16;  ///< threads
  static constexpr int at_once = 4;  ///< rows of a thread

  template <class Block>
  KVPOLICY_HD void operator()(Block& block, int segment, ordinal_range of) const {
    lane const this_lane = out.lane_of(segment);
    float* const to = out.row(segment);
    for (int e = of.begin + warp_id(block) * warp_size; e < of.end; e += block.threads()) {
      // Each thread looks for the row of one entry; behind the last entry for that of the last.
      std::byte const* const mine = rows.row(this_lane, min_op{}(e + lane_id(block), of.end - 1));
      for (int k = 0; k < warp_size && e + k < of.end; k += 2 * at_once) {
        double const sum = sums_of(block, mine, k + lane_id(block) / of_row * at_once);
        int const i = lane_id(block) % of_row;
        int const at = e + k + lane_id(block) / of_row * at_once + i;
        if (i < at_once && at < of.end) to[at] = combine(to[at], static_cast<float>(::sqrt(sum)));
      }
    }
  }

 private:
  /// In thread i < at_once of sixteen, the sum of the squares of the row that thread first + i of the warp has found.
  template <class Block>
  [[nodiscard]] KVPOLICY_HD double sums_of(Block& block, std::byte const* found, int first) const {
    std::byte const* row[at_once];
    double sum[at_once] = {};
    for (int r = 0; r < at_once; ++r) row[r] = block.shuffle(found, first + r);
    for (int p = 0; p < pieces; p += of_row) {
      int const mine = p + lane_id(block) % of_row;
      row_piece part[at_once];
      for (int r = 0; r < at_once; ++r) {
        part[r] = *reinterpret_cast<row_piece const*>(row[r] + 16 * min_op{}(mine, pieces - 1));
      }
      for (int r = 0; mine < pieces && r < at_once; ++r) sum[r] += squares(part[r]);
    }
    return block.template reduce_warp_batched<of_row>(sum, plus_op{});
  }

  [[nodiscard]] KVPOLICY_HD double squares(row_piece const& of) const {
    double sum = 0;
    for (std::uint32_t const word : of.word) {
      if (rows.rows.element == codec::f32) {
        add_square(same_bits<float>(word), sum);
      } else {
        two_numbers const numbers = halves_of(rows.rows.element, word);
        add_square(numbers.first, sum);
        add_square(numbers.second, sum);
      }
    }
    return sum;
  }
  KVPOLICY_HD static void add_square(float value, double& to) {
    auto const exact = static_cast<double>(value);
    to += exact * exact;
  }
};

}  // namespace detail

template <kernel_backend Backend>
struct implementation<ops::row_norm_t, Backend> {
  template <class Executor, class Combine>
  static void run(Executor& exec, row_view const& rows, Combine const& combine, score_view const& out) {
    plane const& of = rows.rows;
    detail::check_aligned("row_norm", "rows", of);
    std::int64_t const bytes = std::int64_t{of.channels} * bytes_of(of.element);
    bool const wide = of.contiguous() && bytes % 16 == 0 && detail::alignment_of(of, true) == 16;
    if (wide && !is_fp8(of.element) && of.scales.data == nullptr) {
      detail::launch_pieces(exec, out,
                            detail::wide_norm_kernel<Combine>{rows, combine, out, static_cast<int>(bytes / 16)});
    } else {
      detail::launch_pieces(exec, out, detail::row_norm_kernel<Combine>{rows, combine, out});
    }
  }
};

/// Takes one launch, which reads every row again and keeps the recorded norms.
template <kernel_backend Backend>
struct implementation<ops::record_norms_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, row_view const& rows, score_view const& out) {
    ops::row_norm(exec, rows, detail::negated_once{}, out);
  }
};

}  // namespace KVPOLICY_NAMESPACE
