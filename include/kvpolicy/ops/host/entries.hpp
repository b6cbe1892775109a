// Host implementations of the verbs that change counts.
#pragma once

#include <algorithm>
#include <cstring>
#include <kvpolicy/core/check_counts.hpp>
#include <kvpolicy/core/error.hpp>
#include <kvpolicy/ops/entries.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/gather_rows.hpp>
#include <kvpolicy/ops/lists.hpp>

namespace KVPOLICY_NAMESPACE {
namespace detail {

/// Calls visit(lane) for every lane of one sequence.
template <class Visit>
void for_each_lane_of(lanes const& who, int sequence, Visit const& visit) {
  for (int layer = who.layer_begin; layer < who.layer_end; ++layer) {
    for (int head = 0; head < who.heads; ++head) visit(lane{sequence, layer, head});
  }
}

/// True for the lane that stands for all which share a row of this table within one sequence.
template <class T>
bool first_of_row(by_lane<T> const& table, lanes const& who, lane one) {
  return (table.layer != 0 || one.layer == who.layer_begin) && (table.head != 0 || one.head == 0);
}

}  // namespace detail

template <>
struct implementation<ops::append_entries_t, host> {
  static constexpr bool provided = true;

  static void run(host_executor&, lanes const& who, std::span<held_column const> columns, appended const& fresh) {
    detail::refuse_counts("append", who, fresh.sequence, fresh.sequence + 1);
    detail::for_each_lane_of(who, fresh.sequence, [&](lane one) { check_room(who, one, fresh); });
    int const drafts = who.in_flight != nullptr ? who.in_flight[fresh.sequence] : 0;
    expects(fresh.in_flight || drafts == 0, "append", "tokens", fresh.tokens,
            [&] { return std::to_string(drafts) + " drafts are in flight; commit or truncate them first"; });
    expects(!fresh.in_flight || who.in_flight != nullptr, "append", "who.in_flight", "null",
            "drafts are counted for each sequence");
    detail::for_each_lane_of(who, fresh.sequence, [&](lane one) { write(who, one, columns, fresh); });
    detail::for_each_lane_of(who, fresh.sequence, [&](lane one) {
      if (detail::first_of_row(who.count, who, one)) *who.count.row(one) += fresh.tokens;
    });
    if (fresh.in_flight) who.in_flight[fresh.sequence] += fresh.tokens;
  }

 private:
  static void check_room(lanes const& who, lane one, appended const& fresh) {
    int const count = *who.count.row(one);
    expects(fresh.tokens <= who.bound - count, "append", "tokens", fresh.tokens, [&] {
      return "lane (" + std::to_string(one.sequence) + ", " + std::to_string(one.layer) + ", " +
             std::to_string(one.head) + ") holds " + std::to_string(count) + " of at most " + std::to_string(who.bound);
    });
    int const last = count > 0 ? who.position.row(one)[count - 1] : -1;
    expects(fresh.position > last, "append", "position", fresh.position,
            [&] { return "positions ascend and the last is " + std::to_string(last); });
  }

  static void write(lanes const& who, lane one, std::span<held_column const> columns, appended const& fresh) {
    int const count = *who.count.row(one);
    if (detail::first_of_row(who.position, who, one)) {
      for (int e = 0; e < fresh.tokens; ++e) who.position.row(one)[count + e] = fresh.position + e;
    }
    for (held_column const& each : columns) {
      if (each.about.one != per::lane_entry) continue;
      auto const width = static_cast<std::size_t>(each.about.bytes);
      std::memset(each.rows.row(one) + static_cast<std::size_t>(count) * width, 0,
                  static_cast<std::size_t>(fresh.tokens) * width);
    }
  }
};

template <>
struct implementation<ops::truncate_entries_t, host> {
  static constexpr bool provided = true;

  static void run(host_executor&, lanes const& who, int sequence, int position) {
    detail::refuse_counts("truncate", who, sequence, sequence + 1);
    int gone_everywhere = who.bound;
    detail::for_each_lane_of(who, sequence, [&](lane one) {
      if (!detail::first_of_row(who.count, who, one)) return;
      int* const count = who.count.row(one);
      int const* const positions = who.position.row(one);
      int const left = static_cast<int>(std::lower_bound(positions, positions + *count, position) - positions);
      gone_everywhere = std::min(gone_everywhere, *count - left);
      *count = left;
    });
    if (who.in_flight != nullptr) who.in_flight[sequence] -= std::min(who.in_flight[sequence], gone_everywhere);
  }
};

template <>
struct implementation<ops::commit_entries_t, host> {
  static constexpr bool provided = true;

