// SPDX-License-Identifier: Apache-2.0
// Host implementation of append_column.
#pragma once

#include <algorithm>
#include <kvpolicy/ops/append_column.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/kernels/transpose.hpp>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::append_column_t, host> {
  static void run(host_executor& exec, lanes const& batch, entry_numbers const& new_numbers,
                  by_lane<float> const& column) {
    int const most = refuse_missing_entries(batch, new_numbers, column);
    if (most == 0) return;
    if (most == 1 && new_numbers.position.data == nullptr) {
      return exec.for_each_range(
          batch.size(), 8, [&](int begin, int end, int) { append_one_each(batch, new_numbers, column, begin, end); });
    }
    // Heads whose numbers are neighbours are done together: their cache lines are shared.
    bool neighbours = new_numbers.head == bytes_of(new_numbers.element) && new_numbers.position.data == nullptr;
    for (int s = batch.sequence_begin; batch.in_flight != nullptr && s < batch.sequence_end(); ++s) {
      neighbours = neighbours && *batch.drafts(s) == 0;
    }
    int const together = neighbours ? batch.heads : 1;
    std::int64_t const bytes = std::int64_t{most} * together * (bytes_of(new_numbers.element) + 4);
    auto const turn = detail::transpose_of_isa[exec.simd_level()].heads_of(new_numbers.element);
    exec.for_each_range(batch.size() / together, bytes, [&](int begin, int end, int) {
      for (int i = begin; i < end; ++i) {
        if (neighbours) {
          append_heads(turn, batch, new_numbers, column, batch.at(i * together));
        } else {
          lane const one = batch.at(i);
          append(batch, new_numbers, column, one, 0, new_numbers.count(one));
        }
      }
    });
  }

 private:
  static constexpr int stretch = 1024;

  /// Throws if a lane has fewer entries than there are numbers. Returns the largest number of numbers of a lane.
  [[gnu::flatten]] static int refuse_missing_entries(lanes const& batch, entry_numbers const& new_numbers,
                                                     by_lane<float> const& column) {
    int most = 0;
    bool has = true;
    detail::for_each_lane(batch, [&](int, lane one) {
      int const count = new_numbers.count(one);
      has = has && count >= 0 && detail::counted_numbers(batch, new_numbers, column, one) <= batch.committed(one);
      most = std::max(most, count);
    });
    if (!has) throw_missing_entries(batch, new_numbers, column);
    return most;
  }

  /// Throws the error of the first lane that has fewer entries than there are numbers.
  [[gnu::noinline, gnu::cold]] static void throw_missing_entries(lanes const& batch, entry_numbers const& new_numbers,
                                                                 by_lane<float> const& column) {
    detail::for_each_lane(batch, [&](int i, lane one) {
      int const count = new_numbers.count(one);
      expects(count >= 0, "observe", "entries", count, "a count cannot be negative");
      int const counted = detail::counted_numbers(batch, new_numbers, column, one);
      expects(counted <= batch.committed(one), "observe", "entries", counted, [&] {
        return "lane " + std::to_string(i) + " holds " + std::to_string(batch.committed(one)) + " entries";
      });
    });
  }

  /// Appends the number of each of the lanes [begin, end) that has one, as in a step of a decode loop. All that it
  /// calls is short, and is inlined.
  [[gnu::flatten]] static void append_one_each(lanes const& batch, entry_numbers const& from,
                                               by_lane<float> const& column, int begin, int end) {
    detail::for_each_heads(batch, begin, end, batch.heads, [&](int, lane first, int heads) {
      detail::head_rows<float> const rows(column, first);
      detail::head_rows<int> const counts(batch.count, first);
      int const drafts = batch.in_flight != nullptr ? *batch.drafts(first.sequence) : 0;
      std::byte const* const numbers = from.at(first, 0);
      for (int h = 0; h < heads; ++h) {
        if (from.count({first.sequence, first.layer, first.head + h}) == 0) continue;
        if (drafts > 0 &&
            detail::numbers_of_committed(batch, from, column, {first.sequence, first.layer, first.head + h}) == 0)
          continue;  // it is that of a draft
        rows[h][*counts[h] - drafts - 1] = detail::told_number{}(load(from.element, numbers + h * from.head));
      }
    });
  }

  /// Appends the numbers of all heads of a layer, from `one` on, a stretch of entries at a time.
  static void append_heads(detail::transpose_kernels::heads_function turn, lanes const& batch,
                           entry_numbers const& from, by_lane<float> const& column, lane one) {
    for (; one.head < batch.heads; one.head += detail::heads_of_a_tile) {
      int const heads = std::min(detail::heads_of_a_tile, batch.heads - one.head);
      bool const whole = heads == detail::heads_of_a_tile && turn != nullptr;
      int const turned = whole ? append_tiles(turn, batch, from, column, one) : 0;
      int most = 0;
      for (int h = 0; h < heads; ++h) most = std::max(most, from.count({one.sequence, one.layer, one.head + h}));
      for (int begin = turned; begin < most; begin += stretch) {
        for (int h = 0; h < heads; ++h)
          append(batch, from, column, {one.sequence, one.layer, one.head + h}, begin, stretch);
      }
    }
  }

  /// Appends the numbers of eight heads, from `first` on, as far as all of them have numbers and these are whole tiles.
  /// Returns how many of each were appended.
  static int append_tiles(detail::transpose_kernels::heads_function turn, lanes const& batch, entry_numbers const& from,
                          by_lane<float> const& column, lane first) {
    float* to[detail::heads_of_a_tile];
    int least = from.count(first);
    for (int h = 0; h < detail::heads_of_a_tile; ++h) {
      lane const one{first.sequence, first.layer, first.head + h};
      int const count = from.count(one);
      least = std::min(least, count);
      to[h] = column.row(one) + batch.committed(one) - count;
    }
    return turn(from.at(first, 0), from.entry, least, to);
  }

  /// Appends numbers [begin, begin + some) of a lane.
  static void append(lanes const& batch, entry_numbers const& from, by_lane<float> const& column, lane one, int begin,
                     int some) {
    int const count = detail::numbers_of_committed(batch, from, column, one);
    float* const to = column.row(one) + batch.committed(one) - detail::counted_numbers(batch, from, column, one);
    int const end = std::min(count, begin + some);
    if (begin >= end) return;
    if (from.position.data != nullptr) {
      int next = 0;
      int const newest = batch.newest(one);
      for (int e = 0; e < count; ++e) {
        if (from.counts_at(one, e, newest)) to[next++] = detail::told_number{}(load(from.element, from.at(one, e)));
      }
    } else if (from.element == codec::f32) {
      convert<codec::f32>(from.at(one, 0), from.entry, begin, end, to);
    } else if (from.element == codec::bf16) {
      convert<codec::bf16>(from.at(one, 0), from.entry, begin, end, to);
    } else if (from.element == codec::f16) {
      convert<codec::f16>(from.at(one, 0), from.entry, begin, end, to);
    } else {
      for (int e = begin; e < end; ++e) to[e] = detail::told_number{}(load(from.element, from.at(one, e)));
    }
  }

  /// There is a loop for contiguous numbers, so that compilers can vectorise it.
  template <codec Element>
  static void convert(std::byte const* from, std::int64_t step, int begin, int end, float* to) {
    constexpr std::int64_t width = bytes_of(Element);
    if (step == width) {
      for (std::int64_t e = begin; e < end; ++e) to[e] = detail::told_number{}(load(Element, from + e * width));
    } else {
      for (std::int64_t e = begin; e < end; ++e) to[e] = detail::told_number{}(load(Element, from + e * step));
    }
  }
};

}  // namespace KVPOLICY_NAMESPACE
