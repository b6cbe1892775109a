// SPDX-License-Identifier: Apache-2.0
// The header has moved; this path goes with 0.4.
#pragma once

#include <kvpolicy/core/signal_set.hpp>  // IWYU pragma: export
