// SPDX-License-Identifier: Apache-2.0
// The memory of the replayed engine: the mapped file, and the tables that locate entries.
#pragma once

#include <algorithm>
#include <list>
#include <utility>

#include "options.hpp"
#include "results.hpp"
#include "trace.hpp"

namespace kvreplay {

/// K and V in the mapped trace, in the layout of the command line. A lane is a contiguous range of rows, or a list of
/// slots that never move. With a dead slot all lanes have one list.
class memory {
 public:
  memory(layout lay, trace& of, kv::basic_any_applier<executor> own = {})
      : lay_(lay),
        own_(std::move(own)),
        trace_(of),
        lanes_(of.shape().layers * of.shape().kv_heads),
        rows_(shared() ? 1 : lanes_),
        count_(size(rows_)),
        position_(size(rows_) * size(of.entries())) {
    make_planes();
    if (listed()) make_tables();
  }

  [[nodiscard]] bool shared() const { return lay_ == layout::dead_slot; }
  [[nodiscard]] bool listed() const {
    return lay_ == layout::dead_slot || lay_ == layout::mask || lay_ == layout::own_list;
  }
  /// True if the layout moves rows. Layers can then be applied one after another, and their memory given back.
  [[nodiscard]] bool moves() const { return !listed(); }
  [[nodiscard]] int lanes() const { return lanes_; }

  /// The cache as appliers edit it. A dead slot is an additional slot without a row in the trace, so the planes are
  /// never read then.
  [[nodiscard]] kv::cache view() {
    std::int64_t const entries = trace_.entries();
    kv::cache made{.shape = trace_.shape(),
                   .lanes = {.layer_end = trace_.shape().layers,
                             .heads = trace_.shape().kv_heads,
                             .capacity = trace_.entries(),
                             .count = {count_.data(), 0, layer_rows(), head_rows()},
                             .position = {position_.data(), 0, entries * layer_rows(), entries * head_rows()}},
                   .k = k_,
                   .v = v_,
                   .where = kv::identity_map(trace_.entries()),
                   .logits = trace_.logits()};
    if (!listed()) return made;
    made.where = kv::slot_map({list_.data(), 0, entries * layer_rows(), entries * head_rows()}, entries);
    for (kv::plane* const rows : {&made.k, &made.v}) rows->unit_stride = std::exchange(rows->token_stride, 0);
    if (shared()) ++made.where.units;
    if (shared()) name_only(made);
    return made;
  }

  /// One layer as a cache of its own, for lanes of contiguous rows.
  [[nodiscard]] kv::cache view_of_layer(int layer) {
    kv::cache made = view();
    made.shape.layers = made.lanes.layer_end = 1;
    made.k.base += layer * made.k.layer_stride;
    made.v.base += layer * made.v.layer_stride;
    if (made.logits.sinks.data != nullptr) made.logits.sinks.data += layer * made.logits.sinks.layer;
    made.lanes.count.data += layer * made.lanes.count.layer;
    made.lanes.position.data += layer * made.lanes.position.layer;
    return made;
  }

  /// Keys or values by ordinal, as a signal.
  [[nodiscard]] kv::row_view rows(bool keys) {
    kv::plane rows = keys ? k_ : v_;
    if (listed()) rows.unit_stride = std::exchange(rows.token_stride, 0);
    return {rows, view().where};
  }

  /// The address of an entry's row.
  [[nodiscard]] std::byte const* row(bool keys, kv::lane this_lane, int ordinal) const {
    kv::plane const& rows = keys ? k_ : v_;
    int const token =
        listed() ? list_[size(this_lane.layer * layer_rows() + this_lane.head * head_rows()) * size(trace_.entries()) +
                         size(ordinal)]
                 : ordinal;
    return rows.row(this_lane.layer, {0, token}, this_lane.head);
  }
  [[nodiscard]] kv::plane const& plane(bool keys) const { return keys ? k_ : v_; }
  [[nodiscard]] kv::codec element(bool keys) const { return plane(keys).element; }
  [[nodiscard]] int count(kv::lane this_lane) const {
    return count_[size(this_lane.layer * layer_rows() + this_lane.head * head_rows())];
  }

