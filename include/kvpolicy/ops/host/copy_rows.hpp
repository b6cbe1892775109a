// SPDX-License-Identifier: Apache-2.0
// Host implementation of copy_rows.
#pragma once

#include <algorithm>
#include <cstring>
#include <kvpolicy/ops/copy_rows.hpp>
#include <kvpolicy/ops/host/copy_entries.hpp>
#include <kvpolicy/ops/host/executor.hpp>

namespace KVPOLICY_NAMESPACE {

/// The work is divided by layers. Where the heads of an entry are neighbours in memory and have the same entries, they
/// are copied as one row.
template <>
struct implementation<ops::copy_rows_t, host> {
  static void run(host_executor& exec, cache const& from, cache const& to) {
    int const layers = from.lanes.layers();
    exec.for_each(from.lanes.sequences * layers, [&](int i, int) {
      int const sequence = i / layers;
      int const layer = from.lanes.layer_begin + i % layers;
      copy_layer(from, to, sequence, layer, from.k, to.k);
      if (!detail::is_latent(from)) copy_layer(from, to, sequence, layer, from.v, to.v);
      for (std::size_t p = 0; p < from.more.size(); ++p)
        copy_layer(from, to, sequence, layer, from.more[p], to.more[p]);
    });
  }

 private:
  static void copy_layer(cache const& from, cache const& to, int sequence, int layer, plane const& source,
                         plane const& target) {
    lane const first{from.lanes.sequence_begin + sequence, layer, 0};
    if (heads_are_one_row(from, to, first, source, target)) {
      plane wide_source = source;
      plane wide_target = target;
      wide_source.channels *= from.lanes.heads;
      wide_target.channels *= from.lanes.heads;
      return copy_lane(from, to, first, wide_source, wide_target);
    }
    for (int head = 0; head < from.lanes.heads; ++head) {
      copy_lane(from, to, {first.sequence, layer, head}, source, target);
    }
  }

  /// True if all heads of an entry are at one place, next to each other, in both caches.
  static bool heads_are_one_row(cache const& from, cache const& to, lane first, plane const& source,
                                plane const& target) {
    std::int64_t const row = std::int64_t{source.channels} * bytes_of(source.element);
    auto const neighbours = [&](plane const& of, locator const& where) {
      return of.contiguous() && of.head_stride == row && of.bases.head == 0 && where.table.head == 0 &&
             where.begin.head == 0;
    };
    if (!neighbours(source, from.where) || !neighbours(target, to.where)) return false;
    int const count = *from.lanes.count.row(first);
    for (int head = 1; head < from.lanes.heads; ++head) {
      if (*from.lanes.count.row({first.sequence, first.layer, head}) != count) return false;
    }
    return true;
  }

  static void copy_lane(cache const& from, cache const& to, lane one, plane const& source, plane const& target) {
    int const count = *from.lanes.count.row(one);
    lane const there{to.lanes.sequence_begin + one.sequence - from.lanes.sequence_begin, one.layer, one.head};
    auto const read = [&](int e) { return source.row(one.layer, from.where.at(one, e), one.head); };
    auto const written = [&](int e) { return target.row(one.layer, to.where.at(there, e), one.head); };
    if (!source.contiguous() || !target.contiguous()) {
      for (int e = 0; e < count; ++e) {
        if (read(e) != written(e)) detail::copy_row(source, read(e), target, written(e));
      }
      return;
    }
    std::ptrdiff_t const row = std::ptrdiff_t{source.channels} * bytes_of(source.element);
    for (int begin = 0; begin < count;) {
      std::byte const* const first = read(begin);
      std::byte* const first_written = written(begin);
      int end = begin + 1;
      while (end < count && read(end) == first + (end - begin) * row &&
             written(end) == first_written + (end - begin) * row) {
        ++end;
      }
      if (first_written != first) std::memcpy(first_written, first, static_cast<std::size_t>((end - begin) * row));
      begin = end;
    }
  }
};

}  // namespace KVPOLICY_NAMESPACE
