// SPDX-License-Identifier: Apache-2.0
// The device's rows that move, against the host's, byte for byte.

#include <kvpolicy/ops/cuda/compact_rows.hpp>
#include <kvpolicy/ops/cuda/gather_rows.hpp>

#include "device/moves.hpp"

namespace {

using namespace kvpolicy_test;

/// A cache, columns, and what else moves with a row, made of a seed: two of them are equal.
struct batch {
  batch(mock_options const& shape, int planes)
      : cache(shape), columns(cache.lane_count(), cache.lanes(), shape.seed + 1) {
    fill(cache, true);
    dice random(shape.seed + 2);
    for (int i = 0; i < planes; ++i) {
      int const bytes = random.one_of<int>({1, 4, 6, 32});
      std::int64_t const units = cache.where().units, token = std::int64_t{bytes} + random.one_of<int>({0, 2});
      std::int64_t const head = units * cache.where().unit_tokens * token, layer = cache.model().kv_heads * head;
      auto& memory = scales.emplace_back(as_size(cache.model().layers * layer));
      for (std::byte& each : memory) each = static_cast<std::byte>(random.below(256));
      more.push_back(
          {memory.data(), kv::codec::opaque, bytes, layer, cache.where().unit_tokens * token, token, head, 1});
    }
  }
  kv::cache view(int begin) {
    kv::cache made = cache.view();
    made.lanes = made.lanes.layers_only(begin, cache.model().layers);
    made.more = more;
    return made;
  }
  bool operator==(batch const& other) const {
    return cache.save() == other.cache.save() && columns.bytes() == other.columns.bytes() && scales == other.scales;
  }

