// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "basics.hpp"

namespace kvpolicy_reference {

/// A pool of slots as an engine keeps it, with every reference to every slot written down: an owner is a sequence, or a
/// cached prefix of the tree. Unlike an allocator in production it notices what must not happen.
class slot_pool {
 public:
  /// `dead` is nobody's, and is never handed out nor given back.
  slot_pool(int slots, int dead) : references_(static_cast<std::size_t>(slots)), dead_(dead) {
    for (int slot = 0; slot < slots; ++slot) {
      if (slot != dead) free_.insert(slot);
    }
  }

  int slots() const { return static_cast<int>(references_.size()); }
  int dead() const { return dead_; }
  bool is_free(int slot) const { return free_.count(slot) != 0; }

  /// A free slot, without a reference yet; nothing if the pool is exhausted. `choice` picks one.
  std::optional<int> allocate(int choice) {
    if (free_.empty()) return std::nullopt;
    auto at = free_.begin();
    std::advance(at, choice % static_cast<int>(free_.size()));
    int const slot = *at;
    free_.erase(at);
    return slot;
  }

  /// Gives a slot back for good.
  void give_back(int slot) {
    require(slot != dead_, "the dead slot is freed");
    require(!is_free(slot), "a slot is freed twice");
    require(owners(slot).empty(), "a slot is freed that somebody refers to");
    free_.insert(slot);
  }

  /// One more or one fewer reference of an owner.
  void refer(int owner, int slot) {
    require(slot != dead_ && !is_free(slot), "a reference to a slot that is nobody's");
    ++owners(slot)[owner];
  }
  void forget(int owner, int slot) {
    auto& of = owners(slot);
    auto const at = of.find(owner);
    require(at != of.end(), "a reference is forgotten that there was not");
    if (--at->second == 0) of.erase(at);
  }
  /// As forget; and the slot is given back if that was the last reference.
  void leave(int owner, int slot) {
    forget(owner, slot);
    if (owners(slot).empty()) give_back(slot);
  }

  bool refers(int owner, int slot) const { return references(slot).count(owner) != 0; }
  int owner_count(int slot) const { return static_cast<int>(references(slot).size()); }
  /// References of all owners: aliases inside one sequence count each.
  int reference_count(int slot) const {
    int total = 0;
    for (auto const& [owner, times] : references(slot)) total += times;
    return total;
  }
  std::map<int, int> const& references(int slot) const { return references_.at(static_cast<std::size_t>(slot)); }

 private:
  std::map<int, int>& owners(int slot) { return references_.at(static_cast<std::size_t>(slot)); }

  std::vector<std::map<int, int>> references_;  ///< of each slot: how often each owner refers to it
  std::set<int> free_;
  int dead_;
};

/// What one sequence looks like to its engine: the slot of every position so far, and which of them are alive.
struct mapped_sequence {
  std::vector<int> map;  ///< [length]
  std::set<int> live;    ///< positions
  int prefix = 0;        ///< positions before it are never redirected
  int locked = 0;        ///< slots of positions before it are the tree's
};

/// What dropping positions comes to.
struct redirection {
  std::vector<int> map;       ///< the map afterwards
  std::vector<int> list;      ///< the live slots, in the order of their positions
  std::vector<int> freed;     ///< ascending, each once
  std::vector<int> released;  ///< ascending, each once
};

/// Redirects the dropped positions of a sequence to the dead slot. Frees are found against the final map: a slot that
/// some position of this sequence still names is not freed, nor the dead slot, nor one that is locked or shared.
inline redirection redirect(mapped_sequence const& before, std::set<int> const& dropped, int dead,
                            std::function<bool(int)> const& shared) {
  redirection after{before.map, {}, {}, {}};
  for (int const position : dropped) {
    require(before.live.count(position) != 0, "a dead position is dropped");
    require(position >= before.prefix, "a protected position is dropped");
    after.map.at(static_cast<std::size_t>(position)) = dead;
  }
  std::set<int> still, locked, freed, released;
  for (int const slot : after.map) still.insert(slot);
  for (int p = 0; p < before.locked; ++p) locked.insert(before.map.at(static_cast<std::size_t>(p)));
  for (int const position : dropped) {
    int const slot = before.map.at(static_cast<std::size_t>(position));
    if (slot == dead || still.count(slot) != 0) continue;
    (locked.count(slot) != 0 || shared(slot) ? released : freed).insert(slot);
  }
  for (int const position : before.live) {
    if (dropped.count(position) == 0) after.list.push_back(after.map.at(static_cast<std::size_t>(position)));
  }
  after.freed.assign(freed.begin(), freed.end());
  after.released.assign(released.begin(), released.end());
  return after;
}

/// After a prefix tree has rewritten the map: what is dead stays dead, what lives is where the tree says.
inline redirection relisted(mapped_sequence const& before, int dead) {
  redirection after{before.map, {}, {}, {}};
  for (std::size_t p = 0; p < after.map.size(); ++p) {
    if (before.live.count(static_cast<int>(p)) == 0) after.map[p] = dead;
  }
  for (int const position : before.live) after.list.push_back(after.map.at(static_cast<std::size_t>(position)));
  return after;
}

}  // namespace kvpolicy_reference
