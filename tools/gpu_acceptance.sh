#!/usr/bin/env bash
# Builds, tests, sanitizes and measures the CUDA backend on this machine, and judges it: docs/gpu.md.
# tools/gpu_acceptance.sh [--build-only] [--prefix DIR] [OUT]
#   OUT           folder of what it writes: at most eight files; build/gpu_acceptance unless told otherwise
#   --prefix DIR  where CMake finds packages that the system does not have (doctest, rapidcheck, benchmark, ...)
#   --build-only  nothing is run
# A step that fails or runs past its limit does not end the others. Exit status: 1 if a step failed, 77 if none did and there
# was no GPU to run on, else 0. The last line is `N passed, N failed, N skipped`.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2

build_only=no prefix="" out=build/gpu_acceptance
while (($# > 0)); do
  case $1 in
    --build-only) build_only=yes ;;
    --prefix) prefix=${2:?--prefix asks for a folder} && shift ;;
    -*) echo "gpu_acceptance: $1 is no option; see the head of $0" >&2 && exit 2 ;;
    *) out=$1 ;;
  esac
  shift
done
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 2
tree=${KVPOLICY_GPU_BUILD:-$PWD/build/cuda}
json=$tree/gpu_results
rm -rf "$json" "$out"/{device.txt,build.log,tests.log,sanitizers.log,benchmarks.log,results.json,report.txt,report.md}
mkdir -p "$json"
bin=$tree/bin
jobs=$(nproc)

passed=0 failed=0 skipped=0
skip() {
  printf '== %s: skipped, %s\n' "$1" "$2"
  skipped=$((skipped + 1))
}

# judge NAME STATUS SECONDS LIMIT LOG
judge() {
  case $2 in
    0) printf '== %s: passed, %d s\n' "$1" "$3" && passed=$((passed + 1)) ;;
    77) skip "$1" "$(tail -n 1 "$5")" ;;
    124 | 137) printf '== %s: FAILED, ran past %d s\n' "$1" "$4" && failed=$((failed + 1)) ;;
    *) printf '== %s: FAILED with status %d, see %s\n' "$1" "$2" "$5" && failed=$((failed + 1)) ;;
  esac
}

# step NAME LIMIT LOG COMMAND...     the same status as the command
step() {
  local name=$1 limit=$2 log=$out/$3 started=$SECONDS status=0
  printf -- '---- %s: %s\n' "$name" "${*:4}" >>"$log"
  timeout --kill-after=10 "$limit" "${@:4}" >>"$log" 2>&1 || status=$?
  judge "$name" $status $((SECONDS - started)) "$limit" "$log"
  return $status
}

# program NAME LIMIT LOG PROGRAM...     a step, if the program was built and there is something to run it on
program() {
  if [[ ! -x $4 ]]; then
    skip "$1" "$(basename "$4") was not built"
  elif [[ -n $no_gpu ]]; then
    skip "$1" "$no_gpu"
  else
    step "$@"
  fi
}

# The machine -------------------------------------------------------------------------------------------------------------
no_gpu=""
if [[ $build_only == yes ]]; then
  no_gpu="--build-only"
elif ! nvidia-smi -L 2>/dev/null | grep -q '^GPU 0'; then
  no_gpu="there is no GPU"
fi
{
  date -u '+%Y-%m-%d %H:%M UTC'
  git log -1 --format='commit %h, %cs' 2>/dev/null
  git status --porcelain -uno 2>/dev/null | wc -l | sed 's/$/ files differ from it/'
  echo "$jobs processors"
  nvcc --version 2>&1 | tail -n 2
  cmake --version 2>&1 | head -n 1
  ${CXX:-g++} --version 2>&1 | head -n 1
  [[ -z $no_gpu ]] && nvidia-smi --query-gpu=name,driver_version,compute_cap,memory.total,clocks.sm,clocks.mem,ecc.mode.current --format=csv
} >"$out/device.txt" 2>&1

# Building ----------------------------------------------------------------------------------------------------------------
# What needs a package that is not there is left out, and named.
configure() {
  local prefixes=()
  [[ -n $prefix ]] && prefixes=(-D "CMAKE_PREFIX_PATH=$prefix")
  timeout 120 cmake --preset cuda -B "$tree" -D KVPOLICY_BUILD_EXAMPLES=OFF -D KVPOLICY_BUILD_TESTS="$1" \
    -D KVPOLICY_BUILD_BENCH="$2" "${prefixes[@]}" >"$tree/configure.log" 2>&1
  local status=$?
  cat "$tree/configure.log" >>"$out/build.log"
  return $status
}
missing() { grep -o -m 1 '[A-Za-z0-9_]* was not found' "$tree/configure.log" || echo "configuring failed, see build.log"; }

