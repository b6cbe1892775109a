// SPDX-License-Identifier: Apache-2.0
// Host implementations of the window verbs other than promotion: counting and dropping the oldest entries, appending a
// chunk's last entries, and releasing pages.
#pragma once

#include <algorithm>
#include <cstring>
#include <kvpolicy/ops/append_rows.hpp>
#include <kvpolicy/ops/host/append_entries.hpp>
#include <kvpolicy/ops/host/copy_entries.hpp>
#include <string>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::drop_oldest_t, host> {
  /// The number of entries that each of some sequences loses, or -1 if the numbers differ. If they are equal, recorded
  /// columns can slide.
  static int all_lose(int const* entries, int sequences) {
    bool const alike = std::all_of(entries, entries + sequences, [&](int each) { return each == entries[0]; });
    return alike ? entries[0] : -1;
  }

  static void run(host_executor& exec, cache const& window, by_lane<int> const& oldest,
                  std::span<recorded_column const> columns, int const* entries, int slid,
                  epochs_of_parts const& epochs = {}) {
    lanes const& batch = window.lanes;
    bool const moves = slid >= 0 && !columns.empty();
    for (int i = 0; !moves && i < batch.size(); ++i) detail::lower_known(columns, batch.at(i), 0);
    exec.for_each(moves ? batch.size() : 0, [&](int i, int) {
      lane const one = batch.at(i);
      move_to_begin(columns, one, slid, entries[one.sequence], *batch.count.row(one) - entries[one.sequence]);
    });
    for (int s = batch.sequence_begin; s < batch.sequence_end(); ++s) {
      lane const one{s, batch.layer_begin, 0};
      int* const position = batch.position.row(one);
      int& count = *batch.count.row(one);
      std::copy(position + entries[s], position + count, position);
      count -= entries[s];
      int& first = *oldest.row(one);
      first = (first + entries[s]) % window.where.unit_tokens;
      if (entries[s] == 0) continue;
      detail::raise_epochs_of(batch, s, epochs.window);
      detail::raise_epochs_of(batch, s, epochs.pages);
    }
  }

 private:
  static void move_to_begin(std::span<recorded_column const> columns, lane one, int slid, int gone, int left) {
    detail::lower_known(columns, one, 0);
    for (recorded_column const& each : columns) {
      if (each.about.extent != column_extent::lane_entry) continue;
      std::int64_t const width = each.about.bytes;
      std::byte* const row = each.rows.row(one);
      std::memmove(row - slid * width, row + gone * width, static_cast<std::size_t>(left * width));
    }
  }
};

template <>
struct implementation<ops::enter_rows_t, host> {
  /// Throws if a chunk cannot follow the window. It is called before anything is written.
  static void refuse(host_executor&, cache const& from, cache const& window) {
    detail::refuse_other_rows("ingest", from, window);
    for (int s = window.lanes.sequence_begin; s < window.lanes.sequence_end(); ++s) {
      lane const one{s, window.lanes.layer_begin, 0};
      int const count = *window.lanes.count.row(one);
      int last = count > 0 ? window.lanes.position.row(one)[count - 1] : -1;
      int const* const position = from.lanes.position.row(one);
      for (int e = 0; e < *from.lanes.count.row(one); ++e) {
        expects(position[e] > last, "ingest", "position", position[e],
                [&] { return "positions ascend and the last is " + std::to_string(last); });
        last = position[e];
      }
    }
  }

  static void run(host_executor& exec, cache const& from, std::span<recorded_column const> from_columns,
                  cache const& window, std::span<recorded_column const> columns, int const* first) {
    lanes const& batch = window.lanes;
    exec.for_each(batch.size(), [&](int i, int) {
      lane const one = batch.at(i);
      int const count = *batch.count.row(one);
      int const begin = first[one.sequence];
      int const more = *from.lanes.count.row(one) - begin;
      for (int e = 0; e < more; ++e) detail::copy_entry(from, window, one, begin + e, count + e);
      detail::copy_columns(from_columns, columns, one, [&](int e) { return begin + e; }, count, more);
    });
    for (int s = batch.sequence_begin; s < batch.sequence_end(); ++s) {
      lane const one{s, batch.layer_begin, 0};
      int& count = *batch.count.row(one);
      int const more = *from.lanes.count.row(one) - first[s];
      std::copy_n(from.lanes.position.row(one) + first[s], more, batch.position.row(one) + count);
      count += more;
    }
  }
};

