// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/as_on_host.hpp"
#include "layout/slot_cache.hpp"
#include "support/device.hpp"
#include "support/test.hpp"

namespace kvpolicy_test {

/// Lists, maps, positions and masks of a batch; two of them made alike are alike. Choices come from the seed.
struct listed_batch {
  slot_cache cache;
  dice random;
  bool one_pool;
  kv::cache view;
  std::vector<unsigned> bits;

  listed_batch(slot_options const& shape, bool pool_of_layers)
      : cache(shape), random(shape.seed), one_pool(pool_of_layers), view(cache.view()) {
    if (one_pool) view.k.layer_stride = view.v.layer_stride = 0;
    bits.assign(as_size(cache.rows * cache.units), 0xA5A5A5A5u);
    if (one_pool || random.chance(50)) {
      auto const slots = random.permutation(cache.units - 1);
      std::copy_n(slots.begin(), cache.list.size(), cache.list.begin());
    }
    for (int& each : cache.in_flight) each = random.chance(50) ? random.below(std::min(3, shape.bound)) : 0;
    for (int r = 0; r < cache.rows; ++r) fill(r);
  }

  int& of(std::vector<int>& table, int row, int i) {
    return table[as_size(row) * (table.size() / as_size(cache.rows)) + as_size(i)];
  }

  void fill(int row) {
    int const drafts = cache.in_flight[as_size(row / (cache.rows / cache.options.sequences))];
    int const count = random.chance(10) ? drafts : random.between(drafts, cache.options.bound);
    of(cache.count, row, 0) = count;
    auto positions = random.subset(2 * cache.options.bound, count);
    int const lead = std::min(count, random.below(6));
    for (int e = 0; e < lead; ++e) positions[as_size(e)] = e;
    for (int e = 0; e < count; ++e) {
      of(cache.position, row, e) = positions[as_size(e)];
      if (cache.options.page == 1) of(cache.map, row, of(cache.position, row, e)) = of(cache.list, row, e);
    }
    of(cache.prefix, row, 0) = random.chance(5) ? lead + 1 : random.below(lead + 1);
    of(cache.locked, row, 0) = random.chance(50) ? random.below(cache.options.bound + 1) : 0;
  }

  /// An entry has another slot than it should: another's, the dead one, one of no pool; the map says so or does not.
  void trouble() {
    int const row = random.below(cache.rows);
    int const count = of(cache.count, row, 0);
    if (count == 0) return;
    int const from = random.below(cache.rows);
    int& slot = of(cache.list, row, random.below(count));
    int const choice = random.below(8);
    slot = choice == 0   ? cache.dead()
           : choice == 1 ? cache.units + random.below(2)
           : choice == 2 ? -1
           : choice < 6  ? of(cache.list, row, random.below(count))
                         : of(cache.list, from, random.below(cache.options.bound));
    if (random.chance(20)) return;
    for (int e = 0; e < count; ++e) of(cache.map, row, of(cache.position, row, e)) = of(cache.list, row, e);
  }

  /// Some entries have the slots of others of their list, and the map says so. `across`: or the slot of another list,
  /// if it is a third one.
  void repeat_slots(bool across) {
    for (int row = 0; row < cache.rows; ++row) {
      int const count = of(cache.count, row, 0);
      for (int e = 0; e < count; ++e) {
        if (random.chance(30)) of(cache.list, row, e) = of(cache.list, row, random.below(count));
        int const other = of(cache.list, random.below(cache.rows), random.below(cache.options.bound));
        if (across && other % 3 == 0 && random.chance(20)) of(cache.list, row, e) = other;
        of(cache.map, row, of(cache.position, row, e)) = of(cache.list, row, e);
      }
    }
  }

  /// Some of the committed entries of each segment; those of the protected prefix, mostly.
  void choose(owned_keep& keep) {
    kv::keep_set& made = keep.view();
    for (int segment = 0; segment < made.segments(); ++segment) {
      kv::lane const this_lane = made.lanes.at(kv::first_lane(made.lanes, made.decides, segment));
      int const row = cache.row_of(this_lane);
      int const percent = random.one_of(std::vector<int>{0, 100, 50, 10});
      bool const careful = random.chance(95);
      std::int64_t to = made.indptr[segment];
      for (int e = 0; e < cache.committed(this_lane); ++e) {
        bool const forced = careful && of(cache.position, row, e) < of(cache.prefix, row, 0);
        if (forced || random.chance(percent)) made.indices[to++] = e;
      }
      made.indptr[segment + 1] = to;
    }
  }

  /// Makes the rows of units alike behind what is listed in them, which is unspecified.
  void clear_unlisted() {
    for (int row = 0; row < cache.rows; ++row) {
      for (int i = of(cache.freed_count, row, 0); i < cache.options.bound; ++i) of(cache.freed, row, i) = 0;
      for (int i = of(cache.released_count, row, 0); i < cache.options.bound; ++i) of(cache.released, row, i) = 0;
    }
  }

  template <class Shared>
  kv::list_edit<Shared> edit(bool redirects, bool distinct) {
    kv::list_edit<Shared> made{.list = cache.list_table(), .distinct = distinct};
    made.freed = cache.freed_list();
    if (!redirects) return made;
    made.map = cache.map_table();
    made.dead = cache.dead();
    made.protected_prefix = cache.table<int const>(cache.prefix, 1);
    made.locked_prefix = cache.table<int const>(cache.locked, 1);
    made.released = cache.released_list();
    return made;
  }
  kv::mask_rows mask(kv::mask_form form) {
    auto const row = static_cast<int>(std::int64_t{cache.units} * 4);
    auto const rows = cache.table<int>(cache.list, row);
    return {{reinterpret_cast<std::byte*>(bits.data()), rows.sequence, rows.layer, rows.head}, form, cache.units};
  }
};

inline slot_options any_lists() {
  slot_options shape;
  shape.model.layers = *rc::gen::element(1, 2, 3);
  shape.model.kv_heads = shape.model.query_heads = *rc::gen::element(1, 2);
  shape.sequences = *rc::gen::element(1, 2, 3);
  shape.bound = *rc::gen::element(33, 1, 8, 31, 32, 100);
  shape.by_lane = any_bool();
  shape.one_list = any_bool();
  shape.spare = 1 + (shape.by_lane ? 6 * shape.sequences * shape.bound : *rc::gen::element(0, 40));
  shape.seed = *rc::gen::inRange<std::uint64_t>(1, 1u << 20);
  return shape;
}

/// Does it on the host and on the device, and finds the same: what is left, and whether it is refused. `scratch`: bytes
/// of the device's, if not what the cache's lists need.
template <class Call>
void alike(listed_batch& expected, listed_batch& found, launch_numbers const& numbers, Call const& call,
           std::size_t scratch = 0) {
  kv::host_executor host;
  device_executor device(numbers, found.cache.options.seed);
  host.reserve(scratch_of_every_verb<kv::host>(expected.view));
  device.reserve(scratch != 0 ? scratch : scratch_of_every_verb<device_executor::backend>(found.view));
  auto const refused = error_of([&] { call(host, expected); });
  auto const noted = error_of([&] {
    call(device, found);
    device.check();
  });
  RC_ASSERT(refused.substr(0, refused.find(' ')) == noted.substr(0, noted.find(' ')));
  if (refused.empty()) expected.clear_unlisted(), found.clear_unlisted();
  RC_ASSERT(expected.cache.save() == found.cache.save());
  RC_ASSERT(expected.bits == found.bits);
}

}  // namespace kvpolicy_test
