// SPDX-License-Identifier: Apache-2.0
// How a lane's entries move when it is compacted, and functions that move an array with one element for each entry.
#pragma once

#include <cstddef>
#include <cstring>
#include <kvpolicy/core/config.hpp>
#include <kvpolicy/ops/host/prefetch.hpp>
#include <span>

namespace KVPOLICY_NAMESPACE::detail {

/// The moves of a lane's kept entries and of the drafts behind them: entry i comes from `source(i)`. Sources ascend.
struct lane_moves {
  std::span<int const> kept;
  int committed = 0;
  int drafts = 0;
  std::span<int const> gaps{};  ///< the dropped entries, if they are few and were listed; empty: not listed

  [[nodiscard]] int gone() const { return committed - static_cast<int>(kept.size()); }
  [[nodiscard]] int count() const { return static_cast<int>(kept.size()) + drafts; }
  [[nodiscard]] int source(int i) const {
    auto const entries = static_cast<int>(kept.size());
    return i < entries ? kept[static_cast<std::size_t>(i)] : committed + i - entries;
  }
  /// The first entry that moves, or count() if none does. Sources ascend, so a binary search finds it.
  [[nodiscard]] int first_moved() const {
    if (!gaps.empty()) return gaps.front();
    if (gone() == 0) return count();
    int begin = 0, end = static_cast<int>(kept.size());
    while (begin < end) {
      int const middle = begin + (end - begin) / 2;
      bool const stays = kept[static_cast<std::size_t>(middle)] == middle;
      (stays ? begin : end) = stays ? middle + 1 : middle;
    }
    return begin;
  }
  /// True if the entries from the i-th on come from consecutive places. Sources ascend, so the ends tell.
  [[nodiscard]] bool are_consecutive(int i) const {
    return i < count() && source(count() - 1) - source(i) == count() - 1 - i;
  }
};

/// Compacts an array of values of any width: moves what is between two listed gaps at once.
inline void close_gaps(std::byte* row, std::size_t width, lane_moves const& moves) {
  int const all = moves.committed + moves.drafts;
  for (std::size_t g = 0; g < moves.gaps.size(); ++g) {
    int const begin = moves.gaps[g] + 1, end = g + 1 < moves.gaps.size() ? moves.gaps[g + 1] : all;
    std::byte* const from = row + static_cast<std::size_t>(begin) * width;
    std::size_t const bytes = static_cast<std::size_t>(end - begin) * width;
    for (std::size_t at = 0; at < bytes; at += 64) prefetch_stream(from + at);
    std::memmove(from - (g + 1) * width, from, bytes);
  }
}

/// Compacts an array of values of any width, one after another unless the gaps are listed.
inline void move_bytes(std::byte* row, std::size_t width, lane_moves const& moves) {
  if (!moves.gaps.empty()) return close_gaps(row, width, moves);
  for (int i = moves.first_moved(); i < moves.count(); ++i) {
    std::memcpy(row + static_cast<std::size_t>(i) * width, row + static_cast<std::size_t>(moves.source(i)) * width,
                width);
  }
}

/// Compacts an array of numbers, sixteen kept entries at a time. Sixteen neighbours are copied at once. If sixteen
/// entries span few cache lines, the stream is prefetched; otherwise each entry is, because a processor cannot predict
/// their addresses.
template <class Number>
void move_numbers(std::byte* row, lane_moves const& moves) {
  constexpr int some = 16, ahead = 32 * some;
  constexpr std::ptrdiff_t width = sizeof(Number);
  if (!moves.gaps.empty()) return close_gaps(row, sizeof(Number), moves);
  int i = moves.first_moved();
  int const scattered_end = moves.are_consecutive(i) ? i : static_cast<int>(moves.kept.size());
  auto const move = [&](int from, int to) {
    Number number;
    std::memcpy(&number, row + from * width, sizeof number);
    std::memcpy(row + to * width, &number, sizeof number);
  };
  int const* const entry = moves.kept.data();
  for (; i + some <= scattered_end; i += some) {
    int const span = entry[i + some - 1] - entry[i];
    if (span < 5 * some) {
      for (std::ptrdiff_t at = 0; at <= span * width; at += 64) prefetch_stream(row + entry[i] * width + at);
    } else if (i + ahead + some <= scattered_end) {
      for (int k = 0; k < some; ++k) __builtin_prefetch(row + entry[i + ahead + k] * width, 0, 2);
    }
    if (span == some - 1) {
      Number numbers[some];
      std::memcpy(numbers, row + entry[i] * width, sizeof numbers);
      std::memcpy(row + i * width, numbers, sizeof numbers);
    } else {
      for (int k = i; k < i + some; ++k) move(entry[k], k);
    }
  }
  for (; i < scattered_end; ++i) move(entry[i], i);
  if (i < moves.count()) {
    std::memmove(row + i * width, row + moves.source(i) * width, static_cast<std::size_t>((moves.count() - i) * width));
  }
}

}  // namespace KVPOLICY_NAMESPACE::detail
