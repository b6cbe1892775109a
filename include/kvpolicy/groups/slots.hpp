// SPDX-License-Identifier: Apache-2.0
// The requests in the slots of a model whose layers differ: `reset`, `fork`, `save` and `load` of every group.
#pragma once

#include <algorithm>
#include <cstddef>
#include <kvpolicy/groups/calls.hpp>
#include <kvpolicy/lifecycle/fork.hpp>
#include <kvpolicy/lifecycle/reset.hpp>
#include <kvpolicy/lifecycle/save.hpp>
#include <span>
#include <vector>

namespace KVPOLICY_NAMESPACE {

namespace detail {

/// Prepares a call for every group that has a state, by prepare(index), and then makes all of them. Nothing is changed
/// if one of them cannot be prepared.
template <class Prepared, executor Executor, class States, class Prepare>
void in_every_group(char const* call, Executor& exec, layer_groups const& all, States const& states,
                    Prepare const& prepare) {
  std::vector<Prepared> ready;
  ready.reserve(all.groups.size());
  for_each_state(call, all, states, [&](std::size_t g) { ready.push_back(prepare(g)); });
  for (Prepared const& each : ready) each.run(exec);
}

}  // namespace detail

/// Makes a slot of every group ready for a new request: see `reset` of a cache.
template <executor Executor>
void reset(Executor& exec, layer_groups& all, group_states<Executor>& states, int slot) {
  detail::sole_use const in_use("reset", exec);
  using prepared = detail::slot_reset<Executor>;
  detail::in_every_group<prepared>("reset", exec, all, states, [&](std::size_t g) {
    return prepared(exec, all.groups[g].entries, states[g], std::span<int const>(&slot, 1));
  });
}

/// Copies a request to another slot in every group: see `fork` of a cache.
template <executor Executor>
void fork(Executor& exec, layer_groups& all, group_states<Executor>& states, int from, int to, rows what = rows::copy) {
  detail::sole_use const in_use("fork", exec);
  using prepared = detail::slot_copy<Executor>;
  detail::in_every_group<prepared>("fork", exec, all, states, [&](std::size_t g) {
    return prepared("fork", exec, all.groups[g].entries, states[g], from, to, what);
  });
}

/// Moves a request to another slot in every group: see `move` of a cache.
template <executor Executor>
void move(Executor& exec, layer_groups& all, group_states<Executor>& states, int from, int to, rows what = rows::copy) {
  detail::sole_use const in_use("move", exec);
  using prepared = detail::slot_move<Executor>;
  detail::in_every_group<prepared>("move", exec, all, states, [&](std::size_t g) {
    return prepared(exec, all.groups[g].entries, states[g], from, to, what);
  });
}

/// The number of bytes that `save` writes for a slot of all groups.
template <executor Executor>
[[nodiscard]] std::size_t saved_bytes(Executor& exec, layer_groups const& all, group_states<Executor> const& states,
                                      int slot, rows what = rows::copy) {
  std::size_t bytes = 0;
  detail::for_each_state("saved_bytes", all, states, [&](std::size_t g) {
    bytes += saved_bytes(exec, all.groups[g].entries, states[g], slot, what);
  });
  return bytes;
}

/// Copies a slot of all groups to bytes, one group after the other: see `save` of a cache.
template <executor Executor>
std::size_t save(Executor& exec, layer_groups const& all, group_states<Executor> const& states, int slot,
                 std::span<std::byte> to, rows what = rows::copy) {
  detail::sole_use const in_use("save", exec);
  std::size_t const bytes = saved_bytes(exec, all, states, slot, what);
  expects(to.size() >= bytes, "save", "to", to.size(), [&] { return "saved_bytes says " + std::to_string(bytes); });
  std::size_t at = 0;
  using prepared = detail::slot_save<Executor>;
  detail::in_every_group<prepared>("save", exec, all, states, [&](std::size_t g) {
    cache const& one = all.groups[g].entries;
    std::size_t const here = at;
    at += saved_bytes(exec, one, states[g], slot, what);
    return prepared(exec, one, states[g], slot, to.subspan(here, at - here), what);
  });
  return bytes;
}

/// Copies what `save` wrote into a slot of all groups: see `load` of a cache. If a group refuses its bytes, no group
/// was changed.
template <executor Executor>
void load(Executor& exec, layer_groups& all, group_states<Executor>& states, int slot, std::span<std::byte const> from,
          rows what = rows::copy) {
  detail::sole_use const in_use("load", exec);
  std::vector<std::span<std::byte const>> parts(all.groups.size());
  std::size_t at = 0;
  detail::for_each_state("load", all, states, [&](std::size_t g) {
    auto const header = detail::saved_reader("load", from.subspan(at)).template take<detail::saved_header>();
    parts[g] = from.subspan(at, std::min(from.size() - at, static_cast<std::size_t>(header.bytes)));
    at += parts[g].size();
  });
  expects(at == from.size(), "load", "bytes", from.size(),
          [&] { return "the saved slots of the groups have " + std::to_string(at); });
  using prepared = detail::slot_load<Executor>;
  detail::in_every_group<prepared>("load", exec, all, states, [&](std::size_t g) {
    cache const& one = all.groups[g].entries;
    prepared made("load", exec, one, states[g], slot, parts[g], what);
    detail::check_free("load", "slot", exec, one, states[g], slot);
    return made;
  });
}

}  // namespace KVPOLICY_NAMESPACE
