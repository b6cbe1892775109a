// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <exception>
#include <thread>

namespace kvpolicy_test {

/// What became of a forked process.
enum class ending { all_good, bad, threw, ended_by_signal, hung };

/// Waits until the child ends; one that does not is killed.
inline ending ending_of(pid_t child) {
  auto const until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  int status = 0;
  for (;;) {
    if (::waitpid(child, &status, WNOHANG) == child) break;
    if (std::chrono::steady_clock::now() > until) {
      ::kill(child, SIGKILL);
      ::waitpid(child, &status, 0);
      return ending::hung;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  if (!WIFEXITED(status)) return ending::ended_by_signal;
  return static_cast<ending>(WEXITSTATUS(status));
}

/// What the child does: `work()` says whether all is good. Nothing of the parent's is destroyed there.
template <class Work>
[[noreturn]] void end_child(Work const& work) {
  auto found = ending::threw;
  try {
    found = work() ? ending::all_good : ending::bad;
  } catch (...) {
  }
  ::_exit(static_cast<int>(found));
}

/// Runs `work` in a forked process.
template <class Work>
ending in_a_fork(Work const& work) {
  pid_t const child = ::fork();
  if (child == 0) end_child(work);
  return ending_of(child);
}

}  // namespace kvpolicy_test
