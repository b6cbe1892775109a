// SPDX-License-Identifier: Apache-2.0
// The device's counts against the host's: append, truncate, commit, what is refused, and what is told.

#include "device/as_on_host.hpp"

namespace {

using namespace kvpolicy_test;

/// A batch with columns of several widths, full of anything.
struct batch {
  mock_cache cache;
  std::vector<std::vector<std::byte>> memory;
  std::vector<kv::recorded_column> columns;

  explicit batch(mock_options const& shape) : cache(shape) {
    for (auto const& [one, bytes] : {std::pair{kv::column_extent::lane_entry, 4},
                                     {kv::column_extent::lane_entry, 3},
                                     {kv::column_extent::lane, 8}}) {
      std::int64_t const row = std::int64_t{shape.bound} * bytes;
      auto& rows = memory.emplace_back(as_size(row * cache.lane_count()), std::byte{0xA5});
      std::int64_t const layer = row * shape.model.kv_heads;
      columns.push_back({{.extent = one, .bytes = bytes}, {rows.data(), layer * shape.model.layers, layer, row}});
    }
  }
};

mock_options any_lanes() {
  mock_options shape = any_mock();
  shape.skew = 0;
  shape.model.head_dim = 4;
  shape.shared_entries = any_bool();
  return shape;
}

/// What one engine's call does to a batch: 0 append, 1 drafts, 2 truncate, 3 commit.
struct change {
  int kind;
  kv::append_request fresh;
  template <class Executor>
  void operator()(Executor& exec, batch& on) const {
    kv::lanes const batch = on.cache.lanes();
    if (kind < 2) kv::ops::append_entries(exec, batch, std::span<kv::recorded_column const>(on.columns), fresh);
    if (kind == 2) kv::ops::truncate_entries(exec, batch, fresh.sequence, fresh.position);
    if (kind == 3) kv::ops::commit_entries(exec, batch, fresh.sequence, fresh.tokens);
  }
};

change any_change(dice& random, mock_cache& of) {
  int const sequence = random.below(of.options().sequences);
  int const bound = of.options().bound;
  kv::lane const some{sequence, 0, 0};
  int const count = of.count(some);
  int const last = count > 0 ? of.position(some, count - 1) : -1;
  int const tokens = random.chance(20) ? bound : random.below(4);
  int const kind = random.below(4);
  int const position = kind == 2 ? random.below(last + 3) : random.chance(10) ? 0 : last + random.below(20);
  return {kind, {sequence, tokens, position > 0 ? position : 0, kind == 1}};
}

/// Does it on the host and on the device, and finds the same.
template <class Call>
void alike(kv::host_executor& host, device_executor& device, batch& expected, batch& found, Call const& call) {
  auto const before = found.cache.save();
  std::string const refused = error_of([&] { call(host, expected); });
  std::string const noted = error_of([&] {
    call(device, found);
    device.check();
  });
  RC_ASSERT(refused.empty() == noted.empty());
  RC_ASSERT(expected.cache.save() == found.cache.save());
  RC_ASSERT(expected.memory == found.memory);
  if (!noted.empty()) RC_ASSERT(found.cache.save() == before);
}

/// Subsets of the committed entries of each segment's first lane.
void choose(owned_keep& keep, dice random, mock_cache& of) {
  kv::keep_set& made = keep.view();
  for (int segment = 0; segment < made.segments(); ++segment) {
    int const count = of.committed(made.lanes.at(kv::first_lane(made.lanes, made.decides, segment)));
    auto const some = random.subset(count, random.chance(40) ? count / 2 : random.below(count + 1));
    std::copy(some.begin(), some.end(), made.indices + made.indptr[segment]);
    made.indptr[segment + 1] = made.indptr[segment] + std::ssize(some);
    made.entry_count[segment] = random.chance(5) ? count + 1 : count;
  }
}

}  // namespace

