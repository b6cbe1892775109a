// SPDX-License-Identifier: Apache-2.0
// Applier: moves kept rows together and rotates their keys to new positions, as if the dropped tokens had never
// existed.
#pragma once

#include <kvpolicy/layout/applier.hpp>
#include <kvpolicy/layout/key_turns.hpp>
#include <kvpolicy/ops/gather_rows.hpp>
#include <kvpolicy/ops/rerotate.hpp>
#include <kvpolicy/ops/units.hpp>
#include <string_view>
#include <vector>

namespace KVPOLICY_NAMESPACE {

/// Compacts as `compact` does, and then rotates each key from its position to its ordinal (StreamingLLM,
/// arXiv:2309.17453, section 3.2). The next token's position is then the number of entries, so all lanes of a sequence
/// must keep the same number.
///
/// `rope` must be the rotary embedding that the keys were computed with; this cannot be checked. An embedding that
/// scales its frequencies is given as a table of frequencies (`rope.frequency`).
///
/// Recorded query rows are removed, because they are rotated to old positions. Keys whose position does not change are
/// not touched. Of a latent cache only the channels that are no values turn (the RoPE part of MLA's rows).
///
/// Each turn rounds a key to the plane's element type, and a key that turns in every step would lose its digits. So
/// name this applier in `make_state` if keys have 16 bits: the state then keeps a copy of each key as it was first
/// written, and every turn begins from the copy. Without a copy such a key turns three times at most. The call that
/// would turn one again is refused; a trigger with slack, `over_budget{n}`, avoids it (StreamingLLM: n >= budget / 3).
/// A device cannot tell keys apart: there a slot without copies is applied three times, and a call that a graph replays
/// is not counted. After 20,000 tokens of StreamingLLM (budget 1,024, one token a step) keys are off by 0.0023 (bf16,
/// copies), 0.0003 (f16, copies) and 0.00001 (f32) of their length on average.
///
/// - refuses what `compact` refuses; opaque and fp8 keys, rows that are keys and values in another way than those of a
///   latent cache, a `rope` that does not fit, a decision about some layers only, lanes of a sequence that keep
///   different numbers of entries, and a fourth turn of a 16-bit key without a copy.
struct compact_rerotated {
  kvpolicy::rope rope{};

  static constexpr auto name = "compact_rerotated";
  static constexpr auto fields() { return make_fields(field{"", &compact_rerotated::rope}); }
  static constexpr applier_effects effects{.moves_rows = true, .rotates_keys = true};
  using verbs = kvpolicy::verbs<ops::gather_rows_t, ops::rerotate_t, ops::check_units_t, ops::free_tails_t>;

  /// The copies of 16-bit keys, and 1 + the position of each copy: see `first_keys`.
  [[nodiscard]] std::vector<column> columns(cache const& in) const {
    ops::rerotate_t::check(in.lanes, in, rope);
    if (!rounds(in)) return {};
    return {{.name = first_key, .bytes = bytes_of(in.k.element) * detail::turned_dims(in, rope)},
            {.name = "written_at"}};
  }

  template <executor Executor>
  void refuse(Executor& exec, keep_set const& keep, cache const& in, state<Executor> const& state) const {
    expects(keep.lanes.layers() == in.shape.layers, "apply", "plan.lanes.layers", keep.lanes.layers(),
            [&] { return "all " + std::to_string(in.shape.layers) + " layers go on at one position"; });
    cache const part = detail::decided_part(in, keep);
    detail::refuse_unmovable_rows<typename Executor::backend>("apply", part);
    ops::rerotate_t::check(part.lanes, part, rope);
    using turning = implementation<ops::rerotate_t, typename Executor::backend>;
    if constexpr (requires { turning::refuse(part); }) turning::refuse(part);
    ops::refuse_ragged(exec, part.lanes, keep);
    ops::check_units(exec, keep, part, true);
    if (rounds(part) && !copies(part, state).written.data) {
      detail::refuse_fourth_turn<typename Executor::backend>(keep, part, state.history());
    }
  }

  template <executor Executor>
  void edit(Executor& exec, keep_set const& keep, cache const& part, state<Executor>& state, apply_stats* stats) const {
    detail::count_freed_tails(exec, keep, part, stats);
    ops::gather_rows(exec, keep, part, state.columns(part.lanes));
    ops::set_counts(exec, part.lanes, keep);
    first_keys const first = copies(part, state);
    if (rounds(part) && !first.written.data) {
      detail::count_turns<typename Executor::backend>(part.lanes, state.history());
    }
    ops::rerotate(exec, part.lanes, part, rope, first);
    for (int s = part.lanes.sequence_begin; s < part.lanes.sequence_end(); ++s) {
      state.forget(exec, part.lanes, s, 0);
      int const slot = detail::host_slot<typename Executor::backend>(part.lanes, s);
      if (slot < 0) continue;
      state.history().forget_rows(slot);  // the next position may be lower than those before
      if constexpr (detail::reads_on_host<typename Executor::backend>) {  // a sequence that keeps nothing begins at 0
        if (*part.lanes.count.row({s, part.lanes.layer_begin, 0}) == 0) state.history().reset(slot);
      }
    }
    detail::count_what_stays(exec, keep, part.lanes, false, stats);
  }

  friend bool operator==(compact_rerotated const&, compact_rerotated const&) = default;

 private:
  static constexpr auto first_key = "first_key";

  /// True for keys of 16 bits.
  [[nodiscard]] static bool rounds(cache const& in) { return bytes_of(in.k.element) == 2; }

  /// The copies that the state keeps of keys of 16 bits; null if `make_state` was not given this applier.
  template <class State>
  [[nodiscard]] first_keys copies(cache const& part, State const& state) const {
    auto const& all = state.columns();
    for (std::size_t i = state.recorder_columns(); rounds(part) && i < all.size(); ++i) {
      if (all[i].about.name != std::string_view(first_key)) continue;
      int const kept = all[i].about.bytes / bytes_of(part.k.element);
      int const dims = detail::turned_dims(part, rope);
      expects(kept == dims, "apply", "rope.dims", dims,
              [&] { return "make_state was given one that turns " + std::to_string(kept) + " channels"; });
      recorded_columns const found = state.columns_from(i, part.lanes);
      return {found.template table<std::byte>(0), found.template table<int>(1)};
    }
    return {};
  }
};

}  // namespace KVPOLICY_NAMESPACE
