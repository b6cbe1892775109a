// How long something takes.
#pragma once

#include <chrono>

namespace tinylm {

/// Adds the time that `work` takes.
template <class Work>
void timed(double& seconds, Work const& work) {
  auto const begin = std::chrono::steady_clock::now();
  work();
  seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace tinylm
