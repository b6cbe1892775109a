// SPDX-License-Identifier: Apache-2.0
#include "tinylm/kv_pool.hpp"

#include "support/test.hpp"

namespace {

namespace kv = kvpolicy;
using tinylm::kv_pool;
using tinylm::kv_sequence;

constexpr kv::shape model{.layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 4};

/// What a row of a token of this sequence must hold: where it came from.
float fingerprint(int sequence, kv::lane this_lane, int position) {
  return static_cast<float>(((sequence * 10 + this_lane.layer) * 10 + this_lane.head) * 1000 + position);
}

/// A sequence and the policy state that goes with it; writes and checks rows as an engine would.
template <class Policy>
struct tracked {
  tracked(kv_pool& pool, Policy how, int name) : tracked(kv_sequence(pool, 96), how, name) {}
  tracked(kv_sequence from, Policy how, int name)
      : policy(how),
        id(name),
        entries(std::move(from)),
        held(kv::make_state(exec, policy, entries.view())),
        plan(kv::make_plan(exec, policy, entries.view())) {}

  void append(int tokens) {
    entries.reserve(tokens);
    kv::cache cache = entries.view();
    kv::append(exec, cache, held, {.sequence = 0, .tokens = tokens, .position = length, .in_flight = false});
    for (int i = 0; i < cache.lanes.size(); ++i) {
      kv::lane const this_lane = cache.lanes.at(i);
      for (int e = 0; e < tokens; ++e) {
        auto const at = cache.where.at(this_lane, *cache.lanes.count.row(this_lane) - tokens + e);
        for (kv::plane const& rows : {cache.k, cache.v}) {
          std::fill_n(reinterpret_cast<float*>(rows.row(this_lane.layer, at, this_lane.head)), 4,
                      fingerprint(id, this_lane, length + e));
        }
      }
    }
    length += tokens;
  }

  [[nodiscard]] std::unique_ptr<tracked> fork() const {
    auto copy = std::make_unique<tracked>(entries.fork(), policy, id);
    copy->length = length;
    return copy;
  }

  void evict() {
    kv::cache cache = entries.view();
    kv::decide(exec, policy, kv::signals{cache.lanes}, held, plan);
    kv::apply(exec, kv::compact{}, plan, cache, held);
    entries.release();
  }

  void truncate(int position) {
    kv::cache cache = entries.view();
    kv::truncate(exec, cache, held, 0, position);
    entries.release();
    length = position;
  }

  /// Every entry's row says where it came from, so no page is shared and no row was lost.
  [[nodiscard]] bool sound() {
    kv::cache const cache = entries.view();
    for (int i = 0; i < cache.lanes.size(); ++i) {
      kv::lane const this_lane = cache.lanes.at(i);
      for (int e = 0; e < *cache.lanes.count.row(this_lane); ++e) {
        auto const at = cache.where.at(this_lane, e);
        float const own = fingerprint(id, this_lane, cache.lanes.position.row(this_lane)[e]);
        for (kv::plane const& rows : {cache.k, cache.v}) {
          if (*reinterpret_cast<float const*>(rows.row(this_lane.layer, at, this_lane.head)) != own) return false;
        }
      }
    }
    return true;
  }

  kv::host_executor exec;
  Policy policy;
  int id;
  int length = 0;
  kv_sequence entries;
  kv::state<kv::host_executor> held;
  kv::plan<kv::host_executor> plan;
};

auto const keep_some = kv::eviction{.score = kv::random_scores{}, .budget = kv::per_lane{20}};

}  // namespace

TEST_SUITE("tinylm") {
  TEST_CASE("kv_pool: a lane takes a page for every 16 entries and gives it back") {
    kv_pool pool(model, 100);
    {
      tracked one(pool, keep_some, 0);
      one.append(17);
      CHECK(one.entries.held_pages() == 8);
      CHECK(one.entries.live_entries() == 68);
      CHECK(one.entries.live_bytes() == 68 * 2 * 4 * 4);
      one.append(30);
      one.evict();
      CHECK(one.entries.live_entries() == 80);
      CHECK(pool.free_pages() == 92);
      one.truncate(0);
      CHECK(pool.free_pages() == 100);
      one.append(5);
    }
    CHECK(pool.free_pages() == 100);
  }

  TEST_CASE("kv_pool: no room changes nothing and says what is missing") {
    kv_pool pool(model, 7);
    kv_sequence one(pool, 96);
    one.reserve(16);
    CHECK_THROWS_WITH_AS(one.reserve(17), "kv_sequence::reserve: pages = 4, but the pool has 3 left",
                         kv::invalid_argument);
    CHECK_THROWS_WITH_AS(one.reserve(97), "kv_sequence::reserve: tokens = 97, but a lane holds 0 of at most 96",
                         kv::invalid_argument);
    CHECK_THROWS_WITH_AS((void)one.fork(), "kv_sequence::fork: pages = 4, but the pool has 3 left",
                         kv::invalid_argument);
    CHECK_THROWS_WITH_AS(kv_pool(model, 0), "kv_pool: pages = 0, but a pool has at least one page",
                         kv::invalid_argument);
    CHECK(pool.free_pages() == 3);
  }

  TEST_CASE("kv_pool: pages are conserved and rows stay their lane's, whatever happens") {
    kvpolicy_test::holds("free + held == all, and every row is where it belongs", [] {
      kvpolicy_test::dice dice(*rc::gen::arbitrary<std::uint64_t>());
      kv_pool pool(model, dice.between(8, 60));
      using one = tracked<std::remove_const_t<decltype(keep_some)>>;
      std::vector<std::unique_ptr<one>> all;
      for (int step = 0; step < 40; ++step) {
        try {
          int const what = dice.below(6);
          if (all.empty() || what == 0) {
            all.push_back(std::make_unique<one>(pool, keep_some, step));
          } else {
            auto& some = all[static_cast<std::size_t>(dice.below(static_cast<int>(all.size())))];
            if (what == 2) some->append(dice.below(40));
            if (what == 3) some->evict();
            if (what == 4) some->truncate(dice.below(some->length + 1));
            if (what == 5) all.erase(all.begin() + (&some - all.data()));
            if (what == 1) all.push_back(some->fork());
          }
        } catch (kv::invalid_argument const&) {  // no room: nothing has changed
        }
        int held = 0;
        for (auto const& each : all) {
          RC_ASSERT(each->sound());
          held += each->entries.held_pages();
        }
        RC_ASSERT(held + pool.free_pages() == pool.pages());
      }
    });
  }
}
