// SPDX-License-Identifier: Apache-2.0
// A check of slot ownership: collects the slots of all owners, and compares them with the allocator.
#pragma once

#include <map>
#include <span>
#include <string>

#include "session_cache.hpp"

namespace agent_replay {

/// The owner of each slot: the tree, or a session.
class owner_map {
 public:
  static constexpr int tree = -1;

  /// Collects the slots that the tree and all sessions own.
  /// - throws: `invalid_argument` if a slot has two owners, an owner has a slot that is free in the allocator, an
  ///   allocated slot has no owner, or a request reads a slot that belongs neither to it nor to the tree.
  owner_map(token_memory& in, std::span<session_cache* const> sessions) {
    in.tree.for_each([&](tree_node const& at) {
      for (int const slot : at.slots) own(in.slots, slot, tree);
    });
    for (session_cache const* one : sessions) {
      one->for_each_own([&](int slot) { own(in.slots, slot, one->session()); });
    }
    kv::expects(std::ssize(owner_) == in.slots.allocated(), "owner_map", "owned slots", std::ssize(owner_),
                [&] { return std::to_string(in.slots.allocated()) + " are given out"; });
    for (session_cache const* one : sessions) {
      if (one->is_open()) check_readable(*one);
    }
  }

  [[nodiscard]] int slots() const { return static_cast<int>(owner_.size()); }

 private:
  void own(slot_allocator const& slots, int slot, int who) {
    if (slot == slot_allocator::dead && who == tree) return;  // a hole in the tree
    kv::expects(slot != slot_allocator::dead && slots.holds(slot), "owner_map", "slot", slot,
                "nobody can own it: it is free, or the dead one");
    kv::expects(owner_.emplace(slot, who).second, "owner_map", "slot", slot, "it has two owners");
  }

  void check_readable(session_cache const& of) const {
    for (std::size_t e = 0; e < of.list().size(); ++e) {
      int const slot = of.list()[e];
      auto const found = owner_.find(slot);
      int const wanted = of.positions()[e] < of.tree_length() ? tree : of.session();
      kv::expects(found != owner_.end() && found->second == wanted, "owner_map", "slot", slot,
                  "a request reads what is not its own");
    }
  }

  std::map<int, int> owner_;
};

}  // namespace agent_replay
