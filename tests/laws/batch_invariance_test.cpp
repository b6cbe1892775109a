// SPDX-License-Identifier: Apache-2.0
#include "laws/batch_invariance.hpp"

namespace {

using namespace kvpolicy_test;

TEST_SUITE("batch invariance") {
  TEST_CASE("a request is served bit for bit as if it were alone, in random schedules") {
    auto const policies = evictions_of_the_law<kv::host_executor>();
    for (int seed = 1; seed <= rounds(1000); seed += under_address_sanitizer ? 4 : 1) {
      INFO("schedule " << seed);
      random_schedule<kv::host_executor>(static_cast<std::uint64_t>(seed), policies).run(8);
    }
  }

  // The night sets the number of steps to 100,000, under the sanitizers.
  TEST_CASE("requests come and go for a long time in the same slots") {
    char const* const asked = std::getenv("KVPOLICY_SOAK_STEPS");
    int const steps = asked != nullptr ? std::atoi(asked) : 800;
    auto const policies = evictions_of_the_law<kv::host_executor>();
    for (int part = 0; part < 16; ++part) {
      INFO("part " << part);
      random_schedule<kv::host_executor>(7000 + static_cast<std::uint64_t>(part), policies).run(steps / 16);
    }
  }
}

}  // namespace
