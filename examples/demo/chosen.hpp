// Chooses the policies of the demo's table.
#pragma once

#include "cache_contenders.hpp"
#include "contenders.hpp"

namespace demo {

inline std::vector<contender> all_contenders() {
  std::vector<contender> all = evictions();
  for (contender& one : cache_policies()) all.push_back(std::move(one));
  return all;
}

/// The policies of the given names, or all if there are neither names nor specs. The policies of the user's specs
/// follow; with specs the full cache is always included.
inline std::vector<contender> chosen_contenders(std::vector<std::string> const& names,
                                                std::vector<std::string> const& specs) {
  std::vector<contender> chosen;
  for (contender& one : all_contenders()) {
    bool const named = std::count(names.begin(), names.end(), one.name) > 0;
    bool const reference = !specs.empty() && one.name == "full";
    if (named || reference || (names.empty() && specs.empty())) chosen.push_back(std::move(one));
  }
  for (std::size_t i = 0; i < specs.size(); ++i) {
    chosen.push_back(written(specs[i], i == 0 ? "yours" : "yours " + std::to_string(i + 1)));
  }
  return chosen;
}

}  // namespace demo
