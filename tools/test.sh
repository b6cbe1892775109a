#!/usr/bin/env bash
# Builds everything and runs all tests.
# tools/test.sh [PRESET]     release (default), dev, clang, tsan, cuda, ...: see cmake --list-presets
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}
jobs=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}

[[ $preset == release ]] && tools/setup.sh || tools/setup.sh --ci # the other presets use clang 19, nvcc apart
cmake --preset "$preset"
cmake --build --preset "$preset" --parallel "$jobs"
ctest --preset "$preset" --parallel "$jobs"
