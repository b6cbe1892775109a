// SPDX-License-Identifier: Apache-2.0
// The store of sessions: what it keeps and drops against a naive model, leases, refusals, failed allocations, threads.

#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

static_assert(std::movable<kv::session_lease> && !std::is_copy_constructible_v<kv::session_lease>);
static_assert(std::is_nothrow_move_constructible_v<kv::session_lease>);

constexpr kv::memory_shape small{2, 3, 4};

kv::session_id name(int i) { return kv::session_id::named(std::to_string(i)); }

/// Leaves a memory of equal floats.
void put(kv::session_store& store, kv::session_id const& id, float value) {
  auto lease = store.take(id);
  std::ranges::fill(lease.floats(), value);
  lease.commit();
}

kv::memory_floats equal_floats(float value, std::size_t count = small.floats()) {
  return std::make_shared<std::vector<float> const>(count, value);
}

/// What a store keeps, oldest first: each name and the one value of its floats.
using session_content = std::vector<std::pair<std::string, float>>;

session_content content_of(kv::session_store const& store) {
  session_content all;
  for (kv::remembered const& each : store.snapshot()) {
    float const value = each.memory->front();
    CHECK(*each.memory == std::vector<float>(store.extents().floats(), value));
    all.emplace_back(to_string(each.id), value);
  }
  return all;
}

/// The slowest obvious store: what is kept in order, and what is out.
struct model {
  int capacity;
  session_content kept;
  std::vector<std::string> out;

  [[nodiscard]] bool is_out(std::string const& id) const { return std::count(out.begin(), out.end(), id) > 0; }
  void end(std::string const& id, float const* value) {
    std::erase(out, id);
    if (value != nullptr) {
      std::erase_if(kept, [&](auto const& each) { return each.first == id; });
      kept.emplace_back(id, *value);
    }
    for (std::size_t i = 0; i < kept.size() && static_cast<int>(kept.size()) > capacity;) {
      bool const back = value != nullptr && kept[i].first == id;
      is_out(kept[i].first) || back ? void(++i) : void(kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(i)));
    }
  }
  [[nodiscard]] float value(std::string const& id) const {
    for (auto const& each : kept) {
      if (each.first == id) return each.second;
    }
    return 0;
  }
};

}  // namespace