  mock_cache cache;
  held_bytes columns;
  std::vector<std::vector<std::byte>> scales;
  std::vector<kv::plane> more;
};

std::vector<std::vector<int>> any_lists(mock_cache& cache, kv::lanes const& batch, kv::granularity decides) {
  std::vector<std::vector<int>> lists;
  for (int segment = 0; segment < kv::segments(batch, decides); ++segment) {
    int committed = cache.options().bound;  // lanes that decide together hold equally many; here all that the least has
    for (int i = 0; i < batch.size(); ++i) {
      if (kv::segment_of(batch, decides, i) == segment) committed = std::min(committed, cache.committed(batch.at(i)));
    }
    lists.push_back(any_kept(cache.random(), committed));
  }
  return lists;
}

struct gathering {
  mock_options shape;
  kv::granularity decides = kv::granularity::lane;
  int begin = 0;  ///< first layer
  int planes = 0;
  int threads = 64;
};

/// A keep set of these lists that was decided for what the lanes hold.
struct fresh_keep {
  fresh_keep(kv::lanes const& who, kv::granularity decides, std::vector<std::vector<int>> const& lists)
      : of(who, decides, lists), seen(lists.size()) {
    for (int i = 0; i < who.size(); ++i) {
      seen[as_size(kv::segment_of(who, decides, i))] = who.committed(who.at(i));
    }
  }
  [[nodiscard]] kv::keep_set view(kv::lanes const& who) {
    kv::keep_set made = of.view();
    made.entry_count = seen.data();
    made.lanes = who;
    return made;
  }
  listed_keep of;
  std::vector<int> seen;
};

/// Compares compact_rows, which takes one launch or more.
bool compacts_as_the_host(gathering const& how) {
  batch on_host(how.shape, how.planes), on_device(how.shape, how.planes);
  auto const who = on_host.cache.lanes().layers_only(how.begin, how.shape.model.layers);
  fresh_keep keep(who, how.decides, any_lists(on_host.cache, who, how.decides));
  kv::host_executor host;
  device_executor device(numbers_of(how.threads), how.shape.seed);
  kv::ops::compact_rows(host, keep.view(who), on_host.view(how.begin), on_host.columns.view());
  kv::cache const theirs = on_device.view(how.begin);
  kv::ops::compact_rows(device, keep.view(theirs.lanes), theirs, on_device.columns.view());
  device.check();
  return on_host == on_device;
}

bool is_the_hosts(gathering const& how) {
  batch on_host(how.shape, how.planes), on_device(how.shape, how.planes);
  auto const who = on_host.cache.lanes().layers_only(how.begin, how.shape.model.layers);
  listed_keep const keep(who, how.decides, any_lists(on_host.cache, who, how.decides));
  kv::keep_set theirs = keep.view();
  theirs.lanes = on_device.view(how.begin).lanes;
  kv::host_executor host;
  device_executor device(numbers_of(how.threads), how.shape.seed);
  kv::ops::gather_rows(host, keep.view(), on_host.view(how.begin), on_host.columns.view());
  kv::ops::gather_rows(device, theirs, on_device.view(how.begin), on_device.columns.view());
  device.check();
  if (!(on_host == on_device)) return false;
  kv::ops::permute_columns(host, keep.view(), on_host.view(how.begin), on_host.columns.view());
  kv::ops::permute_columns(device, theirs, on_device.view(how.begin), on_device.columns.view());
  device.check();
  return on_host == on_device;
}

TEST_SUITE("device/gather_rows") {
  TEST_CASE("rows, positions and columns move as on the host, in every layout, by any number of threads") {
    holds("any cache", [] {
      gathering how{.shape = any_mock()};
      if (how.shape.memory == arrangement::transposed_v) how.shape.skew = 0;
      how.decides = *rc::gen::element(kv::granularity::lane, kv::granularity::layer, kv::granularity::sequence);
      how.shape.shared_entries = how.decides == kv::granularity::sequence;
      how.begin = how.decides == kv::granularity::sequence ? 0 : *rc::gen::inRange(0, how.shape.model.layers);
      how.planes = how.shape.memory == arrangement::one_pool ? 0 : *rc::gen::element(0, 1, 8);
      how.threads = *rc::gen::element(32, 64, 128);
      RC_LOG() << how.shape << ", " << how.threads << " threads\n";
      RC_ASSERT(is_the_hosts(how));
    });
  }

  TEST_CASE("lanes are shortened as on the host, with their counts, in one launch or in several") {
    holds("any cache", [] {
      gathering how{.shape = any_mock()};
      if (how.shape.memory == arrangement::transposed_v) how.shape.skew = 0;
      how.begin = *rc::gen::inRange(0, how.shape.model.layers);
      how.planes = how.shape.memory == arrangement::one_pool ? 0 : *rc::gen::element(0, 1, 8);
      how.threads = *rc::gen::element(32, 64, 128);
      RC_LOG() << how.shape << ", " << how.threads << " threads\n";
      RC_ASSERT(compacts_as_the_host(how));
    });
    gathering many;  // of more lanes than a block checks
    many.shape = {.model = {.layers = 26, .query_heads = 8, .kv_heads = 8, .head_dim = 4}, .sequences = 5, .bound = 5};
    many.threads = 32;
    CHECK(compacts_as_the_host(many));
  }

  TEST_CASE("a plan that is stale for one lane shortens none") {
    mock_options const shape{.model = {.layers = 3, .query_heads = 7, .kv_heads = 7, .head_dim = 4}, .bound = 20};
    for (int const planes : {0, 8}) {  // one launch, or several
      batch some(shape, planes), untouched(shape, planes);
      kv::lanes const who = some.cache.lanes();
      fresh_keep keep(who, kv::granularity::lane, any_lists(some.cache, who, kv::granularity::lane));
      device_executor device(numbers_of(64), 3);
      for (int const lane : {0, 12, 20}) {
        int& seen = keep.seen[as_size(lane)];
        ++seen;
        kv::ops::compact_rows(device, keep.view(who), some.view(0), some.columns.view());
        CHECK(error_of([&] { device.check(); }).substr(0, 11) == "apply: plan");
        CHECK(some == untouched);
        --seen;
      }
      auto const compact = [&] { kv::ops::compact_rows(device, keep.view(who), some.view(0), some.columns.view()); };
      CHECK(is_idle_after_a_fault(device, compact, [&] { return some.cache.save(); }));
      CHECK(some == untouched);
      compact();
      device.check();
      for (int i = 0; i < who.size(); ++i) {
        auto const kept = static_cast<int>(keep.of.view().indptr[i + 1] - keep.of.view().indptr[i]);
        CHECK(some.cache.committed(who.at(i)) == kept);
      }
    }
  }

  TEST_CASE("long lanes move tile by tile") {
    for (arrangement const memory : {arrangement::nhd, arrangement::transposed_v}) {
      for (int const dims : {4, 80}) {
        gathering how;
        how.shape = {.bound = dims == 4 ? 4097 : 700, .element = kv::codec::f16, .memory = memory, .seed = 5};
        how.shape.model.head_dim = dims;
        CHECK(is_the_hosts(how));
      }
    }
  }

  TEST_CASE("what is in front of the one entry that goes stays, wherever it is") {
    mock_cache cache({.bound = 140});
    std::vector<int> all = up_to(140);
    device_executor device;
    for (int gone = 0; gone < 140; ++gone) {
      std::vector<int> kept = all;
      kept.erase(kept.begin() + gone);
      cache.put({}, all);
      listed_keep const keep(cache.lanes(), kv::granularity::lane, {kept});
      kv::ops::permute_columns(device, keep.view(), cache.view(), std::span<kv::recorded_column const>{});
      device.check();
      CHECK(cache.positions({}, 139) == kept);
    }
  }

  TEST_CASE("nothing changes after a fault, and elements that lie apart must be aligned") {
    mock_options shape{.bound = 33, .memory = arrangement::transposed_v};
    batch some(shape, 0);
    listed_keep const keep(some.cache.lanes(), kv::granularity::lane, {{1, 3}});
    device_executor device;
    auto const gather = [&] { kv::ops::gather_rows(device, keep.view(), some.view(0), some.columns.view()); };
    some.cache.put({}, {1, 2, 5, 7, 9});
    CHECK(is_idle_after_a_fault(device, gather, [&] { return some.cache.save(); }));
    kv::cache view = some.view(0);
    view.v.base += 2;
    CHECK(error_of([&] { kv::ops::gather_rows(device, keep.view(), view, some.columns.view()); }) ==
          "gather_rows: v = misaligned rows, but a device reads elements of 4 bytes where they are aligned");
  }
}

}  // namespace
