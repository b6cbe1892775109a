#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the unit tests with clang 19's source-based coverage and prints a table: lines and branches of each room.
# Fails if core, core/contract, ops/host, layout or by_name is below 95 % of its lines or 90 % of its branches.
# tools/coverage.sh [--missed]     --missed: also every line and branch that no test takes
#
# A template counts once: a branch is taken if any instance takes it. The edges of exceptions are no branches here, as
# clang counts conditions of the source alone; nor are conditions that the compiler decides, and comparisons that it
# writes (= default). A template that nothing instantiates is not seen.
set -euo pipefail
cd "$(dirname "$0")/.."
build=build/coverage
[[ -x "$(command -v llvm-cov-19)" ]] || { echo 'tools/coverage.sh: apt-get install llvm-19' >&2; exit 1; }

cmake --preset coverage
cmake --build --preset coverage --parallel "${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}" --target kvpolicy_tests
LLVM_PROFILE_FILE=$build/tests.profraw $build/bin/kvpolicy_tests
llvm-profdata-19 merge -sparse $build/tests.profraw -o $build/tests.profdata
from=("$build/bin/kvpolicy_tests" "-instr-profile=$build/tests.profdata" "$PWD/include/kvpolicy")
for format in text lcov; do
  llvm-cov-19 export -format=$format "${from[@]}" > "$build/coverage.$format"
done
llvm-cov-19 show -show-branches=count -show-instantiations=false "${from[@]}" > "$build/coverage.shown"
python3 -B tools/coverage_table.py include/kvpolicy $build/coverage.{text,lcov,shown} "$@"
