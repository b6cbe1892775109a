// SPDX-License-Identifier: Apache-2.0
// The header has moved; this path goes with 0.4.
#pragma once

#include <kvpolicy/scorers/stages/reduce_lanes.hpp>  // IWYU pragma: export
