// The header has moved; this path goes with 0.4.
#pragma once

#include <kvpolicy/parts/proportional.hpp>  // IWYU pragma: export
