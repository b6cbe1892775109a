#include <kvpolicy/kvpolicy.hpp>

char const* version_seen_by_a() { return kvpolicy::version; }
