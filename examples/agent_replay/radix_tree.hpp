// SPDX-License-Identifier: Apache-2.0
// The prefix cache: a radix tree from token ids to slots, with locks, which evicts the least recently used leaf first.
#pragma once

#include <cstdint>
#include <kvpolicy/core/contract/error.hpp>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "allocator.hpp"

namespace agent_replay {

using token = std::uint8_t;

/// A node of the tree: a run of tokens that all sequences through it share.
template <class Token>
struct basic_tree_node {
  std::vector<Token> ids;
  std::vector<int> slots;  ///< one for each id; the dead slot marks a hole
  std::map<Token, std::unique_ptr<basic_tree_node>> children;
  basic_tree_node* parent = nullptr;
  int locks = 0;           ///< requests in flight that read these slots or those of a child
  int holed_by = -1;       ///< the session whose policy made the holes; -1: there are no holes
  std::uint64_t used = 0;  ///< the time of the last match or insertion
};

/// A radix tree over token ids, as in engines with a prefix cache. It owns the slots in its nodes, and frees them when
/// it evicts a leaf. It knows token ids and slots, but no policy.
///
/// A node may have holes: positions that a session's policy dropped. Holes are private to that session. A match of
/// another session ends before the first hole, so that no session inherits holes of another.
///
/// `Token` is what one slot holds: one token id, or the ids of a whole block. `Slots` gives out and takes back slots:
/// it has `available()`, `give(slot)`, and the number `dead`.
template <class Token, class Slots>
class basic_radix_tree {
 public:
  using token = Token;
  using tree_node = basic_tree_node<Token>;

  explicit basic_radix_tree(Slots& slots) : slots_(&slots) {}
  basic_radix_tree(basic_radix_tree const&) = delete;  // nodes point to their parents
  basic_radix_tree& operator=(basic_radix_tree const&) = delete;

  /// The slots of the longest matching prefix, and its last node (the root if nothing matches).
  struct matched {
    std::vector<int> slots;
    tree_node* node = nullptr;
  };

  /// Finds the longest prefix of `ids` that `session` may read. It splits a node that matches in part. The cost is
  /// linear in the matching tokens.
  [[nodiscard]] matched match(std::span<token const> ids, int session) {
    matched found{.slots = {}, .node = &root_};
    ++clock_;
    while (found.slots.size() < ids.size()) {
      auto const rest = ids.subspan(found.slots.size());
      auto const child = found.node->children.find(rest[0]);
      if (child == found.node->children.end()) break;
      tree_node* at = child->second.get();
      std::size_t const same = readable(*at, rest, session);
      if (same == 0) break;
      if (same < at->ids.size()) at = cut(*at, same);
      at->used = clock_;
      found.slots.insert(found.slots.end(), at->slots.begin(), at->slots.end());
      found.node = at;
    }
    return found;
  }

  /// Locks a node that a request reads. The node and its parents are not evicted until they are unlocked.
  void lock(tree_node& from) {
    for (tree_node* at = &from; at != nullptr; at = at->parent) ++at->locks;
  }
  void unlock(tree_node& from) {
    for (tree_node* at = &from; at != nullptr; at = at->parent) {
      kv::expects(at->locks > 0, "unlock", "locks", at->locks, "every unlock has its lock");
      --at->locks;
    }
  }

  /// Inserts a sequence's tokens. The tree owns their slots from then on.
  ///
  /// - in, out: `slots`, one for each id. If the tree already has a slot for a position, that slot replaces the
  ///   sequence's, also for a dropped position, and the sequence's slot is freed as a duplicate. If the tree has a hole
  ///   and the sequence a slot, the slot fills the hole.
  /// - holes: without `allow_holes` the insertion ends before the first hole that the tree cannot fill.
  /// - out: the last node, and the number of tokens in the tree. Slots of later tokens still belong to the sequence.
  struct inserted {
    tree_node* node = nullptr;
    int tokens = 0;
  };
  inserted insert(std::span<token const> ids, std::span<int> slots, int session, bool allow_holes) {
    ++clock_;
    std::size_t done = 0;
    tree_node* at = &root_;
    while (done < ids.size()) {
      auto const child = at->children.find(ids[done]);
      if (child == at->children.end()) break;
      tree_node* next = child->second.get();
      std::size_t const same = common(*next, ids.subspan(done));
      if (same < next->ids.size()) next = cut(*next, same);
      merge(*next, slots.subspan(done, same));
      next->used = clock_;
      done += same;
      at = next;
    }
    std::size_t end = ids.size();
    for (std::size_t i = done; !allow_holes && i < end; ++i) end = slots[i] == Slots::dead ? i : end;
    if (done < end) at = grow(*at, ids.subspan(done, end - done), slots.subspan(done, end - done), session);
    return {at, static_cast<int>(end)};
  }

