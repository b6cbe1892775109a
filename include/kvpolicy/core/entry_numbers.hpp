// SPDX-License-Identifier: Apache-2.0
// Numbers of new entries, from which signals derive: gates, log beta, birth scores.
#pragma once

#include <kvpolicy/core/codec.hpp>
#include <kvpolicy/core/contract/error.hpp>
#include <kvpolicy/core/lanes.hpp>
#include <kvpolicy/core/signal_rows.hpp>

namespace KVPOLICY_NAMESPACE {

/// One number for each new entry of a lane, of any element type.
struct entry_numbers {
  std::byte const* base = nullptr;
  codec element = codec::f32;
  std::int64_t sequence = 0;  ///< strides in bytes
  std::int64_t layer = 0;
  std::int64_t head = 0;
  std::int64_t entry = 0;
  int entries = 0;                ///< new entries of each lane
  by_lane<int const> counts{};    ///< the number of new entries of each lane, if they differ; null: `entries`
  by_lane<int const> position{};  ///< the position of each new entry; a number at a negative position, or after the
                                  ///< newest committed entry, does not count. null: the numbers are those of the newest
                                  ///< entries. While drafts are in flight, they are those of the newest committed
                                  ///< entries that have none yet; what is left are the drafts', and does not count

  [[nodiscard]] KVPOLICY_HD int count(lane this_lane) const {
    return counts.data != nullptr ? *counts.row(this_lane) : entries;
  }
  /// True if the i-th number counts, where `newest` is the position of the lane's newest committed entry. It is not
  /// that of padding, or of a draft that is in flight or was rejected.
  [[nodiscard]] KVPOLICY_HD bool counts_at(lane this_lane, int i, int newest) const {
    if (position.data == nullptr) return true;
    int const here = position.row(this_lane)[i];
    return here >= 0 && here <= newest;
  }
  [[nodiscard]] KVPOLICY_HD std::byte const* at(lane this_lane, int i) const {
    return base + this_lane.sequence * sequence + this_lane.layer * layer + this_lane.head * head + i * entry;
  }
  void check(char const* call, shape const&) const {
    expects(base != nullptr || (entries == 0 && counts.data == nullptr), call, "entry numbers", "null",
            "a signal is the engine's memory");
    expects(element != codec::opaque, call, "entry numbers", "opaque", "only their engine can read them");
    detail::check_not_fp8(call, "entry numbers", element);
  }
  void check_strides(char const* call, lanes const& batch) const {
    if (base == nullptr || (entries == 0 && counts.data == nullptr)) return;  // there is no number
    detail::check_stride(call, "entry numbers.sequence", sequence, "sequences", batch.sequences);
    detail::check_stride(call, "entry numbers.layer", layer, "layers", batch.layers());
    detail::check_layers_apart(call, "entry numbers.layer", layer, sequence, batch);
    detail::check_stride(call, "entry numbers.head", head, "KV heads", batch.heads);
    detail::check_stride(call, "entry numbers.entry", entry, "new entries", entries);
    if (counts.data == nullptr) return;
    detail::check_stride(call, "entry numbers.counts.sequence", counts.sequence, "sequences", batch.sequences);
  }
};

}  // namespace KVPOLICY_NAMESPACE
