// SPDX-License-Identifier: Apache-2.0
// Which units of a pool the rows of a table name, those of one call and those of the slots that it leaves out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <kvpolicy/core/cache.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <kvpolicy/ops/host/unit_marks.hpp>
#include <kvpolicy/ops/lists.hpp>
#include <kvpolicy/ops/units.hpp>
#include <span>

namespace KVPOLICY_NAMESPACE::detail {

/// The pools of units that the rows of a table refer to. Layers or heads whose planes have the same address share a
/// pool.
class unit_pools {
 public:
  template <class T>
  unit_pools(cache const& in, by_lane<T> const& table, lanes const& batch)
      : rows_(strides_of(rows_of(in.where, table))),
        of_layers_(in.k.layer_stride == 0 && in.k.bases.layer == 0 ? 1 : batch.layers()),
        of_heads_(in.k.head_stride == 0 && in.k.bases.head == 0 ? 1 : batch.heads),
        layers_apart_(of_layers_ > 1),
        heads_apart_(of_heads_ > 1) {}

  [[nodiscard]] int count() const { return of_layers_ * of_heads_; }
  /// True if every pool has the rows of one layer and head only.
  [[nodiscard]] bool of_single_lanes(lanes const& batch) const { return count() == batch.layers() * batch.heads; }

  /// Calls visit(lane) for each row of a pool: with the first of the lanes that share it.
  template <class Visit>
  void for_each_row(lanes const& batch, int pool, Visit const& visit) const {
    int const layer = layers_apart_ ? pool / of_heads_ : 0, head = heads_apart_ ? pool % of_heads_ : 0;
    for (int sequence = batch.sequence_begin; sequence < batch.sequence_end(); ++sequence) {
      for (int l = layer; l < (layers_apart_ ? layer + 1 : batch.layers()); ++l) {
        for (int h = head; h < (heads_apart_ ? head + 1 : batch.heads); ++h) {
          lane const one{sequence, batch.layer_begin + l, h};
          if (leads_row(rows_, batch, one)) visit(one);
        }
      }
    }
  }
  /// Calls visit(lane) for each lane that shares the row of its first one.
  template <class Visit>
  void for_each_sharing(lanes const& batch, lane owner, Visit const& visit) const {
    int const layer_end = rows_.layer == 0 ? batch.layer_end : owner.layer + 1;
    int const head_end = rows_.head == 0 ? batch.heads : owner.head + 1;
    for (int layer = owner.layer; layer < layer_end; ++layer) {
      for (int head = owner.head; head < head_end; ++head) visit(lane{owner.sequence, layer, head});
    }
  }
  /// The most units that a lane of a row uses. Counts of slots that no call is about need not be sound.
  [[nodiscard]] int units_of(cache const& in, lane owner) const {
    int most = 0;
    for_each_sharing(in.lanes, owner, [&](lane one) { most = std::max(most, *in.lanes.count.row(one)); });
    return (std::min(most, in.lanes.capacity) + in.where.unit_tokens - 1) / in.where.unit_tokens;
  }

 private:
  template <class T>
  static by_lane<int> strides_of(by_lane<T> const& of) {
    return {nullptr, of.sequence, of.layer, of.head};
  }
  by_lane<int> rows_;
  int of_layers_, of_heads_;
  bool layers_apart_, heads_apart_;
};

/// Writes a row of a unit_list. Without memory it only counts.
class unit_appender {
 public:
  unit_appender(unit_list const& to, lane this_lane)
      : to_(to.unit.data != nullptr ? to.unit.row(this_lane) : nullptr),
        num_listed_(to.count.data != nullptr ? to.count.row(this_lane) : nullptr) {}
  unit_appender(unit_appender const&) = delete;
  unit_appender& operator=(unit_appender const&) = delete;
  ~unit_appender() {
    if (num_listed_ != nullptr) *num_listed_ = count_;
  }
  void add(int unit) {
    if (to_ != nullptr) to_[count_] = unit;
    ++count_;
  }
  [[nodiscard]] std::int64_t count() const { return count_; }

 private:
  int* to_;
  int* num_listed_;
  int count_ = 0;
};

/// Finds out which of the units that the rows of a call give up nobody uses any more.
class abandoned_units {
 public:
  static std::size_t scratch(cache const& in) {
    return scratch_of<std::uint64_t>(unit_marks::words_for(in.where.units)) +
           scratch_of<std::uint64_t>(unit_marks::words_for(in.lanes.slot_total()));
  }
  abandoned_units(cache const& in, lanes const& batch, scratch_arena& arena)
      : in_(in),
        batch_(batch),
        pools_(in, in.where.table, batch),
        units_(static_cast<unsigned>(std::min(in.where.units, std::int64_t{1} << 31))),
        unused_(arena.take<std::uint64_t>(unit_marks::words_for(in.where.units))),
        called_(arena.take<std::uint64_t>(unit_marks::words_for(in.lanes.slot_total()))) {}

  [[nodiscard]] unit_pools const& pools() const { return pools_; }

  /// Calls visit(lane, units, take) for each row, where `units` are those that it gives up. take(unit) is true once for
  /// a unit that no row of the call uses afterwards, and no row of another slot.
  ///
  /// Cost: the units of the call; those of other slots if any unit is given up.
  template <class UnitsOf, class Visit>
  void for_each_row(UnitsOf const& units_of, Visit const& visit) {
    for (int pool = 0; pool < pools_.count(); ++pool) {
      bool any = false;
      pools_.for_each_row(batch_, pool, [&](lane one) { any = any || units_of(one).gone > 0; });
      if (any) mark(pool, units_of);
      pools_.for_each_row(batch_, pool, [&](lane one) {
        row_units const has = units_of(one);
        std::span<int const> const gone(in_.where.list(one) + has.kept, static_cast<std::size_t>(has.gone));
        visit(one, gone, [&](int unit) {
          if (!inside(unit)) return true;
          bool const unused = unused_.has(unit);
          unused_.clear(unit);
          return unused;
        });
      });
    }
  }

 private:
  template <class UnitsOf>
  void mark(int pool, UnitsOf const& units_of) {
    unused_.clear_all(in_.where.units);
    pools_.for_each_row(batch_, pool, [&](lane one) {
      row_units const has = units_of(one);
      int const* const named = in_.where.list(one);
      for (int i = has.kept; i < has.kept + has.gone; ++i) {
        if (inside(named[i])) unused_.set(named[i]);
      }
    });
    pools_.for_each_row(batch_, pool, [&](lane one) { use(in_.where, one, units_of(one).kept); });
    cache const all = of_all_slots(in_);
    if (all.lanes.sequences == batch_.sequences) return;
    called_.clear_all(all.lanes.sequences);
    for (int s = batch_.sequence_begin; s < batch_.sequence_end(); ++s) called_.set(slot_of(in_.lanes.slots, s));
    pools_.for_each_row(all.lanes, pool, [&](lane one) {
      if (!called_.has(one.sequence)) use(all.where, one, pools_.units_of(all, one));
    });
  }
  void use(locator const& where, lane one, int units) {
    int const* const named = where.list(one);
    for (int i = 0; i < units; ++i) {
      if (inside(named[i])) unused_.clear(named[i]);
    }
  }
  [[nodiscard]] bool inside(int unit) const { return static_cast<unsigned>(unit) < units_; }

  cache const& in_;
  lanes const& batch_;
  unit_pools pools_;
  unsigned units_;
  unit_marks unused_, called_;
};

}  // namespace KVPOLICY_NAMESPACE::detail
