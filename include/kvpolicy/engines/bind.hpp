// SPDX-License-Identifier: Apache-2.0
// Checks that an engine can apply a policy with a layout, and binds the policy and the layout into one value.
#pragma once

#include <algorithm>
#include <concepts>
#include <kvpolicy/core/plan.hpp>
#include <kvpolicy/decision/concepts.hpp>
#include <kvpolicy/engines/capabilities.hpp>
#include <kvpolicy/engines/page_tables.hpp>
#include <kvpolicy/layout/applier.hpp>
#include <kvpolicy/ops/host/executor.hpp>
#include <string>
#include <type_traits>
#include <utility>

namespace KVPOLICY_NAMESPACE {
namespace engines {

/// A description of an engine's memory. Its static member `can` holds the engine's capabilities.
template <class E>
concept engine = requires {
  { E::can } -> std::convertible_to<capabilities>;
};

/// An applier. (In this namespace `applier` is the enumeration of the shipped ones.)
template <class L>
concept applier_of_engine = kvpolicy::applier<L>;

inline constexpr auto cannot_tell_apart =
    "this engine's tables cannot tell these lanes apart; lower the policy with reduce_lanes, or choose another layout";

namespace detail {

/// Refuses a budget that several separately deciding lanes share if the engine has one length for them: such lanes keep
/// different numbers of entries.
inline void check_budget(capabilities const& can, applier_effects by, granularity decides, budget_scope pooled) {
  bool const ragged = static_cast<int>(pooled) > static_cast<int>(decides);
  expects(
      !ragged || may_be_ragged(can, by, decides), "bind", "policy.budget",
      [&] { return "pooled by " + to_string(pooled); },
      [&] { return std::string(can.name) + " has one length for lanes that would keep different numbers of entries"; });
}

}  // namespace detail

/// Makes the same checks as `bind`, for a policy whose type is not known.
///
/// - in: the engine's capabilities; the granularity of the decision; `name` and `effects` of the applier, which need
///   not be a shipped one; the element type of the keys; the scope of the policy's budget.
/// - throws: `invalid_argument` if the engine does not support the applier, if its tables are coarser than the
///   decision, or if a shared budget would give lanes of one length different numbers of entries.
inline void check(capabilities const& can, granularity decides, char const* name, applier_effects effects,
                  codec keys = codec::f32, budget_scope pooled = budget_scope::lane) {
  char const* const why = refusal(can, effects, keys);
  expects(why == nullptr, "bind", "layout", name, [&] { return std::string(can.name) + ": " + why; });
  expects(decides >= finest(can, effects), "bind", "policy.decides", to_string(decides), cannot_tell_apart);
  detail::check_budget(can, effects, decides, pooled);
}

/// Makes the same checks for a shipped applier, given by its name.
///
/// - throws: also `invalid_argument` if there is no applier of that name.
inline void check(capabilities const& can, granularity decides, std::string_view layout, codec keys = codec::f32,
                  budget_scope pooled = budget_scope::lane) {
  std::optional<applier> const by = applier_named(layout);
  expects(by.has_value(), "bind", "layout", layout, "it is none of the appliers");
  check(can, decides, names(*by)[static_cast<std::size_t>(*by)], effects_of(*by), keys, pooled);
}

namespace detail {

/// A named struct, so that the compiler's error names the engine and the layout.
template <class Engine, class Layout>
struct layout_of_engine {
  static constexpr bool is_supported = supports(Engine::can, Layout::effects);
};

template <class Engine, class Layout, granularity Decides>
struct decision_in_engine {
  static constexpr bool is_told_apart = Decides >= finest(Engine::can, Layout::effects);
};

/// True if a scorer's granularity is a compile-time constant. That of `reduce_lanes` is a data member.
template <class Score>
concept decides_statically = !std::is_member_object_pointer_v<decltype(&Score::decides)>;

/// The number of entries that the i-th lane of a cache will hold after the keep set is applied. A lane of a layer that
/// the keep set does not cover keeps all entries.
inline int survivors(keep_set const& keep, cache const& in, applier_effects by, int i) {
  lane const this_lane = in.lanes.at(i);
  int const count = *in.lanes.count.row(this_lane);
  if (this_lane.layer < keep.lanes.layer_begin || this_lane.layer >= keep.lanes.layer_end) return count;
  int const committed = in.lanes.committed(this_lane);
  auto const kept = keep.listed(segment_of(keep.lanes, keep.decides, keep.lanes.index(this_lane)));
  if (!by.drops_blocks) return static_cast<int>(kept.size()) + count - committed;
  int const page = in.where.unit_tokens;
  int stay = 0;
  for (int block = 0; block * page < count; ++block) {
    if (block_stays(keep, in, this_lane, block)) stay += std::min(count - block * page, page);
  }
  return stay;
}

/// Refuses a plan in which lanes that share a length keep different numbers of entries. The host reads the keep sets.
inline void refuse_uneven(capabilities const& can, applier_effects by, keep_set const& keep, cache const& in) {
  for (int i = 0; i < in.lanes.size(); ++i) {
    lane first = in.lanes.at(i);
    first.head = 0;
    if (can.lengths == granularity::sequence) first.layer = in.lanes.layer_begin;
    int const mine = survivors(keep, in, by, i);
    int const other = survivors(keep, in, by, in.lanes.index(first));
    expects(
        mine == other, "apply", "plan.keep", [&] { return std::to_string(mine) + " entries of a lane"; },
        [&] {
          return std::string(can.name) + " has one length for this lane and another that keeps " +
                 std::to_string(other);
        });
  }
}

}  // namespace detail

/// The result of `bind`: a policy and a layout that can apply its decisions in this engine's memory. It is an applier
/// itself. If lanes that share a length in the engine keep different numbers of entries, `apply` refuses the plan.
template <engine Engine, class Policy, applier_of_engine Layout>
struct bound_policy {
  Policy policy{};
  Layout layout{};

