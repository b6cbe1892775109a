// SPDX-License-Identifier: Apache-2.0
// Device implementations of the verbs that change counts.
#pragma once

#include <kvpolicy/core/contract/check_counts.hpp>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/ops/cuda/apply_stats.hpp>  // IWYU pragma: export
#include <kvpolicy/ops/cuda/lists/rows.hpp>
#include <kvpolicy/ops/cuda/lists/stale_plans.hpp>  // IWYU pragma: export
#include <kvpolicy/ops/cuda/moves/columns.hpp>
#include <kvpolicy/ops/cuda/moves/move_lists.hpp>
#include <kvpolicy/ops/entries.hpp>
#include <span>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Checks that every lane of a sequence has space for the new tokens, and only earlier positions.
struct append_check {
  kvpolicy::lanes lanes;
  row_owners all;  ///< every lane of a sequence
  append_request new_tokens;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block, device_error faults, std::int64_t i) const {
    lane const one = all.at(new_tokens.sequence, static_cast<int>(i));
    int const count = *lanes.count.row(one);
    int const index = lanes.index(one);
    if (!counts_fit(lanes, one)) return report_fault(block, faults, fault::append_count, index, count);
    if (new_tokens.tokens > lanes.capacity - count)
      report_fault(block, faults, fault::append_bound, index, new_tokens.tokens);
    int const last = lanes.order_of(one).newest_of(lanes.position.row(one), count);
    if (new_tokens.position <= last) report_fault(block, faults, fault::append_position, index, new_tokens.position);
    bool const drafts = lanes.in_flight != nullptr && *lanes.drafts(new_tokens.sequence) > 0;
    if (drafts && !new_tokens.in_flight) report_fault(block, faults, fault::append_drafts, index, new_tokens.tokens);
  }
};

/// Raises the epochs of a sequence's layers, if they are given. Called by the threads of one block.
template <class Block>
KVPOLICY_HD void raise_epochs_of(Block& block, lanes const& batch, int sequence, by_lane<std::uint64_t> const& epochs) {
  for (int i = block.thread(); epochs.data != nullptr && i < batch.layers(); i += block.threads()) {
    ++*epochs.row({sequence, batch.layer_begin + i, 0});
  }
}

/// Zeros the part of some bytes that belongs to thread `first` of `step`.
KVPOLICY_HD inline void zero_part(std::byte* to, std::int64_t bytes, int first, int step) {
  if ((reinterpret_cast<std::uintptr_t>(to) | static_cast<std::uintptr_t>(bytes)) % 4 == 0) {
    for (std::int64_t i = first; i < bytes / 4; i += step) reinterpret_cast<unsigned*>(to)[i] = 0;
  } else {
    for (std::int64_t i = first; i < bytes; i += step) to[i] = static_cast<std::byte>(0);
  }
}

/// Writes positions and zeroed columns of new entries, one block for each piece of a lane's entries. The last block
/// increases the counts.
struct append_kernel {
  kvpolicy::lanes lanes;
  row_owners all;        ///< every lane of a sequence
  row_owners positions;  ///< rows of the table of positions
  row_owners counts;
  few_columns columns;
  append_request new_tokens;
  int pieces;
  int entries;  ///< entries of a piece
  int* ticket;
  by_lane<std::uint64_t> epochs;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    write(block, all.at(new_tokens.sequence, block.index() / pieces), block.index() % pieces * entries);
    if (last_block(block, ticket, shared_arena(block).take<int>(1))) count_them(block);
  }

 private:
  template <class Block>
  KVPOLICY_HD void write(Block& block, lane one, int begin) const {
    int const length = new_tokens.tokens - begin < entries ? new_tokens.tokens - begin : entries;
    int const first = *lanes.count.row(one) + begin;
    bool const owner = (positions.by_layer || one.layer == lanes.layer_begin) && (positions.by_head || one.head == 0);
    for (int e = block.thread(); owner && e < length; e += block.threads()) {
      lanes.position.row(one)[first + e] = new_tokens.position + begin + e;
    }
    for (int i = 0; i < columns.count; ++i) {
      recorded_column const& each = columns.of[i];
      if (each.about.extent != column_extent::lane_entry) continue;
      std::int64_t const width = each.about.bytes;
      zero_part(each.rows.row(one) + first * width, length * width, block.thread(), block.threads());
    }
  }

  template <class Block>
  KVPOLICY_HD void count_them(Block& block) const {
    for (int i = block.thread(); i < counts.of_sequence(); i += block.threads()) {
      *lanes.count.row(counts.at(new_tokens.sequence, i)) += new_tokens.tokens;
    }
    if (block.thread() == 0 && new_tokens.in_flight) *lanes.drafts(new_tokens.sequence) += new_tokens.tokens;
    raise_epochs_of(block, lanes, new_tokens.sequence, epochs);
  }
};

