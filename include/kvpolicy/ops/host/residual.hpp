// Host implementations of feature_sums and residual: workers process tasks of some entries.
#pragma once

#if defined(KVPOLICY_COMPILED)
#include <kvpolicy/ops/host/compiled.hpp>  // IWYU pragma: export
#else

#include <algorithm>
#include <kvpolicy/ops/all_reduce.hpp>
#include <kvpolicy/ops/host/element_rows.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/residual_kernels.hpp>
#include <kvpolicy/ops/host/residual_task.hpp>
#include <kvpolicy/ops/host/rows.hpp>
#include <kvpolicy/ops/host/segments.hpp>
#include <kvpolicy/ops/residual.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// True if all heads of an entry are at one place, so that their rows are `head` bytes apart.
[[nodiscard]] inline bool heads_share_places(row_view const& of) {
  return of.rows.bases.data == nullptr && of.where.table.head == 0 && of.where.begin.head == 0;
}

}  // namespace detail

template <>
struct implementation<ops::feature_sums_t, host> {
  static constexpr bool provided = true;
  static constexpr int entries_of_a_task = 64;  ///< their sums stay in the first-level cache
  static constexpr int entries_ahead = 4;       ///< of eight heads each

  static std::size_t scratch(shape const& model, int) {
    return detail::scratch_of<float>(static_cast<std::size_t>(model.head_dim));
  }

  static void run(host_executor& exec, keys const& from, query_view const& memory, score_view const& scores,
                  token_features const& out) {
    if (!scores.same_tokens) detail::refuse_other_tokens("feature_sums", scores);
    lanes const& batch = scores.lanes;
    int const tasks = (batch.bound + entries_of_a_task - 1) / entries_of_a_task;
    exec.for_each(batch.sequences * (tasks + 1), [&](int i, int worker) {
      int const sequence = i / (tasks + 1);
      int const task = i % (tasks + 1);
      auto* const row = detail::scratch_arena(exec.scratch(worker)).take<float>(static_cast<std::size_t>(memory.dims));
      if (task == tasks) return add_memory(exec.simd_level(), batch, memory, sequence, row, out.row(sequence, 0));
      int const begin = task * entries_of_a_task;
      int const last = std::min(begin + entries_of_a_task, batch.bound);
      int const end = std::min(last, batch.committed({batch.sequence_begin + sequence, batch.layer_begin, 0}));
      int const behind = std::max(begin, end);  // ranks sum whole rows
      std::fill_n(out.row(sequence, 1 + behind), std::ptrdiff_t{last - behind} * out.dims, 0.0f);
      if (begin < end) add_keys(exec.simd_level(), batch, from, {sequence, begin, end}, row, out);
    });
  }

 private:
  struct stretch {
    int sequence;
    int begin;
    int end;
  };

  static void add_memory(isa simd_level, lanes const& batch, query_view const& memory, int sequence, float* row,
                         float* to) {
    std::fill_n(to, memory.dims, 0.0f);
    for (int layer = batch.layer_begin; layer < batch.layer_end; ++layer) {
      for (int head = 0; head < memory.heads; ++head) {
        std::byte const* const from = memory.at({batch.sequence_begin + sequence, layer, 0}, head, 0);
        detail::load_row(memory.element, from, bytes_of(memory.element), memory.dims, row);
        detail::residual_for(simd_level).add(row, memory.dims, to);
      }
    }
  }

  static void add_keys(isa simd_level, lanes const& batch, keys const& from, stretch const& part, float* row,
                       token_features const& out) {
    float* const to = out.row(part.sequence, 1 + part.begin);
    std::fill_n(to, std::ptrdiff_t{part.end - part.begin} * from.rows.dims, 0.0f);
    if (!from.rows.contiguous() || is_fp8(from.rows.element)) {
      return add_each(simd_level, batch, from, part, row, to);
    }
    for (int layer = batch.layer_begin; layer < batch.layer_end; ++layer) {
      for (int head = 0; head < batch.heads; head += detail::rows_at_a_time) {
        lane const first{batch.sequence_begin + part.sequence, layer, head};
        add_heads(simd_level, from, first, std::min(detail::rows_at_a_time, batch.heads - head), part, to);
      }
    }
  }

  /// Adds the keys of a few heads, entry by entry, in the order of the heads, and fetches those that come next.
  static void add_heads(isa simd_level, keys const& from, lane first, int heads, stretch const& part, float* to) {
    auto const add = detail::element_rows_for(simd_level).of(from.rows.element);
    int const dims = from.rows.dims;
    int const bytes = dims * bytes_of(from.rows.element);
    bool const alike = detail::heads_share_places(from);
    std::byte const* key[detail::rows_at_a_time];
    for (int e = part.begin; e < part.end; ++e, to += dims) {
      find(from, first, heads, alike, e, key);
      std::byte const* next[detail::rows_at_a_time];
      find(from, first, heads, alike, std::min(e + entries_ahead, part.end - 1), next);
      for (int h = 0; h < heads; ++h) {
        for (int byte = 0; byte < bytes; byte += 64) __builtin_prefetch(next[h] + byte, 0, 2);
      }
      add(key, heads, dims, to);
    }
  }

