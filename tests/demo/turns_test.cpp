// SPDX-License-Identifier: Apache-2.0
// What a session gives to policies that observe turns, and what it keeps from them.

#include <ranges>

#include "support/test.hpp"
#include "tinylm/fixture.hpp"

namespace {

using namespace tinylm_test;
using tinylm::layout;
using tinylm::when;

template <class Policy>
int unobserved_after_steps(Policy const& policy, bool observe_steps) {
  fixture& with = fixture::get();
  tinylm::session reader(with.lm, with.exec, with.pool, policy,
                         {.bound = 64, .decide = when::by_hand, .observe_steps = observe_steps});
  for (std::uint8_t byte = 'a'; byte < 'i'; ++byte) reader.step(byte);
  reader.evict();
  CHECK(reader.entries().live_entries() == 4 * 8);  // four in each of the eight lanes
  return static_cast<int>(reader.report().unobserved);
}

TEST_SUITE("demo/turns") {
  TEST_CASE("a session whose policy does not observe steps records nothing of decoded tokens") {
    auto const policy = kv::policies::h2o({.budget = 4});
    CHECK(unobserved_after_steps(policy, true) == 0);
    CHECK(unobserved_after_steps(policy, false) == 8);
  }

  TEST_CASE("IntentKV takes a prompt for one turn, and drops whole tokens in place") {
    golden const prompt("recall");
    fixture& with = fixture::get();
    tinylm::kv_pool pool(with.lm.about().shape(), 600, tinylm::pool_for(layout::dead_slot, true));
    auto const policy = kv::policies::intent_kv({.budget = 48, .score = {.tail = 16}});
    tinylm::session reader(with.lm, with.exec, pool, policy,
                           {.bound = 512, .chunk = 512, .lay = layout::dead_slot, .observe_steps = false});
    std::span<std::uint8_t const> const text = std::span(prompt.text).first(192);
    reader.prefill(text);
    CHECK(reader.report().unobserved == 0);
    CHECK(reader.entries().live_entries() == 48 * 8);
    CHECK(pool.free_pages() == 600 - 1 - 48);  // all but the dead slot and a slot for each kept token
    auto const kept = positions_of(reader.view());
    for (auto const& lane : kept) {
      CHECK(lane == kept.front());
      CHECK(std::ranges::includes(lane, std::views::iota(192 - 16, 192)));  // the tail is the span, which is forced
    }
    reader.step('x');
    CHECK(reader.entries().live_entries() == 49 * 8);
  }
}

}  // namespace
