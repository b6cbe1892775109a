// SPDX-License-Identifier: Apache-2.0
// Measures the time that a function takes.
#pragma once

#include <chrono>

namespace tinylm {

/// Calls `work` and adds the time that it takes to `seconds`.
template <class Work>
void timed(double& seconds, Work const& work) {
  auto const begin = std::chrono::steady_clock::now();
  work();
  seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace tinylm
