// SPDX-License-Identifier: Apache-2.0
// Host implementation of record_key_sums: workers process tasks of some entries.
#pragma once

#include <algorithm>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/kernels/element_rows.hpp>
#include <kvpolicy/ops/key_sums.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Adds up the keys of entries over the lanes of their sequence, in the order of the lanes.
class sums_of_keys {
 public:
  static constexpr int entries_of_a_task = 64;  ///< their sums stay in the first-level cache

  /// `row`: D floats of scratch.
  sums_of_keys(host_executor const& exec, lanes const& batch, keys const& from, float* row)
      : simd_level_(exec.simd_level()), batch_(batch), from_(from), row_(row) {}

  /// Writes the sums of entries [begin, end) of a sequence.
  void make(int sequence, int begin, int end, float* to) const {
    std::fill_n(to, std::ptrdiff_t{end - begin} * from_.rows.channels, 0.0f);
    bool const plain = from_.rows.contiguous() && !is_fp8(from_.rows.element);
    for (int layer = batch_.layer_begin; layer < batch_.layer_end; ++layer) {
      for (int head = 0; head < batch_.heads; head += plain ? rows_at_a_time : 1) {
        lane const first{batch_.sequence_begin + sequence, layer, head};
        if (plain) {
          add_heads(first, std::min(rows_at_a_time, batch_.heads - head), begin, end, to);
        } else {
          add_each(first, begin, end, to);
        }
      }
    }
  }

 private:
  static constexpr int entries_ahead = 4;  ///< of eight heads each

  /// Adds the keys of a few heads, entry by entry, in the order of the heads, and fetches those that come next.
  void add_heads(lane first, int heads, int begin, int end, float* to) const {
    auto const add = element_rows_of_isa[simd_level_].of(from_.rows.element);
    int const dims = from_.rows.channels;
    int const bytes = dims * bytes_of(from_.rows.element);
    std::byte const* key[rows_at_a_time];
    for (int e = begin; e < end; ++e, to += dims) {
      find(first, heads, e, key);
      std::byte const* next[rows_at_a_time];
      find(first, heads, std::min(e + entries_ahead, end - 1), next);
      for (int h = 0; h < heads; ++h) {
        for (int byte = 0; byte < bytes; byte += 64) __builtin_prefetch(next[h] + byte, 0, 2);
      }
      add(key, key, heads, dims, to);  // eight heads are faster if their next keys are prefetched before
    }
  }

  /// The keys of an entry in a few heads. They are `head` bytes apart if all heads of an entry are at one place.
  void find(lane first, int heads, int e, std::byte const** key) const {
    bool const alike = from_.rows.bases.data == nullptr && from_.where.table.head == 0 && from_.where.begin.head == 0;
    key[0] = from_.row(first, e);
    for (int h = 1; h < heads; ++h) {
      key[h] =
          alike ? key[h - 1] + from_.rows.head_stride : from_.row({first.sequence, first.layer, first.head + h}, e);
    }
  }

  /// Adds the keys of a lane whose channels are apart, or that have a scale.
  void add_each(lane one, int begin, int end, float* to) const {
    int const dims = from_.rows.channels;
    for (int e = begin; e < end; ++e, to += dims) {
      load_row(from_.rows.element, from_.row(one, e), from_.rows.channel_stride, dims, row_);
      if (from_.rows.scales.data != nullptr) scale_row(from_.scale(one, e), dims, row_);
      auto const* const numbers = reinterpret_cast<std::byte const*>(row_);
      element_rows_of_isa[simd_level_].f32(&numbers, &numbers, 1, dims, to);
    }
  }

  isa simd_level_;
  lanes const& batch_;
  keys const& from_;
  float* row_;
};

/// Calls visit(channel, numbers) for every channel of a sequence; the number of entry e is numbers[e * of.each].
template <class Visit>
void for_each_channel(key_sums const& of, lanes const& batch, int sequence, int dims, Visit const& visit) {
  int channel = 0;
  for (int layer = batch.layer_begin; layer < batch.layer_end; ++layer) {
    for (int head = 0; head < batch.heads; ++head) {
      float* const row = of.channels.row({batch.sequence_begin + sequence, layer, head});
      for (int i = 0; i < of.each; ++i, ++channel) {
        if (channel == dims) return;
        visit(channel, row + i);
      }
    }
  }
}

/// The number of first entries of a sequence whose sums were recorded, if the others are behind them.
[[nodiscard]] inline int recorded_tokens(key_sums const& sums, lanes const& batch, int sequence, int count) {
  while (count > 0 && !key_sums::is_recorded(*sums.at(batch, sequence, count - 1, 0))) --count;
  return count;
}

}  // namespace detail

template <>
struct implementation<ops::record_key_sums_t, host> {
  static std::size_t scratch(shape const& model, int) {
    auto const dims = static_cast<std::size_t>(model.head_dim);
    return detail::scratch_of<float>(dims * (detail::sums_of_keys::entries_of_a_task + 1));
  }

  static void run(host_executor& exec, keys const& from, lanes const& batch, key_sums const& to) {
    if (!to.fits(batch, from.rows.channels)) return;
    constexpr int some = detail::sums_of_keys::entries_of_a_task;
    for (int sequence = 0; sequence < batch.sequences; ++sequence) {
      int const count = entries_of_all_lanes(batch, sequence);
      int const known = detail::recorded_tokens(to, batch, sequence, count);
      std::int64_t const bytes = std::int64_t{some} * batch.size() / batch.sequences * from.rows.channels * 2;
      exec.for_each_range((count - known + some - 1) / some, bytes, [&](int begin, int end, int worker) {
        for (int task = begin; task < end; ++task) {
          int const first = known + task * some;
          record(exec, from, batch, sequence, first, std::min(count, first + some), worker, to);
        }
      });
    }
  }

 private:
  /// The number of entries that every lane of a sequence has.
  static int entries_of_all_lanes(lanes const& batch, int sequence) {
    int least = batch.capacity;
    for (int layer = batch.layer_begin; layer < batch.layer_end; ++layer) {
      for (int head = 0; head < batch.heads; ++head) {
        least = std::min(least, batch.committed({batch.sequence_begin + sequence, layer, head}));
      }
    }
    return least;
  }

  static void record(host_executor& exec, keys const& from, lanes const& batch, int sequence, int begin, int end,
                     int worker, key_sums const& to) {
    auto const dims = static_cast<std::size_t>(from.rows.channels);
    auto* const row =
        detail::scratch_arena(exec.scratch(worker)).take<float>(dims * (detail::sums_of_keys::entries_of_a_task + 1));
    float* const sums = row + dims;
    detail::sums_of_keys(exec, batch, from, row).make(sequence, begin, end, sums);
    detail::for_each_channel(to, batch, sequence, from.rows.channels, [&](int channel, float* numbers) {
      float const* of = sums + channel;
      for (int e = begin; e < end; ++e, of += dims) numbers[std::ptrdiff_t{e} * to.each] = key_sums::recorded(*of);
    });
  }
};

}  // namespace KVPOLICY_NAMESPACE
