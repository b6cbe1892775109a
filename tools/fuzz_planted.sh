#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Shows that every fuzz target finds a bug: plants those of tests/fuzz/planted.txt, one for each target, into copies of
# the tree, and fuzzes each for at most 60 seconds. A line for each target; fails if one finds nothing. For the nightly run.
# tools/fuzz_planted.sh [TARGET...]
set -euo pipefail
cd "$(dirname "$0")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Takes the first line of the target whose text is in its file, and swaps it there.
plant() {
  python3 -B - "$1" "$2" << 'PYTHON'
import pathlib
import sys

target, root = sys.argv[1:]
for line in pathlib.Path("tests/fuzz/planted.txt").read_text().splitlines():
    if line.startswith("#") or not line.strip():
        continue
    parts = [part.strip().replace("\0", "|") for part in line.replace("\\|", "\0").split(" | ")]
    name, path, text, wrong = parts
    file = pathlib.Path(root) / path
    if name == target and file.exists() and file.read_text().count(text) == 1:
        file.write_text(file.read_text().replace(text, wrong))
        sys.exit(0)
sys.exit(f"tests/fuzz/planted.txt has no bug for {target} that fits the tree")
PYTHON
}

finds() {
  local root=$scratch/$1 log=$scratch/$1.log started
  mkdir -p "$root"
  cp -r include examples "$root"
  plant "$1" "$root" || return 1
  export KVPOLICY_FUZZ_ROOT=$root KVPOLICY_FUZZ_BUILD=$root/build
  if ! tools/fuzz.sh --compile "$1" > "$log" 2>&1; then
    echo "$1: FAILED, the tree with the bug does not compile"
    grep error "$log" | head -3
    return 1
  fi
  started=$(date +%s.%N)
  if "$root/build/$1" -max_total_time=60 -max_len=400 -len_control=0 -artifact_prefix="$root/" \
    "$root/build/$1.corpus" "tests/fuzz/corpus/$1" > "$log" 2>&1; then
    echo "$1: FAILED, found nothing in 60 seconds"
    return 1
  fi
  printf '%s: found after %.1f seconds: %s\n' "$1" "$(echo "$(date +%s.%N) - $started" | bc)" \
    "$(grep -m 1 -E '^not true|what\(\)|ERROR: ' "$log" | cut -c 1-90)"
}

status=0
for target in ${@:-$(tools/fuzz.sh --list)}; do
  finds "$target" || status=1
done
exit "$status"