  static constexpr capabilities const& can = Engine::can;
  static constexpr auto name = Layout::name;
  static constexpr applier_effects effects = Layout::effects;
  using verbs = decltype(kvpolicy::detail::verbs_of<Layout>());
  [[nodiscard]] std::vector<column> columns(cache const& in) const {
    return kvpolicy::detail::columns_of_applier(layout, in);
  }

  template <executor Executor>
  void refuse(Executor& exec, keep_set const& keep, cache const& in, state<Executor> const& state) const {
    granularity const decides = keep.lanes.layers() == in.lanes.layers() ? keep.decides : granularity::lane;
    if (!may_be_ragged(Engine::can, effects, decides)) {
      if constexpr (std::same_as<typename Executor::backend, host>) {
        detail::refuse_uneven(Engine::can, effects, keep, in);
      } else {
        ops::refuse_ragged(exec, in.lanes.layers_only(keep.lanes.layer_begin, keep.lanes.layer_end), keep);
      }
    }
    kvpolicy::detail::refuse_by(exec, layout, keep, in, state);
  }

  template <executor Executor>
  void edit(Executor& exec, keep_set const& keep, cache const& part, state<Executor>& state, apply_stats* stats) const {
    layout.edit(exec, keep, part, state, stats);
  }
};

/// Returns the policy and the layout as one value for `apply`, if this engine can apply the policy with the layout. A
/// misfit that the types show is a compile error. One that only values show (`reduce_lanes`, budgets) throws.
///
///     auto const how = kv::engines::bind<kv::engines::sglang>(policy, kv::list_rewrite{.list = rows});
///     kv::apply(exec, how, plan, cache, state);
///
/// - throws: `invalid_argument` in the cases of `check`.
template <engine Engine, entry_decision Policy, applier_of_engine Layout>
[[nodiscard]] constexpr bound_policy<Engine, Policy, Layout> bind(Policy policy, Layout layout) {
  using score = std::remove_cvref_t<decltype(policy.score)>;
  constexpr bool supported = detail::layout_of_engine<Engine, Layout>::is_supported;
  static_assert(
      detail::layout_of_engine<Engine, Layout>::is_supported,
      "kvpolicy: this engine does not support that layout; engines::refusal says why, docs/engines.md which it does");
  if constexpr (supported && detail::decides_statically<score>) {
    static_assert(
        detail::decision_in_engine<Engine, Layout, score::decides>::is_told_apart,
        "kvpolicy: this engine's tables cannot tell these lanes apart; lower the policy with reduce_lanes, or "
        "choose another layout");
  }
  if constexpr (supported) {
    check(Engine::can, policy.score.decides, Layout::name, Layout::effects, codec::f32,
          kvpolicy::detail::scope_of(policy.budget));
  }
  return {std::move(policy), std::move(layout)};
}
/// A layout or a policy that does not fit: one error, which names the part.
template <engine Engine, class Policy, class Layout>
  requires(!applier_of_engine<Layout> || !entry_decision<Policy>)
constexpr int bind(Policy const&, Layout const&) {
  if constexpr (!applier_of_engine<Layout>) {
    static_cast<void>(kvpolicy::detail::applier_hooks<Layout>::check());
  } else {
    static_cast<void>(kvpolicy::detail::entry_decision_hooks<Policy>::check());
  }
  return 0;
}

}  // namespace engines
}  // namespace KVPOLICY_NAMESPACE
