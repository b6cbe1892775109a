// SPDX-License-Identifier: Apache-2.0
// Turns of several sessions through one place of a batch: each session goes on where its own last turn ended. The turn
// is the one that docs/sessions.md shows.

#include "support/turn_rows.hpp"

namespace {

using namespace kvpolicy_test;

constexpr kv::shape model{.layers = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 8};

struct request {
  std::string session;
  std::vector<int> tokens;
  bool fails = false;
};

/// An engine with room for one sequence, and the memories of its sessions.
struct engine {
  mock_cache cache{{.model = model, .bound = 16}};
  kv::host_executor exec;
  kv::eviction<kv::intent_kv, kv::nothing, kv::per_lane> policy = kv::policies::intent_kv({.budget = 8});
  kv::state<kv::host_executor> state = kv::make_state(exec, policy, cache.view());
  kv::plan<kv::host_executor> plan = kv::make_plan(exec, policy, cache.view());
  kv::session_store store{{.layers = model.layers, .query_heads = model.query_heads, .dims = model.head_dim}};

  engine() {
    for (int i = 0; i < cache.lane_count(); ++i) cache.put(cache.lane_at(i), {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  }

  void turn(request const& one, turn_rows const& rows) {
    int const sequence = 0;
    kv::signals const in{cache.lanes(), kv::keys_of(cache.view()), rows.view()};
    // example-begin
    kv::session_id const id = kv::identify({.explicit_id = one.session, .prompt_tokens = one.tokens});
    kv::session_lease memory = store.take(id);   // waits while another request of the session is in flight
    kv::restore(exec, state, sequence, memory);  // what the turns before have asked for; zeros in a new session
    kv::observe(exec, policy, in, state);        // after the prefill: and what this one asks for
    kv::decide(exec, policy, in, state, plan);   // then apply
    if (one.fails) throw std::runtime_error("cancelled");
    kv::keep(exec, state, sequence, memory);  // now the session remembers this turn, and the next may begin
    // example-end
  }

  std::vector<float> remembered(kv::session_id const& id) {
    auto const lease = store.take(id);
    return {lease.floats().begin(), lease.floats().end()};
  }
};

/// The rows of a turn, all different.
turn_rows some_rows(std::uint64_t seed) {
  dice roll(seed);
  turn_rows rows(model, 1, 4);
  rows.turn(0, {8, 9, 10, 11}, 1, 4);
  rows.fill(roll, 1.0);
  return rows;
}

/// What a session remembers after these turns if no other comes between.
std::vector<float> alone(std::vector<std::uint64_t> const& seeds) {
  engine one;
  std::vector<float> floats(one.store.extents().floats());
  for (std::uint64_t const seed : seeds) {
    kv::observe(one.exec, one.policy,
                kv::signals{one.cache.lanes(), kv::keys_of(one.cache.view()), some_rows(seed).view()}, one.state);
  }
  one.state.save_session(one.exec, 0, reinterpret_cast<std::byte*>(floats.data()));
  return floats;
}

}  // namespace

TEST_SUITE("session/keep") {
  TEST_CASE("sessions that take turns in one place remember what each would alone") {
    engine shared;
    std::vector<int> const prompt = {5, 6, 7};
    shared.turn({"a", prompt}, some_rows(1));
    shared.turn({"b", prompt}, some_rows(2));
    shared.turn({"", prompt}, some_rows(3));
    shared.turn({"a", prompt}, some_rows(4));
    shared.turn({"", prompt}, some_rows(5));
    shared.turn({"", {}}, some_rows(6));
    CHECK(shared.remembered(kv::session_id::named("a")) == alone({1, 4}));
    CHECK(shared.remembered(kv::session_id::named("b")) == alone({2}));
    CHECK(shared.remembered(kv::session_id::of_prompt(prompt)) == alone({3, 5}));
    CHECK(shared.store.size() == 3);
    CHECK(alone({1, 4}) != alone({4}));
  }

  TEST_CASE("a turn that fails is one that its session does not remember") {
    engine shared;
    shared.turn({"a", {}}, some_rows(1));
    CHECK_THROWS_AS(shared.turn({"a", {}, true}, some_rows(2)), std::runtime_error);
    CHECK(shared.remembered(kv::session_id::named("a")) == alone({1}));
    shared.turn({"a", {}}, some_rows(3));
    CHECK(shared.remembered(kv::session_id::named("a")) == alone({1, 3}));
  }
}
