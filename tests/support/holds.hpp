// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>
#include <rapidcheck.h>

#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string_view>
#include <utility>

namespace kvpolicy_test {

/// The seed of every property: the same cases in each run, so that a change is judged by what it changed. Others with
/// RC_PARAMS="seed=N", or with KVPOLICY_TEST_SEED=random, as the nightly run does.
inline std::uint64_t property_seed(std::uint64_t drawn) {
  char const* const params = std::getenv("RC_PARAMS");
  char const* const wish = std::getenv("KVPOLICY_TEST_SEED");
  bool const is_given = params != nullptr && std::string_view(params).find("seed=") != std::string_view::npos;
  bool const is_random = wish != nullptr && std::string_view(wish) == "random";
  return is_given || is_random ? drawn : 20261121;
}

/// Runs a rapidcheck property as one doctest assertion; a failure shows the shrunk counterexample and its seed.
///
/// `share` is the percentage of the configured number of runs (RC_PARAMS="max_success=...") that this property takes.
template <class Property>
void holds(char const* law, int share, Property&& property) {
  rc::detail::TestMetadata about;
  about.id = law;
  rc::detail::TestParams runs = rc::detail::configuration().testParams;
  runs.seed = property_seed(runs.seed);
  runs.maxSuccess = runs.maxSuccess * share / 100 > 0 ? runs.maxSuccess * share / 100 : 1;
  auto const result = rc::detail::checkTestable(std::forward<Property>(property), about, runs);
  std::ostringstream report;
  rc::detail::printResultMessage(result, report);
  INFO(report.str(), "RC_PARAMS=\"seed=", runs.seed, "\"");
  CHECK_MESSAGE(result.template is<rc::detail::SuccessResult>(), about.id);
}
template <class Property>
void holds(char const* law, Property&& property) {
  holds(law, 100, std::forward<Property>(property));
}

}  // namespace kvpolicy_test
