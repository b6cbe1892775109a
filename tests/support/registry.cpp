#include <kvpolicy/kvpolicy.hpp>

namespace kvpolicy {

template basic_registry<host_executor> shipped<host_executor>();
template any_policy parse<host_executor>(std::string_view, registry const&);

}  // namespace kvpolicy
