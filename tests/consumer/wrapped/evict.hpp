// SPDX-License-Identifier: Apache-2.0
// What a program built with -fno-exceptions includes: no kvpolicy in it.
#pragma once

/// Compacts the tiny cache to `budget` entries and says how many are left, or -1 and why not.
int evict(int budget, char* why_not, int size) noexcept;
