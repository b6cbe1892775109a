#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests, sanitizes and measures the CUDA backend on this machine, and judges it: docs/gpu.md.
# tools/gpu_acceptance.sh [--build-only] [--prefix DIR] [OUT]
# tools/gpu_acceptance.sh --bundle DIR [--seconds N] tests|sanitizers|bench [OUT]
#   The first way builds here and runs all three parts. The second runs one part of what tools/gpu_bundle.sh built.
#   OUT           folder of what it writes: at most eight files; build/gpu_acceptance, or `results` in the bundle,
#                 unless told otherwise. Parts of a bundle that write to one folder share its results.json and report.
#   --prefix DIR  where CMake finds packages that the system does not have (doctest, rapidcheck, benchmark, ...)
#   --build-only  nothing is run
#   --seconds N   how long one part may take; 540
# A step that fails or runs past its limit does not end the others. Exit status: 1 if a step failed, or if nothing of
# ours ran although there is a GPU; 77 if none failed and there is no GPU; else 0. The last line is
# `N passed, N failed, N skipped`.
set -euo pipefail

wrong() { echo "gpu_acceptance: $1" >&2 && exit 2; }
build_only=no prefix="" bundle="" part="" out="" part_seconds=540 others=()
while (($# > 0)); do
  case $1 in
    --build-only) build_only=yes ;;
    --prefix | --bundle)
      [[ -n ${2:-} ]] || wrong "$1 asks for a folder"
      [[ -d $2 ]] || wrong "$1: there is no folder $2"
      printf -v "${1#--}" '%s' "$(cd "$2" && pwd)" && shift
      ;;
    --seconds)
      [[ ${2:-} =~ ^[1-9][0-9]{0,4}$ ]] || wrong "--seconds asks for a number of seconds, not '${2:-}'"
      part_seconds=$2 && shift
      ;;
    -*) wrong "$1 is no option; see the head of $0" ;;
    *) others+=("$1") ;;
  esac
  shift
done
if [[ -n $bundle ]]; then
  [[ $build_only == no && -z $prefix ]] || wrong "--build-only and --prefix build, and --bundle does not"
  case ${others[0]:-} in
    tests | sanitizers | bench) part=${others[0]} others=("${others[@]:1}") ;;
    *) wrong "'${others[0]:-}' is no part of it; the parts are tests, sanitizers and bench" ;;
  esac
fi
((${#others[@]} <= 1)) || wrong "${others[1]} is one argument too many"
root=$(cd "$(dirname "$0")/.." && pwd)
out=${others[0]:-${bundle:-$root/build}/$([[ -n $bundle ]] && echo results || echo gpu_acceptance)}
mkdir -p "$out" 2>/dev/null || wrong "$out cannot be made a folder"
out=$(cd "$out" && pwd)

if [[ -n $bundle ]]; then
  bin=$bundle/bin peers=$bundle/bench/cuda/torch_peers.py
  export KVPOLICY_TINYLM_WEIGHTS=$bundle/weights
else
  cd "$root"
  tree=${KVPOLICY_GPU_BUILD:-$PWD/build/cuda}
  bin=$tree/bin peers=bench/cuda/torch_peers.py
  rm -f "$out"/{build.log,results.json}
  mkdir -p "$tree"
fi
PATH=$PATH:/usr/local/cuda/bin # where compute-sanitizer is, if the path does not name it
jobs=$(nproc)
work=$(mktemp -d) # what programs write; tools/gpu_results.py puts it into results.json
trap 'rm -rf "$work"' EXIT

# Steps ----------------------------------------------------------------------------------------------------------------
passed=0 failed=0 skipped=0
ran=0 ours=no # programs of ours that were started; whether the step at hand is one
deadline=0

# begin PART     what follows is of this part
begin() {
  part=$1
  deadline=$((SECONDS + part_seconds))
  rm -f "$out/$part.log"
  : >"$work/$part.steps"
}

merged_at=-1
merge() {
  merged_at=$SECONDS
  python3 -B "$root/tools/gpu_results.py" "$out/results.json" "$work" || true
}

# noted VERDICT NAME SECONDS TEXT
noted() {
  printf '== %s: %s\n' "$2" "$4"
  printf '%s\t%d\t%s\n' "$1" "$3" "$2" >>"$work/$part.steps"
  ((merged_at == SECONDS)) || merge # not for each of many short steps; the report begins with one, too
}
pass() { passed=$((passed + 1)) && noted passed "$1" "$2" "passed, $2 s"; }
fail() { failed=$((failed + 1)) && noted failed "$1" "$2" "FAILED$3"; }
skip() { skipped=$((skipped + 1)) && noted skipped "$1" 0 "skipped, $2"; }

# judge NAME STATUS SECONDS LIMIT LOG
judge() {
  case $2 in
    0) pass "$1" "$3" ;;
    77) if [[ $ours == yes ]]; then fail "$1" "$3" ", it finds no GPU"; else skip "$1" "$(tail -n 1 "$5")"; fi ;;
    124 | 137) if (($3 >= $4)); then fail "$1" "$3" ", ran past $4 s"; else fail "$1" "$3" ", killed, see $5"; fi ;;
    *) fail "$1" "$3" " with status $2, see $5" ;;
  esac
}