  /// The keys of an entry in a few heads.
  static void find(keys const& from, lane first, int heads, bool alike, int e, std::byte const** key) {
    key[0] = from.row(first, e);
    for (int h = 1; h < heads; ++h) {
      key[h] = alike ? key[h - 1] + from.rows.head : from.row({first.sequence, first.layer, first.head + h}, e);
    }
  }

  /// The same for keys whose channels are apart, or that have a scale.
  static void add_each(isa simd_level, lanes const& batch, keys const& from, stretch const& part, float* row,
                       float* to) {
    int const dims = from.rows.dims;
    for (int layer = batch.layer_begin; layer < batch.layer_end; ++layer) {
      for (int head = 0; head < batch.heads; ++head) {
        lane const one{batch.sequence_begin + part.sequence, layer, head};
        for (int e = part.begin; e < part.end; ++e) {
          detail::load_row(from.rows.element, from.row(one, e), from.rows.dim, dims, row);
          if (from.rows.scales.data != nullptr) detail::scale_row(from.scale(one, e), dims, row);
          detail::residual_for(simd_level).add(row, dims, to + std::ptrdiff_t{e - part.begin} * dims);
        }
      }
    }
  }
};

template <>
struct implementation<ops::residual_t, host> {
  static constexpr bool provided = true;
  using sizes = residual_sizes;

  template <class Executor>
  static void run(Executor& exec, token_features const& features, turn_queries const& turn, residual_head const& head,
                  residual_options const& how, score_view const& out, float* temp_storage) {
    among_ranks(exec, ranks_of(exec), features, turn, head, how, out, temp_storage);
  }

  static void among_ranks(host_executor& exec, int ranks, token_features const& features, turn_queries const& turn,
                          residual_head const& head, residual_options const& how, score_view const& out,
                          float* temp_storage) {
    if (head.alpha == 0) return;
    for (int sequence = 0; sequence < out.lanes.sequences; ++sequence) {
      make_means(exec, features, turn.heads, ranks, sequence, out);
      one_sequence(exec, features, span_of(out.lanes, turn, sequence, how), head, sequence, out, temp_storage);
    }
  }

 private:
  static void make_means(host_executor& exec, token_features const& features, int query_heads, int ranks, int sequence,
                         score_view const& out) {
    constexpr int rows = 512;
    int const count = 1 + out.lanes.committed(out.lane_of(sequence));
    int const layers = out.lanes.layers() * ranks;
    exec.for_each((count + rows - 1) / rows, [&](int task, int) {
      for (int i = task * rows; i < std::min(count, (task + 1) * rows); ++i) {
        auto const by = static_cast<float>(layers * (i == 0 ? query_heads : out.lanes.heads));
        for (int d = 0; d < features.dims; ++d) features.row(sequence, i)[d] /= by;
      }
    });
  }

  /// The live entries at the positions of the span.
  static ordinal_range span_of(lanes const& batch, turn_queries const& turn, int sequence,
                               residual_options const& how) {
    lane const one{batch.sequence_begin + sequence, batch.layer_begin, 0};
    ordinal_range const rows = turn.span(one, how.tail);
    if (!how.cross_attention || rows.begin >= rows.end) return {0, 0};
    lane_entries const live{one, batch.committed(one), 0, batch.position.row(one)};
    return {live.first_at(turn.position_of(one, rows.begin)), live.first_at(turn.position_of(one, rows.end - 1) + 1)};
  }

  static void one_sequence(host_executor& exec, token_features const& features, ordinal_range const& span,
                           residual_head const& head, int sequence, score_view const& out, float* temp_storage) {
    int const count = out.lanes.committed(out.lane_of(sequence));
    int const dims = features.dims;
    float* const row = features.row(sequence, 1);
    detail::folded_head const folded(head, features.row(sequence, 0), temp_storage);
    sizes const all(head, out.lanes.bound);
    int const tasks = static_cast<int>(all.tasks());
    exec.for_each(tasks, [&](int task, int) {
      detail::residual_task one(exec.simd_level(), head, folded, temp_storage + task * all.task());
      for (int e = task * sizes::entries_of_a_task; e < count; e += tasks * sizes::entries_of_a_task) {
        one.run(row + std::ptrdiff_t{e} * dims, std::min(sizes::entries_of_a_task, count - e),
                row + std::ptrdiff_t{span.begin} * dims, span.end - span.begin, out.row(sequence) + e);
      }
    });
  }
};

}  // namespace KVPOLICY_NAMESPACE

#endif
