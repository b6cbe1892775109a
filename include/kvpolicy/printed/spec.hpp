// SPDX-License-Identifier: Apache-2.0
// The header has moved; this path goes with 0.4.
#pragma once

#include <kvpolicy/by_name/spec.hpp>  // IWYU pragma: export