  /// The number of entries of all lanes that have arrived and whose memory is free again.
  [[nodiscard]] std::int64_t freed() const {
    if (lay_ == layout::mask) return 0;
    std::int64_t held = 0;
    for (int row = 0; row < rows_; ++row) {
      std::int64_t const count = count_[size(row)];
      held += lay_ == layout::lane_pages ? (count + page_tokens - 1) / page_tokens * page_tokens : count;
    }
    return std::max<std::int64_t>(0, std::int64_t{lanes_} * arrived_ - held * (lanes_ / rows_));
  }

  /// Appends the entries [from, to) of the trace to every lane, and moves their rows to the lane's end if necessary.
  void place(int from, int to) {
    std::int64_t const entries = trace_.entries();
    arrived_ = to;
    for (int row = 0; row < rows_; ++row) {
      int const count = count_[size(row)];
      if (!listed() && count == from) continue;
      kv::lane const this_lane{0, row / trace_.shape().kv_heads, row % trace_.shape().kv_heads};
      for (int e = from; e < to; ++e) {
        if (listed()) list_[size(row * entries + count + e - from)] = e;
        if (shared()) map_[size(trace_.positions[size(e)])] = e;
        if (listed()) continue;
        copy_row(k_, this_lane, e, count + e - from);
        copy_row(v_, this_lane, e, count + e - from);
      }
    }
  }

  /// Applies the plan's decision to rows, lists or masks, and to counts.
  void apply(executor& exec, kv::plan<executor> const& plan, kv::cache& now, kv::state<executor>& state,
             kv::apply_stats* stats) {
    std::int64_t const entries = trace_.entries();
    std::int64_t const row = (entries + 31) / 32 * 4;
    switch (lay_) {
      case layout::compact:
      case layout::lane_pages:
        return kv::apply(exec, kv::compact{}, plan, now, state, stats);
      case layout::compact_rerotated:
        return kv::apply(exec, kv::compact_rerotated{trace_.rope()}, plan, now, state, stats);
      case layout::dead_slot:
        return kv::apply(exec,
                         kv::dead_slot<>{.list = list(),
                                         .map = {map_.data()},
                                         .dead = trace_.entries(),
                                         .freed = {{freed_.data()}, {&freed_count_}}},
                         plan, now, state, stats);
      case layout::own:
        return apply_own(exec, own_, plan, now, state, stats);
      case layout::own_list:
        return apply_own(exec, own_.on_list(list()), plan, now, state, stats);
      case layout::mask:
        kv::mask_rows const rows{{mask_.data(), 0, row * trace_.shape().kv_heads, row}, kv::mask_form::bits, entries};
        return kv::apply(exec, kv::mask{list(), rows}, plan, now, state, stats);
    }
  }

  /// Refuses what an applier has left in a lane, if it is not what `held` says: ordinals of the trace, in their order.
  void expect_held(kv::lane this_lane, std::vector<int> const& held) const {
    int const count = this->count(this_lane);
    auto const where = [&] {
      return " in layer " + std::to_string(this_lane.layer) + ", head " + std::to_string(this_lane.head);
    };
    kv::expects(count == std::ssize(held), "kvreplay", "--layout", own_.name(), [&] {
      return "it left " + std::to_string(count) + " entries" + where() + ", where the decision keeps " +
             std::to_string(held.size());
    });
    int const* const position =
        position_.data() + (this_lane.layer * layer_rows() + this_lane.head * head_rows()) * trace_.entries();
    for (int e = 0; e < count; ++e) {
      kv::expects(position[e] == trace_.positions[size(held[size(e)])], "kvreplay", "--layout", own_.name(), [&] {
        return "the entries that it left" + where() + " are others than the decision keeps, or in another order";
      });
    }
  }

 private:
  /// Applies by an applier of a plugin. Whatever it throws is said of it.
  static void apply_own(executor& exec, kv::basic_any_applier<executor> const& by, kv::plan<executor> const& plan,
                        kv::cache& now, kv::state<executor>& state, kv::apply_stats* stats) {
    std::string said = "it throws what is no exception";
    try {
      return kv::apply(exec, by, plan, now, state, stats);
    } catch (kv::invalid_argument const&) {
      throw;
    } catch (std::exception const& thrown) {
      said = thrown.what();
    } catch (...) {
    }
    throw kv::invalid_argument(said);
  }

