// SPDX-License-Identifier: Apache-2.0
// Checks that the demo's figures are within the bounds in which its table is meaningful.
#pragma once

#include <vector>

#include "options.hpp"
#include "table.hpp"

namespace demo {

/// Prints a line for each bound, and returns whether all bounds are met.
[[nodiscard]] bool checks_pass(options const& with, std::vector<row> const& rows, bytes const& text);

}  // namespace demo