# limit_of SECONDS     no more than the part has left
limit_of() { echo $(($1 < deadline - SECONDS ? $1 : deadline - SECONDS)); }

# together AT_ONCE LIMIT LOG COMMAND_OF NAME...     a step for each name; COMMAND_OF NAME sets `call`
together() {
  local at_once=$1 log=$out/$3 command_of=$4 most=$2 limit own_log pid status
  local -a call
  local -A name=() begun=() limits=()
  shift 4
  while (($# > 0 || ${#name[@]} > 0)); do
    while (($# > 0 && ${#name[@]} < at_once)); do
      limit=$(limit_of "$most")
      if ((limit <= 0)); then
        fail "$1" 0 ", the part had no time left"
      else
        "$command_of" "$1"
        own_log=$work/${1//\//_}.log
        printf -- '---- %s: %s\n' "$1" "${call[*]}" >"$own_log"
        timeout --kill-after=10 "$limit" "${call[@]}" >>"$own_log" 2>&1 &
        name[$!]=$1 begun[$!]=$SECONDS limits[$!]=$limit
      fi
      shift
    done
    ((${#name[@]} > 0)) || continue
    status=0
    wait -n -p pid "${!name[@]}" || status=$?
    tail -n 300 "$work/${name[$pid]//\//_}.log" >>"$log"
    judge "${name[$pid]}" $status $((SECONDS - begun[$pid])) "${limits[$pid]}" "$log"
    unset "name[$pid]"
  done
}

# step NAME LIMIT LOG COMMAND...
step() {
  local -a given=("${@:4}")
  given_command() { call=("${given[@]}"); }
  together 1 "$2" "$3" given_command "$1"
}

# What keeps a program from being run, if anything does.
why_not() {
  if [[ ! -x $1 ]]; then
    echo "$(basename "$1") was not built"
  else
    echo "$no_gpu"
  fi
}

# program NAME LIMIT LOG PROGRAM...     a step, if the program is there and there is something to run it on
program() {
  local ours=yes why
  why=$(why_not "$4")
  if [[ -n $why ]]; then
    skip "$1" "$why"
  else
    ran=$((ran + 1))
    step "$@"
  fi
}

# What a part had found when it was stopped is kept.
stopped() {
  trap - TERM INT
  local pid
  for pid in $(jobs -p); do kill "$pid" 2>/dev/null || true; done
  wait || true
  fail "$part" 0 ", it was stopped"
  merge
  end
}

# The machine ----------------------------------------------------------------------------------------------------------
no_gpu=""
if [[ $build_only == yes ]]; then
  no_gpu="--build-only"
elif [[ $(nvidia-smi -L 2>/dev/null || true) != "GPU 0"* ]]; then
  no_gpu="there is no GPU"
fi

about_sources() {
  if [[ -n $bundle ]]; then
    grep -v '^suite ' "$bundle/MANIFEST" || true
  else
    git log -1 --format='commit %h, %cs' || true
    git status --porcelain -uno | wc -l | sed 's/$/ files differ from it/'
  fi
}
about_machine() {
  date -u '+%Y-%m-%d %H:%M UTC'
  about_sources
  echo "$jobs processors"
  nvcc --version | tail -n 2 || true
  [[ -n $bundle ]] || { cmake --version && ${CXX:-g++} --version; } | grep -i '^cmake version\|^g++\|^clang' || true
  [[ -n $no_gpu ]] || nvidia-smi \
    --query-gpu=name,driver_version,compute_cap,memory.total,clocks.sm,clocks.mem,ecc.mode.current --format=csv || true
}

# Building -------------------------------------------------------------------------------------------------------------
# What needs a package that is not there is left out, and named.
configure() {
  local prefixes=() status=0
  [[ -z $prefix ]] || prefixes=(-D "CMAKE_PREFIX_PATH=$prefix")
  timeout 120 cmake --preset cuda -B "$tree" -D KVPOLICY_BUILD_EXAMPLES=OFF -D KVPOLICY_BUILD_TESTS="$1" \
    -D KVPOLICY_BUILD_BENCH="$2" "${prefixes[@]}" >"$work/configure.log" 2>&1 || status=$?
  cat "$work/configure.log" >>"$out/build.log"
  return $status
}
missing() {
  grep -o -m 1 '[A-Za-z0-9_]* was not found' "$work/configure.log" || echo "configuring failed, see build.log"
}

# Sets what is built, and why the rest is not.
configure_what_can_be() {
  tests=ON benches=ON why_no_tests="" why_no_benches=""
  if ! command -v nvcc >/dev/null && [[ -z ${CUDACXX:-} ]]; then
    tests=OFF benches=OFF why_no_tests="there is no nvcc" why_no_benches="there is no nvcc"
  elif ! configure ON ON; then
    configure OFF ON || { benches=OFF && why_no_benches=$(missing); }
    configure ON OFF || { tests=OFF && why_no_tests=$(missing); }
    if [[ $tests == ON && $benches == ON ]]; then # each alone, not both: keep the tests
      benches=OFF why_no_benches="benchmarks and tests do not configure together, see build.log"
    fi
    if [[ $tests == ON || $benches == ON ]]; then configure $tests $benches || true; fi
  fi
}

# build TARGET LIMIT WHY_NOT
build() {
  if [[ -n $3 ]]; then
    skip "build $1" "$3"
  else
    step "build $1" "$2" build.log cmake --build "$tree" -j "$jobs" --target "$1" -- -k 0
  fi
}

part_build() {
  begin build
  deadline=$((SECONDS + 3600))
  configure_what_can_be
  build own_scorer_cuda 300 "$why_no_tests"
  build kvpolicy_gpu_tests 420 "$why_no_tests"
  build gpu_benchmarks 420 "$why_no_benches"
}

# Testing --------------------------------------------------------------------------------------------------------------
suites() { "$bin/kvpolicy_gpu_tests" --list-test-suites --no-colors | grep -v '^\[doctest\]' | grep -v '^=*$'; }

# One process for each suite: after an illegal access nothing else of the process counts.
suite_command() { call=("$bin/kvpolicy_gpu_tests" --no-colors "--test-suite=${1//,/\\,}"); }
test_suites() {
  local ours=yes why
  local -a names
  why=$(why_not "$bin/kvpolicy_gpu_tests")
  if [[ -n $why ]]; then
    skip "test suites" "$why"
    return
  fi
  mapfile -t names < <(suites 2>/dev/null)
  if ((${#names[@]} == 0)); then
    fail "test suites" 0 ", kvpolicy_gpu_tests lists none"
    return
  fi
  ran=$((ran + 1))
  together 8 120 tests.log suite_command "${names[@]}"
}

part_tests() {
  begin tests
  program "own scorer" 60 tests.log "$bin/own_scorer_cuda"
  program "20 runs and a replay" 120 tests.log "$bin/gpu_repeat"
  test_suites
}

# Two runs of whole decisions, and a few cases of the suites that between them launch every kind of kernel: each under
# each tool.
sanitized=(device/collectives device/top_k device/argmin device/attention_mass device/gather_rows device/lists
           device/units device/rings device/entries device/pages device/gates device/rows device/scores)
sanitizer_command() {
  call=(compute-sanitizer --tool "${1%% *}" --error-exitcode 9)
  case ${1#* } in
    decisions) call+=("$bin/gpu_repeat" 2) ;;
    *) call=(env RC_PARAMS=max_success=2 "${call[@]}" "$bin/kvpolicy_gpu_tests" --no-colors "--test-suite=${1#* }") ;;
  esac
}
# sanitize TITLE PROGRAM WHAT...
sanitize() {
  local ours=yes title=$1 why what tool
  local -a steps=()
  why=$(why_not "$2")
  [[ -n $why ]] || command -v compute-sanitizer >/dev/null || why="there is no compute-sanitizer"
  if [[ -n $why ]]; then
    skip "$title" "$why"
    return
  fi
  for what in "${@:3}"; do
    for tool in memcheck racecheck initcheck synccheck; do steps+=("$tool $what"); done
  done
  ran=$((ran + 1))
  together 8 200 sanitizers.log sanitizer_command "${steps[@]}"
}

part_sanitizers() {
  begin sanitizers
  sanitize "decisions under sanitizers" "$bin/gpu_repeat" decisions
  sanitize "suites under sanitizers" "$bin/kvpolicy_gpu_tests" "${sanitized[@]}"
}

# Measuring ------------------------------------------------------------------------------------------------------------
# The cells that are measured first: one or two of each benchmark.
declare -A first=(
  [top_k]='^top_k/lanes:288/entries:32768/keep:0/like:[04]/|^top_k_layer/keep:0/like:0/|^top_k_peers/lanes:288/.*:32768'
  [attention_mass]='entries:32768/element:2/lse:1'
  [gather_rows]='entries:4096/one_in:4/'
  [decode_steps]='^argmin/entries:4096/|^promotion/percent:100/|^page_scores/layers:36/element:2/'
  [host_cost]='.'
)
# benchmark NAME LIMIT ROUND WORD FILTER
benchmark() {
  program "benchmark $1, $4" "$2" bench.log "$bin/gpu_$1" "--benchmark_filter=$5" --benchmark_out_format=json \
    "--benchmark_out=$work/$1.$3.json"
}

part_bench() {
  begin bench
  local name
  program "machine" 60 bench.log "$bin/gpu_machine" "--out=$work/machine.json"
  for name in host_cost decode_steps gather_rows attention_mass top_k; do
    benchmark "$name" 60 1 "first cells" "${first[$name]}"
  done
  if [[ -n $no_gpu ]]; then
    skip "PyTorch" "$no_gpu"
  else
    step "PyTorch" 90 bench.log python3 "$peers" --out "$work/torch.json"
  fi
  for name in attention_mass gather_rows decode_steps; do benchmark "$name" 90 2 "the others" "-${first[$name]}"; done
  benchmark top_k 240 2 "the others" "-${first[top_k]}"
}

# Judging --------------------------------------------------------------------------------------------------------------
# The report is written anew from all parts there are. Its rows count where they are measured.
report() {
  merge
  local -a call=(python3 -B "$root/tools/gpu_report.py" "$out/results.json" --markdown "$out/report.md")
  rm -f "$out/report.txt"
  if [[ $part != bench ]]; then
    "${call[@]}" >"$out/report.txt" 2>&1 || true
  elif [[ -z $(ls "$work"/*.json 2>/dev/null) ]]; then
    skip "report" "nothing was measured"
    merge
  else
    deadline=$((SECONDS + 30))
    step "report" 30 report.txt "${call[@]}"
    merge
    cat "$out/report.txt"
  fi
}

end() {
  if [[ -z $no_gpu && $ran -eq 0 ]]; then echo "nothing of ours ran, although there is a GPU"; fi
  printf '%d passed, %d failed, %d skipped\n' $passed $failed $skipped
  ((failed == 0)) || exit 1
  [[ -z $no_gpu ]] || exit 77
  ((ran > 0)) || exit 1
  exit 0
}

trap stopped TERM INT
about_machine >"$out/device.txt" 2>&1
if [[ -n $bundle ]]; then
  "part_$part"
else
  part_build
  part_tests
  part_sanitizers
  part_bench
fi
report
end
