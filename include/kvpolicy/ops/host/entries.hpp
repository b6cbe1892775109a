// SPDX-License-Identifier: Apache-2.0
// Host implementations of the verbs that change counts.
#pragma once

#include <algorithm>
#include <cstring>
#include <kvpolicy/core/contract/check_counts.hpp>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/ops/entries.hpp>
#include <kvpolicy/ops/host/append_entries.hpp>  // IWYU pragma: export
#include <kvpolicy/ops/host/count_rows.hpp>      // IWYU pragma: export
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/gather_rows.hpp>
#include <kvpolicy/ops/host/unit_owners.hpp>
#include <kvpolicy/ops/lists.hpp>

namespace KVPOLICY_NAMESPACE {

template <>
struct implementation<ops::truncate_entries_t, host> {
  /// Throws before anything is written.
  static void refuse(host_executor&, lanes const& batch, int sequence, int position) {
    detail::refuse_counts("truncate", batch, sequence, sequence + 1);
    detail::for_each_lane_of(batch, sequence, [&](lane one) { check_order(batch, one, position); });
  }

  static void run(host_executor& exec, lanes const& batch, int sequence, int position,
                  by_lane<std::uint64_t> const& epochs = {}) {
    refuse(exec, batch, sequence, position);
    int gone_everywhere = batch.capacity;
    detail::for_each_lane_of(batch, sequence, [&](lane one) {
      if (!detail::first_of_row(batch.count, batch, one)) return;
      int* const count = batch.count.row(one);
      int const left = left_before(batch, one, position);
      gone_everywhere = std::min(gone_everywhere, *count - left);
      *count = left;
    });
    if (position == 0 && batch.order.data != nullptr) {
      detail::for_each_lane_of(batch, sequence, [&](lane one) { *batch.order.row(one) = {}; });
    }
    if (batch.in_flight != nullptr) *batch.drafts(sequence) -= std::min(*batch.drafts(sequence), gone_everywhere);
    detail::raise_epochs_of(batch, sequence, epochs);
  }

 private:
  /// Refuses to remove some of the entries that took the places of dropped ones.
  static void check_order(lanes const& batch, lane one, int position) {
    lane_order const order = batch.order_of(one);
    expects(order.ascends() || position == 0 || position > order.newest, "truncate", "position", position, [&] {
      return "an eviction has put the token at " + std::to_string(order.newest) + " of " +
             detail::spell_lane_of(batch, one) + " among older ones: restore_order sorts them";
    });
  }

  /// The number of a lane's entries whose position is below `position`.
  static int left_before(lanes const& batch, lane one, int position) {
    if (position == 0) return 0;
    lane_order const order = batch.order_of(one);
    int const* const positions = batch.position.row(one);
    int const begin = order.ascends() ? 0 : order.end;
    return static_cast<int>(std::lower_bound(positions + begin, positions + *batch.count.row(one), position) -
                            positions);
  }
};

template <>
struct implementation<ops::commit_entries_t, host> {
  /// Throws before anything is written.
  static void refuse(host_executor&, lanes const& batch, int sequence, int tokens) {
    detail::refuse_counts("commit", batch, sequence, sequence + 1);
    int const drafts = batch.in_flight != nullptr ? *batch.drafts(sequence) : 0;
    expects(tokens >= 0 && tokens <= drafts, "commit", "tokens", tokens,
            [&] { return std::to_string(drafts) + " drafts are in flight"; });
  }

  static void run(host_executor& exec, lanes const& batch, int sequence, int tokens) {
    refuse(exec, batch, sequence, tokens);
    if (tokens > 0) *batch.drafts(sequence) -= tokens;
  }
};

template <>
struct implementation<ops::raise_epochs_t, host> {
  static void run(host_executor&, lanes const& batch, by_lane<std::uint64_t> const& epochs, int const* changed) {
    for (int sequence = batch.sequence_begin; sequence < batch.sequence_end(); ++sequence) {
      if (changed == nullptr || changed[sequence] != 0) detail::raise_epochs_of(batch, sequence, epochs);
    }
  }
};

template <>
struct implementation<ops::refuse_stale_t, host> {
  static void run(host_executor&, lanes const& batch, keep_set const& keep) {
    if (all_seen(batch, keep)) return;
    detail::for_each_lane(batch, [&](int i, lane one) {
      int const segment = segment_of(batch, keep.decides, i);
      int const seen = keep.entry_count[segment];
      int const now = batch.committed(one);
      expects(
          seen == now, "apply", "plan",
          [&] { return "made for " + std::to_string(seen) + " entries of lane " + std::to_string(i); },
          [&] { return "the cache holds " + std::to_string(now) + " now: decide again"; });
      expects(
          keep.is_fresh(one), "apply", "plan",
          [&] { return "decided before the entries of " + detail::spell_lane_of(batch, one) + " changed"; },
          "a decision is carried out once, on the state that it was made with: decide again");
    });
  }

