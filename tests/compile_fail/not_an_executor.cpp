// expect: constraint|no instance of overloaded function|no instance of function template
// SPDX-License-Identifier: Apache-2.0
// Something without a backend runs nothing.
#include <kvpolicy/kvpolicy.hpp>

namespace kv = kvpolicy;

struct elsewhere {};
template <>
struct kv::implementation<kv::ops::commit_entries_t, elsewhere> {
  template <class Executor>
  static void run(Executor&, kv::lanes const&, int, int) {}
};

struct nearly {
#ifndef KVPOLICY_MUST_FAIL
  using backend = elsewhere;
#endif
  template <class T>
  using buffer = std::vector<T>;
  static void reserve(std::size_t) {}
  [[nodiscard]] static std::size_t reserved() { return 0; }
  static void copy(std::byte*, std::byte const*, std::size_t) {}
};

void commit_once(nearly& exec, kv::cache& cache) { kv::commit(exec, cache, 0, 0); }
