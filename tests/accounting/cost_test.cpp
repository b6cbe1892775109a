// SPDX-License-Identifier: Apache-2.0
// Prefill token equivalents: worked numbers, and what is refused.

#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

TEST_SUITE("accounting/cost") {
  TEST_CASE("the worked numbers: two turns cost 3,221 prefilled tokens") {
    kv::served_tokens const turns[] = {{1000, 50, 1050}, {1200, 40, 1240}};
    CHECK(kv::prefill_token_equivalents(turns, 0.01) == doctest::Approx(3221.0).epsilon(1e-12));
    CHECK(kv::prefill_token_equivalents(turns, 0) == 2200);
    CHECK(kv::prefill_token_equivalents({}, 0.01) == 0);
  }

  TEST_CASE("a shorter cache costs less, a recomputed prompt more") {
    kv::served_tokens const whole[] = {{1000, 100, 4000}};
    kv::served_tokens const pruned[] = {{1000, 100, 500}};
    kv::served_tokens const lost[] = {{4000, 100, 500}};
    CHECK(kv::prefill_token_equivalents(pruned, 0.01) == doctest::Approx(1500));
    CHECK(kv::prefill_token_equivalents(whole, 0.01) == doctest::Approx(5000));
    CHECK(kv::prefill_token_equivalents(lost, 0.01) == doctest::Approx(4500));
  }

  TEST_CASE("a read costs what the model's size and the hardware say") {
    CHECK(kv::cost_of_a_read(32, 4096, 8e9, 300) == doctest::Approx(2.0 * 32 * 4096 * 300 / 8e9));
    CHECK(error_of([] { (void)kv::cost_of_a_read(32, 4096, 0, 300); }) ==
          "cost_of_a_read: parameters = 0, but it is more than 0, and finite");
    CHECK(error_of([] { (void)kv::cost_of_a_read(32, 4096, 8e9, std::numeric_limits<double>::infinity()); }) ==
          "cost_of_a_read: operations_a_byte = inf, but it is more than 0, and finite");
  }

  TEST_CASE("negative numbers are refused by name") {
    kv::served_tokens const wrong[] = {{1000, -1, 1050}};
    CHECK(error_of([&] { (void)kv::prefill_token_equivalents(wrong, 0.01); }) ==
          "prefill_token_equivalents: decoded = -1, but a count cannot be negative");
    CHECK(error_of([] { (void)kv::prefill_token_equivalents({}, -0.5); }) ==
          "prefill_token_equivalents: read = -0.5, but a cost cannot be negative");
  }
}

}  // namespace
