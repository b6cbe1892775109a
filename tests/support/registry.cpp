// SPDX-License-Identifier: Apache-2.0
#include <kvpolicy/kvpolicy.hpp>

namespace kvpolicy {

namespace detail {

template void observe_given(host_executor&, any_policy const&, any_signals const&, state<host_executor>&);
template void decide_given(host_executor&, any_policy const&, any_signals const&, state<host_executor> const&,
                           plan<host_executor>&);

}  // namespace detail

template state<host_executor> make_state(host_executor&, any_policy const&, cache const&, int);
template basic_registry<host_executor> shipped<host_executor>();
template any_policy parse<host_executor>(std::string_view, registry const&);

}  // namespace kvpolicy
