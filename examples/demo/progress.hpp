// SPDX-License-Identifier: Apache-2.0
// Tells on standard error how far the work is.
#pragma once

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <string>

namespace demo {

/// A bar on a terminal. Elsewhere it is a line at the beginning, and one whenever `seconds` have passed and a row of a
/// case is done. Several threads may call it.
class progress {
 public:
  progress(int rows_of_all_cases, double seconds) : total_(rows_of_all_cases), seconds_(seconds) {}
  ~progress() {
    if (drawn_) fmt::print(stderr, "\r{:60}\r", "");
  }
  progress(progress const&) = delete;
  progress& operator=(progress const&) = delete;

  /// Prints a line, unless standard error is a terminal.
  void say(std::string const& line) {
    if (!terminal_) fmt::print(stderr, "{}\n", line);
  }

  /// One row of a case is done: `what` names the case, `policy` the row.
  void advance(std::string const& what, std::string const& policy) {
    std::lock_guard const one_at_a_time(mutex_);
    ++done_;
    if (terminal_) return draw(policy);
    auto const now = std::chrono::steady_clock::now();
    if (std::chrono::duration<double>(now - last_).count() < seconds_) return;
    last_ = now;
    fmt::print(stderr, "{}, {} % done, {:.0f} s\n", what, 100 * done_ / std::max(1, total_),
               std::chrono::duration<double>(now - began_).count());
    std::fflush(stderr);
  }

 private:
  void draw(std::string const& policy) {
    drawn_ = true;
    int const filled = total_ > 0 ? 30 * done_ / total_ : 30;
    fmt::print(stderr, "\r[{:=<{}}{:{}}] {:3}% {:<20}", "", filled, "", 30 - filled, 100 * done_ / std::max(1, total_),
               policy);
    std::fflush(stderr);
  }

  int total_;
  double seconds_;
  int done_ = 0;
  bool terminal_ = isatty(2) != 0;
  bool drawn_ = false;
  std::mutex mutex_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point last_ = began_;
};

}  // namespace demo
