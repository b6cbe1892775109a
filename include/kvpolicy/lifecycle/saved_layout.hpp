// SPDX-License-Identifier: Apache-2.0
// Where the parts of a saved slot are in its bytes.
#pragma once

#include <kvpolicy/lifecycle/saved_slot.hpp>
#include <kvpolicy/lifecycle/slot.hpp>
#include <limits>
#include <vector>

namespace KVPOLICY_NAMESPACE {

namespace detail {

/// What is in the bytes of a slot, and where.
struct saved_layout {
  saved_header header{};
  std::vector<int> counts;          ///< of each lane
  std::size_t numbers = 0;          ///< bytes before the recorded columns
  std::size_t columns = 0;          ///< bytes of the recorded columns
  std::vector<std::size_t> planes;  ///< bytes of each plane
  [[nodiscard]] std::size_t all() const {
    std::size_t bytes = numbers + columns;
    for (std::size_t const each : planes) bytes += each;
    return bytes;
  }
};

/// The bytes of a column that a lane with `count` entries has.
[[nodiscard]] inline std::size_t bytes_of_lane(recorded_column const& each, int count) {
  int const page = each.about.page;
  int const elements = page > 0 ? (count + page - 1) / page : each.about.units == 0 ? count : each.about.units;
  return static_cast<std::size_t>(elements) * static_cast<std::size_t>(each.about.bytes);
}
/// The entries of a lane.
[[nodiscard]] inline int count_of(saved_layout const& of, cache const& all, lane one) {
  return of.counts[static_cast<std::size_t>(all.lanes.index({all.lanes.sequence_begin, one.layer, one.head}))];
}

/// The turns of each lane are saved if a key was turned: see `slot_history`.
inline constexpr std::int32_t slot_is_used = 1, slot_is_turned = 2;

template <class State>
void lay_out(char const* call, cache const& all, State const& state, bool with_rows, saved_layout& made) {
  std::size_t entries = 0;
  bool alike = true;
  for (int const count : made.counts) {
    entries += static_cast<std::size_t>(count);
    alike = alike && count == made.counts.front();
  }
  expects(!with_rows || entries <= std::numeric_limits<int>::max(), call, "lanes.count", entries,
          "rows of less than 2^31 entries of all lanes are saved: save them yourself, with rows::leave");
  made.header.by_token = alike ? 1 : 0;
  std::size_t positions = 0;
  for_each_own_row(all.lanes.position, all.lanes, 0,
                   [&](lane one) { positions += static_cast<std::size_t>(count_of(made, all, one)); });
  std::size_t const turns = (made.header.used & slot_is_turned) != 0 ? made.counts.size() * sizeof(turn_ends) : 0;
  made.numbers = sizeof(saved_header) + turns +
                 (static_cast<std::size_t>(all.lanes.layers()) + made.counts.size() + positions) * sizeof(int);
  for (recorded_column const& each : state.columns()) {
    for (int const count : made.counts) made.columns += bytes_of_lane(each, count);
  }
  auto const add = [&](plane const& rows) {
    made.planes.push_back(entries * static_cast<std::size_t>(rows.channels) *
                          static_cast<std::size_t>(bytes_of(rows.element)));
  };
  if (with_rows) for_each_moved_plane(all, add);
  made.header.bytes = made.all();
}

template <executor Executor>
[[nodiscard]] saved_layout layout_to_save(char const* call, Executor& exec, cache const& all,
                                          state<Executor> const& state, int slot, rows what) {
  check_slots_of(call, all, state);
  check_copied(call, all, what);
  check_slot(call, "slot", all, slot);
  saved_layout made;
  made.header = header_of(all, state, what == rows::copy);
  made.header.used =
      (state.history().used(slot) ? slot_is_used : 0) | (state.history().turned(slot) ? slot_is_turned : 0);
  made.counts = counts_of(exec, all, slot);
  for (int const count : made.counts) {
    expects(count >= 0 && count <= all.lanes.capacity, call, "lanes.count", count,
            [&] { return "a lane holds 0 to " + std::to_string(all.lanes.capacity) + " entries, its `capacity`"; });
  }
  lay_out(call, all, state, what == rows::copy, made);
  return made;
}

/// A cache whose rows are the bytes of a saved slot, in the executor's memory. Its lanes have tables of their own.
template <executor Executor>
class saved_rows {
 public:
  saved_rows(Executor& exec, cache const& all, saved_layout const& from, std::byte* first)
      : counts_(exec, from.counts.size()), places_(exec, from.counts.size()), more_(all.more.begin(), all.more.end()) {
    lanes const& batch = all.lanes;
    std::vector<int> begins(from.counts.size());
    int begin = 0;
    for (std::size_t i = 0; i < begins.size(); ++i) {
      begins[i] = from.header.by_token != 0 ? static_cast<int>(i) / batch.heads * from.counts.front() : begin;
      begin += from.counts[i];
    }
    copy_in(exec, counts_, from.counts);
    copy_in(exec, places_, begins);
    view_ = all;
    view_.lanes.sequences = 1;
    view_.lanes.slots = nullptr;
    view_.lanes.slot_count = 0;
    auto const table = [&](int* data) {
      return by_lane<int>{data - batch.layer_begin * batch.heads, 0, batch.heads, 1};
    };
    bool const by_token = from.header.by_token != 0;
    view_.lanes.count = table(counts_.data());
    // Entry e of a lane is token `begin + e` of the only unit: a ring of all tokens that begins there.
    view_.where = {.kind = locating::ring, .table = {}, .unit_tokens = begin > 0 ? begin : 1, .units = 1};
    by_lane<int> const begin_table = table(places_.data());
    view_.where.table = {begin_table.data, 0, batch.heads, by_token ? 0 : 1};
    std::size_t plane_at = 0;
    auto const place = [&](plane& rows) {
      rows = saved_plane(rows, first, by_token ? batch.heads : 0);
      first += from.planes[plane_at++];
    };
    place(view_.k);
    if (is_latent(all)) {
      view_.v = {};
    } else {
      place(view_.v);
    }
    for (plane& each : more_) place(each);
    view_.more = more_;
  }
  saved_rows(saved_rows&&) = default;  // its view points into memory that moves along
  saved_rows& operator=(saved_rows&&) = default;
  saved_rows(saved_rows const&) = delete;
  saved_rows& operator=(saved_rows const&) = delete;
  ~saved_rows() = default;

  [[nodiscard]] cache const& view() const { return view_; }

 private:
  /// A plane of saved rows. Those of the `heads` of a token lie side by side, or, if it is 0, those of a lane.
  [[nodiscard]] static plane saved_plane(plane const& like, std::byte* base, int heads) {
    std::int64_t const row = std::int64_t{like.channels} * bytes_of(like.element);
    return {.base = base,
            .element = like.element,
            .channels = like.channels,
            .layer_stride = 0,
            .unit_stride = 0,
            .token_stride = heads > 0 ? row * heads : row,
            .head_stride = heads > 0 ? row : 0,
            .channel_stride = bytes_of(like.element)};
  }
  using numbers = typename Executor::template buffer<int>;
  static void copy_in(Executor& exec, numbers& to, std::vector<int> const& from) {
    exec.copy(reinterpret_cast<std::byte*>(to.data()), reinterpret_cast<std::byte const*>(from.data()),
              from.size() * sizeof(int));
  }

  numbers counts_;
  numbers places_;
  std::vector<plane> more_;
  cache view_{};
};

}  // namespace detail

}  // namespace KVPOLICY_NAMESPACE
