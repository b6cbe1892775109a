#!/usr/bin/env bash
# Fuzzes with libFuzzer of clang 19, address and undefined-behaviour sanitizers on.
# tools/fuzz.sh TARGET [SECONDS]     TARGET: the name of a source in tests/fuzz; default 60 seconds
set -euo pipefail
cd "$(dirname "$0")/.."
target=$1
seconds=${2:-60}
build=build/fuzz
mkdir -p "$build/$target.corpus"
clang++-19 -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -I include \
  "tests/fuzz/$target.cpp" -o "$build/$target"
# New inputs stay in the build folder; those that are worth keeping are copied by hand.
"$build/$target" -max_total_time="$seconds" -max_len=400 -print_final_stats=1 -artifact_prefix="$build/" \
  "$build/$target.corpus" "tests/fuzz/corpus/$target"
