#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the demo and runs it. tools/demo.sh --help explains the options.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat << 'END'
tools/demo.sh [OPTION...]          seven policies at one budget; leaves the page kept.html
tools/demo.sh --full [OPTION...]   every policy at three budgets, which takes some minutes

The first run builds the program. The table is on standard output, progress is on standard error.

  --quick             fewer cases
  --report FILE       the page of what each policy kept; FILE is relative to the repository's root
  --cases N           recall questions; --windows N: stretches of text; --seed N: which ones
  --text FILE         prompts from a text of yours
  --far               ask only for facts that are far away

These imply --full:
  --policy SPEC       a policy of yours, as "snapkv(window=16) | sinks(4) | budget(64)"
  --plugin FILE       a shared library with parts of yours for --policy (docs/adding_a_scorer.md)
  --policies A,B      only these policies
  --shares A,B        budgets: the prompt divided by each of these
  --layout NAME       compact, list_rewrite, dead_slot, mask, overwrite or a plugin's
  --check             hold the figures against their bounds

All options: build/release/bin/demo --help and build/release/bin/demo_full --help, after a build.
END
}

# Which program has what the arguments ask for, and whether they name a report.
program=demo
report=(--report kept.html)
for argument in "$@"; do
  case $argument in
    -h | --help) usage; exit 0 ;;
    --full | --check | --policy | --policy=* | --plugin | --plugin=* | --policies | --policies=* | --shares | --shares=* | --layout | --layout=*)
      program=demo_full ;;
    --report | --report=*) report=() ;;
  esac
done
if [[ $program == demo ]]; then
  say='Building the demo (some 40 s on two cores, if nothing is built yet), then running it (some 25 s).'
else
  say='Building the whole demo (some 90 s on two cores, if nothing is built yet), then running it (minutes).'
  report=()
fi
echo "$say" >&2

log=$(mktemp)
child=
finish() {
  if [[ -n $child ]]; then
    kill -TERM -- "-$child" 2> /dev/null || kill -TERM "$child" 2> /dev/null || true
    wait "$child" 2> /dev/null || true
  fi
  rm -f "$log"
}
trap finish EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# How far ninja is, by its last line that tells of a part.
parts_done() {
  sed -nE 's/^\[([0-9]+)\/([0-9]+)\] (Building|Linking) .*/: \1 of \2 parts are done/p' "$log" | tail -n 1
}

# step <what> <command>...: runs a command, says every five seconds how far it is, and shows its output if it fails.
# The command has a process group of its own, so that all of it can be ended. Only sudo may have to ask at the terminal.
step() {
  local what=$1 started=$SECONDS next=$((SECONDS + 5)) status=0 alone=(setsid)
  shift
  [[ $what == installing && $(id -u) -ne 0 ]] && alone=()
  "${alone[@]}" "$@" > "$log" 2>&1 < /dev/null &
  child=$!
  while kill -0 "$child" 2> /dev/null; do
    if ((SECONDS >= next)); then
      echo "$what, $((SECONDS - started)) s$(parts_done)" >&2
      next=$((SECONDS + 5))
    fi
    sleep 0.2
  done
  wait "$child" || status=$?
  child=
  if ((status != 0)); then
    cat "$log" >&2
    echo "tools/demo.sh: $what failed (status $status)" >&2
    exit 1
  fi
}

step installing tools/setup.sh
step configuring cmake --preset release
step building cmake --build --preset release --target "$program"

rm -f "$log"
trap - EXIT HUP INT TERM
exec "build/release/bin/$program" "${report[@]}" "$@"
