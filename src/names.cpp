// The parser and the policies that it makes, for programs that define KVPOLICY_COMPILED.
#include <kvpolicy/printed/registry.hpp>

namespace KVPOLICY_NAMESPACE {

template basic_registry<host_executor> shipped<host_executor>();
template basic_any_policy<host_executor> parse<host_executor>(std::string_view, registry const&);

}  // namespace KVPOLICY_NAMESPACE
