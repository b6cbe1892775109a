// SPDX-License-Identifier: Apache-2.0
// Old paths of headers that have moved: each is there until 0.4.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <kvpolicy/budget/allot.hpp>
#include <kvpolicy/budget/budget.hpp>
#include <kvpolicy/budget/largest_remainder.hpp>
#include <kvpolicy/budget/pick.hpp>
#include <kvpolicy/budget/proportional.hpp>
#include <kvpolicy/budget/ramp.hpp>
#include <kvpolicy/budget/seen.hpp>
#include <kvpolicy/core/check.hpp>
#include <kvpolicy/core/check_counts.hpp>
#include <kvpolicy/core/check_lanes.hpp>
#include <kvpolicy/core/check_places.hpp>
#include <kvpolicy/core/check_pointers.hpp>
#include <kvpolicy/core/error.hpp>
#include <kvpolicy/core/fields.hpp>
#include <kvpolicy/core/hook_checks.hpp>
#include <kvpolicy/core/hooks.hpp>
#include <kvpolicy/decision/bag.hpp>
#include <kvpolicy/decision/check.hpp>
#include <kvpolicy/decision/hooks.hpp>
#include <kvpolicy/decision/refusals.hpp>
#include <kvpolicy/eviction/eviction.hpp>
#include <kvpolicy/printed/any_admission.hpp>
#include <kvpolicy/printed/any_budget.hpp>
#include <kvpolicy/printed/any_cache_policy.hpp>
#include <kvpolicy/printed/any_observed.hpp>
#include <kvpolicy/printed/any_pick.hpp>
#include <kvpolicy/printed/any_policy.hpp>
#include <kvpolicy/printed/any_protection.hpp>
#include <kvpolicy/printed/any_recorders.hpp>
#include <kvpolicy/printed/any_scorer.hpp>
#include <kvpolicy/printed/any_signals.hpp>
#include <kvpolicy/printed/forced_entries.hpp>
#include <kvpolicy/printed/held.hpp>
#include <kvpolicy/printed/known_parts.hpp>
#include <kvpolicy/printed/own_parts.hpp>
#include <kvpolicy/printed/read_budget.hpp>
#include <kvpolicy/printed/registered_parts.hpp>
#include <kvpolicy/printed/registry.hpp>
#include <kvpolicy/printed/scorer_model.hpp>
#include <kvpolicy/printed/set_fields.hpp>
#include <kvpolicy/printed/spec.hpp>
#include <kvpolicy/printed/spec_parts.hpp>
#include <kvpolicy/printed/systems.hpp>
#include <kvpolicy/protect/forced.hpp>
#include <kvpolicy/protect/marked.hpp>
#include <kvpolicy/protect/protect.hpp>
#include <kvpolicy/recorders/freeze.hpp>
#include <kvpolicy/recorders/hooks.hpp>
#include <kvpolicy/selection/refusals.hpp>
#include <kvpolicy/stages/frozen.hpp>
#include <kvpolicy/stages/put_first.hpp>
#include <kvpolicy/stages/reduce_lanes.hpp>
#include <kvpolicy/step/check.hpp>
#include <kvpolicy/tables/model_tables.hpp>
#include <kvpolicy/trigger/phase.hpp>
#include <kvpolicy/trigger/trigger.hpp>
#include <string>

namespace {

std::string text_of(std::filesystem::path const& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace

TEST_SUITE("core/old_paths") {
  TEST_CASE("every old path of a header is included here, and nothing else is") {
    std::filesystem::path const root(KVPOLICY_SOURCE_DIR);
    std::string const included = text_of(root / "tests/core/old_paths_test.cpp");
    int old_paths = 0;
    for (auto const& each : std::filesystem::recursive_directory_iterator(root / "include/kvpolicy")) {
      if (each.path().extension() != ".hpp" ||
          text_of(each.path()).find("this path goes with 0.4") == std::string::npos)
        continue;
      std::string const name = each.path().lexically_relative(root / "include").generic_string();
      CAPTURE(name);
      CHECK(included.find("#include <" + name + ">\n") != std::string::npos);
      ++old_paths;
    }
    int includes = 0;
    for (std::size_t at = 0; (at = included.find("\n#include <kvpolicy/", at)) != std::string::npos; ++at) ++includes;
    CHECK(old_paths == includes);
  }
}
