// SPDX-License-Identifier: Apache-2.0
// The device implementations of the verbs of ops/mask_rows.hpp.
#pragma once

#include <kvpolicy/ops/cuda/lists/masks.hpp>  // IWYU pragma: export
