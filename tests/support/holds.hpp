#pragma once

#include <doctest/doctest.h>
#include <rapidcheck.h>

#include <sstream>
#include <utility>

namespace kvpolicy_test {

/// Runs a rapidcheck property as one doctest assertion; a failure shows the shrunk counterexample and its seed.
///
/// `share` is the percentage of the configured number of runs (RC_PARAMS="max_success=...") that this property takes.
template <class Property>
void holds(char const* law, Property&& property, int share = 100) {
  rc::detail::TestMetadata about;
  about.id = law;
  rc::detail::TestParams runs = rc::detail::configuration().testParams;
  runs.maxSuccess = runs.maxSuccess * share / 100 > 0 ? runs.maxSuccess * share / 100 : 1;
  auto const result = rc::detail::checkTestable(std::forward<Property>(property), about, runs);
  std::ostringstream report;
  rc::detail::printResultMessage(result, report);
  INFO(report.str());
  CHECK_MESSAGE(result.template is<rc::detail::SuccessResult>(), about.id);
}

}  // namespace kvpolicy_test
