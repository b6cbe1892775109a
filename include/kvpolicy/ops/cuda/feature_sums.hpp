// Device implementation of feature_sums: each thread adds up a few channels of one entry over all lanes.
#pragma once

#include <cstddef>
#include <kvpolicy/ops/cuda/block.hpp>
#include <kvpolicy/ops/cuda/page_launches.hpp>
#include <kvpolicy/ops/cuda/rows.hpp>
#include <kvpolicy/ops/residual.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Records a fault for lanes that have another number of entries than the first lane of their sequence.
struct unequal_counts_body {
  kvpolicy::lanes lanes;
  device_error faults;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block, std::int64_t i) const {
    lane const one = lanes.at(static_cast<int>(i));
    int const count = lanes.committed(one);
    bool const equal = count == lanes.committed({one.sequence, lanes.layer_begin, 0});
    if (!equal) report_fault(block, faults, fault::unequal_counts, i, count);
  }
};

/// Adds up `Each` channels, from `first` on, of entry `row - 1` over the lanes, or of the query memory if `row` is 0.
/// The lanes are added in order, so each sum always has the same bits. Unless `Each` is 1, its elements are 16
/// contiguous, aligned bytes. With `Fp8` they are elements of fp8, and `Each` is 1.
template <int Each, bool Fp8 = false>
struct feature_sums_body {
  kvpolicy::lanes lanes;
  row_view from;
  query_view memory;
  token_features out;

  template <class Block>
  KVPOLICY_HD void operator()(Block&, std::int64_t i) const {
    int const pieces = out.dims / Each;
    int const first = static_cast<int>(i % pieces) * Each;
    int const row = static_cast<int>(i / pieces % (lanes.bound + 1));
    int const sequence = static_cast<int>(i / pieces / (lanes.bound + 1));
    float sum[static_cast<std::size_t>(Each)] = {};
    if (row == 0) {
      add_memory(sequence, first, sum);
    } else if (row - 1 < lanes.committed({lanes.sequence_begin + sequence, lanes.layer_begin, 0})) {
      add_keys(sequence, row - 1, first, sum);
    }
    float* const to = out.row(sequence, row) + first;
    for (int e = 0; e < Each; ++e) to[e] = sum[e];
  }

 private:
  static constexpr int ahead = 4;  ///< loads of rows that are in flight at once

  struct alignas(Each > 1 ? 16 : 4) piece {
    unsigned word[Each > 1 ? 4 : 1];
  };

  KVPOLICY_HD void add_memory(int sequence, int first, float* sum) const {
    for (int layer = lanes.layer_begin; layer < lanes.layer_end; ++layer) {
      for (int head = 0; head < memory.heads; ++head) {
        std::byte const* const at = memory.at({lanes.sequence_begin + sequence, layer, 0}, head, 0);
        for (int e = 0; e < Each; ++e)
          sum[e] += element_at(memory.element, at + (first + e) * bytes_of(memory.element));
      }
    }
  }

  /// Behind the last lane, the last one is loaded again and not added.
  KVPOLICY_HD void add_keys(int sequence, int entry, int first, float* sum) const {
    int const lanes_here = lanes.layers() * lanes.heads;
    for (int i = 0; i < lanes_here; i += ahead) {
      float part[ahead][static_cast<std::size_t>(Each)];
      for (int j = 0; j < ahead; ++j) {
        int const at = i + j < lanes_here ? i + j : lanes_here - 1;
        lane const one{lanes.sequence_begin + sequence, lanes.layer_begin + at / lanes.heads, at % lanes.heads};
        read(from.row(one, entry) + first * from.rows.dim, part[j]);
        if constexpr (Fp8) part[j][0] *= from.scale(one, entry);
      }
      for (int j = 0; j < ahead; ++j) {
        for (int e = 0; e < Each; ++e) sum[e] += i + j < lanes_here ? part[j][e] : 0.0f;
      }
    }
  }

  KVPOLICY_HD void read(std::byte const* at, float* to) const {
    if constexpr (Fp8) {
      to[0] = any_element_at(from.rows.element, at);
    } else if constexpr (Each == 1) {
      to[0] = element_at(from.rows.element, at);
    } else {
      piece const all = *reinterpret_cast<piece const*>(at);
      for (int w = 0; w < 4; ++w) unpack(all.word[w], to + w * (Each / 4));
    }
  }

  KVPOLICY_HD void unpack(unsigned word, float* to) const {
    if constexpr (Each == 4) {
      to[0] = same_bits<float>(word);
    } else {
      auto const low = static_cast<std::uint16_t>(word);
      auto const high = static_cast<std::uint16_t>(word >> 16);
      bool const half = from.rows.element == codec::f16;
      to[0] = half ? from_f16(low) : from_bf16(low);
      to[1] = half ? from_f16(high) : from_bf16(high);
    }
  }
};

/// Query rows as a plane, for check_aligned.
[[nodiscard]] inline plane rows_of(query_view const& from) {
  return {.base = const_cast<std::byte*>(from.base),
          .element = from.element,
          .dims = from.dims,
          .layer = from.layer,
          .unit = from.sequence,
          .token = from.row,
          .head = from.head,
          .dim = bytes_of(from.element)};
}

}  // namespace detail

template <kernel_backend Backend>
struct implementation<ops::feature_sums_t, Backend> {
  static constexpr bool provided = true;

  /// If the lanes of a sequence have different numbers of entries, a fault is recorded, which `check()` of the executor
  /// throws, and nothing is written.
  template <class Executor>
  static void run(Executor& exec, keys const& from, query_view const& memory, score_view const& scores,
                  token_features const& out) {
    detail::check_aligned("feature_sums", "keys", from.rows);
    detail::check_aligned("feature_sums", "memory", detail::rows_of(memory));
    detail::launch_each(exec, scores.lanes.size(), detail::unequal_counts_body{scores.lanes, exec.faults()});
    plane const& rows = from.rows;
    int const each = 16 / bytes_of(rows.element);
    bool const wide = rows.contiguous() && rows.dims % each == 0 && detail::alignment_of(rows, true) == 16;
    if (is_fp8(rows.element)) {
      launch<1, true>(exec, from, memory, scores.lanes, out);
    } else if (!wide) {
      launch<1>(exec, from, memory, scores.lanes, out);
    } else if (each == 4) {
      launch<4>(exec, from, memory, scores.lanes, out);
    } else {
      launch<8>(exec, from, memory, scores.lanes, out);
    }
  }

 private:
  template <int Each, bool Fp8 = false, class Executor>
  static void launch(Executor& exec, keys const& from, query_view const& memory, lanes const& batch,
                     token_features const& out) {
    using body = detail::feature_sums_body<Each, Fp8>;
    std::int64_t const all = std::int64_t{batch.sequences} * (batch.bound + 1) * (out.dims / Each);
    detail::launch_each_unless_fault(exec, all, body{batch, from, memory, out});
  }
};

}  // namespace KVPOLICY_NAMESPACE
