// SPDX-License-Identifier: Apache-2.0
// Lanes: the batch that a call works on, with the number of entries of each lane and their positions.
#pragma once

#include <array>
#include <cstdint>
#include <kvpolicy/core/config.hpp>
#include <kvpolicy/core/lane_order.hpp>

namespace KVPOLICY_NAMESPACE {

/// A lane is one KV head of one layer of one sequence. By default each lane decides for itself. `sequence` is the index
/// of the sequence in the batch of the call.
struct lane {
  int sequence = 0;
  int layer = 0;
  int head = 0;
  friend bool operator==(lane const&, lane const&) = default;
};

/// The slot of a sequence: the row that it has in tables with a row for each slot. `slots` is the list of the batch;
/// null means that sequence s has slot s.
[[nodiscard]] KVPOLICY_HD constexpr int slot_of(int const* slots, int sequence) {
  return slots != nullptr ? slots[sequence] : sequence;
}

/// A table with a row for every lane. Strides are in elements. A stride of 0 shares the row along that axis.
template <class T>
struct by_lane {
  T* data = nullptr;
  std::int64_t sequence = 0;
  std::int64_t layer = 0;
  std::int64_t head = 0;
  int const* slots = nullptr;  ///< the row of each sequence of the batch; null: sequence s has row s

  [[nodiscard]] KVPOLICY_HD constexpr T* row(lane this_lane) const {
    return data + offset(slot_of(slots, this_lane.sequence), sequence) + offset(this_lane.layer, layer) +
           offset(this_lane.head, head);
  }

 private:
  /// No index is negative: as unsigned numbers, they take a device fewer instructions.
  [[nodiscard]] KVPOLICY_HD static constexpr std::int64_t offset(int index, std::int64_t stride) {
    return static_cast<unsigned>(index) * stride;
  }
};

/// The dimensions of a model that policies use.
struct shape {
  int layers = 0;
  int query_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;   ///< D: channels of keys and queries
  int value_dim = 0;  ///< Dv: channels of values; 0 means the same as head_dim

  /// The number of query heads that read one KV head (GQA). Query head h reads KV head h / group().
  [[nodiscard]] KVPOLICY_HD constexpr int group() const { return query_heads / kv_heads; }
  friend bool operator==(shape const&, shape const&) = default;
};

/// The tokens of each sequence that are newer than all entries of some lanes: those of a window, where the lanes are
/// the pages behind it. All lanes of a sequence share the window's tokens. Strides are in elements.
struct newer_tokens {
  int const* count = nullptr;     ///< for each slot the tokens of the window, drafts included; null: there is no window
  int const* position = nullptr;  ///< for each slot a row of their positions, ascending
  int const* in_flight = nullptr;  ///< for each slot how many of them are drafts, at the end; null: none
  std::int64_t count_stride = 0;   ///< between slots
  std::int64_t row = 0;            ///< between slots
  int capacity = 0;                ///< no count exceeds it

  /// The position of the newest token that is no draft; -1 if there is none.
  [[nodiscard]] KVPOLICY_HD constexpr int newest(int slot) const {
    int committed = count[slot * count_stride] - (in_flight != nullptr ? in_flight[slot] : 0);
    committed = committed < capacity ? committed : capacity;
    return committed > 0 ? position[slot * row + committed - 1] : -1;
  }
};

/// The lanes of one call: all KV heads of a range of layers of a ragged batch of sequences.
///
/// `count` and `position` are in the executor's memory (device memory for a device executor). The host knows
/// `capacity`: no count exceeds it, and launches are sized by it. An entry's ordinal is its index in its lane.
/// Positions ascend with ordinals, unless `order` says otherwise.
///
/// The sequences of a call may be some slots of the engine's tables, in any order: see `only`.
struct lanes {
  int sequences = 1;
  int layer_begin = 0;
  int layer_end = 0;
  int heads = 0;  ///< KV heads
  int capacity = 0;
  by_lane<int> count{};          ///< one number for each lane: its entries, drafts included
  by_lane<int> position{};       ///< one row for each lane: the logical position of each entry, ascending
  int* in_flight = nullptr;      ///< for each slot the number of drafts at the end of every lane; null: none
  by_lane<int const> request{};  ///< a number that each request carries: seeded scores differ by it; null: 0
  int const* slots = nullptr;    ///< the slot of each sequence, in the executor's memory; null: sequence s has slot s
  int const* host_slots = nullptr;  ///< the same list, if the host cannot read `slots`
  int slot_count = 0;               ///< the number of slots of the tables, if it is not `sequences`
  int sequence_begin = 0;           ///< the first sequence of these lanes, if they are a part of a batch
  by_lane<lane_order> order{};      ///< the order of each lane, for steps that cost the same whatever the budget; zero
                                    ///< it with the counts. It has a row for each row of positions. Null: ascending
  newer_tokens newer{};             ///< the window, if the lanes are pages behind it: see `lanes_of_pages`

