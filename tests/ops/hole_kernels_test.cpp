// What fill_holes does with a list of slots: the same on every instruction set as one slot after another.

#include <doctest/doctest.h>

#include <algorithm>
#include <kvpolicy/ops/host/hole_kernels.hpp>
#include <random>
#include <vector>

namespace {

namespace kv = kvpolicy;

/// Distinct slots of a pool in any order, each with a mark if it goes.
struct marked_slots {
  marked_slots(int count, int units, std::mt19937& from) {
    std::vector<int> pool(static_cast<std::size_t>(units));
    for (int i = 0; i < units; ++i) pool[static_cast<std::size_t>(i)] = i;
    std::shuffle(pool.begin(), pool.end(), from);
    slots.assign(pool.begin(), pool.begin() + count);
    for (int i = 0; i < count; ++i) gone.push_back(from() % 4 == 0 ? 1 : 0);
  }
  std::vector<int> slots;
  std::vector<unsigned char> gone;
};

void check(kv::isa level, marked_slots const& in, int units) {
  kv::detail::hole_kernels const& with = kv::detail::holes_for(level);
  int const count = static_cast<int>(in.slots.size());
  int const many = static_cast<int>(std::count(in.gone.begin(), in.gone.end(), 1));
  if (many == 0) return;
  int const least = kv::detail::lowest_of_highest(with, in.slots.data(), count, many, units);
  std::vector<int> high, holes, kept, left;
  for (std::size_t e = 0; e < in.slots.size(); ++e) {
    if (in.slots[e] >= least) high.push_back(in.slots[e]);
    if (in.gone[e] != 0 && in.slots[e] < least) holes.push_back(in.slots[e]);
  }
  REQUIRE(static_cast<int>(high.size()) == many);
  for (std::size_t e = 0; e < in.slots.size(); ++e) {
    if (in.gone[e] != 0) continue;
    kept.push_back(in.slots[e] < least ? in.slots[e] : holes[left.size()]);
    if (in.slots[e] >= least) left.push_back(in.slots[e]);
  }
  REQUIRE(left.size() == holes.size());
  std::vector<int> listed(in.slots.size());
  with.list_from(in.slots.data(), count, least, listed.data());
  CHECK(std::vector<int>(listed.begin(), listed.begin() + many) == high);
  std::vector<int> slots = in.slots, moved(left.size() + 1);
  holes.push_back(-1);
  with.fill(slots.data(), in.gone.data(), count, least, holes.data(), moved.data());
  CHECK(std::vector<int>(slots.begin(), slots.begin() + static_cast<std::ptrdiff_t>(kept.size())) == kept);
  moved.pop_back();
  CHECK(moved == left);
}

}  // namespace

TEST_SUITE("ops/host/hole_kernels") {
  TEST_CASE("lists of any length, from pools with gaps and without, are compacted as one slot after another would be") {
    std::mt19937 from(3);
    for (kv::isa const level : {kv::isa::portable, kv::isa::avx2, kv::isa::avx512}) {
      if (level > kv::host_executor(1).simd_level()) continue;
      for (int const count : {1, 2, 15, 16, 17, 31, 32, 33, 64, 4097}) {
        for (int const units : {count, count + 1, 2 * count + 3, 100 * count}) {
          for (int round = 0; round < 5; ++round) check(level, marked_slots(count, units, from), units);
        }
      }
    }
  }

  TEST_CASE("all slots of a list may go") {
    std::mt19937 from(4);
    for (kv::isa const level : {kv::isa::portable, kv::isa::avx2, kv::isa::avx512}) {
      if (level > kv::host_executor(1).simd_level()) continue;
      marked_slots made(33, 70, from);
      std::fill(made.gone.begin(), made.gone.end(), static_cast<unsigned char>(1));
      check(level, made, 70);
    }
  }
}
