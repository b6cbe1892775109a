// Applier: kept rows move to the front of their lane; keys keep the rotation of their positions.
#pragma once

#include <kvpolicy/layout/edit.hpp>
#include <kvpolicy/ops/gather_rows.hpp>

namespace KVPOLICY_NAMESPACE {

/// Shortens a lane by moving its kept rows together, in place. Logical positions are carried, so the next token's
/// position is still the sequence's length, not the number of rows: RoPE must be told positions. Every entry of a lane
/// has a place of its own: rows that two entries or two sequences share must not be moved.
struct compact {
  static constexpr auto name = "compact";
  static constexpr auto fields() { return std::tuple{}; }
  friend bool operator==(compact const&, compact const&) = default;
};

/// Carries a keep set out: rows of K and V, positions and recorded columns move together, counts follow.
///
/// - in: `plan`, of the latest decide; `cache`, the lanes that it decided for among them. Decides nothing.
/// - slots: entry i of a lane stays at the lane's i-th place; places from the new count on are the engine's to free.
/// - out: `told`, where not null, in the executor's memory: what is kept, free and attended.
/// - cost: reads and writes each kept row that changes place once. No allocation.
/// - throws: `invalid_argument` if the plan holds no decision, was made for other counts, or a shared table would be
///   edited by lanes that decide apart. Then nothing was changed.
template <executor Executor>
void apply(Executor& exec, compact, plan<Executor> const& decided, cache& in, state<Executor>& held,
           tally* told = nullptr) {
  keep_set const& keep = decided.keep();
  cache const part = detail::decided_part(exec, decided, in, held);
  detail::refuse_rows_of_both<typename Executor::backend>("apply", part);
  detail::tell_tails(exec, keep, part, told);
  ops::gather_rows(exec, keep, part, std::span<held_column const>(held.columns()));
  ops::set_counts(exec, part.who, keep);
  detail::tell_kept(exec, keep, part.who, false, told);
}

}  // namespace KVPOLICY_NAMESPACE
