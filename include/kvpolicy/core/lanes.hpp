// Who is there: lanes, how many entries each holds, and the positions of those entries.
#pragma once

#include <array>
#include <cstdint>
#include <kvpolicy/core/config.hpp>

namespace KVPOLICY_NAMESPACE {

/// One (sequence, layer, KV head): the unit that decides for itself.
struct lane {
  int sequence = 0;
  int layer = 0;
  int head = 0;
  friend bool operator==(lane const&, lane const&) = default;
};

/// A table with a row for every lane. Strides count elements; a stride of 0 shares the row along that axis.
template <class T>
struct by_lane {
  T* data = nullptr;
  std::int64_t sequence = 0;
  std::int64_t layer = 0;
  std::int64_t head = 0;

  [[nodiscard]] KVPOLICY_HD constexpr T* row(lane this_lane) const {
    return data + this_lane.sequence * sequence + this_lane.layer * layer + this_lane.head * head;
  }
};

/// The numbers of a model that a policy needs.
struct shape {
  int layers = 0;
  int query_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;   ///< D, of keys and queries
  int value_dim = 0;  ///< Dv; 0 means the same as head_dim

  /// Query heads that read one KV head (GQA). Query head h reads KV head h / group().
  [[nodiscard]] KVPOLICY_HD constexpr int group() const { return query_heads / kv_heads; }
  friend bool operator==(shape const&, shape const&) = default;
};

/// The lanes of one call: a ragged batch of sequences, a range of layers, all KV heads.
///
/// `count` and `position` are memory of the executor (device memory for a device executor); `bound` is the upper limit
/// of every count that the host knows, and sizes every launch. Ordinals ascend in position, always.
struct lanes {
  int sequences = 1;
  int layer_begin = 0;
  int layer_end = 0;
  int heads = 0;
  int bound = 0;
  by_lane<int> count{};      ///< one number a lane: entries held, drafts included
  by_lane<int> position{};   ///< a row a lane: logical position of each entry, ascending
  int* in_flight = nullptr;  ///< drafts at the end of every lane of a sequence, one number a sequence; null: none

  [[nodiscard]] KVPOLICY_HD constexpr int layers() const { return layer_end - layer_begin; }
  [[nodiscard]] KVPOLICY_HD constexpr int size() const { return sequences * layers() * heads; }

  /// The i-th lane, sequence-major, then layer, then head.
  [[nodiscard]] KVPOLICY_HD constexpr lane at(int i) const {
    return {i / (layers() * heads), layer_begin + i / heads % layers(), i % heads};
  }

  [[nodiscard]] KVPOLICY_HD constexpr int index(lane this_lane) const {
    return (this_lane.sequence * layers() + this_lane.layer - layer_begin) * heads + this_lane.head;
  }

  /// Entries that a policy may see: the drafts in flight are not among them. From 0 to `bound`, whatever the memory of
  /// counts says, so that a kernel which finds a wrong count there stays within its rows until the fault is told.
  [[nodiscard]] KVPOLICY_HD constexpr int committed(lane this_lane) const {
    std::int64_t const all =
        std::int64_t{*count.row(this_lane)} - (in_flight != nullptr ? in_flight[this_lane.sequence] : 0);
    return all < 0 ? 0 : all > bound ? bound : static_cast<int>(all);
  }

  /// The same lanes in layers [begin, end) only: what an engine hands over after one layer's forward.
  [[nodiscard]] constexpr lanes layers_only(int begin, int end) const {
    lanes some = *this;
    some.layer_begin = begin;
    some.layer_end = end;
    return some;
  }
};

/// Who decides together: every lane for itself, a layer's heads together, or all layers and heads of a token.
enum class granularity { lane, layer, token };

[[nodiscard]] constexpr std::array<char const*, 3> names(granularity) { return {"lane", "layer", "token"}; }

/// Who shares a budget: nobody, the lanes of a layer, or all lanes of a sequence.
enum class budget_scope { lane, layer, global };

[[nodiscard]] constexpr std::array<char const*, 3> names(budget_scope) { return {"lane", "layer", "global"}; }

/// How many decisions the lanes make: the segments of scores and keep sets.
[[nodiscard]] KVPOLICY_HD constexpr int segments(lanes const& batch, granularity decides) {
  if (decides == granularity::lane) return batch.size();
  return decides == granularity::layer ? batch.sequences * batch.layers() : batch.sequences;
}

/// The segment that decides for the i-th lane.
[[nodiscard]] KVPOLICY_HD constexpr int segment_of(lanes const& batch, granularity decides, int i) {
  if (decides == granularity::lane) return i;
  return decides == granularity::layer ? i / batch.heads : i / (batch.heads * batch.layers());
}

/// The first lane of a segment: its counts and positions stand for the whole segment.
[[nodiscard]] KVPOLICY_HD constexpr int first_lane(lanes const& batch, granularity decides, int segment) {
  if (decides == granularity::lane) return segment;
  return decides == granularity::layer ? segment * batch.heads : segment * batch.heads * batch.layers();
}

}  // namespace KVPOLICY_NAMESPACE
