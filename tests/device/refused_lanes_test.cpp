// SPDX-License-Identifier: Apache-2.0
// What makes lanes unfit for a decision, as a device finds it: a fault is told, nothing is dropped, nothing written.

#include "support/device.hpp"
#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

struct picking : kv::plain_top_k {
  [[nodiscard]] KVPOLICY_HD bool picks(float) const { return false; }
};

/// The best of all lanes of a sequence together.
struct pooling_best : kv::plain_top_k {
  [[nodiscard]] KVPOLICY_HD kv::budget_scope scope() const { return kv::budget_scope::sequence; }
};

enum class pick { top_k, select_if, argmin };
constexpr pick all_picks[] = {pick::top_k, pick::select_if, pick::argmin};

/// Lanes, scores and a keep set, and a device that decides about them.
struct deciding {
  owned_lanes lanes;
  owned_scores scores;
  owned_keep keep;
  device_executor device{5};

  deciding(int sequences, int layers, int heads, kv::granularity by, std::vector<int> counts)
      : lanes(sequences, layers, heads, 9, std::move(counts)), scores(lanes.view(), by), keep(scores.view()) {
    using top_k = kv::implementation<kv::ops::top_k_t, device_executor::backend>;
    using select_if = kv::implementation<kv::ops::select_if_t, device_executor::backend>;
    device.reserve(top_k::scratch({}, lanes.view()));
    device.reserve(select_if::scratch({}, lanes.view()));
  }
  void run(pick how) {
    keep.view().lists = how == pick::argmin ? kv::side::dropped : kv::side::kept;
    if (how == pick::top_k) kv::ops::top_k(device, scores.view(), kv::plain_top_k{2}, keep.view());
    if (how == pick::select_if) kv::ops::select_if(device, scores.view(), picking{{2}}, keep.view());
    if (how == pick::argmin) kv::ops::argmin(device, scores.view(), kv::plain_top_k{2}, keep.view());
  }
  std::string error() {
    return error_of([&] { device.check(); });
  }
};

/// A batch that an engine's calls change.
struct batch {
  mock_cache cache{
      {.model = {.layers = 2, .query_heads = 2, .kv_heads = 2, .head_dim = 4}, .sequences = 2, .bound = 9}};
  device_executor device{3};
  batch() {
    for (int i = 0; i < cache.lane_count(); ++i) cache.put(cache.lane_at(i), {0, 1, 2, 3});
  }
  template <class Call>
  std::string refuses(Call const& call) {
    auto const before = cache.save();
    std::string const told = error_of([&] {
      call();
      device.check();
    });
    CHECK(before == cache.save());
    return told;
  }
};

std::string const rule = ", but lanes that decide together hold the same tokens";
std::string const limits = ", but a lane holds 0 to `capacity` entries, and its drafts are among them";

}  // namespace

TEST_SUITE("device/refused_lanes") {
  TEST_CASE("heads of a layer that hold other tokens are told of by every pick, and nothing is dropped") {
    for (pick const how : all_picks) {
      deciding some(2, 1, 3, kv::granularity::layer, {4, 4, 4, 9, 9, 9});
      some.lanes.view().position.row({1, 0, 2})[7] = 15;
      some.run(how);
      CHECK(some.error() == "decide: lanes.position (5) = 15" + rule);
      CHECK(some.keep.kept(0).size() == (how == pick::argmin ? 0 : 4));
      CHECK(some.keep.kept(1).size() == (how == pick::argmin ? 0 : 9));
      some.run(how);
      CHECK(some.error() == "decide: lanes.position (5) = 15" + rule);
    }
  }

  TEST_CASE("layers of a token that hold other tokens are told of; other tokens behind their entries are none") {
    for (pick const how : all_picks) {
      deciding some(1, 2, 2, kv::granularity::sequence, {4, 4, 4, 4});
      some.lanes.view().position.row({0, 1, 1})[4] = 99;
      some.run(how);
      CHECK(some.error().empty());
      some.lanes.view().position.row({0, 1, 0})[3] = 7;
      some.run(how);
      CHECK(some.error() == "decide: lanes.position (2) = 7" + rule);
    }
  }

  TEST_CASE("lanes that decide apart, or share their positions, are not compared") {
    for (pick const how : all_picks) {
      deciding apart(1, 1, 2, kv::granularity::lane, {4, 4});
      apart.lanes.view().position.row({0, 0, 1})[3] = 7;
      apart.run(how);
      CHECK(apart.error().empty());
      deciding layers(1, 2, 1, kv::granularity::layer, {4, 4});
      layers.lanes.view().position.row({0, 1, 0})[3] = 7;
      layers.run(how);
      CHECK(layers.error().empty());
    }
  }

  TEST_CASE("counts out of their limits are told of by every pick, and their lanes drop nothing") {
    for (pick const how : all_picks) {
      for (int const count : {10, -1, 2147483647}) {
        deciding some(1, 2, 1, kv::granularity::lane, {9, count});
        some.run(how);
        CHECK(some.error() == "decide: lanes.count (1) = " + std::to_string(count) + limits);
        if (how != pick::argmin) CHECK(some.keep.kept(1).size() == (count > 0 ? 9u : 0u));
        if (how == pick::argmin) CHECK(some.keep.kept(1).empty());
      }
      deciding drafts(1, 1, 2, kv::granularity::layer, {4, 4});
      drafts.lanes.set_drafts(0, 5);
      drafts.run(how);
      CHECK(drafts.error() == "decide: lanes.count (0) = 4" + limits);
    }
  }

  TEST_CASE("a count out of its limits in a pool is told of") {
    deciding some(1, 2, 2, kv::granularity::lane, {9, 9, 12, 9});
    kv::ops::top_k(some.device, some.scores.view(), pooling_best{{2}}, some.keep.view());
    CHECK(some.error() == "decide: lanes.count (2) = 12" + limits);
  }

  TEST_CASE("append, truncate and appliers tell of counts out of their limits and change nothing") {
    std::span<kv::recorded_column const> const none;
    kv::append_request const new_tokens{1, 1, 20, false};
    for (int const count : {10, -1}) {
      batch now;
      now.cache.count({1, 1, 0}) = count;
      kv::lanes const batch = now.cache.lanes();
      std::string const text = "lanes.count (6) = " + std::to_string(count) + limits;
      CHECK(now.refuses([&] { kv::ops::append_entries(now.device, batch, none, new_tokens); }) == "append: " + text);
      CHECK(now.refuses([&] { kv::ops::truncate_entries(now.device, batch, 1, 2); }) == "truncate: " + text);
      std::vector<float> floats(std::size_t{8} * 9);
      owned_keep keep(kv::contiguous_scores(batch, kv::granularity::lane, floats.data(), 9));
      for (int i = 0; i < 8; ++i) keep.view().entry_count[i] = i == 6 ? (count > 9 ? 9 : 0) : 4;
      CHECK(now.refuses([&] {
        kv::ops::refuse_stale(now.device, batch, keep.view());
        kv::ops::set_counts(now.device, batch, keep.view());
      }) == "apply: " + text);
    }
  }
}