/// Checks that the counts of a sequence's lanes are within their limits, and that all entries from the position on are
/// at the ends of their lanes.
struct truncate_check {
  kvpolicy::lanes lanes;
  row_owners counts;
  int sequence;
  int position;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block, device_error faults, std::int64_t i) const {
    lane const one = counts.at(sequence, static_cast<int>(i));
    int const index = lanes.index(one);
    if (!counts_fit(lanes, one))
      return report_fault(block, faults, fault::truncate_count, index, *lanes.count.row(one));
    lane_order const order = lanes.order_of(one);
    if (order.ascends() || position == 0 || position > order.newest) return;
    report_fault(block, faults, fault::truncate_order, index, position);
  }
};

/// Truncates every lane of a sequence, by one block. Drafts that are gone from all lanes are no longer in flight.
struct truncate_kernel {
  kvpolicy::lanes lanes;
  row_owners counts;
  int sequence;
  int position;
  by_lane<std::uint64_t> epochs;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    raise_epochs_of(block, lanes, sequence, epochs);
    int gone = lanes.capacity;
    for (int i = block.thread(); i < counts.of_sequence(); i += block.threads()) {
      lane const one = counts.at(sequence, i);
      int* const count = lanes.count.row(one);
      int const left = left_before(one, *count);
      gone = min_op{}(gone, *count - left);
      *count = left;
      if (position == 0 && lanes.order.data != nullptr && leads_row(lanes.order, lanes, one))
        *lanes.order.row(one) = {};
    }
    gone = block.reduce(shared_arena(block).take<collective_storage>(1), gone, min_op{});
    if (block.thread() == 0 && lanes.in_flight != nullptr) {
      int& drafts = *lanes.drafts(sequence);
      drafts -= min_op{}(drafts, gone);
    }
  }

 private:
  /// The number of a lane's entries whose position is below `position`.
  [[nodiscard]] KVPOLICY_HD int left_before(lane one, int count) const {
    if (position == 0) return 0;
    lane_order const order = lanes.order_of(one);
    int const begin = order.ascends() ? 0 : order.end;
    return begin + lane_entries{one, count - begin, 0, lanes.position.row(one) + begin}.first_at(position);
  }
};

/// Checks that a sequence has so many drafts.
struct commit_check {
  kvpolicy::lanes lanes;
  int sequence;
  int tokens;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block, device_error faults, std::int64_t) const {
    if (tokens > *lanes.drafts(sequence)) report_fault(block, faults, fault::commit_drafts, sequence, tokens);
  }
};

/// Commits drafts, by one thread.
struct commit_kernel {
  kvpolicy::lanes lanes;
  int sequence;
  int tokens;
  device_error faults;

  template <class Block>
  KVPOLICY_HD void operator()(Block& block) const {
    if (block.thread() != 0) return;
    if (tokens > *lanes.drafts(sequence)) {
      report_fault(block, faults, fault::commit_drafts, sequence, tokens);
    } else {
      *lanes.drafts(sequence) -= tokens;
    }
  }
};

struct set_count {
  kvpolicy::lanes lanes;
  row_owners counts;
  keep_set keep;

