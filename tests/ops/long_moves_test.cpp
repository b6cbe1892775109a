// SPDX-License-Identifier: Apache-2.0
// gather_rows and fill_holes of so many bytes that rows move past the cache: still byte for byte, at every alignment.

#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

struct long_lane {
  int entries;
  int row_bytes;
  int stride;
  int skew;
};

/// Bytes like no others, and where rows begin that lie `skew` bytes beside a multiple of 64.
struct filled {
  explicit filled(long_lane const& how) : bytes(as_size(how.entries) * as_size(how.stride) + 256) {
    std::uint32_t next = 7;
    for (std::byte& each : bytes) each = static_cast<std::byte>((next = next * 1664525u + 1013904223u) >> 24);
    auto const beside = static_cast<std::ptrdiff_t>(reinterpret_cast<std::uintptr_t>(bytes.data()) % 64);
    base = 64 - beside + how.skew;
  }
  std::vector<std::byte> bytes;
  std::ptrdiff_t base;
};

/// A cache of opaque rows whose values have no bytes: the same memory must not move twice.
kv::cache cache_of(owned_lanes const& lanes, kv::plane const& rows, kv::locator const& where) {
  kv::cache made{
      {.layers = 1, .query_heads = 1, .kv_heads = 1, .head_dim = rows.channels}, lanes.view(), rows, rows, where};
  made.v.channels = 0;
  return made;
}

/// Opaque rows, `stride` bytes apart; which entries stay is given.
void check_moves(long_lane const& how, std::vector<int> const& kept) {
  INFO("row_bytes ", how.row_bytes, ", stride ", how.stride, ", skew ", how.skew);
  filled memory(how);
  auto const base = memory.base;
  std::vector<std::byte> expected = memory.bytes;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    std::memcpy(expected.data() + base + static_cast<std::ptrdiff_t>(i) * how.stride,
                memory.bytes.data() + base + std::ptrdiff_t{kept[i]} * how.stride, as_size(how.row_bytes));
  }
  owned_lanes const lanes(how.entries);
  listed_keep const keep(lanes.view(), kv::granularity::lane, {kept});
  kv::cache const cache =
      cache_of(lanes, {memory.bytes.data() + base, kv::codec::opaque, how.row_bytes, 0, 0, how.stride, 0, 1},
               kv::identity_map(how.entries, 1));
  kv::host_executor exec;
  kv::ops::gather_rows(exec, keep.view(), cache, std::span<kv::recorded_column const>{});
  CHECK(memory.bytes == expected);
}

/// A lane of slots in any order: afterwards its kept entries lie in its lowest slots, those that were there already
/// where they were.
void check_holes(long_lane const& how, std::vector<int> const& kept) {
  INFO("row_bytes ", how.row_bytes, ", skew ", how.skew, ", size() ", kept.size());
  filled memory(how);
  filled const before = memory;
  auto const row = [&](filled const& of, int slot) {
    return of.bytes.data() + of.base + std::ptrdiff_t{slot} * how.stride;
  };
  std::vector<int> slots = up_to(how.entries);
  dice random(13);
  for (int i = how.entries - 1; i > 0; --i) std::swap(slots[as_size(i)], slots[as_size(random.below(i + 1))]);
  std::vector<int> const old = slots;

  owned_lanes const lanes(how.entries);
  listed_keep const keep(lanes.view(), kv::granularity::lane, {kept});
  kv::cache const cache =
      cache_of(lanes, {memory.bytes.data() + memory.base, kv::codec::opaque, how.row_bytes, 0, how.stride, 0, 0, 1},
               kv::slot_map({slots.data()}, how.entries));
  kv::host_executor exec;
  exec.reserve(scratch_of_every_verb<kv::host>(cache));
  kv::ops::fill_holes(exec, keep.view(), cache, kv::by_lane<int>{slots.data()}, std::span<kv::recorded_column const>{});

  int const stay = static_cast<int>(kept.size());
  bool right = true;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    int const was = old[as_size(kept[i])];
    right = right && slots[i] < stay && (was >= stay || slots[i] == was) &&
            std::memcmp(row(memory, slots[i]), row(before, was), as_size(how.row_bytes)) == 0;
  }
  CHECK(right);
  std::sort(slots.begin(), slots.end());
  for (int i = 0; i < how.entries; ++i) right = right && slots[as_size(i)] == i;
  CHECK(right);
}

}  // namespace

TEST_SUITE("ops/fill_holes: long lanes") {
  TEST_CASE("a megabyte of rows moves into holes byte for byte, however many of them there are") {
    dice random(12);
    for (int const row_bytes : {256, 257}) {
      for (int const skew : {0, 8}) {
        for (int const stay : {0, 1, 1500, 3999, 4000})
          check_holes({4000, row_bytes, row_bytes + 16 * (skew != 0 ? 1 : 0), skew}, random.subset(4000, stay));
      }
    }
  }
}

TEST_SUITE("ops/gather_rows: long lanes") {
  TEST_CASE("a megabyte of rows moves byte for byte, whatever a row's size and alignment") {
    dice random(11);
    std::vector<int> const half = random.subset(4000, 2100);
    for (int const row_bytes : {256, 272, 260, 257, 1024}) {
      for (int const padding : {0, 8, 16, 32}) {
        for (int const skew : {0, 4, 8, 16}) check_moves({4000, row_bytes, row_bytes + padding, skew}, half);
      }
    }
  }

  TEST_CASE("what stays at the front is not moved, and what is left may be a few rows or none") {
    std::vector<int> kept = up_to(3000);
    check_moves({4000, 256, 256, 0}, kept);
    for (int e = 3001; e < 3013; ++e) kept.push_back(e);
    check_moves({4000, 256, 256, 0}, kept);
    check_moves({4000, 256, 256, 0}, {});
    check_moves({4000, 256, 256, 0}, {3999});
    kept.resize(1);
    for (int e = 2; e < 4000; ++e) kept.push_back(e);
    check_moves({4000, 256, 256, 0}, kept);
  }

  TEST_CASE("verbs that move rows or look at one number at a time need no scratch") {
    kv::shape const model{.layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 8};
    using verbs = kv::verbs<kv::ops::gather_rows_t, kv::ops::ring_append_t, kv::ops::ring_truncate_t, kv::ops::map_t,
                            kv::ops::row_norm_t>;
    CHECK(kv::detail::scratch_of_verbs<kv::host>(verbs{}, model, kv::lanes{.capacity = 100}) == 0);
  }
}
