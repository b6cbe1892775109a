// Host implementation of gather_rows and ring_append: bytes that move.
#pragma once

#include <algorithm>
#include <cstring>
#include <kvpolicy/ops/gather_rows.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/rows.hpp>
#include <kvpolicy/ops/ring_append.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// One row of a plane from one place to another, bytewise.
inline void move_row(plane const& rows, lane who, place from, place to) {
  std::byte const* const source = rows.row(who.layer, from, who.head);
  std::byte* const target = rows.row(who.layer, to, who.head);
  auto const width = static_cast<std::size_t>(bytes_of(rows.element));
  if (rows.contiguous()) {
    std::memcpy(target, source, width * static_cast<std::size_t>(rows.dims));
    return;
  }
  for (int d = 0; d < rows.dims; ++d) std::memcpy(target + d * rows.dim, source + d * rows.dim, width);
}

/// True for the first of the lanes that share a row of this table.
template <class T>
bool owns_row(by_lane<T> const& table, lanes const& who, lane one) {
  return (table.sequence != 0 || one.sequence == 0) && (table.layer != 0 || one.layer == who.layer_begin) &&
         (table.head != 0 || one.head == 0);
}

/// Calls move(from, to) for every kept entry that changes place, then for the drafts behind them; ascending.
template <class Move>
void for_each_move(std::span<int const> kept, int drafts, int committed, Move const& move) {
  int to = 0;
  for (int const from : kept) {
    if (from != to) move(from, to);
    ++to;
  }
  for (int draft = 0; draft < drafts; ++draft, ++to) {
    if (committed + draft != to) move(committed + draft, to);
  }
}

/// Ordinals below `committed` that are not kept, ascending; returns how many. `dropped` has room for one more than
/// those. Without a branch an entry: which ones go is as good as random.
inline int list_dropped(std::span<int const> kept, int committed, int* dropped) {
  int gone = 0;
  std::size_t next = 0;
  int e = 0;
  for (; e < committed && next < kept.size(); ++e) {
    bool const stays = kept[next] == e;
    dropped[gone] = e;
    gone += stays ? 0 : 1;
    next += stays ? 1 : 0;
  }
  for (; e < committed; ++e) dropped[gone++] = e;
  return gone;
}

/// Positions and columns of a lane follow its kept entries.
inline void carry_lane(cache const& in, lane who, std::span<int const> kept, int drafts,
                       std::span<held_column const> columns) {
  int const committed = in.who.committed(who);
  if (owns_row(in.who.position, in.who, who)) {
    int* const position = in.who.position.row(who);
    for_each_move(kept, drafts, committed, [&](int from, int to) { position[to] = position[from]; });
  }
  for (held_column const& one : columns) {
    if (one.about.one != per::lane_entry || one.about.rule != on_move::permute) continue;
    std::byte* const row = one.rows.row(who);
    auto const width = static_cast<std::size_t>(one.about.bytes);
    for_each_move(kept, drafts, committed, [&](int from, int to) {
      std::memcpy(row + static_cast<std::size_t>(to) * width, row + static_cast<std::size_t>(from) * width, width);
    });
  }
}

}  // namespace detail

template <>
struct implementation<ops::gather_rows_t, host> {
  static constexpr bool provided = true;
  static std::size_t scratch(shape const&, int) { return 0; }

  static void run(host_executor& exec, keep_set const& keep, cache const& in, std::span<held_column const> columns) {
    exec.for_each(keep.who.size(), [&](int i, int) {
      lane const who = keep.who.at(i);
      auto const kept = keep.listed(segment_of(keep.who, keep.decides, i));
      int const committed = in.who.committed(who);
      int const drafts = *in.who.count.row(who) - committed;
      detail::for_each_move(kept, drafts, committed, [&](int from, int to) {
        place const source = in.where.at(who, from);
        place const target = in.where.at(who, to);
        detail::move_row(in.k, who, source, target);
        detail::move_row(in.v, who, source, target);
        for (plane const& each : in.more) detail::move_row(each, who, source, target);
      });
      detail::carry_lane(in, who, kept, drafts, columns);
    });
  }
};

template <>
struct implementation<ops::carry_entries_t, host> {
  static constexpr bool provided = true;

  static void run(host_executor& exec, keep_set const& keep, cache const& in, std::span<held_column const> columns) {
    exec.for_each(keep.who.size(), [&](int i, int) {
      lane const who = keep.who.at(i);
      auto const kept = keep.listed(segment_of(keep.who, keep.decides, i));
      detail::carry_lane(in, who, kept, *in.who.count.row(who) - in.who.committed(who), columns);
    });
  }
};

template <>
struct implementation<ops::ring_append_t, host> {
  static constexpr bool provided = true;
  static std::size_t scratch(shape const&, int) { return 0; }

  static void run(host_executor& exec, lanes const& among, query_view const& from, query_ring_view const& ring) {
    exec.for_each(among.size(), [&](int i, int) {
      lane const who = among.at(i);
      int const committed = among.committed(who);
      if (committed == 0) return;
      int const last = among.position.row(who)[committed - 1];
      int const* const position = from.position.row(who);
      int end = 0;
      while (end < from.valid(who) && position[from.stored(who, end)] <= last) ++end;
      for (int r = end > ring.capacity ? end - ring.capacity : 0; r < end; ++r) {
        push(ring, who, from, from.stored(who, r), position[from.stored(who, r)]);
      }
    });
  }

 private:
  static void push(query_ring_view const& ring, lane who, query_view const& from, int stored, int position) {
    int* const cursor = ring.cursor.row(who);  // {first, valid}
    int* const positions = ring.position.row(who);
    auto const slot = [&](int r) { return (cursor[0] + r) % ring.capacity; };
    while (cursor[1] > 0 && positions[slot(cursor[1] - 1)] >= position) --cursor[1];
    if (cursor[1] == ring.capacity) {
      cursor[0] = slot(1);
      --cursor[1];
    }
    int const at = slot(cursor[1]++);
    positions[at] = position;
    for (int h = 0; h < ring.group; ++h) {
      detail::load_row(from.element, from.at(who, who.head * ring.group + h, stored), bytes_of(from.element), ring.dims,
                       ring.rows.row(who) + (static_cast<std::int64_t>(h) * ring.capacity + at) * ring.dims);
    }
  }
};

template <>
struct implementation<ops::ring_truncate_t, host> {
  static constexpr bool provided = true;
  static std::size_t scratch(shape const&, int) { return 0; }

  static void run(host_executor&, lanes const& who, query_ring_view const& ring, int sequence, int position) {
    for (int i = 0; i < who.size(); ++i) {
      lane const one = who.at(i);
      if (one.sequence != sequence) continue;
      int* const cursor = ring.cursor.row(one);  // {first, valid}
      int const* const positions = ring.position.row(one);
      while (cursor[1] > 0 && positions[(cursor[0] + cursor[1] - 1) % ring.capacity] >= position) --cursor[1];
    }
  }
};

}  // namespace KVPOLICY_NAMESPACE
