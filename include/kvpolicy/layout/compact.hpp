// Applier: kept rows move to the front of their lane; keys keep the rotation of their positions.
#pragma once

#include <kvpolicy/core/check.hpp>
#include <kvpolicy/core/plan.hpp>
#include <kvpolicy/ops/entries.hpp>
#include <kvpolicy/ops/gather_rows.hpp>

namespace KVPOLICY_NAMESPACE {

/// Shortens a lane by moving its kept rows together, in place. Logical positions are carried, so the next token's
/// position is still the sequence's length, not the number of rows: RoPE must be told positions.
struct compact {
  static constexpr auto name = "compact";
  static constexpr auto fields() { return std::tuple{}; }
  friend bool operator==(compact const&, compact const&) = default;
};

namespace detail {

/// A table shared by lanes that decide apart would be moved twice, differently.
template <class T>
void refuse_shared(char const* name, by_lane<T> const& table, keep_set const& keep, shape const& model) {
  bool const whole = keep.who.layers() == model.layers;
  bool const all_layers = whole && (keep.decides == granularity::token || model.layers == 1);
  bool const all_heads = keep.decides != granularity::lane || keep.who.heads == 1;
  expects(table.layer != 0 || all_layers, "apply", name, "shared by layers", "these layers decide apart");
  expects(table.head != 0 || all_heads, "apply", name, "shared by heads", "these heads decide apart");
  expects(table.sequence != 0 || keep.who.sequences == 1, "apply", name, "shared by sequences",
          "sequences hold different entries");
}

}  // namespace detail

/// Carries a keep set out: rows of K and V, positions and recorded columns move together, counts follow.
///
/// - in: `plan`, of the latest decide; `cache`, the lanes that it decided for among them. Decides nothing.
/// - slots: entry i of a lane stays at the lane's i-th place; places from the new count on are the engine's to free.
/// - cost: reads and writes each kept row that changes place once. No allocation.
/// - throws: `invalid_argument` if the plan holds no decision, was made for other counts, or a shared table would be
///   edited by lanes that decide apart. Then nothing was changed.
template <executor Executor>
void apply(Executor& exec, compact, plan<Executor> const& decided, cache& in, state<Executor>& held) {
  keep_set const& keep = decided.keep();
  expects(keep.ordinal != nullptr, "apply", "plan", "empty", "decide comes before apply");
  expects(keep.lists == side::kept && keep.of == unit::token, "apply", "plan.keep", "dropped entries or pages",
          "compact moves the tokens that are kept");
  detail::check_cache("apply", in);
  detail::check_same_lanes("apply", "plan.who", keep.who, in.who);
  detail::check_same_lanes("apply", "cache.who", in.who, held.who());
  cache decided_part = in;
  decided_part.who = in.who.layers_only(keep.who.layer_begin, keep.who.layer_end);
  detail::refuse_shared("who.count", in.who.count, keep, in.shape);
  detail::refuse_shared("who.position", in.who.position, keep, in.shape);
  ops::refuse_stale(exec, decided_part.who, keep);
  ops::gather_rows(exec, keep, decided_part, std::span<held_column const>(held.columns()));
  ops::set_counts(exec, decided_part.who, keep);
}

}  // namespace KVPOLICY_NAMESPACE
