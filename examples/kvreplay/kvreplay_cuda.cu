// SPDX-License-Identifier: Apache-2.0
// kvreplay, compiled for a GPU. `kvreplay --device cuda` starts this program.
#include "kvreplay.cpp"
