// Applier: dropped positions are redirected to one reserved slot; nothing else about the sequence changes.
#pragma once

#include <cmath>
#include <kvpolicy/layout/applier.hpp>
#include <kvpolicy/ops/fill_row.hpp>

namespace KVPOLICY_NAMESPACE {

/// IntentKV's layout (arXiv:2606.09916, section 3.4 and appendix C): the engine's map of positions names the dead slot
/// for what was dropped, and length, positions, token ids and surviving rows are bit for bit what they were, so that a
/// prefix cache goes on matching. Slots that nobody refers to any more are handed back.
///
/// A dead slot is dead only if attention does not count it. In order of preference an engine
/// 1. *strips*: attention reads `list`, the live slots only, which the same pass shortens;
/// 2. *masks*: attention reads the map and a mask beside it (`kv::mask`);
/// 3. *corrects*: the slot's rows are zeros and the output is corrected by the LSE (`kv::without_dead`).
/// A large negative key (`kv::poison`) is defence in depth beside 1 or 2 and never the guarantee: its logit is
/// -1e4 (sum of q) / sqrt(D), which is hugely positive when that sum is negative.
///
/// - one pass redirects the dropped positions and shortens the live list, after one that checks both. No allocation.
/// - a slot is freed at most once, and never if it is the dead slot, locked, shared, or still that of a kept entry.
/// - refuses what list_rewrite refuses, a dead slot out of the pool, a live entry or a protected position at it, a
///   protected position that would be dropped, and a map and a list that differ (`relist` after a prefix tree has
///   rewritten the map).
template <class Shared = nobody>
struct dead_slot {
  by_lane<int> list{};             ///< the live list: the table of the cache's locator, to be written
  by_lane<int> map{};              ///< the engine's slot of every position, to be written
  by_lane<int const> map_begin{};  ///< where a lane's positions begin in its row of the map; null: at 0
  int dead = 0;                    ///< the reserved slot
  by_lane<int const> prefix{};     ///< positions before it are protected: never redirected; null: none
  by_lane<int const> locked{};     ///< slots of positions before it belong to a prefix tree: never freed; null: none
  Shared shared{};       ///< KVPOLICY_HD bool(int slot): another owner refers to it; such a slot is never freed
  unit_list freed{};     ///< out: slots to give back, each once; `bound` ints a row of the list
  unit_list released{};  ///< out: shared or locked slots that this sequence does not refer to any more

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
            .prefix = prefix,
            .locked = locked,
            .shared = shared,
            .freed = freed,
            .released = released};
  }
};
static_assert(applier<dead_slot<>>);

/// After a prefix tree has rewritten the map: live entries take their slots from it, and positions that are dead stay
/// dead, whatever slots the tree gave them (those are the tree's).
///
/// - in, out: the list takes the map's slots; the map's dead positions the dead slot. `length`: positions of each
///   sequence so far.
/// - throws: `invalid_argument` if a live entry's position is at the dead slot or out of the pool. Then nothing was
///   changed.
template <executor Executor, class Shared>
void relist(Executor& exec, dead_slot<Shared> const& how, cache const& in, int sequence, int length) {
  detail::check_cache("relist", in);
  expects(sequence >= 0 && sequence < in.lanes.sequences, "relist", "sequence", sequence,
          [&] { return "the batch has " + std::to_string(in.lanes.sequences) + " sequences"; });
  expects(how.map.data != nullptr, "relist", "map", "null", "live entries take their slots from it");
  expects(how.list.data != nullptr && how.list.data == in.where.table.data, "relist", "list", "another table",
          "it is the table that the cache's locator reads, to be written");
  expects(how.dead >= 0 && how.dead < in.where.units, "relist", "dead", how.dead,
          [&] { return "the pool has " + std::to_string(in.where.units) + " slots"; });
  expects(length >= 0, "relist", "length", length, "a count cannot be negative");
  ops::relist(exec, in, how.list, how.map, how.map_begin, how.dead, sequence, length);
}

/// What a layer's attention is without `dead` entries whose key and value rows are zeros: each added exp(0) to the
/// denominator and nothing to the numerator.
struct without_dead {
  int dead = 0;
  /// What the output is multiplied by, given the log-sum-exp of the row's scaled logits, dead ones included. The error
  /// of the output grows by the same factor: fp32 outputs and few dead entries only. 0 if nothing else was attended to,
  /// or so little that a float cannot tell.
  [[nodiscard]] KVPOLICY_HD float scale(float lse) const {
    float const live = 1.0f - share(lse);
    return live > 1e-6f ? 1.0f / live : 0.0f;
  }
  /// The log-sum-exp of the live entries alone.
  [[nodiscard]] KVPOLICY_HD float lse(float with_dead) const { return with_dead + ::log1pf(-share(with_dead)); }

 private:
  [[nodiscard]] KVPOLICY_HD float share(float lse) const { return static_cast<float>(dead) * ::expf(-lse); }
};

/// Writes zeros into a slot's keys and values, in every layer and head: what `without_dead` corrects for.
template <executor Executor>
void blank(Executor& exec, cache const& in, int slot) {
  ops::fill_row(exec, in, place{slot, 0}, 0.0f, 0.0f);
}

/// Writes -1e4 into a slot's keys and zeros into its values: defence in depth, see dead_slot. bf16 holds -9984.
template <executor Executor>
void poison(Executor& exec, cache const& in, int slot) {
  ops::fill_row(exec, in, place{slot, 0}, -1e4f, 0.0f);
}

}  // namespace KVPOLICY_NAMESPACE