  KVPOLICY_HD void operator()(std::int64_t i) const {
    lane const one = counts.at(static_cast<int>(i));
    int const drafts = lanes.in_flight != nullptr ? *lanes.drafts(one.sequence) : 0;
    *lanes.count.row(one) = listed_for(keep, lanes, lanes.index(one)).count + drafts;
  }
};

}  // namespace detail

template <kernel_backend Backend>
struct implementation<ops::append_entries_t, Backend> {
  /// A launch that notes a fault before anything is written.
  template <class Executor>
  static void refuse(Executor& exec, lanes const& batch, append_request const& new_tokens) {
    expects(!new_tokens.in_flight || batch.in_flight != nullptr, "append", "lanes.in_flight", "null",
            "drafts are counted for each sequence");
    detail::row_owners const all{batch, true, true, true};
    detail::launch_check(exec, all.of_sequence(), detail::append_check{batch, all, new_tokens});
  }

  template <class Executor>
  static void run(Executor& exec, lanes const& batch, std::span<recorded_column const> columns,
                  append_request const& new_tokens, by_lane<std::uint64_t> const& epochs = {}) {
    detail::few_columns const some = detail::all_columns("append", columns);
    refuse(exec, batch, new_tokens);
    detail::row_owners const all{batch, true, true, true};
    int const lanes = all.of_sequence();
    int const pieces = detail::pieces_of(exec, new_tokens.tokens);
    detail::launch_unless_fault(
        exec, launch_shape{lanes * pieces, exec.threads().entry, detail::shared_arena::bytes_of_piece<int>(1)},
        detail::append_kernel{batch, all, detail::owners_of(batch.position, batch),
                              detail::owners_of(batch.count, batch), some, new_tokens, pieces,
                              exec.config().entries_of_a_block, exec.tickets(), epochs});
  }
};

template <kernel_backend Backend>
struct implementation<ops::truncate_entries_t, Backend> {
  /// A launch that notes a fault before anything is written.
  template <class Executor>
  static void refuse(Executor& exec, lanes const& batch, int sequence, int position) {
    detail::row_owners const counts = detail::owners_of(batch.count, batch);
    detail::launch_check(exec, counts.of_sequence(), detail::truncate_check{batch, counts, sequence, position});
  }

  template <class Executor>
  static void run(Executor& exec, lanes const& batch, int sequence, int position,
                  by_lane<std::uint64_t> const& epochs = {}) {
    refuse(exec, batch, sequence, position);
    launch_shape const one_block{1, exec.threads().segment, detail::collective_bytes()};
    detail::row_owners const counts = detail::owners_of(batch.count, batch);
    detail::launch_unless_fault(exec, one_block, detail::truncate_kernel{batch, counts, sequence, position, epochs});
  }
};

template <kernel_backend Backend>
struct implementation<ops::commit_entries_t, Backend> {
  /// A launch that notes a fault before anything is written.
  template <class Executor>
  static void refuse(Executor& exec, lanes const& batch, int sequence, int tokens) {
    check(batch, tokens);
    if (tokens > 0) detail::launch_check(exec, 1, detail::commit_check{batch, sequence, tokens});
  }

  template <class Executor>
  static void run(Executor& exec, lanes const& batch, int sequence, int tokens) {
    check(batch, tokens);
    if (tokens == 0) return;
    detail::launch_unless_fault(exec, launch_shape{}, detail::commit_kernel{batch, sequence, tokens, exec.faults()});
  }

 private:
  static void check(lanes const& batch, int tokens) {
    expects(tokens >= 0, "commit", "tokens", tokens, "a count cannot be negative");
    expects(tokens == 0 || batch.in_flight != nullptr, "commit", "tokens", tokens, "0 drafts are in flight");
  }
};

template <kernel_backend Backend>
struct implementation<ops::set_counts_t, Backend> {
  template <class Executor>
  static void run(Executor& exec, lanes const& batch, keep_set const& keep) {
    detail::row_owners const counts = detail::owners_of(batch.count, batch);
    detail::launch_each_unless_fault(exec, counts.count(), detail::set_count{batch, counts, keep});
  }
};

}  // namespace KVPOLICY_NAMESPACE
