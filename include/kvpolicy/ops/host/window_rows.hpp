// Host implementations of what a window does beside promotion: its oldest leave, a chunk's last enter, pages go back.
#pragma once

#include <algorithm>
#include <cstring>
#include <kvpolicy/ops/append_rows.hpp>
#include <kvpolicy/ops/host/append_rows.hpp>
#include <string>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::drop_oldest_t, host> {
  static constexpr bool provided = true;

  static void run(host_executor& exec, cache const& window, by_lane<int> const& oldest,
                  std::span<held_column const> columns, int const* entries, int slid) {
    lanes const& who = window.who;
    bool const moves = slid >= 0 && !columns.empty();
    for (int i = 0; !moves && i < who.size(); ++i) detail::lower_known(columns, who.at(i), 0);
    exec.for_each(moves ? who.size() : 0, [&](int i, int) {
      lane const one = who.at(i);
      move_home(columns, one, slid, entries[one.sequence], *who.count.row(one) - entries[one.sequence]);
    });
    for (int s = 0; s < who.sequences; ++s) {
      lane const one{s, who.layer_begin, 0};
      int* const position = who.position.row(one);
      int& count = *who.count.row(one);
      std::copy(position + entries[s], position + count, position);
      count -= entries[s];
      int& first = *oldest.row(one);
      first = (first + entries[s]) % window.where.unit_tokens;
    }
  }

 private:
  static void move_home(std::span<held_column const> columns, lane one, int slid, int gone, int left) {
    detail::lower_known(columns, one, 0);
    for (held_column const& each : columns) {
      if (each.about.one != per::lane_entry) continue;
      std::int64_t const width = each.about.bytes;
      std::byte* const row = each.rows.row(one);
      std::memmove(row - slid * width, row + gone * width, static_cast<std::size_t>(left * width));
    }
  }
};

template <>
struct implementation<ops::enter_rows_t, host> {
  static constexpr bool provided = true;

  /// What makes a chunk unfit to follow the window, asked before anything is written.
  static void refuse(cache const& from, cache const& window) {
    detail::refuse_other_rows("take_in", from, window);
    for (int s = 0; s < window.who.sequences; ++s) {
      lane const one{s, window.who.layer_begin, 0};
      int const held = *window.who.count.row(one);
      int last = held > 0 ? window.who.position.row(one)[held - 1] : -1;
      int const* const position = from.who.position.row(one);
      for (int e = 0; e < *from.who.count.row(one); ++e) {
        expects(position[e] > last, "take_in", "position", position[e],
                [&] { return "positions ascend and the last is " + std::to_string(last); });
        last = position[e];
      }
    }
  }

  static void run(host_executor& exec, cache const& from, std::span<held_column const> from_columns,
                  cache const& window, std::span<held_column const> columns, int const* first) {
    lanes const& who = window.who;
    exec.for_each(who.size(), [&](int i, int) {
      lane const one = who.at(i);
      int const count = *who.count.row(one);
      int const begin = first[one.sequence];
      int const more = *from.who.count.row(one) - begin;
      for (int e = 0; e < more; ++e) detail::copy_entry(from, window, one, begin + e, count + e);
      detail::copy_columns(from_columns, columns, one, [&](int e) { return begin + e; }, count, more);
    });
    for (int s = 0; s < who.sequences; ++s) {
      lane const one{s, who.layer_begin, 0};
      int& count = *who.count.row(one);
      int const more = *from.who.count.row(one) - first[s];
      std::copy_n(from.who.position.row(one) + first[s], more, who.position.row(one) + count);
      count += more;
    }
  }
};

template <>
struct implementation<ops::release_pages_t, host> {
  static constexpr bool provided = true;

  static void run(host_executor&, paged_lanes const& in) {
    lanes const& who = in.entries.who;
    for (int i = 0; i < who.size(); ++i) {
      lane const one = who.at(i);
      int const needed = (*who.count.row(one) + in.page() - 1) / in.page();
      for (int& held = *in.held.row(one); held > needed; --held) {
        in.pages.free[(*in.pages.count)++] = in.table.row(one)[held - 1];
        if (in.pages.sentinel >= 0) in.table.row(one)[held - 1] = in.pages.sentinel;
      }
    }
  }
};

}  // namespace KVPOLICY_NAMESPACE
