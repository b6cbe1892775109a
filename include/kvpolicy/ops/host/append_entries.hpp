// SPDX-License-Identifier: Apache-2.0
// Host implementation of append_entries.
#pragma once

#include <cstring>
#include <kvpolicy/core/contract/check_counts.hpp>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/ops/entries.hpp>
#include <kvpolicy/ops/host/executor.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Calls visit(lane) for every lane of one sequence.
template <class Visit>
void for_each_lane_of(lanes const& batch, int sequence, Visit const& visit) {
  for (int layer = batch.layer_begin; layer < batch.layer_end; ++layer) {
    for (int head = 0; head < batch.heads; ++head) visit(lane{sequence, layer, head});
  }
}

/// Raises the epochs of a sequence's layers, if they are given.
inline void raise_epochs_of(lanes const& batch, int sequence, by_lane<std::uint64_t> const& epochs) {
  if (epochs.data == nullptr) return;
  for (int layer = batch.layer_begin; layer < batch.layer_end; ++layer) ++*epochs.row({sequence, layer, 0});
}

/// True for the first of the lanes that share a row of this table within one sequence.
template <class T>
bool first_of_row(by_lane<T> const& table, lanes const& batch, lane one) {
  return (table.layer != 0 || one.layer == batch.layer_begin) && (table.head != 0 || one.head == 0);
}

}  // namespace detail

template <>
struct implementation<ops::append_entries_t, host> {
  /// Throws before anything is written.
  static void refuse(host_executor&, lanes const& batch, append_request const& new_tokens) {
    detail::refuse_counts("append", batch, new_tokens.sequence, new_tokens.sequence + 1);
    for_each_layer(batch, new_tokens.sequence, [&](lane first) {
      if (has_room(batch, first, new_tokens)) return;
      for (int head = 0; head < batch.heads; ++head) {
        check_capacity(batch, {first.sequence, first.layer, head}, new_tokens);
      }
    });
    int const drafts = batch.in_flight != nullptr ? *batch.drafts(new_tokens.sequence) : 0;
    expects(new_tokens.in_flight || drafts == 0, "append", "tokens", new_tokens.tokens,
            [&] { return std::to_string(drafts) + " drafts are in flight; commit or truncate them first"; });
    expects(!new_tokens.in_flight || batch.in_flight != nullptr, "append", "lanes.in_flight", "null",
            "drafts are counted for each sequence");
  }

  static void run(host_executor& exec, lanes const& batch, std::span<recorded_column const> columns,
                  append_request const& new_tokens, by_lane<std::uint64_t> const& epochs = {}) {
    refuse(exec, batch, new_tokens);
    for_each_layer(batch, new_tokens.sequence, [&](lane first) { write(batch, first, columns, new_tokens); });
    for_each_layer(batch, new_tokens.sequence, [&](lane first) {
      detail::head_rows<int> const counts(batch.count, first);
      for (int head = 0; head < batch.heads; ++head) {
        if (detail::first_of_row(batch.count, batch, {first.sequence, first.layer, head})) {
          *counts[head] += new_tokens.tokens;
        }
      }
    });
    if (new_tokens.in_flight) *batch.drafts(new_tokens.sequence) += new_tokens.tokens;
    detail::raise_epochs_of(batch, new_tokens.sequence, epochs);
  }

 private:
  template <class Visit>
  static void for_each_layer(lanes const& batch, int sequence, Visit const& visit) {
    for (int layer = batch.layer_begin; layer < batch.layer_end; ++layer) visit(lane{sequence, layer, 0});
  }

  /// True if `check_capacity` accepts the new tokens in all heads of a layer.
  static bool has_room(lanes const& batch, lane first, append_request const& new_tokens) {
    detail::head_rows<int> const counts(batch.count, first);
    detail::head_rows<int> const positions(batch.position, first);
    detail::head_rows<lane_order> const orders(batch.order, first);
    bool const ordered = batch.order.data != nullptr;
    bool has = true;
    for (int head = 0; head < batch.heads; ++head) {
      int const count = *counts[head];
      int const last = (ordered ? *orders[head] : lane_order{}).newest_of(positions[head], count);
      has = has && new_tokens.tokens <= batch.capacity - count && new_tokens.position > last;
    }
    return has;
  }

  static void check_capacity(lanes const& batch, lane one, append_request const& new_tokens) {
    int const count = *batch.count.row(one);
    expects(new_tokens.tokens <= batch.capacity - count, "append", "tokens", new_tokens.tokens, [&] {
      return "lane (" + std::to_string(one.sequence) + ", " + std::to_string(one.layer) + ", " +
             std::to_string(one.head) + ") holds " + std::to_string(count) + " of at most " +
             std::to_string(batch.capacity);
    });
    int const last = batch.order_of(one).newest_of(batch.position.row(one), count);
    expects(new_tokens.position > last, "append", "position", new_tokens.position,
            [&] { return "positions ascend and the last is " + std::to_string(last); });
  }

  /// Writes the new entries of all heads of a layer.
  static void write(lanes const& batch, lane first, std::span<recorded_column const> columns,
                    append_request const& new_tokens) {
    detail::head_rows<int> const counts(batch.count, first);
    detail::head_rows<int> const positions(batch.position, first);
    for (int head = 0; head < batch.heads; ++head) {
      if (!detail::first_of_row(batch.position, batch, {first.sequence, first.layer, head})) continue;
      int* const to = positions[head] + *counts[head];
      for (int e = 0; e < new_tokens.tokens; ++e) to[e] = new_tokens.position + e;
    }
    for (recorded_column const& each : columns) {
      if (each.about.extent != column_extent::lane_entry) continue;
      detail::head_rows<std::byte> const rows(each.rows, first);
      std::int64_t const width = each.about.bytes;
      for (int head = 0; head < batch.heads; ++head) {
        std::byte* const to = rows[head] + *counts[head] * width;
        if (width * new_tokens.tokens == sizeof(float)) {
          std::memset(to, 0, sizeof(float));
        } else {
          std::memset(to, 0, static_cast<std::size_t>(width * new_tokens.tokens));
        }
      }
    }
  }
};

}  // namespace KVPOLICY_NAMESPACE
