// SPDX-License-Identifier: Apache-2.0
// copy_on_write: the pages that the longest lane of a row needs, and what the engine's `replace` may return.
#include "layout/shared_slots.hpp"

namespace {

using namespace kvpolicy_test;

/// Slot 1 is a fork of slot 0, whose lanes hold different numbers of entries, and shares all of its pages.
struct forked_slots {
  forked_slots(table_kind tables, std::uint64_t seed) : on(tables, 3, seed) {
    dice random(seed + 1);
    for (int i = 0; i < on.layers * on.heads; ++i) {
      int const entries = random.below(on.bound + 1);
      for (int const slot : {0, 1}) {
        std::size_t const lane = as_size(slot * on.layers * on.heads + i);
        on.count[lane] = entries;
        for (int e = 0; e < entries; ++e) on.position[lane * on.bound + as_size(e)] = e;
      }
    }
    int const lanes = on.rows / on.slots;
    for (int r = 0; r < lanes; ++r) {
      for (int i = 0; i < on.blocks; ++i) on.at(lanes + r, i) = on.at(r, i);
    }
  }
  template <class Replace>
  int copy(int first, Replace const& replace) {
    return kv::copy_on_write(exec, all, on.list(), 1, first, replace);
  }
  /// The number of places of slot 1 from entry `first` on that are places of slot 0, too.
  [[nodiscard]] int shared(int first) {
    std::set<std::byte const*> of_slot_0;
    for (int i = 0; i < on.layers * on.heads; ++i) {
      kv::lane const one{0, i / on.heads, i % on.heads};
      for (int e = 0; e < *all.lanes.count.row(one); ++e) {
        of_slot_0.insert(all.k.row(one.layer, all.where.at(one, e), one.head));
      }
    }
    int found = 0;
    for (int i = 0; i < on.layers * on.heads; ++i) {
      kv::lane const one{1, i / on.heads, i % on.heads};
      for (int e = first; e < *all.lanes.count.row(one); ++e) {
        found += of_slot_0.contains(all.k.row(one.layer, all.where.at(one, e), one.head)) ? 1 : 0;
      }
    }
    return found;
  }
  [[nodiscard]] std::vector<float> values(int slot) {
    std::vector<float> made;
    for (int i = 0; i < on.layers * on.heads; ++i) {
      kv::lane const one{slot, i / on.heads, i % on.heads};
      for (int e = 0; e < *all.lanes.count.row(one); ++e) {
        made.push_back(*reinterpret_cast<float const*>(all.v.row(one.layer, all.where.at(one, e), one.head)));
      }
    }
    return made;
  }

  shared_slots on;
  kv::cache all = on.view();
  kv::host_executor exec;
};

constexpr table_kind every_kind[] = {table_kind::block_table, table_kind::slot_map, table_kind::by_lane,
                                     table_kind::one_pool};

}  // namespace

TEST_SUITE("lifecycle/copy_on_write") {
  TEST_CASE("a slot gets the pages that its longest lane needs, whoever shares a row of the table") {
    for (table_kind const tables : every_kind) {
      holds("any counts", [&] {
        forked_slots now(tables, *rc::gen::inRange<std::uint64_t>(1, 1u << 20));
        int const first = *rc::gen::inRange(0, now.on.bound);
        auto const values = now.values(0);
        int asked = 0;
        int const copied = now.copy(first, [&](int) {
          ++asked;
          return now.on.next++;
        });
        RC_ASSERT(copied == asked);
        RC_ASSERT(now.shared(first) == 0);
        RC_ASSERT(now.values(0) == values);
        RC_ASSERT(now.values(1) == values);
      });
    }
  }

  TEST_CASE("what `replace` returns is a page of the pool that the slot does not have, or nothing changes") {
    for (table_kind const tables : every_kind) {
      holds("any wrong page", [&] {
        forked_slots now(tables, *rc::gen::inRange<std::uint64_t>(1, 1u << 20));
        std::vector<int> old;  // the pages of the first row, of which each is asked about
        for (int i = 0; i < now.on.used({1, 0, 0}); ++i) old.push_back(now.on.at(now.on.rows / now.on.slots, i));
        RC_PRE(old.size() > 1);
        int const wrong = *rc::gen::element(-1, now.on.units, 1 << 30, old.front(), old.back(), now.on.next);
        auto const before = now.on.save();
        int const call = *rc::gen::inRange(0, static_cast<int>(old.size()));
        int const page = old[as_size(call)];
        RC_PRE(wrong != page);
        int asked = 0;
        std::string const error = error_of([&] {
          now.copy(0, [&](int) {
            bool const first_row = asked < static_cast<int>(old.size());
            bool const again = wrong == now.on.next && asked != call && first_row;  // then another page gets it, too
            return asked++ == call || again ? wrong : now.on.next + asked;
          });
        });
        bool const inside = wrong >= 0 && wrong < now.on.units;
        std::string const said = "copy_on_write: replace = " + std::to_string(wrong) + " for page ";
        RC_ASSERT(error.starts_with(said));
        if (!inside || wrong != now.on.next) RC_ASSERT(error.starts_with(said + std::to_string(page) + ", but "));
        RC_ASSERT(error.ends_with(inside ? "the slot has this page already: it returns a page that is free"
                                         : "the pool has pages 0 to " + std::to_string(now.on.units - 1)));
        RC_ASSERT(now.on.save() == before);
      });
    }
  }

  TEST_CASE("layers with pages of their own are copied alone, those that share a row only together") {
    for (table_kind const tables : every_kind) {
      forked_slots now(tables, 3);
      now.on.count.assign(now.on.count.size(), 5);
      now.all.lanes = now.all.lanes.layers_only(1, 2);
      auto const before = now.on.save();
      auto const row = now.on.row(now.on.table, {1, 0, 0});
      std::string const error = error_of([&] { now.copy(0, [&](int) { return now.on.next++; }); });
      if (now.on.lanes_apart) {
        CHECK(error == "");
        CHECK(now.on.row(now.on.table, {1, 0, 0}) == row);
        CHECK(now.shared(0) == 2 * 5);  // those of layer 0
      } else {
        CHECK(error ==
              "copy_on_write: cache.lanes.layers = 1, but all 2 share a row of the table: they are copied together");
        CHECK(now.on.save() == before);
      }
    }
  }

  TEST_CASE("a page of the slot that the pool does not have, a wrong count and a part of the slots are refused") {
    forked_slots now(table_kind::block_table, 5);
    now.on.count.assign(now.on.count.size(), 5);
    int calls = 0;
    auto const refuses = [&](std::string const& text) {
      auto const before = now.on.save();
      CHECK(error_of([&] { now.copy(0, [&](int page) { return ++calls + page; }); }) == text);
      CHECK(now.on.save() == before);
      CHECK(calls == 0);  // the engine's own books have not changed either
    };
    int& page = now.on.at(1, 1);
    int const right = std::exchange(page, now.on.units);
    std::string const units = std::to_string(now.on.units);
    refuses("copy_on_write: table = " + units + ", but the pool has pages 0 to " + std::to_string(now.on.units - 1));
    page = right;
    now.on.count[5] = now.on.bound + 1;
    refuses(
        "copy_on_write: lanes.count = 25 in layer 0, head 1 of sequence 1, but a lane holds 0 to 24 entries, its "
        "`capacity`");
    now.on.count[5] = 5;
    now.all.lanes = now.all.lanes.sequences_only(0, 2);
    refuses("copy_on_write: cache.lanes = some slots, but slots are numbered in the cache of all slots");
  }
}
