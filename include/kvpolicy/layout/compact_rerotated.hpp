// Applier: kept rows move together and turn to new positions, as if the dropped tokens had never been.
#pragma once

#include <kvpolicy/layout/edit.hpp>
#include <kvpolicy/ops/gather_rows.hpp>
#include <kvpolicy/ops/rerotate.hpp>

namespace KVPOLICY_NAMESPACE {

/// compact, and then each key turns from its position to its ordinal (StreamingLLM, arXiv:2309.17453, section 3.2). The
/// next token's position is the number of entries, so all lanes of a sequence keep equally many.
///
/// What is tied to phases is void afterwards: recorded query rows are dropped. Every turn rounds to the plane's type,
/// so many turns of one key drift; positions that do not change are not touched.
struct compact_rerotated {
  kvpolicy::rope rope{};

  static constexpr auto name = "compact_rerotated";
  static constexpr auto fields() { return std::tuple{field{"", &compact_rerotated::rope}}; }
  friend bool operator==(compact_rerotated const&, compact_rerotated const&) = default;
};

/// As apply of compact; and keys and positions of the kept entries and the drafts are those of 0 .. count - 1.
///
/// - throws: also `invalid_argument` if the keys are opaque, the rope does not fit, some layers only were decided, or
///   lanes of a sequence keep different numbers of entries. Then nothing was changed.
template <executor Executor>
void apply(Executor& exec, compact_rerotated const& how, plan<Executor> const& decided, cache& in,
           state<Executor>& held, tally* told = nullptr) {
  keep_set const& keep = decided.keep();
  cache const part = detail::decided_part(exec, decided, in, held);
  detail::refuse_rows_of_both<typename Executor::backend>("apply", part);
  expects(keep.who.layers() == in.shape.layers, "apply", "plan.who.layers", keep.who.layers(),
          [&] { return "all " + std::to_string(in.shape.layers) + " layers go on at one position"; });
  expects(exec.reserved() >= detail::rerotate_scratch<typename Executor::backend>(in), "apply", "exec",
          "an executor without scratch for this cache", "plan and state are made on the executor that runs them");
  ops::rerotate_t::check(part.who, part, how.rope);
  using turning = implementation<ops::rerotate_t, typename Executor::backend>;
  if constexpr (requires { turning::refuse(part); }) turning::refuse(part);
  ops::refuse_ragged(exec, part.who, keep);
  detail::tell_tails(exec, keep, part, told);
  ops::gather_rows(exec, keep, part, std::span<held_column const>(held.columns()));
  ops::set_counts(exec, part.who, keep);
  ops::rerotate(exec, part.who, part, how.rope);
  for (int s = 0; s < in.who.sequences; ++s) held.forget(exec, in.who, s, 0);
  detail::tell_kept(exec, keep, part.who, false, told);
}

}  // namespace KVPOLICY_NAMESPACE
