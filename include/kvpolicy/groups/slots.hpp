// The requests in the slots of a model whose layers differ: `reset`, `fork`, `save` and `load` of every group.
#pragma once

#include <algorithm>
#include <cstddef>
#include <kvpolicy/groups/calls.hpp>
#include <kvpolicy/lifecycle/fork.hpp>
#include <kvpolicy/lifecycle/reset.hpp>
#include <kvpolicy/lifecycle/save.hpp>
#include <span>

namespace KVPOLICY_NAMESPACE {

namespace detail {

/// Calls visit(index) for each group that has a state.
template <class States, class Visit>
void for_each_state(layer_groups const& all, States const& states, Visit const& visit) {
  check_groups("groups", all);
  check_made("groups", "states", all, states);
  for (std::size_t g = 0; g < all.groups.size(); ++g) {
    if (states.of[g]) in_group(all.groups[g], [&] { visit(g); });
  }
}

}  // namespace detail

/// Makes a slot of every group ready for a new request: see `reset` of a cache.
template <executor Executor>
void reset(Executor& exec, layer_groups& all, group_states<Executor>& states, int slot) {
  detail::for_each_state(all, states, [&](std::size_t g) { reset(exec, all.groups[g].entries, states[g], slot); });
}

/// Copies a request to another slot in every group: see `fork` of a cache.
template <executor Executor>
void fork(Executor& exec, layer_groups& all, group_states<Executor>& states, int from, int to, rows what = rows::copy) {
  detail::for_each_state(all, states, [&](std::size_t g) {
    detail::check_two_slots("fork", all.groups[g].entries, states[g], from, to, what);
  });
  detail::for_each_state(all, states,
                         [&](std::size_t g) { fork(exec, all.groups[g].entries, states[g], from, to, what); });
}

/// Moves a request to another slot in every group: see `move` of a cache.
template <executor Executor>
void move(Executor& exec, layer_groups& all, group_states<Executor>& states, int from, int to, rows what = rows::copy) {
  fork(exec, all, states, from, to, what);
  reset(exec, all, states, from);
}

/// The number of bytes that `save` writes for a slot of all groups.
template <executor Executor>
[[nodiscard]] std::size_t saved_bytes(Executor& exec, layer_groups const& all, group_states<Executor> const& states,
                                      int slot, rows what = rows::copy) {
  std::size_t bytes = 0;
  detail::for_each_state(
      all, states, [&](std::size_t g) { bytes += saved_bytes(exec, all.groups[g].entries, states[g], slot, what); });
  return bytes;
}

/// Copies a slot of all groups to bytes, one group after the other: see `save` of a cache.
template <executor Executor>
std::size_t save(Executor& exec, layer_groups const& all, group_states<Executor> const& states, int slot,
                 std::span<std::byte> to, rows what = rows::copy) {
  std::size_t const bytes = saved_bytes(exec, all, states, slot, what);
  expects(to.size() >= bytes, "save", "to", to.size(), [&] { return "saved_bytes says " + std::to_string(bytes); });
  std::size_t at = 0;
  detail::for_each_state(all, states, [&](std::size_t g) {
    at += save(exec, all.groups[g].entries, states[g], slot, to.subspan(at), what);
  });
  return bytes;
}

/// Copies what `save` wrote into a slot of all groups: see `load` of a cache. If a group refuses its bytes, no group
/// was changed.
template <executor Executor>
void load(Executor& exec, layer_groups& all, group_states<Executor>& states, int slot, std::span<std::byte const> from,
          rows what = rows::copy) {
  std::vector<std::span<std::byte const>> parts(all.groups.size());
  std::size_t at = 0;
  detail::for_each_state(all, states, [&](std::size_t g) {
    auto const header = detail::saved_reader("load", from.subspan(at)).template take<detail::saved_header>();
    parts[g] = from.subspan(at, std::min(from.size() - at, static_cast<std::size_t>(header.bytes)));
    at += parts[g].size();
    cache const& one = all.groups[g].entries;
    detail::check_slots_of("load", one, states[g]);
    detail::check_copied("load", one, what);
    detail::check_slot("load", "slot", one, slot);
    detail::check_free("load", "slot", states[g], slot);
    static_cast<void>(detail::read_slot("load", one, states[g], parts[g], what));
  });
  expects(at == from.size(), "load", "bytes", from.size(),
          [&] { return "the saved slots of the groups have " + std::to_string(at); });
  detail::for_each_state(all, states,
                         [&](std::size_t g) { load(exec, all.groups[g].entries, states[g], slot, parts[g], what); });
}

}  // namespace KVPOLICY_NAMESPACE
