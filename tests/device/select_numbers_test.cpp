// SPDX-License-Identifier: Apache-2.0
// A device's selections against loops, and the marks that verbs select by.
#include "support/device.hpp"
#include "support/test.hpp"

namespace {

using namespace kvpolicy_test;

/// The argument, unless it is a multiple of a number.
struct no_multiple {
  unsigned of;
  [[nodiscard]] KVPOLICY_HD int operator()(unsigned i) const { return i % of == 0 ? -1 : static_cast<int>(i); }
};

TEST_SUITE("device/select_numbers") {
  TEST_CASE("a selection writes the numbers that are not negative, in order, from where it is told") {
    CHECK(rc::check([] {
      device_executor device(5);
      auto const count = *rc::gen::inRange<std::int64_t>(0, 20000);
      auto const of = *rc::gen::inRange(1u, 5u);
      std::vector<std::int64_t> const first{
          *rc::gen::inRange<std::int64_t>(0, 9)};  // no local variable: a GPU reads it
      device.reserve(kv::selection_bytes(count));
      std::vector<int> to(as_size(first[0] + count) + 1, -7);
      std::vector<int> expected(to);
      auto next = as_size(first[0]);
      for (unsigned i = 0; i < static_cast<unsigned>(count); ++i) {
        if (i % of != 0) expected[next++] = static_cast<int>(i);
      }
      device.select_numbers(count, no_multiple{of}, {to.data(), first.data()}, device.scratch());
      device.synchronize();
      RC_ASSERT(to == expected);
    }));
  }

  TEST_CASE("a divisor divides as the operator does") {
    CHECK(rc::check([] {
      auto const by = *rc::gen::element(2u, 3u, 7u, 32u, 1u << 30, (1u << 30) + 1, 0x7FFFFFFFu,
                                        *rc::gen::inRange(2u, 0x7FFFFFFFu), *rc::gen::inRange(2u, 100000u));
      kv::detail::divisor const divide = kv::detail::divisor::of(by);
      for (unsigned const near : {0u, by, by * *rc::gen::inRange(0u, 0x7FFFFFFFu / by + 1), 0x7FFFFFFFu}) {
        for (unsigned n = near < 3 ? 0 : near - 3; n < near + 3 && n < 0x80000000u; ++n) {
          RC_ASSERT(divide.quotient(n) == n / by);
        }
      }
      unsigned const any = *rc::gen::inRange(0u, 0x7FFFFFFFu);
      RC_ASSERT(divide.quotient(any) == any / by);
    }));
  }
}

}  // namespace
