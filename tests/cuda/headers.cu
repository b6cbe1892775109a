// The host umbrella must compile under nvcc too, as C++20 and without a warning.
#include <kvpolicy/kvpolicy.hpp>

static_assert(__cplusplus >= 202002L);
