// Applier: moves kept rows together and rotates their keys to new positions, as if the dropped tokens had never
// existed.
#pragma once

#include <kvpolicy/layout/applier.hpp>
#include <kvpolicy/ops/gather_rows.hpp>
#include <kvpolicy/ops/rerotate.hpp>

namespace KVPOLICY_NAMESPACE {

/// Compacts as `compact` does, and then rotates each key from its position to its ordinal (StreamingLLM,
/// arXiv:2309.17453, section 3.2). The next token's position is then the number of entries, so all lanes of a sequence
/// must keep the same number.
///
/// `rope` must be the rotary embedding that the keys were computed with; this cannot be checked. An embedding that
/// scales its frequencies is given as a table of frequencies (`rope.frequency`).
///
/// Recorded query rows are removed, because they are rotated to old positions. Each rotation rounds to the plane's
/// element type, so errors accumulate if a key is rotated many times. Keys whose position does not change are not
/// touched.
///
/// Of a latent cache only the channels that are no values turn (the RoPE part of MLA's rows).
///
/// - refuses opaque and fp8 keys, rows that are keys and values in another way than those of a latent cache, a rope
/// that
///   does not fit, a decision about some layers only, and lanes of a sequence that keep different numbers of entries.
struct compact_rerotated {
  kvpolicy::rope rope{};

  static constexpr auto name = "compact_rerotated";
  static constexpr auto fields() { return make_fields(field{"", &compact_rerotated::rope}); }
  static constexpr applier_effects effects{.moves_rows = true, .rotates_keys = true};
  using verbs = kvpolicy::verbs<ops::gather_rows_t, ops::rerotate_t>;

  template <executor Executor>
  void refuse(Executor& exec, keep_set const& keep, cache const& in) const {
    expects(keep.lanes.layers() == in.shape.layers, "apply", "plan.lanes.layers", keep.lanes.layers(),
            [&] { return "all " + std::to_string(in.shape.layers) + " layers go on at one position"; });
    cache const part = detail::decided_part(in, keep);
    detail::refuse_unmovable_rows<typename Executor::backend>("apply", part);
    ops::rerotate_t::check(part.lanes, part, rope);
    using turning = implementation<ops::rerotate_t, typename Executor::backend>;
    if constexpr (requires { turning::refuse(part); }) turning::refuse(part);
    ops::refuse_ragged(exec, part.lanes, keep);
  }

  template <executor Executor>
  void edit(Executor& exec, keep_set const& keep, cache const& part, state<Executor>& state, apply_stats* stats) const {
    detail::count_tails(exec, keep, part, stats);
    ops::gather_rows(exec, keep, part, state.columns(part.lanes));
    ops::set_counts(exec, part.lanes, keep);
    ops::rerotate(exec, part.lanes, part, rope);
    for (int s = part.lanes.sequence_begin; s < part.lanes.sequence_end(); ++s) {
      state.forget(exec, part.lanes, s, 0);
      int const slot = detail::host_slot<typename Executor::backend>(part.lanes, s);
      if (slot >= 0) state.history().forget_rows(slot);  // the next position may be lower than those before
    }
    detail::count_listed(exec, keep, part.lanes, false, stats);
  }

  friend bool operator==(compact_rerotated const&, compact_rerotated const&) = default;
};

}  // namespace KVPOLICY_NAMESPACE
