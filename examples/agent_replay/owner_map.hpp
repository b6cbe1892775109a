// A second account of who has which slot, written down from the owners themselves.
#pragma once

#include <map>
#include <span>
#include <string>

#include "session_cache.hpp"

namespace agent_replay {

/// Owner of each slot: `tree`, or a session.
class owner_map {
 public:
  static constexpr int tree = -1;

  /// Asks the tree and all sessions what they own.
  /// - throws: `invalid_argument` if two own one slot, an owner has a slot that the allocator calls free, the allocator
  ///   has given out one that nobody owns, or a request reads a slot that is neither its own nor the tree's.
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
    if (slot == slot_allocator::dead && who == tree) return;  // a hole
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