  /// Moves the nodes that only one request reads from the tree to that request: the nodes from `from` upwards that only
  /// it has locked, that have no children, and that begin at position `keep` or later.
  ///
  /// - in: `from`, locked by the request; `length`, the number of tokens up to its end.
  /// - out: the last node that is still in the tree and locked; the number of tokens up to its end; the slots of later
  ///   positions, in order.
  struct claimed {
    tree_node* node = nullptr;
    int length = 0;
    std::vector<int> slots;
  };
  [[nodiscard]] claimed claim(tree_node& from, int length, int keep) {
    claimed out{&from, length, {}};
    while (out.node != &root_ && out.length > keep && out.node->locks == 1 && out.node->children.empty()) {
      int const begin = out.length - static_cast<int>(out.node->ids.size());
      if (begin < keep) cut(*out.node, static_cast<std::size_t>(keep - begin));
      out.slots.insert(out.slots.begin(), out.node->slots.begin(), out.node->slots.end());
      out.length -= static_cast<int>(out.node->ids.size());
      tree_node* const parent = out.node->parent;
      parent->children.erase(out.node->ids[0]);
      out.node = parent;
    }
    return out;
  }

  /// Frees at least `slots` slots if the unlocked leaves have that many. It evicts whole leaves, the least recently
  /// used first.
  void evict(int slots) {
    int const wanted = slots_->available() + slots;
    while (slots_->available() < wanted) {
      tree_node* oldest = nullptr;
      for_each([&](tree_node& at) {
        bool const leaf = at.children.empty() && at.locks == 0 && at.parent != nullptr;
        if (leaf && (oldest == nullptr || at.used < oldest->used)) oldest = &at;
      });
      if (oldest == nullptr) return;
      for (int const slot : oldest->slots) {
        if (slot != Slots::dead) slots_->give(slot);
      }
      oldest->parent->children.erase(oldest->ids[0]);
    }
  }

  /// Calls visit(node) for every node, parents first.
  template <class Visit>
  void for_each(Visit const& visit) {
    each(root_, visit);
  }

 private:
  template <class Visit>
  static void each(tree_node& at, Visit const& visit) {
    visit(at);
    for (auto& [first, child] : at.children) each(*child, visit);
  }

  static std::size_t common(tree_node const& at, std::span<token const> ids) {
    std::size_t same = 0;
    while (same < at.ids.size() && same < ids.size() && at.ids[same] == ids[same]) ++same;
    return same;
  }

  /// The number of common tokens, as `common`, up to the first hole of another session.
  static std::size_t readable(tree_node const& at, std::span<token const> ids, int session) {
    std::size_t same = common(at, ids);
    if (at.holed_by == -1 || at.holed_by == session) return same;
    for (std::size_t i = 0; i < same; ++i) same = at.slots[i] == Slots::dead ? i : same;
    return same;
  }

  static void note_holes(tree_node& at, int session) {
    bool const any = std::count(at.slots.begin(), at.slots.end(), Slots::dead) > 0;
    at.holed_by = any ? session : -1;
  }

  /// Splits off the first `tokens` tokens of a node as its new parent, which is returned. Pointers to the node stay
  /// valid, and the path to it still has all of its tokens.
  static tree_node* cut(tree_node& at, std::size_t tokens) {
    auto upper = std::make_unique<tree_node>();
    auto const split = static_cast<std::ptrdiff_t>(tokens);
    upper->ids.assign(at.ids.begin(), at.ids.begin() + split);
    upper->slots.assign(at.slots.begin(), at.slots.begin() + split);
    upper->parent = at.parent;
    upper->locks = at.locks;
    upper->used = at.used;
    std::unique_ptr<tree_node>& place = at.parent->children.at(at.ids[0]);
    at.ids.erase(at.ids.begin(), at.ids.begin() + split);
    at.slots.erase(at.slots.begin(), at.slots.begin() + split);
    at.parent = upper.get();
    note_holes(*upper, at.holed_by);
    note_holes(at, at.holed_by);
    upper->children[at.ids[0]] = std::move(place);
    place = std::move(upper);
    return place.get();
  }

  /// Merges a sequence's slots with the tree's slots for the same positions: one of the two stays.
  void merge(tree_node& at, std::span<int> slots) {
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (at.slots[i] == Slots::dead) {
        at.slots[i] = slots[i];
      } else if (slots[i] != at.slots[i]) {
        if (slots[i] != Slots::dead) slots_->give(slots[i]);
        slots[i] = at.slots[i];
      }
    }
    note_holes(at, at.holed_by);
  }

  tree_node* grow(tree_node& at, std::span<token const> ids, std::span<int const> slots, int session) {
    auto fresh = std::make_unique<tree_node>();
    fresh->ids.assign(ids.begin(), ids.end());
    fresh->slots.assign(slots.begin(), slots.end());
    fresh->parent = &at;
    fresh->used = clock_;
    note_holes(*fresh, session);
    tree_node* const made = fresh.get();
    at.children[ids[0]] = std::move(fresh);
    return made;
  }

  Slots* slots_;
  tree_node root_;
  std::uint64_t clock_ = 0;
};

/// The tree of token ids that the replay uses.
using radix_tree = basic_radix_tree<token, slot_allocator>;
using tree_node = radix_tree::tree_node;

}  // namespace agent_replay