  /// Makes the planes. If the trace has no rows, they point to unused bytes.
  void make_planes() {
    auto const plane_of = [&](array const& from, int dims) {
      if (!from) return kv::plane{.element = kv::codec::opaque, .channels = 1};
      return kv::plane{.base = from.data,
                       .element = from.element,
                       .channels = dims,
                       .layer_stride = from.stride(0),
                       .token_stride = from.stride(2),
                       .head_stride = from.stride(1),
                       .channel_stride = kv::bytes_of(from.element)};
    };
    k_ = plane_of(trace_.keys, trace_.shape().head_dim);
    v_ = plane_of(trace_.values, trace_.value_dim());
    for (kv::plane* const rows : {&k_, &v_}) {
      if (rows->base != nullptr) continue;
      std::vector<std::byte>& made = nothing_.emplace_back(size(std::int64_t{lanes_} * trace_.entries()));
      rows->base = made.data();
      rows->token_stride = 1;
      rows->channel_stride = 1;
      rows->head_stride = trace_.entries();
      rows->layer_stride = std::int64_t{trace_.entries()} * trace_.shape().kv_heads;
    }
  }

  void make_tables() {
    int const entries = trace_.entries();
    list_.resize(size(rows_) * size(entries));
    if (lay_ == layout::mask) mask_.assign(size(lanes_) * size((entries + 31) / 32 * 4), std::byte{0xFF});
    if (!shared()) return;
    freed_.resize(size(entries));
    kv::expects(trace_.positions.back() < 2LL * entries + (1 << 20), "kvreplay", "tensor positions",
                trace_.positions.back(), "a map of positions would be far longer than the trace");
    map_.assign(size(trace_.positions.back()) + 1, entries);
  }

  [[nodiscard]] std::int64_t layer_rows() const { return shared() ? 0 : trace_.shape().kv_heads; }
  [[nodiscard]] std::int64_t head_rows() const { return shared() ? 0 : 1; }
  [[nodiscard]] kv::by_lane<int> list() {
    std::int64_t const entries = trace_.entries();
    return {list_.data(), 0, entries * layer_rows(), entries * head_rows()};
  }

  /// Makes planes with one more slot than the trace has rows. Appliers of lists check planes, but do not read them.
  static void name_only(kv::cache& of) {
    static std::byte nothing[2];
    static std::byte* bases[2] = {&nothing[0], &nothing[1]};
    for (int i = 0; i < 2; ++i) {
      kv::plane& rows = i == 0 ? of.k : of.v;
      std::int64_t const row = 2 * std::int64_t{rows.channels} * kv::bytes_of(rows.element);
      rows = {.element = rows.element,
              .channels = rows.channels,
              .layer_stride = row * of.where.units * of.shape.kv_heads,
              .unit_stride = row,
              .head_stride = row * of.where.units,
              .channel_stride = kv::bytes_of(rows.element),
              .bases = {&bases[i]}};
    }
  }

  static void copy_row(kv::plane const& rows, kv::lane this_lane, int from, int to) {
    std::memcpy(rows.row(this_lane.layer, {0, to}, this_lane.head),
                rows.row(this_lane.layer, {0, from}, this_lane.head),
                size(std::int64_t{rows.channels} * kv::bytes_of(rows.element)));
  }

  static constexpr int page_tokens = 16;  ///< the page size of the layout lane_pages

  layout lay_;
  kv::basic_any_applier<executor> own_;  ///< of a plugin's layout
  trace& trace_;
  int lanes_;
  int rows_;  ///< the rows of the tables: one for each lane, or one for all
  std::vector<int> count_, position_;
  std::vector<int> list_, map_, freed_;
  int freed_count_ = 0;
  int arrived_ = 0;  ///< the entries of each lane that have arrived so far
  std::vector<std::byte> mask_;
  std::list<std::vector<std::byte>> nothing_;
  kv::plane k_, v_;
};

}  // namespace kvreplay
