// SPDX-License-Identifier: Apache-2.0
// What a page says about where its figures come from.
#pragma once

#include <sys/utsname.h>

#include <fstream>
#include <string>
#include <thread>

namespace keep_map {

/// The commit that was built, with a plus if files were changed since. Empty if the sources are no checkout.
[[nodiscard]] std::string commit();

/// The processor of this machine, as Linux names it, and the number of its cores.
[[nodiscard]] inline std::string machine() {
  utsname about{};
  std::string name = ::uname(&about) == 0 ? about.machine : "unknown";
  std::ifstream known("/proc/cpuinfo");
  for (std::string line; std::getline(known, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    std::size_t const begin = line.find_first_not_of(" \t", line.find(':') + 1);
    if (begin != std::string::npos) name = line.substr(begin);
    break;
  }
  unsigned const cores = std::thread::hardware_concurrency();
  return name + ", " + std::to_string(cores) + (cores == 1 ? " core" : " cores");
}

}  // namespace keep_map
