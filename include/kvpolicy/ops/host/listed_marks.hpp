// SPDX-License-Identifier: Apache-2.0
// Marks of the entries that are kept, and lists of those that are not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/kernels/listing.hpp>
#include <kvpolicy/ops/host/prefetch.hpp>
#include <span>

namespace KVPOLICY_NAMESPACE::detail {

/// True if so few of a lane's entries are dropped that a look at the gaps takes less time than one at each entry.
[[nodiscard]] constexpr bool drops_few(std::size_t kept, int committed) {
  return (committed - static_cast<int>(kept)) * std::int64_t{16} <= committed;
}

/// Lists the ordinals below `committed` that are not kept, in ascending order. `to` has memory for just these. Sixteen
/// ordinals without a gap are passed over at once.
inline void list_gaps(std::span<int const> kept, int committed, int* to) {
  constexpr std::size_t some = 16;
  int next = 0;  // the first ordinal that was not looked at
  for (std::size_t i = 0; i < kept.size();) {
    prefetch_stream(kept.data() + i);
    if (i + some <= kept.size() && kept[i + some - 1] == next + int{some} - 1) {
      next += int{some};
      i += some;
    } else {
      while (next < kept[i]) *to++ = next++;
      next = kept[i++] + 1;
    }
  }
  while (next < committed) *to++ = next++;
}

/// Writes the marks of some entries, which ascend from entry `first` on: that of entry e is marks[e - first]. Sixteen
/// neighbours are marked at once.
inline void set_marks(std::span<int const> entries, int first, unsigned char mark, unsigned char* marks) {
  constexpr std::size_t some = 16;
  int const* const entry = entries.data();
  std::size_t const count = entries.size();
  std::size_t i = 0;
  for (; i + some <= count; i += some) {
    if (entry[i + some - 1] - entry[i] == int{some} - 1) {
      std::memset(marks + (entry[i] - first), mark, some);
    } else {
      for (std::size_t k = i; k < i + some; ++k) marks[entry[k] - first] = mark;
    }
  }
  for (; i < count; ++i) marks[entry[i] - first] = mark;
}

/// Lists the ordinals below `committed` that are not kept, in ascending order, and returns their number. `dropped` must
/// have one element more than that.
inline int list_dropped(host_executor const& exec, std::span<int const> kept, int committed, int* dropped) {
  if (drops_few(kept.size(), committed)) {
    list_gaps(kept, committed, dropped);
    return committed - static_cast<int>(kept.size());
  }
  auto const count = static_cast<std::size_t>(committed);
  auto* const marks = reinterpret_cast<unsigned char*>(dropped) + 3 * count;
  std::memset(marks, 1, count);
  set_marks(kept, 0, 0, marks);
  return listing_of_isa[exec.simd_level()].marked(marks, committed, dropped);
}

}  // namespace KVPOLICY_NAMESPACE::detail
