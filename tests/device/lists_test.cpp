// SPDX-License-Identifier: Apache-2.0
// The device's lists, maps and masks against the host's.

#include <kvpolicy/ops/cuda/lists.hpp>
#include <kvpolicy/ops/cuda/lists/masks.hpp>

#include "device/listed_batch.hpp"

namespace {

using namespace kvpolicy_test;

struct every_third {
  KVPOLICY_HD constexpr bool operator()(int slot) const { return slot % 3 == 0; }
};

constexpr launch_numbers few_threads{.segment_threads = 64, .entry_threads = 64, .lane_threads = 32};

enum class list_trouble { none, equal_slots, wrong_slot };

/// Lists of any kind are checked and rewritten alike.
template <class Shared>
void rewrites(slot_options const& shape, launch_numbers const& numbers, bool one_pool, list_trouble trouble,
              bool redirects, bool distinct) {
  listed_batch expected(shape, one_pool), found(shape, one_pool);
  for (listed_batch* on : {&expected, &found}) {
    if (trouble == list_trouble::equal_slots) on->repeat_slots(std::is_same_v<Shared, every_third>);
    if (trouble == list_trouble::wrong_slot) on->trouble();
  }
  auto const decides = shape.by_lane ? kv::granularity::lane : kv::granularity::sequence;
  owned_keep keep(kv::contiguous_scores(found.view.lanes, decides, nullptr, shape.bound));
  found.choose(keep);
  std::vector<std::int64_t> freed(2, 5);  // on the heap: a device sees no stack
  alike(expected, found, numbers, [&](auto& exec, listed_batch& on) {
    auto const edit = on.template edit<Shared>(redirects, distinct);
    kv::ops::check_list(exec, keep.view(), on.view, edit);
    kv::ops::rewrite_list(exec, keep.view(), on.view, edit, &freed[&on == &found ? 1 : 0]);
  });
  RC_ASSERT(freed[0] == freed[1]);
}

}  // namespace

