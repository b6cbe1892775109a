// SPDX-License-Identifier: Apache-2.0
// Tells the thread sanitizer what the fibers of the emulated device are: threads of their own, ordered by barriers
// alone. Without the sanitizer, nothing here does anything.
#pragma once

#include "support/sanitized.hpp"
#if defined(KVPOLICY_TEST_TSAN)
#include <sanitizer/tsan_interface.h>
#include <unistd.h>

extern "C" {
void AnnotateIgnoreReadsBegin(char const* file, int line);
void AnnotateIgnoreReadsEnd(char const* file, int line);
void AnnotateIgnoreWritesBegin(char const* file, int line);
void AnnotateIgnoreWritesEnd(char const* file, int line);
char const* __tsan_default_options();
}
namespace __tsan {
class ReportDesc;
bool OnReport(ReportDesc const* report, bool suppressed);
}  // namespace __tsan
#endif

namespace kvpolicy_test {

/// While it lives, races are counted, and no error. Of races at the same lines of code one is counted in a process.
/// Without the thread sanitizer none is seen.
class expected_races {
 public:
  expected_races() { here() = this; }
  ~expected_races() { here() = nullptr; }
  expected_races(expected_races const&) = delete;
  expected_races& operator=(expected_races const&) = delete;

  [[nodiscard]] int count() const { return count_; }
  /// True if races are expected now, of which one is counted then.
  __attribute__((no_sanitize_thread)) static bool add_one() {
    if (here() == nullptr) return false;
    ++here()->count_;
    return true;
  }

 private:
  __attribute__((no_sanitize_thread)) static expected_races*& here() {
    static constinit expected_races* one = nullptr;
    return one;
  }
  int count_ = 0;
};

/// While it lives, what this thread reads and writes is the emulator's own, and no race.
class unwatched {
 public:
  unwatched(unwatched const&) = delete;
  unwatched& operator=(unwatched const&) = delete;
#if defined(KVPOLICY_TEST_TSAN)
  unwatched() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~unwatched() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
#else
  unwatched() {}
  ~unwatched() {}
#endif
};

/// A point that orders memory: what threads did before they release it comes before what others do after they have
/// acquired it.
class ordering_point {
 public:
#if defined(KVPOLICY_TEST_TSAN)
  void release() { __tsan_release(&at_); }
  void acquire() { __tsan_acquire(&at_); }

 private:
  long at_ = 0;
#else
  void release() {}
  void acquire() {}
#endif
};

/// A fiber, as the thread sanitizer knows it: a thread of its own.
class watched_fiber {
 public:
#if defined(KVPOLICY_TEST_TSAN)
  void create() { of_ = __tsan_create_fiber(0); }
  void note_current() { of_ = __tsan_get_current_fiber(); }
  /// The caller goes on as this fiber. The switch orders nothing.
  void go_on() const { __tsan_switch_to_fiber(of_, __tsan_switch_to_fiber_no_sync); }

 private:
  void* of_ = nullptr;
#else
  void create() {}
  void note_current() {}
  void go_on() const {}
#endif
};

/// Whether the sanitizer can watch this process. It does not watch the main thread of a child of a process that has
/// fibers already, so that it would find races where a launch orders memory.
class watched_process {
 public:
#if defined(KVPOLICY_TEST_TSAN)
  [[nodiscard]] bool is_this() const { return ::getpid() == first_; }

 private:
  pid_t first_ = ::getpid();
#else
  [[nodiscard]] bool is_this() const { return true; }
#endif
};

}  // namespace kvpolicy_test

#if defined(KVPOLICY_TEST_TSAN)
// What the sanitizer calls by these names.
__attribute__((used)) inline char const* __tsan_default_options() {
  return "halt_on_error=1:suppress_equal_addresses=0";
}
__attribute__((used, no_sanitize_thread)) inline bool __tsan::OnReport(ReportDesc const*, bool suppressed) {
  return kvpolicy_test::expected_races::add_one() || suppressed;
}
#endif