TEST_SUITE("device/entries") {
  TEST_CASE("appends, roll-backs and commits leave what the host leaves, and refuse what it refuses") {
    holds("any calls in a row", [] {
      mock_options const shape = any_lanes();
      batch expected(shape), found(shape);
      if (any_bool()) {
        fill(expected.cache, true);
        fill(found.cache, true);
      }
      kv::host_executor host;
      device_executor device(any_numbers(), shape.seed);
      dice random(shape.seed);
      for (int step = 0; step < 12; ++step) {
        alike(host, device, expected, found, any_change(random, expected.cache));
      }
    });
  }

  TEST_CASE("a prompt of many pieces is appended and cut") {
    mock_options const shape{.model = {.layers = 2, .query_heads = 1, .kv_heads = 1, .head_dim = 1}, .bound = 4097};
    for (int const tokens : {1, 31, 32, 33, 4096, 4097}) {
      batch expected(shape), found(shape);
      kv::host_executor host;
      device_executor device;
      alike(host, device, expected, found, change{0, {0, tokens, 5, false}});
      alike(host, device, expected, found, change{2, {0, 0, 5 + tokens / 2, false}});
    }
  }

  TEST_CASE("drafts are gone as far as they are gone from every lane, however many there are") {
    mock_options const shape{.model = {.layers = 40, .query_heads = 1, .kv_heads = 1, .head_dim = 1}, .bound = 8};
    batch on(shape);
    for (int layer = 0; layer < 40; ++layer)
      on.cache.put({0, layer, 0}, {0, 1, layer == 0 ? 2 : 7, layer == 0 ? 3 : 8, 9});
    on.cache.set_drafts(0, 3);
    device_executor device({.segment_threads = 32}, 1);
    change{2, {0, 0, 4, false}}(device, on);
    device.check();
    CHECK(on.cache.drafts(0) == 2);
  }

  TEST_CASE("counts, what is free and what is told are the host's, and plans that do not fit are refused") {
    holds("any keep sets", [] {
      mock_options const shape = any_lanes();
      batch expected(shape), found(shape);
      fill(expected.cache, true);
      fill(found.cache, true);
      auto const decides = *rc::gen::element(kv::granularity::lane, kv::granularity::layer, kv::granularity::sequence);
      owned_keep keep(kv::contiguous_scores(found.cache.lanes(), decides, nullptr, shape.bound));
      choose(keep, dice(shape.seed), found.cache);
      std::vector<kv::apply_stats> told(2, {1, 2, 3}), dropped(2);  // on the heap: a device sees no stack
      kv::host_executor host;
      device_executor device(any_numbers(), shape.seed);
      host.reserve(kv::implementation<kv::ops::free_tails_t, kv::host>::scratch(expected.cache.view()));
      device.reserve(kv::implementation<kv::ops::free_tails_t, device_executor::backend>::scratch(found.cache.view()));
      auto const refuses = [&](auto const& verb) {
        alike(host, device, expected, found, [&](auto& exec, batch& on) { verb(exec, on.cache.lanes(), keep.view()); });
      };
      refuses(kv::ops::refuse_stale);
      refuses(kv::ops::refuse_ragged);
      bool const masked = any_bool();
      auto const carry_out = [&](auto& exec, batch& on, kv::apply_stats& of_kept, kv::apply_stats& of_dropped) {
        if (masked) kv::ops::clear_stats(exec, &of_kept);
        kv::ops::free_tails(exec, keep.view(), on.cache.view(), &of_kept.physical_freed);
        kv::ops::set_counts(exec, on.cache.lanes(), keep.view());
        kv::ops::count_kept(exec, keep.view(), on.cache.lanes(), masked, &of_kept);
        kv::ops::count_dropped(exec, keep.view(), on.cache.lanes(), &of_dropped);
      };
      carry_out(host, expected, told[0], dropped[0]);
      carry_out(device, found, told[1], dropped[1]);
      device.check();
      RC_ASSERT(expected.cache.save() == found.cache.save());
      RC_ASSERT(told[0] == told[1]);
      RC_ASSERT(dropped[0] == dropped[1]);
    });
  }

  TEST_CASE("a fault has words, nothing is changed until it is checked, and the first lane is named") {
    mock_options const shape{.model = {.layers = 2, .query_heads = 2, .kv_heads = 2, .head_dim = 4}, .bound = 8};
    batch on(shape);
    device_executor device;
    auto const error = [&](change const& call) {
      call(device, on);
      auto const before = on.cache.save();
      change{1, {0, 1, 100, true}}(device, on);
      change{2, {0, 0, 0, false}}(device, on);
      std::string const text = error_of([&] { device.check(); });
      CHECK(on.cache.save() == before);
      return text;
    };
    change{0, {0, 6, 3, false}}(device, on);
    device.check();
    CHECK(error({0, {0, 3, 9, false}}) == "append: tokens (0) = 3, but a lane holds at most `capacity` entries");
    CHECK(error({0, {0, 1, 8, false}}) == "append: position (0) = 8, but positions ascend");
    on.cache.put({0, 1, 0}, {1, 20});
    CHECK(error({0, {0, 1, 15, false}}) == "append: position (2) = 15, but positions ascend");
    change{1, {0, 1, 21, true}}(device, on);
    device.check();
    CHECK(error({0, {0, 1, 22, false}}) == "append: in_flight (0) = 1, but drafts are committed or truncated first");
    CHECK(error({3, {0, 2, 0, false}}) == "commit: tokens (0) = 2, but fewer drafts are in flight");
    CHECK(error_of([&] { change{3, {0, -1, 0, false}}(device, on); }) ==
          "commit: tokens = -1, but a count cannot be negative");
    change{3, {0, 1, 0, false}}(device, on);
    CHECK(error_of([&] { device.check(); }) == "");
    CHECK(on.cache.drafts(0) == 0);
  }
}