tests=ON benches=ON why_no_tests="" why_no_benches=""
if ! command -v nvcc >/dev/null && [[ -z ${CUDACXX:-} ]]; then
  tests=OFF benches=OFF why_no_tests="there is no nvcc" why_no_benches="there is no nvcc"
elif ! configure ON ON; then
  configure OFF ON || { benches=OFF && why_no_benches=$(missing); }
  configure ON OFF || { tests=OFF && why_no_tests=$(missing); }
  if [[ $tests == ON && $benches == ON ]]; then # each alone, not both: keep the tests
    benches=OFF why_no_benches="benchmarks and tests do not configure together, see build.log"
  fi
  if [[ $tests == ON || $benches == ON ]]; then configure $tests $benches; fi
fi
rm -f "$tree/configure.log"

build() { step "build $1" "$2" build.log cmake --build "$tree" -j "$jobs" --target "$1" -- -k 0; }
if [[ $tests == ON ]]; then
  build own_scorer_cuda 300
  build kvpolicy_gpu_tests 420
else
  skip "build own_scorer_cuda" "$why_no_tests"
  skip "build kvpolicy_gpu_tests" "$why_no_tests"
fi
if [[ $benches == ON ]]; then
  build gpu_benchmarks 420
else
  skip "build gpu_benchmarks" "$why_no_benches"
fi

# Testing -----------------------------------------------------------------------------------------------------------------
program "objects" 60 tests.log "$bin/own_scorer_cuda"
program "tests" 120 tests.log "$bin/kvpolicy_gpu_tests"
program "20 runs and a replay" 90 tests.log "$bin/gpu_repeat"

# The four tools at once: nothing is timed here.
sanitizer() {
  RC_PARAMS="max_success=5" timeout --kill-after=10 150 compute-sanitizer --tool "$1" --error-exitcode 9 \
    "$bin/kvpolicy_gpu_tests" >"$tree/sanitizer.$1.log" 2>&1
  echo $? >"$tree/sanitizer.$1.status"
}
tools=(memcheck racecheck initcheck synccheck)
why_no_sanitizer=$no_gpu
command -v compute-sanitizer >/dev/null || why_no_sanitizer="there is no compute-sanitizer"
[[ -x $bin/kvpolicy_gpu_tests ]] || why_no_sanitizer="kvpolicy_gpu_tests was not built"
if [[ -n $why_no_sanitizer ]]; then
  for tool in "${tools[@]}"; do skip "$tool" "$why_no_sanitizer"; done
else
  started=$SECONDS
  for tool in "${tools[@]}"; do sanitizer "$tool" & done
  wait
  for tool in "${tools[@]}"; do
    { echo "---- $tool" && tail -n 200 "$tree/sanitizer.$tool.log"; } >>"$out/sanitizers.log"
    judge "$tool" "$(<"$tree/sanitizer.$tool.status")" $((SECONDS - started)) 150 "$out/sanitizers.log"
  done
fi

# Measuring ---------------------------------------------------------------------------------------------------------------
for name in top_k attention_mass gather_rows decode_steps host_cost; do
  limit=60 && [[ $name == top_k ]] && limit=150
  program "benchmark $name" $limit benchmarks.log "$bin/gpu_$name" --benchmark_out="$json/$name.json" --benchmark_out_format=json
done
if [[ -n $no_gpu ]]; then
  skip "PyTorch" "$no_gpu"
else
  step "PyTorch" 90 benchmarks.log python3 bench/cuda/torch_peers.py --out "$json/torch.json"
fi

# Judging -----------------------------------------------------------------------------------------------------------------
if [[ -z $(ls "$json") ]]; then
  skip "report" "nothing was measured"
else
  python3 - "$json" >"$out/results.json" <<'PYTHON'
import json, pathlib, sys
made = {}
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.json")):
    try:
        made[path.stem] = json.loads(path.read_text())
    except ValueError:  # a program that was stopped; the report says that it is not there
        continue
print(json.dumps(made))
PYTHON
  step "report" 30 report.txt python3 tools/gpu_report.py "$out/results.json" --markdown "$out/report.md"
  cat "$out/report.txt"
fi

printf '%d passed, %d failed, %d skipped\n' $passed $failed $skipped
((failed == 0)) || exit 1
[[ -z $no_gpu ]] || exit 77