  [[nodiscard]] KVPOLICY_HD constexpr int layers() const {
    return static_cast<int>(static_cast<unsigned>(layer_end) - static_cast<unsigned>(layer_begin));  // never overflows
  }
  [[nodiscard]] KVPOLICY_HD constexpr int sequence_end() const {
    return static_cast<int>(static_cast<unsigned>(sequence_begin) +
                            static_cast<unsigned>(sequences));  // never overflows
  }
  [[nodiscard]] KVPOLICY_HD constexpr int size() const { return sequences * layers() * heads; }

  /// The i-th lane. Lanes are ordered by sequence, then layer, then head.
  [[nodiscard]] KVPOLICY_HD constexpr lane at(int i) const {
    auto const of_layer = static_cast<unsigned>(heads);
    auto const of_sequence = static_cast<unsigned>(layers());
    unsigned const row = static_cast<unsigned>(i) / of_layer;  // two unsigned divisions, which a device has to compute
    unsigned const sequence = row / of_sequence;
    return {sequence_begin + static_cast<int>(sequence), layer_begin + static_cast<int>(row - sequence * of_sequence),
            static_cast<int>(static_cast<unsigned>(i) - row * of_layer)};
  }

  /// The lane that follows another one in that order.
  [[nodiscard]] KVPOLICY_HD constexpr lane after(lane one) const {
    if (++one.head < heads) return one;
    one.head = 0;
    if (++one.layer < layer_end) return one;
    return {one.sequence + 1, layer_begin, 0};
  }

  /// The index i for which `at(i)` is the lane.
  [[nodiscard]] KVPOLICY_HD constexpr int index(lane this_lane) const {
    return ((this_lane.sequence - sequence_begin) * layers() + this_lane.layer - layer_begin) * heads + this_lane.head;
  }

  /// The number of entries that a policy sees: all entries of the lane but the drafts in flight. The result is clamped
  /// to 0 .. `capacity`, so that a kernel that reads a wrong count stays inside its rows until the error is reported.
  [[nodiscard]] KVPOLICY_HD constexpr int committed(lane this_lane) const {
    std::int64_t const all =
        std::int64_t{*count.row(this_lane)} - (in_flight != nullptr ? *drafts(this_lane.sequence) : 0);
    return all < 0 ? 0 : all > capacity ? capacity : static_cast<int>(all);
  }

  /// The order of a lane's entries.
  [[nodiscard]] KVPOLICY_HD constexpr lane_order order_of(lane this_lane) const {
    return order.data != nullptr ? *order.row(this_lane) : lane_order{};
  }

  /// The position of the newest committed token of a lane's sequence, in the lane or in the window before it; -1 if
  /// there is none. A query row after it is that of a draft, and does not count.
  [[nodiscard]] KVPOLICY_HD constexpr int newest(lane this_lane) const {
    int const last = order_of(this_lane).newest_of(position.row(this_lane), committed(this_lane));
    if (newer.count == nullptr) return last;
    int const later = newer.newest(slot_of(slots, this_lane.sequence));
    return later > last ? later : last;
  }

  /// The number of drafts of a sequence. `in_flight` must not be null.
  [[nodiscard]] KVPOLICY_HD constexpr int* drafts(int sequence) const { return in_flight + slot_of(slots, sequence); }

  /// The number of slots of the tables. A batch that is not a list of slots has all of them.
  [[nodiscard]] KVPOLICY_HD constexpr int slot_total() const { return slot_count > 0 ? slot_count : sequence_end(); }

  /// The same lanes, restricted to layers [begin, end). An engine passes them after the forward of one layer.
  [[nodiscard]] constexpr lanes layers_only(int begin, int end) const {
    lanes some = *this;
    some.layer_begin = begin;
    some.layer_end = end;
    return some;
  }

