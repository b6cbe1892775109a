// Host implementations of what a window does beside promotion: who leaves is counted, its oldest leave, a chunk's last
// enter, pages go back.
#pragma once

#include <algorithm>
#include <cstring>
#include <kvpolicy/ops/append_rows.hpp>
#include <kvpolicy/ops/host/copy_entries.hpp>
#include <string>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::drop_oldest_t, host> {
  static constexpr bool provided = true;

  /// How many entries every sequence loses; -1 if they lose different numbers. What is recorded can slide then.
  static int all_lose(int const* entries, int sequences) {
    bool const alike = std::all_of(entries, entries + sequences, [&](int each) { return each == entries[0]; });
    return alike ? entries[0] : -1;
  }

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
  static void refuse(host_executor&, cache const& from, cache const& window) {
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

template <>
struct implementation<ops::count_exits_t, host> {
  static constexpr bool provided = true;

  static void run(host_executor&, lanes const& who, entering const& asked, int* exits) {
    for (int s = 0; s < who.sequences; ++s) {
      int const fresh = asked.told.empty() ? asked.tokens[s] : asked.told[static_cast<std::size_t>(s)];
      lane const one{s, who.layer_begin, 0};
      detail::refuse_long(asked, fresh);
      int const committed = who.committed(one);
      int const drafts = *who.count.row(one) - committed;
      exits[s] = std::max(0, committed + fresh - asked.window);
      expects(drafts == 0 || (fresh == 0 && exits[s] == 0), asked.call, "in_flight", drafts,
              [&] { return "drafts of sequence " + std::to_string(s) + " are committed or truncated first"; });
    }
  }
};

template <>
struct implementation<ops::count_passing_t, host> {
  static constexpr bool provided = true;

  static void run(host_executor&, lanes const& fresh, int window, int* entering, int* below) {
    for (int s = 0; s < fresh.sequences; ++s) {
      int const tokens = *fresh.count.row({s, fresh.layer_begin});
      entering[s] = std::min(tokens, window);
      below[s] = tokens - entering[s];
    }
  }
};

template <>
struct implementation<ops::refuse_fresh_t, host> {
  static constexpr bool provided = true;

  static void run(host_executor&, char const* call, lanes const& window, lanes const& pages,
                  std::span<appended const> fresh) {
    for (appended const& each : fresh) refuse(call, window, pages, each);
  }

 private:
  static void refuse(char const* call, lanes const& who, lanes const& pages, appended const& fresh) {
    detail::refuse_unknown(call, who, fresh);
    lane const first{fresh.sequence, who.layer_begin, 0};
    int const count = *who.count.row(first);
    expects(!fresh.in_flight || (who.in_flight != nullptr && fresh.tokens <= who.bound - count), call, "tokens",
            fresh.tokens, [&] { return "the ring has " + std::to_string(who.bound - count) + " rows for drafts"; });
    behind(call, who, first, fresh);
    for (int layer = who.layer_begin; layer < who.layer_end; ++layer) {
      for (int head = 0; head < who.heads; ++head) behind(call, pages, {fresh.sequence, layer, head}, fresh);
    }
  }

  static void behind(char const* call, lanes const& part, lane one, appended const& fresh) {
    int const held = *part.count.row(one);
    int const last = held > 0 ? part.position.row(one)[held - 1] : -1;
    expects(fresh.position > last || fresh.tokens == 0, call, "position", fresh.position,
            [&] { return "positions ascend and the last is " + std::to_string(last); });
  }
};

}  // namespace KVPOLICY_NAMESPACE
