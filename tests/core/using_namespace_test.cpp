// SPDX-License-Identifier: Apache-2.0
// Both namespaces opened at once: the names of the library stand beside those of the standard library and of POSIX.
#include <doctest/doctest.h>
#include <stdlib.h>
#include <sys/select.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <kvpolicy/kvpolicy.hpp>
#include <map>
#include <numeric>
#include <random>
#include <ratio>
#include <set>
#include <span>
#include <string>
#include <vector>

using namespace std;       // NOLINT: as careless sources have it
using namespace kvpolicy;  // NOLINT

TEST_SUITE("core/using_namespace") {
  TEST_CASE("names of both are found without a qualifier") {
    vector<int> numbers{3, 1, 2};
    span<int> const all(numbers);  // std's
    CHECK(any_of(all.begin(), all.end(), [](int n) { return n == 2; }));
    CHECK(ratio<1, 2>::den == 2);
    CHECK(apply([](int a, int b) { return a + b; }, tuple{1, 2}) == 3);
    CHECK(multiplies<int>{}(2, 3) == 6);
    ::srandom(7);
    CHECK(random() >= 0);  // POSIX's
    fd_set none;
    FD_ZERO(&none);
    timeval at_once{};
    CHECK(select(0, &none, nullptr, nullptr, &at_once) == 0);  // POSIX's

    eviction const policy{
        .score = random_scores{}, .protect = sinks{2} | position_span{4, 5}, .budget = drop_ratio{.drop = 0.5}};
    host_executor exec;
    any_policy const same = policy;
    CHECK(same == parse(to_string(policy)));
    static_assert(is_base_of_v<std::invalid_argument, kvpolicy::invalid_argument>);  // the one name that both have
  }
}
