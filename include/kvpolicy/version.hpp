// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The library's version as major * 10000 + minor * 100 + patch, for `#if`. CMake reads this file and checks that the
/// number and the text below agree.
#define KVPOLICY_VERSION 300

namespace kvpolicy {

/// The library's version as text, "major.minor.patch".
inline constexpr char const version[] = "0.3.0";

}  // namespace kvpolicy
