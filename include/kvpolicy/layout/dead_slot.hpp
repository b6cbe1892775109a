// SPDX-License-Identifier: Apache-2.0
// Applier: redirects dropped positions of the engine's map to one reserved slot. The map keeps its length.
#pragma once

#include <cmath>
#include <kvpolicy/layout/applier.hpp>
#include <kvpolicy/ops/fill_row.hpp>

namespace KVPOLICY_NAMESPACE {

/// IntentKV's layout (arXiv:2606.09916, section 3.4 and appendix C). The engine's map from positions to slots names the
/// dead slot for every dropped position. The map's length, the positions, the token ids and the rows of kept entries
/// stay bit for bit the same, so that a prefix cache continues to match. The lane's live list, its positions and its
/// count shrink. Slots without a reference are freed.
///
/// Attention must not count the dead slot. An engine can ensure this in three ways, the best first:
/// 1. *strip*: attention reads `list`, which names the live slots only and is shortened by the same pass;
/// 2. *mask*: attention reads the map and a mask beside it (`kv::mask`);
/// 3. *correct*: the slot's rows are zeros, and the output is corrected with the LSE (`kv::without_dead`).
/// A large negative key (`kv::poison`) is an additional defence beside 1 or 2 and never a guarantee: its logit is
/// -1e4 (sum of q) / sqrt(D), which is a large positive number when that sum is negative.
///
/// - cost: one pass checks the map and the list, a second one redirects the dropped positions and shortens the list. No
///   allocation.
/// - a slot is freed at most once, and never if it is the dead slot, locked, shared, or the slot of a kept entry.
/// - refuses everything that `list_rewrite` refuses; a dead slot outside the pool; a live entry or a protected position
///   at the dead slot; a protected position that would be dropped; and a map that differs from the list (call `relist`
///   after a prefix tree has rewritten the map).
template <class Shared = nobody>
struct dead_slot {
  by_lane<int> list{};             ///< the live slots: the table that the cache's locator reads, as writable memory
  by_lane<int> map{};              ///< the engine's slot of every position, as writable memory
  by_lane<int const> map_begin{};  ///< where a lane's positions begin in its row of the map; null: at 0
  int dead = 0;                    ///< the reserved slot
  by_lane<int const> protected_prefix{};  ///< positions below it are protected and never redirected; null: none
  by_lane<int const>
      locked_prefix{};   ///< slots of positions below it belong to a prefix tree and are never freed; null: none
  Shared shared{};       ///< KVPOLICY_HD bool(int slot): true if another owner uses the slot; it is never freed
  unit_list freed{};     ///< out: slots to free, each once; `capacity` ints for each row of the list
  unit_list released{};  ///< out: shared or locked slots that this sequence no longer uses

  static constexpr auto name = "dead_slot";
  static constexpr applier_effects effects{.edits_list = true, .redirects = true};
  using verbs = kvpolicy::verbs<ops::check_list_t, ops::rewrite_list_t>;

  template <executor Executor>
  void refuse(Executor& exec, keep_set const& keep, cache const& in) const {
    expects(dead >= 0 && dead < in.where.units, "apply", "dead", dead,
            [&] { return "the pool has " + std::to_string(in.where.units) + " slots"; });
    expects(map.data != nullptr, "apply", "map", "null", "positions are redirected in the engine's map");
    detail::refuse_list(exec, edited(), keep, in);
  }

  template <executor Executor>
  void edit(Executor& exec, keep_set const& keep, cache const& part, state<Executor>& state, apply_stats* stats) const {
    detail::edit_list(exec, edited(), keep, part, state, false, stats);
  }

 private:
  [[nodiscard]] constexpr list_edit<Shared> edited() const {
    return {.list = list,
            .map = map,
            .map_begin = map_begin,
            .dead = dead,
            .protected_prefix = protected_prefix,
            .locked_prefix = locked_prefix,
            .shared = shared,
            .freed = freed,
            .released = released};
  }
};

/// Makes the list and the map of one sequence agree after a prefix tree has rewritten the map. Live entries get the
/// slots that the map now names. Dead positions stay dead, whatever slots the tree gave them; those slots belong to the
/// tree.
///
/// - in: `length` is the number of positions of the sequence so far.
/// - out: the list receives the map's slots of live entries, and the map receives the dead slot at dead positions.
/// - throws: `invalid_argument` if the slot of a live entry is the dead slot or outside the pool, or if lanes that
/// share
///   a row of the list hold other tokens. Then nothing was changed.
template <executor Executor, class Shared>
void relist(Executor& exec, dead_slot<Shared> const& how, cache const& in, int sequence, int length) {
  detail::check_cache("relist", in);
  detail::check_sequence("relist", in.lanes, sequence);
  expects(how.map.data != nullptr, "relist", "map", "null", "live entries take their slots from it");
  detail::check_same_table("relist", "list", how.list, in.where.table);
  expects(how.dead >= 0 && how.dead < in.where.units, "relist", "dead", how.dead,
          [&] { return "the pool has " + std::to_string(in.where.units) + " slots"; });
  expects(length >= 0, "relist", "length", length, "a count cannot be negative");
  detail::refuse_other_sharers<typename Executor::backend>("relist", in.lanes.sequences_only(sequence, sequence + 1),
                                                           detail::rows_of(in.where, how.list));
  ops::relist(exec, in, how.list, how.map, how.map_begin, how.dead, sequence, length);
}

/// Removes `dead` entries, whose key and value rows are zeros, from the output of attention. Each of them added exp(0)
/// to the softmax denominator and nothing to the numerator.
struct without_dead {
  int dead = 0;
  /// The factor to multiply the output by. `lse` is the log-sum-exp of the row's scaled logits, dead entries included.
  /// The error of the output grows by the same factor, so use it with fp32 outputs and few dead entries. It is 0 if the
  /// live entries' part of the denominator is at most 1e-6.
  [[nodiscard]] KVPOLICY_HD float scale(float lse) const {
    float const live = 1.0f - dead_fraction(lse);
    return live > 1e-6f ? 1.0f / live : 0.0f;
  }
  /// The log-sum-exp of the live entries alone.
  [[nodiscard]] KVPOLICY_HD float lse(float with_dead) const { return with_dead + ::log1pf(-dead_fraction(with_dead)); }

 private:
  /// The dead entries' part of the softmax denominator.
  [[nodiscard]] KVPOLICY_HD float dead_fraction(float lse) const { return static_cast<float>(dead) * ::expf(-lse); }
};

/// Writes zeros into a slot's keys and values, in every layer and head. `without_dead` corrects for such a slot.
template <executor Executor>
void blank(Executor& exec, cache const& in, int slot) {
  ops::fill_row(exec, in, place{slot, 0}, 0.0f, 0.0f);
}

/// Writes -1e4 into a slot's keys (-9984 in bf16, the nearest value) and zeros into its values, in every layer and
/// head. It is an additional defence only: see `dead_slot`.
template <executor Executor>
void poison(Executor& exec, cache const& in, int slot) {
  ops::fill_row(exec, in, place{slot, 0}, -1e4f, 0.0f);
}

}  // namespace KVPOLICY_NAMESPACE