template <>
struct implementation<ops::release_pages_t, host> {
  static void run(host_executor&, paged_lanes const& in) {
    lanes const& batch = in.entries.lanes;
    for (int i = 0; i < batch.size(); ++i) {
      lane const one = batch.at(i);
      int const needed = (*batch.count.row(one) + in.page() - 1) / in.page();
      for (int& pages = *in.num_pages.row(one); pages > needed; --pages) {
        in.free_pages.free[(*in.free_pages.count)++] = in.table.row(one)[pages - 1];
        if (in.free_pages.sentinel >= 0) in.table.row(one)[pages - 1] = in.free_pages.sentinel;
      }
    }
  }
};

template <>
struct implementation<ops::count_exits_t, host> {
  static void run(host_executor&, lanes const& batch, ring_request const& asked, int* exits) {
    for (int s = batch.sequence_begin; s < batch.sequence_end(); ++s) {
      int const num_new_tokens = asked.host_tokens.empty()
                                     ? asked.tokens[s]
                                     : asked.host_tokens[static_cast<std::size_t>(s - batch.sequence_begin)];
      lane const one{s, batch.layer_begin, 0};
      detail::refuse_long(asked, num_new_tokens);
      int const committed = batch.committed(one);
      int const drafts = *batch.count.row(one) - committed;
      exits[s] = std::max(0, committed + num_new_tokens - asked.window);
      expects(drafts == 0 || (num_new_tokens == 0 && exits[s] == 0), asked.call, "in_flight", drafts,
              [&] { return "drafts of sequence " + std::to_string(s) + " are committed or truncated first"; });
    }
  }
};

template <>
struct implementation<ops::count_passing_t, host> {
  static void run(host_executor&, lanes const& chunk, int window, int* new_tokens, int* below) {
    for (int s = chunk.sequence_begin; s < chunk.sequence_end(); ++s) {
      int const tokens = *chunk.count.row({s, chunk.layer_begin});
      new_tokens[s] = std::min(tokens, window);
      below[s] = tokens - new_tokens[s];
    }
  }
};

template <>
struct implementation<ops::refuse_new_tokens_t, host> {
  static void run(host_executor&, char const* call, lanes const& window, lanes const& pages,
                  std::span<append_request const> new_tokens) {
    for (append_request const& each : new_tokens) refuse(call, window, pages, each);
  }

 private:
  static void refuse(char const* call, lanes const& batch, lanes const& pages, append_request const& new_tokens) {
    detail::refuse_unknown(call, batch, new_tokens);
    lane const first{new_tokens.sequence, batch.layer_begin, 0};
    int const count = *batch.count.row(first);
    expects(!new_tokens.in_flight || (batch.in_flight != nullptr && new_tokens.tokens <= batch.capacity - count), call,
            "tokens", new_tokens.tokens,
            [&] { return "the ring has " + std::to_string(batch.capacity - count) + " rows for drafts"; });
    behind(call, batch, first, new_tokens);
    for (int layer = batch.layer_begin; layer < batch.layer_end; ++layer) {
      for (int head = 0; head < batch.heads; ++head)
        behind(call, pages, {new_tokens.sequence, layer, head}, new_tokens);
    }
  }

  static void behind(char const* call, lanes const& part, lane one, append_request const& new_tokens) {
    int const held = *part.count.row(one);
    int const last = held > 0 ? part.position.row(one)[held - 1] : -1;
    expects(new_tokens.position > last || new_tokens.tokens == 0, call, "position", new_tokens.position,
            [&] { return "positions ascend and the last is " + std::to_string(last); });
  }
};

}  // namespace KVPOLICY_NAMESPACE
