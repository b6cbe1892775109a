#include <kvpolicy/kvpolicy.hpp>

char const* version_seen_by_b() { return kvpolicy::version; }
