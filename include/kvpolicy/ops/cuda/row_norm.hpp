// The device implementation of the verb of ops/row_norm.hpp.
#pragma once

#include <kvpolicy/ops/cuda/map.hpp>  // IWYU pragma: export
