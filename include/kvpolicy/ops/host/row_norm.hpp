// The host implementation of the verb of ops/row_norm.hpp.
#pragma once

#include <kvpolicy/ops/host/map.hpp>  // IWYU pragma: export
