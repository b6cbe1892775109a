#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the tests and runs them. tools/test.sh --help explains the arguments.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat << 'END'
tools/test.sh [PRESET]   builds everything and runs all tests: about twelve minutes on two cores
tools/test.sh --quick    core, one law of each kind, the README and programs of the tutorial: about a minute where they
                         are built, about four where nothing is

PRESET is release (if it is not given), dev, clang, tsan, cuda, ...: see cmake --list-presets. The last line says how many
tests there were, and how long building and running them took.
END
}

preset=release
tests=release
what='all tests, about twelve minutes on two cores'
case ${1:-} in
  -h | --help) usage; exit 0 ;;
  --quick)
    tests=quick
    what='the quick tests, about a minute if they are built and four if nothing is' ;;
  -*)
    echo "tools/test.sh: option = $1, but there are --quick and --help" >&2
    exit 2 ;;
  '') ;;
  *)
    preset=$1
    tests=$1
    what="the tests of the preset $1" ;;
esac
if [[ $# -gt 1 ]]; then
  echo "tools/test.sh: argument = $2, but there is one argument at most" >&2
  exit 2
fi
jobs=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}

echo "tools/test.sh: $what"
[[ $preset == release ]] && tools/setup.sh || tools/setup.sh --ci # the other presets use clang 19, nvcc apart
started=$SECONDS
cmake --preset "$preset"
cmake --build --preset "$tests" --parallel "$jobs"
built=$SECONDS
status=0
ctest --preset "$tests" --parallel "$jobs" || status=$?
count=$(ctest --preset "$tests" --show-only | sed -nE 's/^Total Tests: ([0-9]+)$/\1/p')
echo "tools/test.sh: $count tests; built in $((built - started)) s, run in $((SECONDS - built)) s"
exit "$status"
