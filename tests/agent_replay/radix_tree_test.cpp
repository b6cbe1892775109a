// SPDX-License-Identifier: Apache-2.0
// The replay's allocator and prefix tree: who owns a slot, and who may read which.

#include <agent_replay/radix_tree.hpp>

#include "support/test.hpp"

namespace {

using namespace agent_replay;

std::vector<token> ids(std::string_view text) { return {text.begin(), text.end()}; }

/// A pool, a tree, and short words for what requests do.
struct forest {
  slot_allocator slots{32};
  radix_tree tree{slots};

  std::vector<int> fresh(std::size_t tokens) {
    std::vector<int> taken(tokens);
    for (int& one : taken) one = slots.take();
    return taken;
  }
  /// A request that computed all of `text` ends; it had dropped the positions of `holes`.
  std::vector<int> add(std::string_view text, int session, std::vector<std::size_t> const& holes = {},
                       bool allow_holes = true) {
    auto map = fresh(text.size());
    for (std::size_t const p : holes) {
      slots.give(map[p]);
      map[p] = slot_allocator::dead;
    }
    (void)tree.insert(ids(text), map, session, allow_holes);
    return map;
  }
  std::vector<int> find(std::string_view text, int session) { return tree.match(ids(text), session).slots; }
};

}  // namespace

TEST_SUITE("agent_replay") {
  TEST_CASE("a slot that is given back twice, or is the dead one, is refused; the attempt is counted") {
    slot_allocator slots(3);
    int const slot = slots.take();
    slots.give(slot);
    CHECK_THROWS_WITH_AS(slots.give(slot), "give: slot = 1, but it is free already", kv::invalid_argument);
    CHECK(slots.double_frees() == 1);
    CHECK(slots.available() == 2);
    CHECK_THROWS_WITH_AS(slots.give(0), "give: slot = 0, but the pool gives out others", kv::invalid_argument);
    CHECK(slots.take() != 0);
    CHECK(slots.take() != 0);
    CHECK_THROWS_WITH_AS((void)slots.take(), "take: slots = 3, but all are given out", kv::invalid_argument);
    CHECK(slots.peak() == 2);
  }

  TEST_CASE("what two sessions have in common is found by its token ids, whoever asks") {
    forest of;
    auto const first = of.add("abcdef", 1);
    auto const second = of.add("abcxyz", 2);
    CHECK(of.find("abcxq", 3) == std::vector<int>(second.begin(), second.begin() + 4));
    CHECK(of.find("abcdef", 2) == first);
    CHECK(of.find("b", 1).empty());
    SUBCASE("the second one's slots of it were duplicates, and went back") {
      CHECK(std::vector<int>(second.begin(), second.begin() + 3) == std::vector<int>(first.begin(), first.begin() + 3));
      CHECK(of.slots.allocated() == 9);
    }
  }

  TEST_CASE("holes are read by their session alone; another's match ends before the first") {
    forest of;
    auto const holed = of.add("abcdef", 1, {2, 4});
    CHECK(of.find("abcdef", 1) == holed);
    CHECK(of.find("abcdef", 2).size() == 2);
    CHECK(of.find("abcdef", 1) == holed);  // also now that a node was cut
    CHECK(of.find("abcd", 1).size() == 4);
    CHECK(of.find("abcd", 2).size() == 2);
    SUBCASE("and are filled by whoever has the tokens' rows: then everybody reads them") {
      (void)of.add("abcdef", 2);
      CHECK(of.find("abcdef", 3).size() == 6);
      CHECK(of.slots.allocated() == 6);
    }
    SUBCASE("where they are not allowed, what is inserted ends before the first") {
      auto map = of.fresh(4);
      of.slots.give(map[2]);
      map[2] = slot_allocator::dead;
      CHECK(of.tree.insert(ids("wxyz"), map, 3, false).tokens == 2);
      CHECK(of.find("wxyz", 3).size() == 2);
      of.slots.give(map[3]);  // still its own
    }
  }

  TEST_CASE("a map that had dropped what the tree still has is given the tree's slot back") {
    forest of;
    auto const first = of.add("abcd", 1);
    CHECK(of.add("abcd", 2, {1, 2}) == first);
    CHECK(of.find("abcd", 3) == first);
  }

  TEST_CASE("the leaf that was used longest ago goes first, and what is locked stays") {
    forest of;
    (void)of.add("abcd", 1);
    (void)of.add("abxy", 1);
    (void)of.add("klmn", 1);
    auto const reader = of.tree.match(ids("abcd"), 1);
    of.tree.lock(*reader.node);
    of.tree.evict(1);
    CHECK(of.find("abxy", 1).size() == 2);
    CHECK(of.find("klmn", 1).size() == 4);
    of.tree.evict(100);
    CHECK(of.find("klmn", 1).empty());
    CHECK(of.find("abcd", 1).size() == 4);
    of.tree.unlock(*reader.node);
    of.tree.evict(100);
    CHECK(of.slots.allocated() == 0);
  }

  TEST_CASE("a request takes out of the tree what it alone reads, down to the prefix that all keep") {
    forest of;
    auto const all = of.add("abcdef", 1);
    auto const one = of.tree.match(ids("abcdef"), 1);
    of.tree.lock(*one.node);
    SUBCASE("behind the prefix") {
      auto const mine = of.tree.claim(*one.node, 6, 2);
      CHECK(mine.length == 2);
      CHECK(mine.slots == std::vector<int>(all.begin() + 2, all.end()));
      CHECK(of.find("abcdef", 2).size() == 2);
      CHECK(mine.node->locks == 1);
    }
    SUBCASE("not what another reads too") {
      auto const other = of.tree.match(ids("abcd"), 2);
      of.tree.lock(*other.node);
      auto const mine = of.tree.claim(*one.node, 6, 0);
      CHECK(mine.length == 4);
      CHECK(mine.node->locks == 2);
    }
    SUBCASE("not what leads to another's tokens") {
      (void)of.add("abcxyz", 2);
      CHECK(of.tree.claim(*one.node, 6, 0).length == 3);
    }
  }
}
