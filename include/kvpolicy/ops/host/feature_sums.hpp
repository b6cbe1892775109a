// SPDX-License-Identifier: Apache-2.0
// Host implementation of feature_sums: workers process tasks of some entries.
#pragma once

#include <algorithm>
#include <kvpolicy/ops/feature_sums.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/kernels/element_rows.hpp>
#include <kvpolicy/ops/host/kernels/transpose.hpp>
#include <kvpolicy/ops/host/key_sums.hpp>
#include <kvpolicy/ops/host/prefetch.hpp>
#include <kvpolicy/ops/host/segments.hpp>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::feature_sums_t, host> {
  static std::size_t scratch(shape const& model, int) {
    return detail::scratch_of<float>(static_cast<std::size_t>(model.head_dim));
  }

  static void run(host_executor& exec, keys const& from, query_view const& memory, key_sums const& recorded,
                  score_view const& scores, token_features const& out) {
    if (!scores.same_tokens) detail::refuse_other_tokens("feature_sums", scores);
    lanes const& batch = scores.lanes;
    constexpr int some = detail::sums_of_keys::entries_of_a_task;
    int const tasks = (batch.capacity + some - 1) / some;
    bool const reads = recorded.fits(batch, out.dims);
    exec.for_each(batch.sequences * (tasks + 1), [&](int i, int worker) {
      int const sequence = i / (tasks + 1);
      int const task = i % (tasks + 1);
      auto* const row = detail::scratch_arena(exec.scratch(worker)).take<float>(static_cast<std::size_t>(memory.dims));
      if (task == tasks) return add_memory(exec, batch, memory, sequence, out.row(sequence, 0));
      int const begin = task * some;
      int const last = std::min(begin + some, batch.capacity);
      int const end = std::min(last, batch.committed({batch.sequence_begin + sequence, batch.layer_begin, 0}));
      int const behind = std::max(begin, end);  // ranks sum whole rows
      std::fill_n(out.row(sequence, 1 + behind), std::ptrdiff_t{last - behind} * out.dims, 0.0f);
      detail::sums_of_keys const sums(exec, batch, from, row);
      for (int e = begin; e < end;) {
        int const next = reads ? read_recorded(exec, recorded, batch, sequence, e, end, out) : e;
        int to = next;
        while (to < end && !(reads && is_recorded(recorded, batch, sequence, to))) ++to;
        if (next < to) sums.make(sequence, next, to, out.row(sequence, 1 + next));
        e = to;
      }
    });
  }

 private:
  static void add_memory(host_executor const& exec, lanes const& batch, query_view const& memory, int sequence,
                         float* to) {
    std::fill_n(to, memory.dims, 0.0f);
    for (int layer = batch.layer_begin; layer < batch.layer_end; ++layer) {
      for (int head = 0; head < memory.heads; ++head) {
        std::byte const* const from = memory.at({batch.sequence_begin + sequence, layer, 0}, head, 0);
        detail::element_rows_of_isa[exec.simd_level()].of(memory.element)(&from, &from, 1, memory.dims, to);
      }
    }
  }

  static bool is_recorded(key_sums const& from, lanes const& batch, int sequence, int entry) {
    return key_sums::is_recorded(*from.at(batch, sequence, entry, 0));
  }

  /// Copies the recorded sums from entry `begin` on, until `end` or one that was not recorded, which it returns.
  static int read_recorded(host_executor const& exec, key_sums const& from, lanes const& batch, int sequence, int begin,
                           int end, token_features const& out) {
    int last = begin;
    while (last < end && is_recorded(from, batch, sequence, last)) ++last;
    constexpr std::ptrdiff_t ahead = 64;  // entries; a processor does not follow as many streams as there are channels
    constexpr int side = 16;
    auto const transpose = detail::transpose_of_isa[exec.simd_level()].rows;
    for (int e = begin; e < last; e += side) {
      int const entries = std::min(side, last - e);
      for (int channel = 0; channel < out.dims; channel += side) {
        int const channels = std::min(side, out.dims - channel);
        float* const to = out.row(sequence, 1 + e) + channel;
        float const* number[side];
        for (int c = 0; c < channels; ++c) {
          number[c] = from.at(batch, sequence, e, channel + c);
          detail::prefetch_here(reinterpret_cast<std::byte const*>(number[c]) + ahead * 4 * from.each);
        }
        if (from.each == 1) {
          transpose(number, channels, entries, to, out.dims);
          continue;
        }
        for (int i = 0; i < entries; ++i) {
          for (int c = 0; c < channels; ++c) to[i * out.dims + c] = number[c][i * from.each] + 0.0f;
        }
      }
    }
    return last;
  }
};

}  // namespace KVPOLICY_NAMESPACE