 private:
  /// True if each lane decides for itself, holds as many entries as its decision saw, and has not changed since. False:
  /// unknown.
  static bool all_seen(lanes const& batch, keep_set const& keep) {
    if (keep.decides != granularity::lane || batch.in_flight != nullptr) return false;
    bool same = true;
    detail::for_each_heads(batch, 0, batch.size(), batch.heads, [&](int i, lane first, int heads) {
      detail::head_rows<int> const counts(batch.count, first);
      for (int h = 0; h < heads; ++h) same = same & (keep.entry_count[i + h] == *counts[h]);
      same = same & keep.is_fresh(first);  // the heads of a layer have one epoch
    });
    return same;
  }
};

template <>
struct implementation<ops::refuse_ragged_t, host> {
  static void run(host_executor&, lanes const& batch, keep_set const& keep) {
    for (int i = 0; i < batch.size(); ++i) {
      int const first = i / (batch.layers() * batch.heads) * batch.layers() * batch.heads;
      auto const kept = [&](int of) { return std::ssize(keep.listed(segment_of(batch, keep.decides, of))); };
      expects(kept(i) == kept(first), "apply", "plan.keep", kept(i), [&] {
        return "the next token has one position in all lanes, and another lane keeps " + std::to_string(kept(first));
      });
    }
  }
};

template <>
struct implementation<ops::set_counts_t, host> {
  static void run(host_executor&, lanes const& batch, keep_set const& keep) {
    for (int i = 0; i < batch.size(); ++i) {
      lane const one = batch.at(i);
      if (!detail::leads_row(batch.count, batch, one)) continue;
      int const drafts = *batch.count.row(one) - batch.committed(one);
      *batch.count.row(one) = static_cast<int>(keep.listed(segment_of(batch, keep.decides, i)).size()) + drafts;
    }
  }
};

template <>
struct implementation<ops::free_tails_t, host> {
  static std::size_t scratch(cache const& in) {
    return detail::names_units(in.where) ? detail::abandoned_units::scratch(in) : 0;
  }

  static void run(host_executor& exec, keep_set const& keep, cache const& in, std::int64_t* freed) {
    if (!detail::names_units(in.where)) return;  // a row belongs to its sequence, so it is never freed
    detail::scratch_arena arena(exec.scratch(0));
    detail::abandoned_units abandoned(in, keep.lanes, arena);
    std::int64_t const entries =
        in.where.unit_tokens * detail::lanes_of_row(detail::rows_of(in.where, in.where.table), keep.lanes);
    auto const units_of = [&](lane owner) {
      int const before = abandoned.pools().units_of(in, owner);
      int after = 0;
      abandoned.pools().for_each_sharing(keep.lanes, owner, [&](lane one) {
        int const left = detail::moves_of(keep, in, keep.lanes.index(one)).count();
        after = std::max(after, (left + in.where.unit_tokens - 1) / in.where.unit_tokens);
      });
      after = std::min(after, before);
      return detail::row_units{after, before - after};
    };
    abandoned.for_each_row(units_of, [&](lane, std::span<int const> units, auto const& take) {
      for (int const unit : units) *freed += take(unit) ? entries : 0;
    });
  }
};

template <>
struct implementation<ops::clear_stats_t, host> {
  static void run(host_executor&, apply_stats* stats) { *stats = {}; }
};

template <>
struct implementation<ops::add_counters_t, host> {
  static void run(host_executor&, std::int64_t const* from, int count, std::int64_t* to, bool anew) {
    for (int i = 0; i < count; ++i) to[i] = from[i] + (anew ? 0 : to[i]);
  }
};

template <>
struct implementation<ops::count_kept_t, host> {
  static void run(host_executor&, keep_set const& keep, lanes const& batch, bool masked, apply_stats* stats) {
    for (int i = 0; i < keep.lanes.size(); ++i) {
      lane const one = keep.lanes.at(i);
      int const count = *batch.count.row(one);
      stats->logical_kept += std::ssize(keep.listed(segment_of(keep.lanes, keep.decides, i)));
      stats->attended_length += masked && count > 0 ? batch.position.row(one)[count - 1] + 1 : count;
    }
  }
};

}  // namespace KVPOLICY_NAMESPACE
