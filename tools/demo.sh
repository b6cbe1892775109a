#!/usr/bin/env bash
# Builds the demo and runs it with the given arguments.
set -euo pipefail
cd "$(dirname "$0")/.."

log=$(mktemp)
trap 'rm -f "$log"' EXIT
quietly() { "$@" > "$log" 2>&1 || { cat "$log" >&2; exit 1; }; }

tools/setup.sh
quietly cmake --preset release
quietly cmake --build --preset release --target demo
build/release/bin/demo "$@"