TEST_SUITE("session/session_store") {
  TEST_CASE("a new session remembers zeros, a known one what was committed") {
    kv::session_store store(small);
    CHECK(store.capacity() == 1024);
    auto first = store.take(name(1));
    CHECK(static_cast<bool>(first));
    CHECK(first.extents() == small);
    CHECK(std::vector<float>(first.floats().begin(), first.floats().end()) == std::vector<float>(24, 0.0f));
    CHECK(store.size() == 0);
    for (std::size_t i = 0; i < 24; ++i) first.floats()[i] = static_cast<float>(i);
    first.commit();
    CHECK(store.size() == 1);
    auto again = store.take(name(1));
    for (std::size_t i = 0; i < 24; ++i) CHECK(again.floats()[i] == static_cast<float>(i));
    CHECK(store.take(name(2)).floats()[5] == 0.0f);
  }

  TEST_CASE("a lease that is not committed leaves everything as it was") {
    kv::session_store store(small, 2);
    put(store, name(1), 1.0f);
    put(store, name(2), 2.0f);
    session_content const before = content_of(store);
    {
      auto known = store.take(name(1));
      auto fresh = store.take(name(3));
      std::ranges::fill(known.floats(), 9.0f);
      std::ranges::fill(fresh.floats(), 9.0f);
      CHECK(content_of(store) == before);
    }
    CHECK(content_of(store) == before);
    CHECK(store.take(name(3)).floats()[0] == 0.0f);
    put(store, name(4), 4.0f);  // the taken and abandoned 1 is still the oldest
    CHECK(content_of(store) == session_content{{"id:2", 2.0f}, {"id:4", 4.0f}});
  }

  TEST_CASE("a session that is out is not given out twice") {
    kv::session_store store(small);
    auto lease = store.take(name(1));
    CHECK_FALSE(static_cast<bool>(store.try_take(name(1))));
    CHECK(store.try_take(name(1)).floats().empty());
    CHECK(store.try_take(name(1)).extents() == kv::memory_shape{});
    CHECK(static_cast<bool>(store.try_take(name(2))));
    lease.commit();
    CHECK(static_cast<bool>(store.try_take(name(1))));
    lease = store.take(name(1));
    lease = {};  // given back by what takes its place
    CHECK(static_cast<bool>(store.try_take(name(1))));
  }

  TEST_CASE("a lease moves, and holds nothing where it moved from") {
    kv::session_store store(small);
    auto lease = store.take(name(1));
    auto other = std::move(lease);
    CHECK_FALSE(static_cast<bool>(lease));  // NOLINT(bugprone-use-after-move)
    CHECK_FALSE(static_cast<bool>(store.try_take(name(1))));
    std::ranges::fill(other.floats(), 5.0f);
    other.commit();
    CHECK_FALSE(static_cast<bool>(other));
    CHECK(content_of(store) == session_content{{"id:1", 5.0f}});
    std::string const ended =
        "session_lease::commit: lease = ended, but it holds a memory until it is committed or moved from";
    CHECK(error_of([&] { other.commit(); }) == ended);
    CHECK(error_of([&] { lease.commit(); }) == ended);
  }

  TEST_CASE("a name that matches nothing gets zeros each time, and is not kept") {
    kv::session_store store(small);
    kv::session_id const id = kv::session_id::unmatched();
    put(store, id, 3.0f);
    CHECK(store.size() == 0);
    auto first = store.take(id);
    auto second = store.try_take(id);
    CHECK(first.floats()[0] == 0.0f);
    CHECK(second.floats()[0] == 0.0f);
    CHECK(second.extents() == small);
  }

  TEST_CASE("a memory that is not finite is not committed, and the session remembers what it did") {
    kv::session_store store(small);
    put(store, name(1), 1.0f);
    for (float const bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      auto lease = store.take(name(1));
      lease.floats()[7] = bad;
      CHECK(error_of([&] { lease.commit(); }) ==
            std::string("session_lease::commit: float 7 = ").append(bad > 0 ? "inf" : "nan") +
                ", but a memory is finite: it would never recover");
      CHECK(static_cast<bool>(lease));
      CHECK_FALSE(static_cast<bool>(store.try_take(name(1))));
    }
    CHECK(content_of(store) == session_content{{"id:1", 1.0f}});
    CHECK(static_cast<bool>(store.try_take(name(1))));
  }

  TEST_CASE("sessions that are out stay, though the store is full") {
    kv::session_store store(small, 1);
    put(store, name(1), 1.0f);
    auto oldest = store.take(name(1));
    put(store, name(2), 2.0f);
    put(store, name(3), 3.0f);
    CHECK(content_of(store) == session_content{{"id:1", 1.0f}, {"id:3", 3.0f}});  // 1 is out, 3 has just come back
    std::ranges::fill(oldest.floats(), 7.0f);
    auto newer = store.take(name(4));
    oldest.commit();
    std::ranges::fill(newer.floats(), 4.0f);
    newer.commit();
    CHECK(content_of(store) == session_content{{"id:4", 4.0f}});
  }

  TEST_CASE("what is kept and dropped is what the slowest obvious store keeps and drops") {
    holds("the store agrees with its model", [](std::uint64_t seed) {
      dice roll(seed);
      kv::session_store store(small, roll.between(1, 5));
      model slow{store.capacity(), {}, {}};
      std::map<std::string, kv::session_lease> out;
      for (int step = 0; step < 60; ++step) {
        kv::session_id const id = name(roll.below(8));
        std::string const key = to_string(id);
        float const value = static_cast<float>(step + 1);
        if (slow.is_out(key)) {
          RC_ASSERT(!store.try_take(id));
          bool const commits = roll.chance(70);
          RC_ASSERT(out.at(key).floats()[0] == slow.value(key));
          std::ranges::fill(out.at(key).floats(), value);
          if (commits) out.at(key).commit();
          out.erase(key);
          slow.end(key, commits ? &value : nullptr);
        } else {
          out.emplace(key, store.try_take(id));
          RC_ASSERT(static_cast<bool>(out.at(key)));
          slow.out.push_back(key);
        }
        RC_ASSERT(content_of(store) == slow.kept);
        RC_ASSERT(store.size() == static_cast<int>(slow.kept.size()));
      }
    });
  }

  TEST_CASE("a snapshot stays what it was while the store goes on") {
    kv::session_store store(small, 2);
    put(store, name(1), 1.0f);
    auto const before = store.snapshot();
    put(store, name(1), 2.0f);
    put(store, name(2), 2.0f);
    put(store, name(3), 3.0f);
    REQUIRE(before.size() == 1);
    CHECK(*before[0].memory == std::vector<float>(24, 1.0f));
    CHECK(before[0].id == name(1));
  }

  TEST_CASE("assigned memories replace all others, and of too many the last stay") {
    kv::session_store store(small, 2);
    put(store, name(9), 9.0f);
    std::vector<kv::remembered> const three = {
        {name(1), equal_floats(1)}, {name(2), equal_floats(2)}, {name(3), equal_floats(3)}};
    store.assign(three);
    CHECK(content_of(store) == session_content{{"id:2", 2.0f}, {"id:3", 3.0f}});
    CHECK(store.take(name(3)).floats()[23] == 3.0f);
    put(store, name(4), 4.0f);
    CHECK(content_of(store) == session_content{{"id:3", 3.0f}, {"id:4", 4.0f}});
    store.assign({});
    CHECK(store.size() == 0);
  }

  TEST_CASE("what cannot be assigned is refused by its line, and changes nothing") {
    kv::session_store store(small, 4);
    put(store, name(9), 9.0f);
    session_content const before = content_of(store);
    auto const refuses = [&](std::vector<kv::remembered> const& all, std::string const& text) {
      CHECK(error_of([&] { store.assign(all); }) == "session_store::assign: " + text);
      CHECK(content_of(store) == before);
    };
    kv::remembered const good{name(1), equal_floats(1)};
    refuses({good, {name(2), equal_floats(2, 23)}}, "session id:2 floats = 23, but a memory is [2, 3, 4]");
    refuses({good, {name(2), nullptr}}, "session id:2 floats = 0, but a memory is [2, 3, 4]");
    refuses({good, good}, "session = id:1, but it is there twice");
    refuses({good, {name(2), equal_floats(std::numeric_limits<float>::quiet_NaN())}},
            "session id:2 float 0 = nan, but a memory is finite");
    kv::session_id const unmatched;
    refuses({good, {unmatched, equal_floats(2)}},
            "session = " + to_string(unmatched) + ", but this name matches nothing");
    auto lease = store.take(name(5));
    refuses({good}, "sessions out = 1, but all are given back before others replace them");
  }

  TEST_CASE("a store without room or extents is refused") {
    auto const refuses = [](kv::memory_shape const& shape, int capacity, std::string const& text) {
      CHECK(error_of([&] { kv::session_store const made(shape, capacity); }) == "session_store: " + text);
    };
    refuses({0, 1, 1}, 1, "layers = 0, but a memory has at least one layer");
    refuses({1, -2, 1}, 1, "query_heads = -2, but a memory has at least one query head");
    refuses({1, 1, 0}, 1, "dims = 0, but a head has at least one channel");
    refuses({1, 1, 1}, 0, "capacity = 0, but a store keeps at least one memory");
  }

  TEST_CASE("an allocation that fails leaves everything as it was, and the session free") {
    kv::session_store store(small);
    put(store, name(1), 1.0f);
    session_content const before = content_of(store);
    std::vector<kv::remembered> const two = {{name(5), equal_floats(5)}, {name(6), equal_floats(6)}};
    auto const survives = [&](auto const& work) {
      long failed = 0;
      while (fails_at_allocation(failed, work)) {
        CHECK(content_of(store) == before);
        CHECK(static_cast<bool>(store.try_take(name(1))));
        CHECK(static_cast<bool>(store.try_take(name(2))));
        ++failed;
      }
      return failed;
    };
    kv::session_id const known = name(1), fresh = name(2);
    CHECK(survives([&] { (void)store.take(known); }) > 0);
    CHECK(survives([&] { (void)store.take(fresh); }) > 0);
    CHECK(survives([&] { store.assign(two); }) > 0);
    CHECK(content_of(store) == session_content{{"id:5", 5.0f}, {"id:6", 6.0f}});
  }

  TEST_CASE("a known session allocates its working copy, and nothing when it is committed") {
    kv::session_store store(small);
    put(store, name(1), 1.0f);
    kv::session_id const known = name(1);
    kv::session_lease lease;
    CHECK(allocations_in([&] { lease = store.take(known); }) == 2);  // the floats, and who shares them
    CHECK(allocations_in([&] { lease.commit(); }) == 0);
  }

  TEST_CASE("a new session that is not committed leaves nothing behind") {
    kv::session_store store(small);
    put(store, name(1), 1.0f);
    kv::session_id const fresh = name(2);
    kv::session_lease lease;
    long const first = allocations_in([&] { lease = store.take(fresh); });
    lease = {};
    CHECK(first > 2);
    CHECK(allocations_in([&] { lease = store.take(fresh); }) == first);  // it is new again
  }

  TEST_CASE("requests of one session come one after the other: no update is lost, and none is torn") {
    kv::session_store store(small, 3);
    constexpr int threads = 6, rounds = 200, sessions = 3;
    std::atomic<bool> is_torn{false};
    std::vector<std::thread> all;
    for (int t = 0; t < threads; ++t) {
      all.emplace_back([&, t] {
        for (int i = 0; i < rounds; ++i) {
          auto lease = store.take(name((t + i) % sessions));
          float const old = lease.floats()[0];
          std::this_thread::yield();
          for (float& each : lease.floats()) {
            if (each != old) is_torn = true;
            each += 1.0f;
          }
          if (i % 5 == 4) continue;  // a request that fails
          lease.commit();
        }
      });
    }
    for (auto& each : all) each.join();
    CHECK_FALSE(is_torn.load());
    float sum = 0;
    for (auto const& [id, value] : content_of(store)) sum += value;
    CHECK(store.size() == sessions);
    CHECK(sum == threads * rounds * 4 / 5);
  }

  TEST_CASE("sessions come and go beside snapshots, and the store holds no more than its capacity in the end") {
    kv::session_store store(small, 4);
    std::atomic<bool> is_torn{false};
    std::vector<std::thread> all;
    for (int t = 0; t < 4; ++t) {
      all.emplace_back([&, t] {
        dice roll(static_cast<std::uint64_t>(t));
        for (int i = 0; i < 200; ++i) {
          auto lease = store.try_take(name(roll.below(9)));
          std::this_thread::yield();
          if (!lease) continue;
          std::ranges::fill(lease.floats(), static_cast<float>(t * 1000 + i));
          if (roll.chance(80)) lease.commit();
        }
      });
    }
    all.emplace_back([&] {
      for (int i = 0; i < 100; ++i) {
        for (auto const& each : store.snapshot()) {
          if (*each.memory != std::vector<float>(24, each.memory->front())) is_torn = true;
        }
      }
    });
    for (auto& each : all) each.join();
    CHECK_FALSE(is_torn.load());
    CHECK(store.size() == 4);
  }

  TEST_CASE("one who waits goes on when the session is given back, with what was committed or without") {
    kv::session_store store(small);
    for (bool const commits : {true, false}) {
      auto lease = store.take(name(1));
      std::ranges::fill(lease.floats(), 6.0f);
      std::atomic<bool> is_through{false};
      float seen = -1;
      std::thread waiting([&] {
        auto mine = store.take(name(1));
        is_through = true;
        seen = mine.floats()[0];
      });
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      CHECK_FALSE(is_through.load());
      if (commits) lease.commit();
      lease = {};
      waiting.join();
      CHECK(seen == 6.0f);
    }
  }
}
