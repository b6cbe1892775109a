// SPDX-License-Identifier: Apache-2.0
// The host's passes over lists of slots, for each instruction set against plain loops: every number of entries around a
// vector's width, positions that count up and positions that do not.

#include "support/test.hpp"

namespace slot_kernels_test {

using namespace kvpolicy_test;

constexpr int counts[] = {0, 1, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 200, 4097};

/// A list of distinct slots, marks for a part of it, and ascending positions in a map.
struct list {
  list(dice& random, int count, int percent, bool with_gaps) : marks(as_size(count)) {
    for (int e = 0, p = 0; e < count; ++e, ++p) {
      slot.push_back(count - e);
      marks[as_size(e)] = random.chance(percent) ? 1 : 0;
      if (with_gaps && random.chance(30)) p += 1 + random.below(3);
      position.push_back(p);
    }
    map.assign(count > 0 ? as_size(position.back()) + 3 : 3, -5);
    for (std::size_t e = 0; e < slot.size(); ++e) map[as_size(position[e])] = slot[e];
  }
  [[nodiscard]] int count() const { return static_cast<int>(slot.size()); }
  [[nodiscard]] std::vector<int> of_marked(bool marked) const {
    std::vector<int> some;
    for (std::size_t e = 0; e < slot.size(); ++e) {
      if ((marks[e] != 0) == marked) some.push_back(slot[e]);
    }
    return some;
  }
  std::vector<unsigned char> marks;
  std::vector<int> slot, position, map;
};

template <class Check>
void each_list(Check const& check) {
  dice random(8);
  for (kv::isa const level : vector_isas()) {
    kv::detail::slots_kernels const& with = kv::detail::slots_of_isa[level];
    CAPTURE(static_cast<int>(level));
    for (int const count : counts) {
      for (int const percent : {0, 3, 50, 97, 100}) check(with, list(random, count, percent, percent == 50));
    }
  }
}

TEST_SUITE("ops/host/slot_kernels") {
  TEST_CASE("split moves marked slots to the front and lists the others, and writes nothing behind them") {
    each_list([](kv::detail::slots_kernels const& with, list const& in) {
      std::vector<int> const stays = in.of_marked(true), goes = in.of_marked(false);
      std::vector<int> slot = in.slot, dropped(goes.size() + 2, -7);
      slot.push_back(-7);
      with.partition(in.marks.data(), in.count(), static_cast<int>(goes.size()), slot.data(), slot.data(),
                     dropped.data(), nullptr);
      CHECK(std::equal(stays.begin(), stays.end(), slot.begin()));
      CHECK(std::equal(goes.begin(), goes.end(), dropped.begin()));
      CHECK(slot.back() == -7);
      CHECK(dropped[goes.size()] == -7);
      CHECK(dropped.back() == -7);
    });
  }

  TEST_CASE("split can leave the list alone, and sets the bytes of the units that it lists, and no others") {
    each_list([](kv::detail::slots_kernels const& with, list const& in) {
      std::vector<int> const stays = in.of_marked(true), goes = in.of_marked(false);
      std::vector<int> const slot = in.slot;
      std::vector<int> dropped(goes.size() + 1, -7);
      std::vector<unsigned char> units(in.slot.size() + 4), expected = units;
      with.partition(in.marks.data(), in.count(), static_cast<int>(goes.size()), slot.data(), nullptr, dropped.data(),
                     units.data());
      for (int const one : goes) expected[as_size(one)] = 1;
      CHECK(units == expected);
      CHECK(std::equal(goes.begin(), goes.end(), dropped.begin()));
      CHECK(dropped.back() == -7);
      CHECK(slot == in.slot);
      CHECK(!with.any_set(units.data(), stays.data(), static_cast<int>(stays.size())));
      for (std::size_t e = 0; e < stays.size(); e += stays.size() > 300 ? 97u : 1u) {
        std::vector<unsigned char> one(units.size());
        one[as_size(stays[e])] = 1;
        CHECK(with.any_set(one.data(), stays.data(), static_cast<int>(stays.size())));
      }
    });
  }

  TEST_CASE("ascends finds one number at any place that is not above the one before it, and a negative first one") {
    each_list([](kv::detail::slots_kernels const& with, list const& in) {
      std::vector<int> const& position = in.position;
      int const n = in.count();
      CHECK(with.ascends(position.data(), n));
      for (std::size_t e = 1; e < position.size(); e += n > 300 ? 97 : 1) {
        std::vector<int> wrong = position;
        wrong[e] = wrong[e - 1];
        CHECK(!with.ascends(wrong.data(), n));
        wrong[e] = -1;
        CHECK(!with.ascends(wrong.data(), n));
      }
      if (n > 0) {
        std::vector<int> wrong = position;
        wrong[0] = -1;
        CHECK(!with.ascends(wrong.data(), n));
      }
    });
  }

  TEST_CASE("take copies the slots at marked positions and writes the dead slot at all others") {
    each_list([](kv::detail::slots_kernels const& with, list const& in) {
      std::vector<int> const stays = in.of_marked(true);
      std::vector<int> map = in.slot, live(stays.size() + 2, -7), expected = in.slot;
      map.push_back(-7);
      int const room = static_cast<int>(stays.size());
      CHECK(with.collect_live(in.marks.data(), in.count(), 99, map.data(), room, live.data()) == room);
      for (std::size_t e = 0; e < expected.size(); ++e) expected[e] = in.marks[e] != 0 ? expected[e] : 99;
      expected.push_back(-7);
      CHECK(map == expected);
      CHECK(std::equal(stays.begin(), stays.end(), live.begin()));
      CHECK(live[stays.size()] == -7);
    });
  }

  TEST_CASE("redirect writes the dead slot at the positions of entries without a mark, and nowhere else") {
    each_list([](kv::detail::slots_kernels const& with, list const& in) {
      std::vector<int> map = in.map, expected = in.map;
      with.redirect_to_dead(in.marks.data(), in.position.data(), in.count(), 99, map.data());
      for (std::size_t e = 0; e < in.slot.size(); ++e) {
        if (in.marks[e] == 0) expected[as_size(in.position[e])] = 99;
      }
      CHECK(map == expected);
    });
  }

  TEST_CASE("inside and matches_map find one wrong number at any place, and count_set counts marks") {
    each_list([](kv::detail::slots_kernels const& with, list const& in) {
      int const n = in.count();
      auto const end = static_cast<unsigned>(n) + 1;
      CHECK(with.inside(in.slot.data(), n, end, 0));
      CHECK(with.matches_map(in.slot.data(), in.position.data(), n, in.map.data()));
      CHECK(kv::detail::count_set(in.marks.data(), n) == static_cast<std::int64_t>(in.of_marked(true).size()));
      for (int e = 0; e < n; e += n > 300 ? 97 : 1) {
        std::vector<int> wrong = in.slot;
        for (int const other : {-1, 0, n + 1}) {
          wrong[as_size(e)] = other;
          CHECK(!with.inside(wrong.data(), n, end, 0));
          CHECK(!with.matches_map(wrong.data(), in.position.data(), n, in.map.data()));
        }
      }
    });
  }
}

}  // namespace slot_kernels_test
