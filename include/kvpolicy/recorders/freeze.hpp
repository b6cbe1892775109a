// SPDX-License-Identifier: Apache-2.0
// The header has moved; this path goes with 0.4.
#pragma once

#include <kvpolicy/scorers/freeze.hpp>  // IWYU pragma: export