TEST_SUITE("device/lists") {
  TEST_CASE("lists, maps and what is handed back are the host's, and so is what is refused") {
    for (auto const trouble : {list_trouble::none, list_trouble::equal_slots, list_trouble::wrong_slot}) {
      auto const any = [] { return any_bool(); };
      holds("slots of one owner",
            [&] { rewrites<kv::nobody>(any_lists(), any_numbers(), any(), trouble, any(), any()); });
      holds("shared slots", [&] { rewrites<every_third>(any_lists(), any_numbers(), any(), trouble, any(), false); });
    }
  }

  TEST_CASE("a list of 4097 entries is rewritten in tiles, and one of equal slots hands each back once") {
    for (int const bound : {4097, 1, 32}) {
      for (auto const trouble : {list_trouble::none, list_trouble::equal_slots}) {
        rewrites<kv::nobody>({.sequences = 2, .bound = bound, .seed = 7}, few_threads, false, trouble, true, false);
      }
    }
  }

  TEST_CASE("pools whose marks do not fit into scratch together are checked in turn") {
    for (int const trouble : {0, 1}) {
      slot_options const shape{.model = {.layers = 2, .query_heads = 1, .kv_heads = 1, .head_dim = 4},
                               .bound = 5,
                               .spare = 20,
                               .by_lane = true};
      listed_batch expected(shape, false), found(shape, false);
      for (listed_batch* on : {&expected, &found}) {
        on->view.where.units = 2'100'000;
        on->cache.count.assign(2, 4);
        on->cache.in_flight[0] = 0;
        if (trouble != 0) on->of(on->cache.list, 1, 3) = on->of(on->cache.list, 1, 1);
      }
      owned_keep keep(kv::contiguous_scores(found.view.lanes, kv::granularity::lane, nullptr, shape.bound));
      alike(expected, found, few_threads, [&](auto& exec, listed_batch& on) {
        kv::ops::check_list(exec, keep.view(), on.view, on.edit<kv::nobody>(false, true));
      });
    }
  }

  TEST_CASE("a block whose scratch is needed again rewrites one row after the other") {
    slot_options const shape{.sequences = 5, .bound = 33, .seed = 3};
    listed_batch expected(shape, false), found(shape, false);
    for (listed_batch* on : {&expected, &found}) {
      on->view.where.units = 70'000'000;
      on->repeat_slots(false);
      for (int e = 6; e < 12; ++e) on->of(on->cache.list, 1, e) = on->cache.dead();
    }
    owned_keep keep(kv::contiguous_scores(found.view.lanes, kv::granularity::sequence, nullptr, shape.bound));
    found.choose(keep);
    auto const rewrite = [&](auto& exec, listed_batch& on) {
      kv::ops::rewrite_list(exec, keep.view(), on.view, on.edit<kv::nobody>(true, false), nullptr);
    };
    alike(expected, found, few_threads, rewrite, 9 << 20);
  }

  TEST_CASE("what is wrong has words, and names the lane and the slot or the position") {
    auto const error = [](auto const& change) {
      listed_batch on({.sequences = 2, .bound = 6}, false);
      for (auto* each : {&on.cache.prefix, &on.cache.locked, &on.cache.in_flight}) each->assign(2, 0);
      on.cache.count = {4, 1};
      for (int i = 0; i < 12; ++i) on.of(on.cache.list, i / 6, i % 6) = i;
      for (int i = 0; i < 12; ++i) on.of(on.cache.position, i / 6, i % 6) = i % 6;
      for (int i = 0; i < 12; ++i) on.of(on.cache.map, i / 6, i % 6) = i;
      change(on);
      owned_keep keep(kv::contiguous_scores(on.view.lanes, kv::granularity::sequence, nullptr, 6));
      device_executor device;
      device.reserve(scratch_of_every_verb<device_executor::backend>(on.view));
      kv::ops::check_list(device, keep.view(), on.view, on.edit<kv::nobody>(true, true));
      return error_of([&] { device.check(); });
    };
    CHECK(error([](listed_batch&) {}) == "");
    CHECK(error([](listed_batch& on) { on.cache.list[1] = 13; }) ==
          "apply: list (0) = 13, but a slot is out of the pool");
    CHECK(error([](listed_batch& on) { on.cache.list[2] = on.cache.map[2] = on.cache.dead(); }) ==
          "apply: list (0) = 2, but a live entry or a protected position is at the dead slot");
    CHECK(error([](listed_batch& on) { on.cache.map[3] = 2; }) ==
          "apply: map (0) = 3, but list and map differ at a live entry");
    CHECK(error([](listed_batch& on) { on.cache.list[2] = on.cache.map[2] = 1; }) ==
          "apply: list (0) = 1, but two entries name one slot that is not shared");
    CHECK(error([](listed_batch& on) {
            on.of(on.cache.list, 1, 0) = on.of(on.cache.map, 1, 0) = 0;  // the other one's is locked
            on.cache.locked[0] = 1;
          }) == "apply: list (0) = 0, but two entries name one slot that is not shared");
    CHECK(error([](listed_batch& on) { on.cache.prefix[0] = 2; }) ==
          "apply: plan.keep (0) = 0, but it drops a position of the protected prefix");
  }

  TEST_CASE("masks say what the host's say, and their neighbours' bits stay") {
    holds("any lists, and pages", [] {
      slot_options shape = any_lists();
      shape.page = shape.one_list ? 1 : *rc::gen::element(1, 4);
      auto const form =
          *rc::gen::element(kv::mask_form::bits, kv::mask_form::bits, kv::mask_form::boolean,
                            kv::mask_form::additive_f32, kv::mask_form::additive_f16, kv::mask_form::additive_bf16);
      listed_batch expected(shape, false), found(shape, false);
      owned_keep keep(kv::contiguous_scores(found.view.lanes, kv::granularity::lane, nullptr, shape.bound));
      found.choose(keep);
      bool const shows = any_bool();
      alike(expected, found, any_numbers(), [&](auto& exec, listed_batch& on) {
        if (shows) kv::ops::show_entries(exec, on.view, on.mask(form));
        kv::ops::hide_dropped(exec, keep.view(), on.view, on.mask(form));
      });
    });
    listed_batch on({.bound = 40}, false);
    device_executor device;
    auto odd = on.mask(kv::mask_form::bits);
    odd.rows.data += 2;
    CHECK(error_of([&] { kv::ops::show_entries(device, on.view, odd); }) ==
          "show: mask.rows = misaligned rows, but a device writes bits by words of 4 bytes");
  }

  TEST_CASE("relist gives live entries the map's slots, or changes nothing") {
    holds("any map of a tree", [] {
      slot_options const shape = any_lists();
      listed_batch expected(shape, false), found(shape, false);
      for (listed_batch* on : {&expected, &found}) {
        dice random(shape.seed + 1);
        for (int& slot : on->cache.map) slot = random.below(on->cache.units - 1);
        if (random.chance(50)) on->of(on->cache.map, 0, random.below(2 * shape.bound)) = on->cache.dead();
      }
      int const length = *rc::gen::element(2 * shape.bound, 2 * shape.bound, 3 * shape.bound, shape.bound, 0);
      int const sequence = *rc::gen::inRange(0, shape.sequences);
      alike(expected, found, any_numbers(), [&](auto& exec, listed_batch& on) {
        auto const how = on.cache.redirecting();
        kv::ops::relist(exec, on.view, how.list, how.map, how.map_begin, how.dead, sequence, length);
      });
    });
  }
}
