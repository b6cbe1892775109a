// SPDX-License-Identifier: Apache-2.0
// The device's edits of slots and blocks, against the host's, byte for byte.

#include <kvpolicy/ops/cuda/lists/drop_listed.hpp>
#include <kvpolicy/ops/cuda/units.hpp>

#include "device/moves.hpp"
#include "layout/slot_cache.hpp"

namespace {

using namespace kvpolicy_test;
using backend = device_executor::backend;

/// Random rows everywhere, ragged lists, drafts behind some of them.
void fill_slots(slot_cache& cache) {
  dice random(cache.options.seed + 9);
  for (std::byte& each : cache.memory) each = static_cast<std::byte>(random.below(256));
  for (int& each : cache.in_flight) each = random.chance(50) ? 0 : random.below(std::min(3, cache.options.bound));
  for (int row = 0; row < cache.rows; ++row) {
    int const drafts = cache.in_flight[slot_cache::at(row * cache.options.sequences / cache.rows)];
    int const count = drafts + random.below(cache.options.bound - drafts + 1);
    cache.count[slot_cache::at(row)] = random.chance(30) ? cache.options.bound : count;
    auto const positions = random.subset(3 * cache.options.bound, cache.options.bound);
    std::copy(positions.begin(), positions.end(), cache.position.begin() + row * cache.options.bound);
  }
}

/// Lets sequences name blocks of other sequences: some at the front of their rows, and some anywhere.
void share_blocks(slot_cache& cache, dice random) {
  int const rows = cache.rows / cache.options.sequences;
  for (int row = rows; row < cache.rows; ++row) {
    int const shared = random.below(cache.places + 1);
    for (int i = 0; i < cache.places; ++i) {
      int const other = random.chance(20) ? random.below(cache.rows) / rows * rows + row % rows : row % rows;
      if (i < shared) {
        cache.list[slot_cache::at(row * cache.places + i)] = cache.list[slot_cache::at(other * cache.places + i)];
      }
    }
  }
}

struct is_slot {
  int slot;
  KVPOLICY_HD bool operator()(int one) const { return one == slot; }
};

struct batch {
  explicit batch(slot_options const& how) : cache(how), columns(cache.lane_count(), cache.lanes(), how.seed + 1) {
    fill_slots(cache);
  }
  bool operator==(batch const& other) const {
    return cache.save() == other.cache.save() && columns.bytes() == other.columns.bytes() && told == other.told;
  }
  slot_cache cache;
  held_bytes columns;
  std::int64_t told = 5;
};

slot_options any_slots(bool pages) {
  slot_options how;
  how.model = {.layers = *rc::gen::inRange(1, 4), .kv_heads = *rc::gen::inRange(1, 3), .value_dim = 3};
  how.model.head_dim = *rc::gen::element(1, 4, 33);
  how.sequences = *rc::gen::inRange(1, 4);
  how.bound = *rc::gen::element(1, 31, 32, 33, 40, 130);
  how.spare = *rc::gen::element(1, 300);
  how.page = pages ? *rc::gen::element(1, 4, 16) : 1;
  how.by_lane = any_bool();
  how.one_list = any_bool();
  how.element = *rc::gen::element(kv::codec::f32, kv::codec::bf16);
  how.seed = any_seed();
  return how;
}

/// verb(exec, keep, batch) on both, for any keep set.
template <class Verb>
bool is_the_hosts(slot_options const& how, int threads, std::size_t scratch, bool one, Verb const& verb) {
  batch on_host(how);
  auto const held = std::make_unique<batch>(how);  // a device sees no stack
  batch& on_device = *held;
  auto const decides = how.by_lane ? kv::granularity::lane : kv::granularity::sequence;
  kv::lanes const batch = on_host.cache.lanes();
  dice random(how.seed + 3);
  std::vector<std::vector<int>> lists;
  for (int segment = 0; segment < kv::segments(batch, decides); ++segment) {
    int const committed = on_host.cache.committed(batch.at(kv::first_lane(batch, decides, segment)));
    lists.push_back(one ? random.subset(committed, committed > 0 ? random.below(2) : 0) : any_kept(random, committed));
  }
  listed_keep const keep(batch, decides, lists);
  kv::keep_set theirs = keep.view();
  theirs.lanes = on_device.cache.lanes();
  kv::host_executor host;
  host.reserve(scratch_of_every_verb<kv::host>(on_host.cache.view()));
  device_executor device(numbers_of(threads), how.seed);
  device.reserve(scratch);
  verb(host, keep.view(), on_host);
  verb(device, theirs, on_device);
  device.check();
  return on_host == on_device;
}

auto const fill_holes = [](auto& exec, kv::keep_set const& keep, batch& some) {
  kv::ops::fill_holes(exec, keep, some.cache.view(), some.cache.list_table(), some.columns.view());
};
auto const drop_units = [](auto& exec, kv::keep_set const& keep, batch& some) {
  kv::ops::drop_units(
      exec, keep, some.cache.view(),
      kv::list_edit<>{
          .list = some.cache.list_table(), .freed = some.cache.freed_list(), .released = some.cache.released_list()},
      some.columns.view(), &some.told);
};
auto const drop_listed = [](auto& exec, kv::keep_set const& keep, batch& some) {
  kv::ops::drop_listed(exec, keep, some.cache.view(), some.cache.list_table(), some.columns.view());
};

template <class Verb>
std::size_t scratch_for(slot_options const& how) {
  slot_cache cache(how);
  return kv::implementation<Verb, backend>::scratch(cache.view());
}

TEST_SUITE("device/units") {
  TEST_CASE("kept rows fill the holes of dropped ones as on the host") {
    holds("any slots", [] {
      slot_options const how = any_slots(false);
      int const threads = *rc::gen::element(32, 64, 128);
      RC_ASSERT(is_the_hosts(how, threads, scratch_for<kv::ops::fill_holes_t>(how), false, fill_holes));
    });
  }

  TEST_CASE("more slots than a block sorts in shared memory, and numbers of more than a byte") {
    slot_options const how{.bound = 4097, .spare = 70000, .seed = 3};
    CHECK(is_the_hosts(how, 32, scratch_for<kv::ops::fill_holes_t>(how), false, fill_holes));
  }

  TEST_CASE("blocks without a kept entry leave the table as on the host") {
    holds("any blocks", [] {
      slot_options const how = any_slots(true);
      int const threads = *rc::gen::element(32, 64);
      RC_ASSERT(is_the_hosts(how, threads, scratch_for<kv::ops::drop_units_t>(how), false, drop_units));
    });
  }

  TEST_CASE("blocks that several sequences name fall free as on the host, whole batches and parts of them") {
    holds("any blocks", [] {
      slot_options how = any_slots(true);
      how.sequences = *rc::gen::inRange(2, 5);
      batch on_host(how);
      share_blocks(on_host.cache, dice(how.seed + 5));
      auto const held = std::make_unique<batch>(how);  // a device sees no stack
      held->cache.list = on_host.cache.list;
      auto const slots = std::make_unique<std::vector<int>>();
      dice random(how.seed + 3);
      for (int s = how.sequences - 1; s >= 0; --s) {
        if (random.chance(50)) slots->push_back(s);
      }
      int const part = *rc::gen::inRange(0, slots->empty() ? 2 : 3);
      int const begin = random.below(how.sequences);
      auto const lanes_of = [&](kv::lanes const& all) {
        if (part == 2) return kv::only(all, {slots->data(), static_cast<int>(slots->size()), slots->data()});
        return part == 1 ? all.sequences_only(begin, how.sequences) : all;
      };
      auto const decides = how.by_lane ? kv::granularity::lane : kv::granularity::sequence;
      kv::lanes const some = lanes_of(on_host.cache.lanes());
      std::vector<std::vector<int>> lists;
      for (int segment = 0; segment < kv::segments(some, decides); ++segment) {
        lists.push_back(any_kept(random, some.committed(some.at(kv::first_lane(some, decides, segment)))));
      }
      listed_keep const keep(some, decides, lists);
      int const shared = random.below(on_host.cache.units);
      auto const drop = [&](auto& exec, batch& on) {
        kv::keep_set theirs = keep.view();
        theirs.lanes = lanes_of(on.cache.lanes());
        kv::slot_list const batch_of{slots->data(), static_cast<int>(slots->size()), slots->data()};
        kv::cache view = on.cache.view();
        if (part == 2) view = kv::only(view, batch_of);
        view.lanes = theirs.lanes;
        auto const rows = [&](auto const& table) { return part == 2 ? kv::only(table, batch_of) : table; };
        auto const listed = [&](kv::unit_list const& to) { return kv::unit_list{rows(to.unit), rows(to.count)}; };
        kv::list_edit<is_slot> const edit{.list = rows(on.cache.list_table()),
                                          .shared = {shared},
                                          .freed = listed(on.cache.freed_list()),
                                          .released = listed(on.cache.released_list())};
        exec.reserve(
            kv::implementation<kv::ops::free_tails_t, typename std::remove_cvref_t<decltype(exec)>::backend>::scratch(
                view) +
            kv::implementation<kv::ops::drop_units_t, typename std::remove_cvref_t<decltype(exec)>::backend>::scratch(
                view));
        kv::ops::free_tails(exec, theirs, view, &on.told);
        kv::ops::drop_units(exec, theirs, view, edit, std::span<kv::recorded_column const>{}, &on.told);
      };
      kv::host_executor host(*rc::gen::element(1, 3));
      device_executor device(numbers_of(*rc::gen::element(32, 64)), how.seed);
      drop(host, on_host);
      drop(device, *held);
      device.check();
      RC_ASSERT(on_host.cache.save() == held->cache.save());
      RC_ASSERT(on_host.told == held->told);
    });
  }

  TEST_CASE("a device refuses a block outside of the pool before it drops any") {
    slot_options const how{.bound = 32, .page = 4, .seed = 4};
    auto const some = std::make_unique<batch>(how);
    some->cache.count = {9};
    some->cache.list[2] = some->cache.units;
    auto const before = some->cache.save();
    listed_keep const keep(some->cache.lanes(), kv::granularity::lane, {{0}});
    device_executor device;
    device.reserve(scratch_for<kv::ops::drop_units_t>(how));
    drop_units(device, keep.view(), *some);
    CHECK(error_of([&] { device.check(); }) ==
          "apply: cache.where.table (0) = " + std::to_string(some->cache.units) + ", but the pool has no such unit");
    CHECK(some->cache.save() == before);
  }

  TEST_CASE("lists close up behind the one entry that goes as on the host") {
    holds("any slots", [] {
      slot_options how = any_slots(false);
      int const threads = *rc::gen::element(32, 64);
      RC_ASSERT(is_the_hosts(how, threads, 0, true, drop_listed));
    });
  }

  TEST_CASE("nothing changes after a fault") {
    slot_options const how{.bound = 33, .page = 1, .seed = 4};
    batch some(how);
    listed_keep const keep(some.cache.lanes(), kv::granularity::lane, {{0}});
    device_executor device;
    device.reserve(scratch_for<kv::ops::fill_holes_t>(how) + scratch_for<kv::ops::drop_units_t>(how));
    auto const save = [&] { return some.cache.save(); };
    CHECK(is_idle_after_a_fault(device, [&] { fill_holes(device, keep.view(), some); }, save));
    CHECK(is_idle_after_a_fault(device, [&] { drop_units(device, keep.view(), some); }, save));
    CHECK(is_idle_after_a_fault(device, [&] { drop_listed(device, keep.view(), some); }, save));
    CHECK(some.told == 5);
  }
}

}  // namespace
