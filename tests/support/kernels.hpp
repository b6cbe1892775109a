// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kvpolicy/kvpolicy.hpp>

// The shipped policies by name, which many tests instantiate, are compiled once, in registry.cpp.
namespace kvpolicy {

namespace detail {

extern template void observe_given(host_executor&, any_policy const&, any_signals const&, state<host_executor>&);
extern template void decide_given(host_executor&, any_policy const&, any_signals const&, state<host_executor> const&,
                                  plan<host_executor>&);

}  // namespace detail

extern template state<host_executor> make_state(host_executor&, any_policy const&, cache const&, int);
extern template basic_registry<host_executor> shipped<host_executor>();
extern template any_policy parse<host_executor>(std::string_view, registry const&);

}  // namespace kvpolicy
