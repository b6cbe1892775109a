// SPDX-License-Identifier: Apache-2.0
// What each of two shared libraries offers. Both are built from library.cpp, by compilers and with flags of their own,
// and hand policies, plans, states and exceptions to each other through these functions.
#pragma once

#include "../tiny_cache.hpp"

struct library {
  tiny::policy (*make_policy)(int budget);
  tiny::state (*make_state)(kvpolicy::host_executor& exec, tiny::policy const& policy, kvpolicy::cache const& cache);
  tiny::plan (*make_plan)(kvpolicy::host_executor& exec, tiny::policy const& policy, kvpolicy::cache const& cache);
  void (*decide)(kvpolicy::host_executor& exec, tiny::policy const& policy, kvpolicy::cache const& cache,
                 tiny::state const& state, tiny::plan& plan);
  void (*apply)(kvpolicy::host_executor& exec, tiny::plan const& plan, kvpolicy::cache& cache, tiny::state& state);
  void (*refuse)();                   ///< throws kvpolicy::invalid_argument
  bool (*catches)(void (*refuse)());  ///< true if what `refuse` throws is caught by type
  char const* (*version)();
};