  static void run(host_executor&, lanes const& who, int sequence, int tokens) {
    detail::refuse_counts("commit", who, sequence, sequence + 1);
    int const drafts = who.in_flight != nullptr ? who.in_flight[sequence] : 0;
    expects(tokens >= 0 && tokens <= drafts, "commit", "tokens", tokens,
            [&] { return std::to_string(drafts) + " drafts are in flight"; });
    if (tokens > 0) who.in_flight[sequence] -= tokens;
  }
};

template <>
struct implementation<ops::refuse_stale_t, host> {
  static constexpr bool provided = true;

  static void run(host_executor&, lanes const& who, keep_set const& keep) {
    for (int i = 0; i < who.size(); ++i) {
      int const seen = keep.seen[segment_of(who, keep.decides, i)];
      int const now = who.committed(who.at(i));
      expects(
          seen == now, "apply", "plan",
          [&] { return "made for " + std::to_string(seen) + " entries of lane " + std::to_string(i); },
          [&] { return "the cache holds " + std::to_string(now) + " now: decide again"; });
    }
  }
};

template <>
struct implementation<ops::refuse_ragged_t, host> {
  static constexpr bool provided = true;

  static void run(host_executor&, lanes const& who, keep_set const& keep) {
    for (int i = 0; i < who.size(); ++i) {
      int const first = i / (who.layers() * who.heads) * who.layers() * who.heads;
      auto const kept = [&](int of) { return std::ssize(keep.listed(segment_of(who, keep.decides, of))); };
      expects(kept(i) == kept(first), "apply", "plan.keep", kept(i), [&] {
        return "the next token has one position in all lanes, and another lane keeps " + std::to_string(kept(first));
      });
    }
  }
};

template <>
struct implementation<ops::set_counts_t, host> {
  static constexpr bool provided = true;

  static void run(host_executor&, lanes const& who, keep_set const& keep) {
    for (int i = 0; i < who.size(); ++i) {
      lane const one = who.at(i);
      if (!detail::owns_row(who.count, who, one)) continue;
      int const drafts = *who.count.row(one) - who.committed(one);
      *who.count.row(one) = static_cast<int>(keep.listed(segment_of(who, keep.decides, i)).size()) + drafts;
    }
  }
};

template <>
struct implementation<ops::free_tails_t, host> {
  static constexpr bool provided = true;

  static void run(host_executor&, keep_set const& keep, cache const& in, std::int64_t* freed) {
    if (in.where.kind == locating::identity || in.where.kind == locating::ring)
      return;  // a row belongs to its sequence
    for (int i = 0; i < keep.who.size(); ++i) {
      lane const who = keep.who.at(i);
      if (detail::owns_row(detail::rows_of(in.where, in.where.table), keep.who, who)) *freed += tail_of(keep, in, who);
    }
  }

 private:
  /// Entries in the units that all lanes of one table row leave.
  static std::int64_t tail_of(keep_set const& keep, cache const& in, lane owner) {
    auto const rows = detail::rows_of(in.where, in.where.table);
    int const page = in.where.unit_tokens;
    auto const units = [page](std::int64_t entries) { return (entries + page - 1) / page; };
    std::int64_t before = 0;
    std::int64_t after = 0;
    std::int64_t lanes = 0;
    for (int i = 0; i < keep.who.size(); ++i) {
      lane const who = keep.who.at(i);
      bool const sharing = who.sequence == owner.sequence && (rows.layer == 0 || who.layer == owner.layer) &&
                           (rows.head == 0 || who.head == owner.head);
      if (!sharing) continue;
      auto const kept = std::ssize(keep.listed(segment_of(keep.who, keep.decides, i)));
      int const count = *in.who.count.row(who);
      before = std::max(before, units(count));
      after = std::max(after, units(kept + count - in.who.committed(who)));
      ++lanes;
    }
    return (before - after) * page * lanes;
  }
};

template <>
struct implementation<ops::clear_tally_t, host> {
  static constexpr bool provided = true;

  static void run(host_executor&, tally* told) { *told = {}; }
};

template <>
struct implementation<ops::tell_t, host> {
  static constexpr bool provided = true;

  static void run(host_executor&, keep_set const& keep, lanes const& who, bool masked, tally* told) {
    for (int i = 0; i < keep.who.size(); ++i) {
      lane const one = keep.who.at(i);
      int const count = *who.count.row(one);
      told->logical_kept += std::ssize(keep.listed(segment_of(keep.who, keep.decides, i)));
      told->attended_length += masked && count > 0 ? who.position.row(one)[count - 1] + 1 : count;
    }
  }
};

}  // namespace KVPOLICY_NAMESPACE
