// SPDX-License-Identifier: Apache-2.0
// The columns and planes that move with entries, copied into a kernel's arguments a few at a time.
#pragma once

#include <algorithm>
#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/core/state.hpp>
#include <kvpolicy/ops/cuda/moves/rows.hpp>
#include <kvpolicy/ops/cuda/run/block.hpp>
#include <span>

namespace KVPOLICY_NAMESPACE::detail {

/// Up to `Most` elements of a list in host memory. Longer lists take several launches.
template <class T, int Most = 8>
struct a_few {
  static constexpr int most = Most;
  T of[static_cast<std::size_t>(most)] = {};
  int count = 0;

  /// The same elements in less memory. There are at most `Fewer`.
  template <int Fewer>
  [[nodiscard]] a_few<T, Fewer> as() const {
    a_few<T, Fewer> made;
    made.count = count;
    std::copy_n(of, count, made.of);
    return made;
  }
};
using few_columns = a_few<recorded_column>;

/// A plane whose rows are moved as bytes: it has no scales, because a kernel's arguments have 4 KiB.
struct byte_rows {
  std::byte* base = nullptr;
  codec element = codec::f32;
  int dims = 0;
  bool is_wide = false;  ///< rows are whole pieces of 16 bytes, and aligned as such
  std::int64_t layer = 0, unit = 0, token = 0, head = 0, dim = 0;
  base_table bases{};

  byte_rows() = default;
  explicit byte_rows(plane const& of)
      : base(of.base),
        element(of.element),
        dims(of.channels),
        is_wide(of.contiguous() && alignment_of(of, true) == 16 && of.channels * bytes_of(of.element) % 16 == 0),
        layer(of.layer_stride),
        unit(of.unit_stride),
        token(of.token_stride),
        head(of.head_stride),
        dim(of.channel_stride),
        bases(of.bases) {}

  [[nodiscard]] KVPOLICY_HD std::byte* row(int in_layer, place at, int of_head) const {
    return plane{base, element, dims, layer, unit, token, head, dim, bases}.row(in_layer, at, of_head);
  }
  [[nodiscard]] KVPOLICY_HD int bytes() const { return dims * bytes_of(element); }
  [[nodiscard]] KVPOLICY_HD bool contiguous() const { return dim == bytes_of(element); }
};
using few_planes = a_few<byte_rows>;

/// Calls visit(few) for all elements of a list, a few at a time. It is called at least once, even for an empty list,
/// since the kernel may have other work.
template <class T, class Visit>
void for_each_few(std::span<T const> all, Visit const& visit) {
  constexpr std::size_t most = a_few<T>::most;
  std::size_t first = 0;
  do {
    a_few<T> some;
    some.count = static_cast<int>(std::min(most, all.size() - first));
    std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(first), some.count, some.of);
    visit(some);
    first += most;
  } while (first < all.size());
}

/// All columns, for a verb that takes them in one launch. Throws if there are more than eight; no policy of the library
/// records so many.
[[nodiscard]] inline few_columns all_columns(char const* call, std::span<recorded_column const> all) {
  expects(all.size() <= few_columns::most, call, "columns", all.size(), "a device moves eight at most");
  few_columns made;
  for_each_few(all, [&](few_columns const& few) { made = few; });
  return made;
}

/// All planes of a cache: K, V and up to six more. Throws if there are more.
[[nodiscard]] inline few_planes all_planes(char const* call, cache const& in) {
  expects(in.more.size() + 2 <= few_planes::most, call, "more", in.more.size(),
          "a device moves six more planes at most");
  few_planes made;
  for_each_moved_plane(in, [&](plane const& each) { made.of[made.count++] = byte_rows(each); });
  return made;
}

/// Marks the columns that on_move::recompute applies to: from ordinal `first` on, the lane has other entries than
/// before.
template <class Block, int Most>
KVPOLICY_HD void lower_known(Block& block, a_few<recorded_column, Most> const& columns, lane this_lane, int first) {
  for (int i = 0; i < columns.count; ++i) {
    recorded_column const& one = columns.of[i];
    if (one.about.extent != column_extent::lane || one.about.rule != on_move::recompute) continue;
    block.atomic_min(reinterpret_cast<int*>(one.rows.row(this_lane)), first);
  }
}

}  // namespace KVPOLICY_NAMESPACE::detail
