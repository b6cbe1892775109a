#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fuzzes with libFuzzer of clang 19, address and undefined-behaviour sanitizers on.
# tools/fuzz.sh TARGET [SECONDS]     TARGET: a target in tests/fuzz, named as its source; default 60 seconds
# tools/fuzz.sh --all [SECONDS]      all of them, two at a time; a line for each, and failure if one fails
# tools/fuzz.sh --list               their names
# tools/fuzz.sh --compile TARGET     leaves the program in build/fuzz
# KVPOLICY_FUZZ_ROOT: another tree to fuzz, by the targets of this one.
set -euo pipefail
cd "$(dirname "$0")/.."
root=${KVPOLICY_FUZZ_ROOT:-.}
build=${KVPOLICY_FUZZ_BUILD:-build/fuzz}
seconds=${2:-60}

targets() { grep -l LLVMFuzzerTestOneInput tests/fuzz/*.cpp | xargs -n 1 basename -s .cpp; }

compile() {
  mkdir -p "$build/$1.corpus"
  clang++-19 -std=c++20 -O1 -g1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -I "$root/include" \
    -I "$root/examples" -I tests "tests/fuzz/$1.cpp" -o "$build/$1"
}

# New inputs stay in the build folder; those that are worth keeping are copied by hand.
fuzz() {
  "$build/$1" -max_total_time="$seconds" -max_len=400 -len_control=0 -print_final_stats=1 -timeout=20 \
    -artifact_prefix="$build/$1." "$build/$1.corpus" "tests/fuzz/corpus/$1"
}

# One target, quietly: a line that says how often it ran, or what it said last.
one_of_all() {
  local log=$build/$1.log status=0
  { compile "$1" && fuzz "$1"; } > "$log" 2>&1 || status=$?
  if [[ $status -eq 0 ]]; then
    echo "$1: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") executions"
  else
    echo "$1: FAILED, see $log"
    grep -E '^not true|what\(\)|ERROR|error:' "$log" | head -3 || true
  fi
  return "$status"
}

case $1 in
  --list) targets ;;
  --compile) compile "$2" ;;
  --all)
    export -f one_of_all compile fuzz
    export root build seconds
    mkdir -p "$build"
    targets | xargs -P 2 -I {} bash -euo pipefail -c 'one_of_all {}'
    ;;
  *)
    compile "$1"
    fuzz "$1"
    ;;
esac
