// The host implementations of the verbs of ops/ring_append.hpp.
#pragma once

#include <kvpolicy/ops/host/gather_rows.hpp>  // IWYU pragma: export
