// SPDX-License-Identifier: Apache-2.0
// Host implementation of fold.
#pragma once

#include <algorithm>
#include <kvpolicy/ops/fold.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/kernels/element_rows.hpp>
#include <kvpolicy/ops/host/prefetch.hpp>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::fold_t, host> {
  static void run(host_executor& exec, score_view const& part, ops::fold_step const& step, score_view const& out) {
    int const most = std::clamp(part.lanes.capacity / (4 * exec.threads()), 1024, 4096);
    int const chunk = (most + detail::floats_of_a_line - 1) / detail::floats_of_a_line * detail::floats_of_a_line;
    int const chunks = (part.lanes.capacity + chunk - 1) / chunk;
    exec.for_each(part.lanes.sequences * chunks, [&](int i, int) {
      int const sequence = i / chunks;
      int const begin = i % chunks * chunk;
      int const count = part.lanes.committed({part.lanes.sequence_begin + sequence, part.lanes.layer_begin, 0});
      int const end = std::min(begin + chunk, count);
      if (begin < end) rows_of_sequence{exec.simd_level(), part, step, out, sequence, {begin, end}}.fold();
    });
  }

 private:
  /// The rows of a sequence, which are folded for some entries. More of them at once are too many pages at once.
  struct rows_of_sequence {
    static constexpr int at_once = 2;

    isa simd_level;
    score_view const& part;
    ops::fold_step const& step;
    score_view const& out;
    int sequence;
    ordinal_range which;

    [[nodiscard]] int rows() const { return part.segments() / part.lanes.sequences; }
    [[nodiscard]] int first() const { return sequence * rows(); }
    [[nodiscard]] int last() const { return first() + rows(); }
    [[nodiscard]] int count() const { return which.end - which.begin; }
    [[nodiscard]] float* target(int r) const { return out.rows.row(part.lane_of(r)); }
    [[nodiscard]] std::byte const* row(int r) const {
      return reinterpret_cast<std::byte const*>(part.row(r) + which.begin);
    }
    /// What follows the last row are the next entries of the first one.
    [[nodiscard]] std::byte const* row_ahead(int r) const {
      return r < last() ? row(r) : row(first() + (r - last()) % rows()) + std::ptrdiff_t{4} * count();
    }

    void fold() const {
      for (int r = first(); r < last();) {
        float* const to = target(r);
        if (step.first) begin_with(r++, to + which.begin);
        while (r < last() && target(r) == to) r += combine(r, to);
        for (int e = which.begin; e < which.end && step.divide_by != 1; ++e)
          to[e] /= static_cast<float>(step.divide_by);
      }
    }

    /// Copies row r, and prefetches the rows after it.
    void begin_with(int r, float* to) const {
      constexpr int line = detail::floats_of_a_line;
      auto const* const from = reinterpret_cast<float const*>(row(r));
      std::byte const* ahead[at_once];
      for (int i = 0; i < at_once; ++i) ahead[i] = row_ahead(r + 1 + i);
      for (int e = 0; e < count(); e += line) {
        for (std::byte const* const each : ahead) detail::prefetch_here(each + std::ptrdiff_t{4} * e);
        std::copy_n(from + e, std::min(line, count() - e), to + e);
      }
    }

    /// Combines a few rows of one segment, from row r on, in their order, and prefetches as many rows after them.
    /// Returns how many.
    int combine(int r, float* to) const {
      std::byte const *rows[at_once], *ahead[at_once];
      int some = 0;
      while (some < at_once && r + some < last() && target(r + some) == to) {
        rows[some] = row(r + some);
        ++some;
      }
      for (int i = 0; i < some; ++i) ahead[i] = row_ahead(r + some + i);
      auto const& kernels = detail::element_rows_of_isa[simd_level];
      (step.how == reduction::max ? kernels.max_f32 : kernels.f32)(rows, ahead, some, count(), to + which.begin);
      return some;
    }
  };
};

}  // namespace KVPOLICY_NAMESPACE
