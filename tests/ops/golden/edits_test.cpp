// SPDX-License-Identifier: Apache-2.0
// Edits of lists, rows and numbers of entries: bits on every instruction set.

#include "support/golden.hpp"

namespace golden_edits_test {

using namespace kvpolicy_test;

constexpr int lanes = 4;  // two layers of two heads

template <class T>
kv::by_lane<T> rows_of(std::vector<T>& all) {
  auto const row = static_cast<std::int64_t>(all.size() / lanes);
  return {all.data(), 0, 2 * row, row};
}

/// Lanes of `entries` entries and `drafts` drafts, in slots of pools of `units`, and a decision about them.
struct model {
  model(int entries, int drafts, int units, int percent, dice& random)
      : bound(entries + drafts),
        list(std::size_t{lanes} * as_size(bound)),
        position(list.size()),
        numbers(list.size()),
        bytes(3 * list.size()),
        counts(lanes, bound),
        order(lanes),
        rows(any_rows(random, kv::codec::bf16, std::size_t{8} * lanes * as_size(units), false)),
        mask(4 * std::size_t{lanes} * as_size(units)),
        in_flight(drafts) {
    for (int i = 0; i < lanes; ++i) {
      std::vector<int> const slots = random.permutation(units);
      for (int e = 0; e < bound; ++e) {
        auto const at = as_size(i * bound + e);
        list[at] = slots[as_size(e)];
        position[at] = 2 * e + i;
        numbers[at] = random.below(1000);
        if (e < entries && random.chance(percent)) kept.push_back(e);
      }
      ends.push_back(static_cast<std::int64_t>(kept.size()));
      dropped.push_back(entries > 0 ? random.below(entries) : 0);
    }
    for (std::size_t b = 0; b < bytes.size(); ++b) bytes[b] = static_cast<std::byte>(b * 7);
    auto const at = std::int64_t{16} * units;
    plane = {.base = rows.data(),
             .element = kv::codec::bf16,
             .channels = 8,
             .layer_stride = 2 * at,
             .unit_stride = 16,
             .head_stride = at,
             .channel_stride = 2};
    cache = {{.layers = 2, .query_heads = 2, .kv_heads = 2, .head_dim = 8},
             {.layer_end = 2,
              .heads = 2,
              .capacity = bound,
              .count = {counts.data(), 0, 2, 1},
              .position = rows_of(position),
              .in_flight = &in_flight},
             plane,
             plane,
             kv::slot_map({list.data(), 0, 2 * bound, bound}, units)};
    cache.v.channels = 0;
    keep.lanes = cache.lanes;
    keep.indptr = ends.data();
    keep.indices = kept.data();
    columns = {{{"numbers"}, {reinterpret_cast<std::byte*>(numbers.data()), 0, 8 * bound, 4 * bound}},
               {{.name = "bytes", .bytes = 3}, {bytes.data(), 0, 6 * bound, 3 * bound}}};
  }
  void add_to(folded& all) const {
    for (auto const* each : {&list, &position, &numbers, &counts}) all.add(std::span<int const>(*each));
    for (auto const* each : {&rows, &bytes, &mask}) {
      for (std::byte const one : *each) all.add(static_cast<unsigned char>(one));
    }
    for (kv::lane_order const& one : order) all.add(one.begin * 7919 + one.oldest * 31 + one.end + one.newest * 104729);
  }
  int bound;
  std::vector<int> list, position, numbers;
  std::vector<std::byte> bytes;
  std::vector<int> counts;
  std::vector<kv::lane_order> order;
  std::vector<std::byte> rows, mask;
  std::vector<int> kept, dropped;
  std::vector<std::int64_t> ends{0};
  int in_flight;
  kv::plane plane;
  kv::cache cache;
  kv::keep_set keep;
  std::vector<kv::recorded_column> columns;
};

/// Calls a verb on lanes of many sizes, in pools with gaps and without.
template <class Verb>
std::uint64_t of_edits(kv::isa level, Verb const& verb) {
  folded all;
  dice random(11);
  for (int entries = 1; entries < 500; entries += entries < 40 ? 5 : 79) {
    for (int const percent : {0, 50, 96, 99, 100}) {
      for (int const units : {entries + 2, 5 * entries + 2}) {
        model on(entries, entries % 3, units, percent, random);
        kv::host_executor exec(1, level);
        exec.reserve(scratch_of_every_verb<kv::host>(on.cache));
        verb(exec, on);
        on.add_to(all);
      }
    }
  }
  return all.bits();
}

void replace(kv::host_executor& exec, model& on, bool lists) {
  on.cache.lanes.order = rows_of(on.order);
  std::vector<std::int64_t> ends{0, 1, 2, 3, 4};
  on.keep = {on.cache.lanes, kv::granularity::lane, kv::item::token, kv::side::dropped, ends.data(), on.dropped.data()};
  for (int i = 0; i < 3 && on.counts[0] - on.in_flight > 4; ++i) {
    kv::ops::replace_listed(exec, on.keep, on.cache, lists ? rows_of(on.list) : kv::by_lane<int>{}, on.columns);
    for (int& ordinal : on.dropped) ordinal /= 2;
  }
}

TEST_SUITE("ops/golden/edits") {
  TEST_CASE("edits are what they were") {
    for_each_isa([](kv::isa level) {
      CHECK(of_edits(level, [](auto& exec, model& on) {
              kv::ops::fill_holes(exec, on.keep, on.cache, rows_of(on.list), on.columns);
            }) == 0xA95ED351FE612B7u);
      CHECK(of_edits(level, [](auto& exec, model& on) { kv::ops::gather_rows(exec, on.keep, on.cache, on.columns); }) ==
            0x4495F9EB22DC6214u);
      CHECK(of_edits(level, [](auto& exec, model& on) {
              std::vector<int> map(3 * on.list.size() + lanes, 5);
              std::int64_t freed = 0;
              kv::list_edit<> edit{.list = rows_of(on.list), .map = rows_of(map), .dead = 1};
              kv::ops::rewrite_list(exec, on.keep, on.cache, edit, &freed);
              on.counts[0] += static_cast<int>(freed) + std::accumulate(map.begin(), map.end(), 0);
            }) == 0x83432BF27D21E749u);
      CHECK(of_edits(level, [](auto& exec, model& on) {
              for (auto const form : {kv::mask_form::additive_f32, kv::mask_form::boolean, kv::mask_form::bits}) {
                auto const row = static_cast<std::int64_t>(on.mask.size() / lanes);
                kv::mask_rows const mask{{on.mask.data(), 0, 2 * row, row}, form, row / 4};
                kv::ops::hide_dropped(exec, on.keep, on.cache, mask);
              }
            }) == 0xACBD0174BF9576E4u);
      for (bool const lists : {true, false})
        CHECK(of_edits(level, [&](auto& exec, model& on) { replace(exec, on, lists); }) ==
              (lists ? 0x9AA3AEA04C04B06Cu : 0x236959E562854C60u));
    });
  }
}

}  // namespace golden_edits_test
