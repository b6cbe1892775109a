# SPDX-License-Identifier: Apache-2.0
# Runs steps, and counts them and the tests that they report. Source this file, call `step` for each, and `finish` last.

passed=0
failed=0
skipped=0
broken=() # the headings of the steps that failed, each with its lines of errors
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# step <heading> <command>...: runs it up to its first failure, counts it, and counts the tests that ctest and pytest report.
step() {
  local heading=$1 started=$SECONDS status=0 log=$scratch/log line bad total errors
  shift
  printf '\n== %s\n' "$heading"
  set +e # not `|| status=$?`, which would make the command go on after a failure inside of it
  (
    set -e
    "$@"
  ) 2>&1 | tee "$log"
  status=${PIPESTATUS[0]}
  set -e
  while read -r line; do
    bad=$(sed -E 's/.*, ([0-9]+) tests? failed out of.*/\1/' <<< "$line")
    total=$(sed -E 's/.*out of ([0-9]+).*/\1/' <<< "$line")
    passed=$((passed + total - bad))
    failed=$((failed + bad))
  done < <(grep -E '% tests passed, [0-9]+ tests? failed out of [0-9]+' "$log" || true)
  while read -r line; do
    for total in passed failed skipped; do
      bad=$(sed -nE "s/.*\b([0-9]+) $total\b.*/\1/p" <<< "$line")
      printf -v "$total" '%d' $((${!total} + ${bad:-0}))
    done
  done < <(grep -E '^(=+ )?[0-9]+ (passed|failed|skipped).* in [0-9.]+s' "$log" || true)
  total=$(grep -cE '^\s+[0-9]+ - .* \(Skipped\)$' "$log" || true)
  passed=$((passed - total))
  skipped=$((skipped + total))
  if [[ $status -eq 0 ]]; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    errors=$(grep -E '^FAILED[: ]|error: |^\s+[0-9]+ - .* \((Failed|Timeout|SEGFAULT|Subprocess aborted)\)' "$log" || true)
    broken+=("$heading"$'\n'"$(head -n 20 <<< "$errors" | cut -c1-200)")
  fi
  printf '== %s: %s, %d s\n' "$heading" "$([[ $status -eq 0 ]] && echo ok || echo FAILED)" $((SECONDS - started))
}

# beside <name> <command>...: begins it while other steps run, for a later step: step <heading> result_of <name>
beside() {
  local name=$1
  shift
  (
    set +e # as in step
    (
      set -e
      "$@"
    ) > "$scratch/$name.log" 2>&1
    echo $? > "$scratch/$name.status"
  ) &
}

# result_of <name>: waits for what `beside` began, prints what it printed, and fails if it failed.
result_of() {
  until [[ -s $scratch/$1.status ]]; do sleep 0.2; done
  cat "$scratch/$1.log"
  return "$(< "$scratch/$1.status")"
}

# Repeats what failed. The last line is: N passed, N failed.
finish() {
  [[ $failed -eq 0 ]] || printf '\nfailed: %s\n' "${broken[@]}"
  printf '\n%d seconds, %d tests skipped\n%d passed, %d failed\n' "$SECONDS" "$skipped" "$passed" "$failed"
  [[ $failed -eq 0 ]]
}