  /// The same lanes, restricted to sequences [begin, end) of the batch. A sequence keeps its index.
  [[nodiscard]] constexpr lanes sequences_only(int begin, int end) const {
    lanes some = *this;
    some.slot_count = slot_total();
    some.sequence_begin = begin;
    some.sequences = end - begin;
    return some;
  }
};

namespace detail {

/// floor(part * entries) of real numbers. The small term makes up for a product of doubles that rounds down.
[[nodiscard]] KVPOLICY_HD constexpr int floor_of_part(double part, int entries) {
  return static_cast<int>(part * entries + 1e-9);
}

/// Calls visit(i, lane) for the lanes [begin, end), in order, without the divisions of `lanes::at`.
template <class Visit>
void for_each_lane(lanes const& batch, int begin, int end, Visit const& visit) {
  if (begin >= end) return;
  lane one = batch.at(begin);
  for (int i = begin; i < end; ++i, one = batch.after(one)) visit(i, one);
}
template <class Visit>
void for_each_lane(lanes const& batch, Visit const& visit) {
  for_each_lane(batch, 0, batch.size(), visit);
}

/// The same, and calls prepare(i, lane) twelve lanes before it calls visit: to prefetch what is all over memory.
template <class Prepare, class Visit>
void for_each_lane(lanes const& batch, int begin, int end, Prepare const& prepare, Visit const& visit) {
  int const ahead = end - begin < 12 ? end - begin : 12;
  for_each_lane(batch, begin, begin + ahead, prepare);
  lane later = begin + ahead < end ? batch.at(begin + ahead) : lane{};
  for_each_lane(batch, begin, end, [&](int i, lane one) {
    if (i + ahead < end) {
      prepare(i + ahead, later);
      later = batch.after(later);
    }
    visit(i, one);
  });
}

/// Calls visit(i, lane, heads) for the lanes [begin, end), where the lane is the i-th and the first of some heads of
/// one layer: at most `most`.
template <class Visit>
void for_each_heads(lanes const& batch, int begin, int end, int most, Visit const& visit) {
  lane one = begin < end ? batch.at(begin) : lane{};
  for (int i = begin; i < end;) {
    int some = batch.heads - one.head < most ? batch.heads - one.head : most;
    some = end - i < some ? end - i : some;
    visit(i, one, some);
    i += some;
    one.head += some - 1;
    one = batch.after(one);
  }
}

/// The rows of a table for heads of one layer, from that of a lane on. A short loop over heads reads many at a time.
template <class T>
class head_rows {
 public:
  head_rows(by_lane<T> const& table, lane first)
      : first_(table.data != nullptr ? table.row(first) : nullptr), step_(table.head) {}
  [[nodiscard]] T* operator[](int head) const { return first_ + head * step_; }

 private:
  T* first_;
  std::int64_t step_;
};

}  // namespace detail

/// Which lanes decide together and keep the same tokens: each lane alone (`lane`), the heads of a layer (`layer`), or
/// all layers and heads of a sequence (`sequence`, whose name in specs is `token`).
enum class granularity { lane, layer, sequence };

[[nodiscard]] constexpr std::array<char const*, 3> names(granularity) { return {"lane", "layer", "token"}; }

/// Which lanes share a budget: none (`lane`), the lanes of a layer (`layer`), or all lanes of a sequence
/// (`sequence`, whose name in specs is `global`).
enum class budget_scope { lane, layer, sequence };

[[nodiscard]] constexpr std::array<char const*, 3> names(budget_scope) { return {"lane", "layer", "global"}; }

/// The number of segments. A segment is a group of lanes that decide together: scores and keep sets have one row for
/// each segment.
[[nodiscard]] KVPOLICY_HD constexpr int segments(lanes const& batch, granularity decides) {
  if (decides == granularity::lane) return batch.size();
  return decides == granularity::layer ? batch.sequences * batch.layers() : batch.sequences;
}

/// The segment of the i-th lane.
[[nodiscard]] KVPOLICY_HD constexpr int segment_of(lanes const& batch, granularity decides, int i) {
  if (decides == granularity::lane) return i;
  return decides == granularity::layer ? i / batch.heads : i / (batch.heads * batch.layers());
}

/// The index of the first lane of a segment. Its count and positions are those of every lane of the segment.
[[nodiscard]] KVPOLICY_HD constexpr int first_lane(lanes const& batch, granularity decides, int segment) {
  if (decides == granularity::lane) return segment;
  return decides == granularity::layer ? segment * batch.heads : segment * batch.heads * batch.layers();
}

}  // namespace KVPOLICY_NAMESPACE
