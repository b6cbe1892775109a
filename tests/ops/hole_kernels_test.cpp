// How fill_holes finds the highest slots of a list, on every instruction set, against a sort.

#include <doctest/doctest.h>

#include <algorithm>
#include <kvpolicy/ops/host/hole_kernels.hpp>
#include <numeric>
#include <random>
#include <vector>

namespace {

namespace kv = kvpolicy;

/// Distinct slots of a pool in any order.
std::vector<int> any_slots(int count, int units, std::mt19937& from) {
  std::vector<int> pool(static_cast<std::size_t>(units));
  std::iota(pool.begin(), pool.end(), 0);
  std::shuffle(pool.begin(), pool.end(), from);
  pool.resize(static_cast<std::size_t>(count));
  return pool;
}

void check(kv::isa level, std::vector<int> const& slots, int many, int units) {
  kv::detail::hole_kernels const& with = kv::detail::holes_for(level);
  int const count = static_cast<int>(slots.size());
  std::vector<int> highest = slots;
  std::sort(highest.begin(), highest.end());
  highest.erase(highest.begin(), highest.end() - many);
  std::vector<int> expected;
  for (int e = 0; e < count; ++e) {
    if (slots[static_cast<std::size_t>(e)] >= highest.front()) expected.push_back(e);
  }
  std::vector<int> listed(slots.size() + 1, -7);
  int const least = kv::detail::list_highest(with, slots.data(), count, many, units, listed.data());
  CHECK(least <= highest.front());
  CHECK(with.count_from(slots.data(), count, least) == many);
  CHECK(listed.back() == -7);
  listed.resize(static_cast<std::size_t>(many));
  CHECK(listed == expected);
}

}  // namespace

TEST_SUITE("ops/host/hole_kernels") {
  TEST_CASE("the highest slots of lists of any length, from pools with gaps and without, are found") {
    std::mt19937 from(3);
    for (kv::isa const level : {kv::isa::portable, kv::isa::avx2, kv::isa::avx512}) {
      if (level > kv::host_executor(1).simd_level()) continue;
      for (int const count : {1, 2, 15, 16, 17, 31, 32, 33, 64, 4097}) {
        for (int const units : {count, count + 1, 2 * count + 3, 100 * count}) {
          for (int const many : {1, (count + 3) / 4, count}) check(level, any_slots(count, units, from), many, units);
        }
      }
    }
  }
}
