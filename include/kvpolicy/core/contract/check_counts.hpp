// SPDX-License-Identifier: Apache-2.0
// Checks that read counts and positions. They run for executors whose memory the host can read.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstring>
#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/layer_runs.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/core/signals.hpp>
#include <kvpolicy/core/slots.hpp>
#include <string>

namespace KVPOLICY_NAMESPACE::detail {

/// A backend whose executors keep counts and positions in memory that the host can read. It declares a static member
/// `reads_on_host`.
template <class Backend>
concept reads_on_host = requires { requires Backend::reads_on_host; };

#if defined(KVPOLICY_COMPILED)  // the library kvpolicy::compiled holds them
std::string spell_lane_of(lanes const& batch, lane one);
std::string spell_slot_of(lanes const& batch, int const* slots, lane one);
void refuse_counts(char const* call, lanes const& batch, int first, int last);
void refuse_other_positions(char const* call, lanes const& batch, lane one, lane first, char const* rule);
void refuse_other_tokens(char const* call, score_view const& scores);
void refuse_other_tokens_in_runs(char const* call, lanes const& batch, layer_runs const& runs);
#else
/// The text "layer 3, head 1", with the sequence if the batch has several.
inline std::string spell_lane_of(lanes const& batch, lane one) {
  std::string const text = "layer " + std::to_string(one.layer) + ", head " + std::to_string(one.head);
  return batch.sequences > 1 ? text + " of sequence " + std::to_string(one.sequence) : text;
}

/// The text "layer 3 of slot 7", or "layer 3 of sequence 7" in a batch without a list of slots.
inline std::string spell_slot_of(lanes const& batch, int const* slots, lane one) {
  std::string const text = "layer " + std::to_string(one.layer);
  bool const listed = batch.slots != nullptr && slots != nullptr;
  return text + (listed ? " of slot " : " of sequence ") +
         std::to_string(slot_of(listed ? slots : nullptr, one.sequence));
}

#endif

/// The slot of a sequence of a batch; -1 if the host cannot read the list.
template <class Backend>
[[nodiscard]] int host_slot(lanes const& batch, int sequence) {
  if (batch.slots == nullptr) return sequence;
  int const* const slots = readable_slots(batch, reads_on_host<Backend>);
  int const slot = slots != nullptr ? slots[sequence] : -1;
  return slot < batch.slot_total() ? slot : -1;  // a wrong slot is refused elsewhere
}

/// True if a lane's counts are within their limits: 0 <= drafts <= count <= bound.
[[nodiscard]] KVPOLICY_HD inline bool counts_fit(lanes const& batch, lane one) {
  int const count = *batch.count.row(one);
  int const drafts = batch.in_flight != nullptr ? *batch.drafts(one.sequence) : 0;
  return 0 <= drafts && drafts <= count && count <= batch.capacity;
}

#if !defined(KVPOLICY_COMPILED)
/// Throws the error for a lane whose counts are out of their limits.
inline void refuse_counts_of_lane(char const* call, lanes const& batch, lane one) {
  int const count = *batch.count.row(one);
  auto const in_lane = [&](int number) { return std::to_string(number) + " in " + spell_lane_of(batch, one); };
  expects(
      count >= 0 && count <= batch.capacity, call, "lanes.count", [&] { return in_lane(count); },
      [&] { return "a lane holds 0 to " + std::to_string(batch.capacity) + " entries, its `capacity`"; });
  int const drafts = batch.in_flight != nullptr ? *batch.drafts(one.sequence) : 0;
  expects(
      drafts >= 0 && drafts <= count, call, "lanes.in_flight", [&] { return in_lane(drafts); },
      [&] { return "a lane's drafts are among the " + std::to_string(count) + " entries that it holds"; });
}

/// True if all counts of a sequence without drafts are within their limits, and stand side by side. False: unknown.
inline bool plain_counts_fit(lanes const& batch, int sequence) {
  bool const side_by_side = batch.count.head == 1 && batch.count.layer == batch.heads;
  if (!side_by_side || batch.in_flight != nullptr) return false;
  int const* const count = batch.count.row(lane{sequence, batch.layer_begin, 0});
  int const lanes_here = batch.layers() * batch.heads;
  unsigned signs = 0;  // the sign bit is set if any count is negative or above the bound
  for (int i = 0; i < lanes_here; ++i) {
    auto const one = static_cast<unsigned>(count[i]);
    signs |= one | (static_cast<unsigned>(batch.capacity) - one);
  }
  return static_cast<int>(signs) >= 0;
}

/// Refuses counts of the sequences [first, last) that are negative or above the bound, and numbers of drafts that are
/// negative or above the lane's count. Cost: reads each count once, and counts that lanes share only once.
inline void refuse_counts(char const* call, lanes const& batch, int first, int last) {
  if (int const* const slots = readable_slots(batch, true); batch.slots != nullptr) {
    refuse_slots(call, slots, batch.slot_total(), first, last);
  }
  if (batch.count.data == nullptr) return;
  int const layer_end = batch.count.layer == 0 ? batch.layer_begin + 1 : batch.layer_end;
  int const heads = batch.count.head == 0 ? 1 : batch.heads;
  for (int sequence = first; sequence < last; ++sequence) {
    if (plain_counts_fit(batch, sequence)) continue;
    for (int layer = batch.layer_begin; layer < layer_end; ++layer) {
      for (int head = 0; head < heads; ++head) {
        lane const one{sequence, layer, head};
        if (!counts_fit(batch, one)) refuse_counts_of_lane(call, batch, one);
      }
    }
  }
}

/// Refuses a lane that holds as many entries as another one, but other tokens.
inline void refuse_other_positions(char const* call, lanes const& batch, lane one, lane first, char const* rule) {
  int const count = batch.committed(one);
  int const* const mine = batch.position.row(one);
  int const* const other = batch.position.row(first);
  if (mine == other || count == 0) return;
  if (std::memcmp(mine, other, sizeof(int) * static_cast<std::size_t>(count)) == 0) return;
  int e = 0;
  while (mine[e] == other[e]) ++e;
  expects(
      false, call, "lanes.position",
      [&] {
        return "other tokens in " + spell_lane_of(batch, one) + " than in " + spell_lane_of(batch, first) + " (entry " +
               std::to_string(e) + ": " + std::to_string(mine[e]) + " against " + std::to_string(other[e]) + ")";
      },
      rule);
}

/// Refuses lanes that decide together but differ in their number of entries or in positions, because a decision reads
/// only the first lane of each segment.
///
/// Cost: reads each position once, and none if lanes share their rows of positions.
inline void refuse_other_tokens(char const* call, score_view const& scores) {
  lanes const& batch = scores.lanes;
  if (scores.decides == granularity::lane) return;
  for (int i = 0; i < batch.size(); ++i) {
    lane const one = batch.at(i);
    lane const first = scores.lane_of(segment_of(batch, scores.decides, i));
    int const count = batch.committed(one);
    expects(count == batch.committed(first), call, "count", count,
            "lanes that decide together hold equally many entries");
    refuse_other_positions(call, batch, one, first, "lanes that decide together hold the same tokens");
  }
}

/// Refuses lanes of layers that read the pages of an earlier layer, but hold other entries than its lanes.
///
/// Cost: reads each position of these lanes once, and none if layers share their rows of positions.
inline void refuse_other_tokens_in_runs(char const* call, lanes const& batch, layer_runs const& runs) {
  for (int i = 0; i < batch.size() && runs.length > 1; ++i) {
    lane const one = batch.at(i);
    lane const first = runs.chooser_of(one);
    int const count = batch.committed(one);
    expects(
        count == batch.committed(first), call, "lanes.count",
        [&] { return std::to_string(count) + " in " + spell_lane_of(batch, one); },
        [&] {
          return "it reads the pages of layer " + std::to_string(first.layer) + ", whose lane of this head holds " +
                 std::to_string(batch.committed(first));
        });
    refuse_other_positions(call, batch, one, first, "layers that read the same pages hold the same tokens");
  }
}

#endif

/// Refuses lanes whose entries may be out of order, for a call that reads them in the order of their positions. The
/// host cannot read the order of a device's lanes: there such a call refuses `order` altogether.
template <class Backend>
void refuse_out_of_order(char const* call, lanes const& batch, char const* what) {
  if (batch.order.data == nullptr) return;
  if constexpr (reads_on_host<Backend>) {
    for_each_lane(batch, [&](int, lane one) {
      expects(
          batch.order.row(one)->ascends(), call, "lanes.order",
          [&] { return "not ascending in " + spell_lane_of(batch, one); },
          [&] {
            return std::string(what) + " reads entries in the order of their positions: restore_order sorts them";
          });
    });
  } else {
    expects(false, call, "lanes.order", "given", "on a device positions ascend in every lane: leave it null");
  }
}

/// Calls `refuse_counts` for all sequences of a batch, if the host can read the backend's counts. On a device the
/// kernels check them, and the host checks the list of slots if it has a copy.
template <class Backend>
void refuse_counts(char const* call, lanes const& batch) {
  if constexpr (reads_on_host<Backend>) {
    refuse_counts(call, batch, batch.sequence_begin, batch.sequence_end());
  } else {
    refuse_slots(call, batch, false);
  }
}

/// Checks the counts of an argument of a verb: lanes, a cache or a score view. A keep set comes with the cache that has
/// its lanes, so it is not checked again.
template <class Argument>
void refuse_counts_in(char const* call, Argument const& of) {
  if constexpr (std::same_as<Argument, lanes>) {
    refuse_counts(call, of, of.sequence_begin, of.sequence_end());
  } else if constexpr (std::same_as<Argument, cache> || std::same_as<Argument, score_view>) {
    refuse_counts(call, of.lanes, of.lanes.sequence_begin, of.lanes.sequence_end());
  }
}

/// Calls `refuse_counts` and `refuse_other_tokens` before a decision writes its scores. Verbs that are called with
/// these scores skip `refuse_other_tokens`.
template <class Backend>
void check_lanes_of_decision(char const* call, score_view& scores) {
  if constexpr (reads_on_host<Backend>) {
    refuse_counts<Backend>(call, scores.lanes);
    refuse_other_tokens(call, scores);
    scores.same_tokens = true;
  }
}

/// Refuses keys and values of a cache that is smaller than the lanes, if the host can read the backend's memory.
template <class Backend, class Given>
void refuse_smaller([[maybe_unused]] char const* call, [[maybe_unused]] Given const& in) {
  if constexpr (reads_on_host<Backend>) {
    auto const* const k = in.template find<keys>();
    auto const* const v = in.template find<values>();
    if (k != nullptr) check_held(call, k->name, k->where, in.lanes);
    if (v != nullptr) check_held(call, v->name, v->where, in.lanes);
  }
}

/// Calls `check_rows` of the signals that are needed and given, if the host can read the backend's memory.
template <class Backend, class Needs, class SignalSet>
void refuse_rows([[maybe_unused]] char const* call, [[maybe_unused]] Needs needed,
                 [[maybe_unused]] SignalSet const& in) {
  if constexpr (reads_on_host<Backend>) check_rows(needed, call, in);
}

}  // namespace KVPOLICY_NAMESPACE::detail
