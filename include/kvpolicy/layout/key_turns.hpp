// SPDX-License-Identifier: Apache-2.0
// How often keys of 16 bits were turned: they lose their digits if they are turned often.
#pragma once

#include <algorithm>
#include <kvpolicy/core/contract/check_counts.hpp>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/scores.hpp>
#include <kvpolicy/core/slot_history.hpp>
#include <limits>
#include <string>

namespace KVPOLICY_NAMESPACE::detail {

/// How many of `count` entries, whose positions ascend, have a position below `end`.
template <class PositionOf>
[[nodiscard]] int entries_below(int end, int count, PositionOf const& position_of) {
  int begin = 0;
  while (begin < count) {
    int const middle = begin + (count - begin) / 2;
    position_of(middle) < end ? begin = middle + 1 : count = middle;
  }
  return begin;
}

/// Calls visit(slot) for the slots of a batch; for all slots if the host cannot read which they are.
template <class Backend, class Visit>
void for_each_known_slot(lanes const& batch, Visit const& visit) {
  bool const known = batch.slots == nullptr || readable_slots(batch, reads_on_host<Backend>) != nullptr;
  int const end = known ? batch.sequence_end() : batch.slot_total();
  for (int s = known ? batch.sequence_begin : 0; s < end; ++s) {
    if (int const slot = known ? host_slot<Backend>(batch, s) : s; slot >= 0) visit(s, slot);
  }
}

/// Refuses to turn a key that may have been turned three times. Of entries with ascending positions those that turn
/// are the last ones: once an entry's position is not its ordinal, all behind it turn.
template <class Backend>
void refuse_fourth_turn(keep_set const& keep, cache const& part, slot_history const& history) {
  lanes const& batch = part.lanes;
  auto const refused = [&](auto const& where) {
    expects(false, "apply", "state", where, [&] {
      return std::string("keys of ") + name_of(part.k.element) +
             " lose digits in each turn, and turn three times at most: name the applier in make_state, which then "
             "keeps each key as it was first written" +
             (reads_on_host<Backend> ? ", or decide with slack, over_budget(n) (StreamingLLM: n >= budget / 3)" : "");
    });
  };
  for_each_known_slot<Backend>(batch, [&]([[maybe_unused]] int s, int slot) {
    std::span<turn_ends const> const turns = history.turns(slot);
    if constexpr (reads_on_host<Backend>) {
      for (int i = 0; i < batch.layers() * batch.heads; ++i) {
        int const end = turns[static_cast<std::size_t>(i)].back();
        if (end == 0) continue;
        lane const one{s, batch.layer_begin + i / batch.heads, i % batch.heads};
        auto const kept = keep.listed(segment_of(batch, keep.decides, batch.index(one)));
        int const listed = static_cast<int>(kept.size());
        int const committed = batch.committed(one);
        auto const position_of = [&](int e) {
          return batch.position.row(one)[e < listed ? kept[static_cast<std::size_t>(e)] : committed + e - listed];
        };
        int const thrice = entries_below(end, listed + *batch.count.row(one) - committed, position_of) - 1;
        if (thrice < 0 || position_of(thrice) == thrice) continue;
        refused([&] {
          return "without a copy of the key at position " + std::to_string(position_of(thrice)) + " in " +
                 spell_lane_of(batch, one) + ", which would turn a fourth time";
        });
      }
    } else {
      bool const thrice = std::ranges::any_of(turns, [](turn_ends const& ends) { return ends.back() > 0; });
      if (thrice)
        refused([&] {
          return "without copies of the keys in slot " + std::to_string(slot) + ", where it was applied three times";
        });
    }
  });
}

/// Notes that the keys of these lanes turn, before they do. Where the host cannot read which, all of them do.
template <class Backend>
void count_turns(lanes const& batch, slot_history& history) {
  for_each_known_slot<Backend>(batch, [&]([[maybe_unused]] int s, int slot) {
    std::span<turn_ends> const turns = history.turns(slot);
    for (int i = 0; i < batch.layers() * batch.heads; ++i) {
      turn_ends& ends = turns[static_cast<std::size_t>(i)];
      if constexpr (reads_on_host<Backend>) {
        lane const one{s, batch.layer_begin + i / batch.heads, i % batch.heads};
        int const* const position = batch.position.row(one);
        int below = *batch.count.row(one);
        for (int& end : ends) {  // those that turn now and turned k times before have turned k + 1 times
          int const turned = below > 0 && position[below - 1] != below - 1 ? below : 0;
          below = entries_below(end, *batch.count.row(one), [&](int e) { return position[e]; });
          end = std::max(below, turned);
        }
      } else {
        ends = {std::numeric_limits<int>::max(), ends[0], ends[1]};
      }
    }
  });
}

}  // namespace KVPOLICY_NAMESPACE::detail
