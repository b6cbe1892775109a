// SPDX-License-Identifier: Apache-2.0
// Tells the thread sanitizer what the fibers of the emulated device are: threads of their own, ordered by barriers
// alone. Without the sanitizer, nothing here does anything.
#pragma once

#include "support/sanitized.hpp"
#if defined(KVPOLICY_TEST_TSAN)
#include <sanitizer/tsan_interface.h>

extern "C" {
void AnnotateIgnoreReadsBegin(char const* file, int line);
void AnnotateIgnoreReadsEnd(char const* file, int line);
void AnnotateIgnoreWritesBegin(char const* file, int line);
void AnnotateIgnoreWritesEnd(char const* file, int line);
}
#endif

namespace kvpolicy_test {

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

}  // namespace kvpolicy_test
