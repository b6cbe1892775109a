#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What takes too long for every change: other random cases, longer fuzzing, planted bugs, threads, coverage, mutants.
# tools/nightly.sh [STEP...]     all steps by default; their names are in the list at the end
set -euo pipefail
cd "$(dirname "$0")/.."
tools/setup.sh --ci
export KVPOLICY_TEST_NIGHT=1 # tests that have more cases have all of them

failed=0
step() {
  local started=$SECONDS status=ok
  "${@:2}" || { status=FAILED; failed=1; }
  printf '== %s: %s, %d s\n' "$1" "$status" $((SECONDS - started))
}

# Five times as many cases of every property, of a seed that nobody chose.
seeds() {
  cmake --preset release && cmake --build --preset release --target kvpolicy_tests &&
    KVPOLICY_TEST_SEED=random RC_PARAMS="max_success=500" build/release/bin/kvpolicy_tests
}

threads() {
  cmake --preset tsan && cmake --build --preset tsan --target kvpolicy_tests &&
    TSAN_OPTIONS=halt_on_error=1 build/tsan/bin/kvpolicy_tests --test-suite='threads*,ops/executor*'
}

# Kernels on the emulated device, where the sanitizer sees races of a block's threads and of blocks. Takes 10 GB of memory.
races() {
  local harmless=$PWD/tests/support/harmless_races.txt
  cmake --preset tsan && cmake --build --preset tsan --target kvpolicy_device_tests &&
    TSAN_OPTIONS="suppressions=$harmless" build/tsan/bin/kvpolicy_device_tests
}

# All cases of the tests, also of those that .ci/run builds without sanitizers only, and the examples.
sanitizers() {
  cmake --preset dev && cmake --build --preset dev --target kvpolicy_tests kvpolicy_other_tests short_examples &&
    build/dev/bin/kvpolicy_tests && build/dev/bin/kvpolicy_other_tests && ctest --test-dir build/dev -L short_example --output-on-failure
}

# 100,000 steps of requests that come and go, under address and undefined-behaviour sanitizers: in the
# same slots, under every applier, and in lanes with an order.
soak() {
  local cases='requests come and go*'
  cmake --preset dev && cmake --build --preset dev --target kvpolicy_other_tests &&
    build/dev/bin/kvpolicy_other_tests --list-test-cases --test-case="$cases" | grep '^requests come and go' &&
    KVPOLICY_SOAK_STEPS=100000 build/dev/bin/kvpolicy_other_tests --test-case="$cases"
}

# Conan is a Python package. Where pip cannot have it, its consumers are skipped.
conan_is_there() {
  command -v conan > /dev/null && return 0
  local folder
  folder=$(mktemp -d)
  python3 -m venv "$folder" && "$folder/bin/pip" install --quiet 'conan>=2,<3' && PATH=$folder/bin:$PATH
}

# Headers, benchmarks and every way to use them, under clang 19 too.
clang() {
  conan_is_there || echo 'there is no conan, and pip cannot have it'
  cmake --preset clang && cmake --build --preset clang --target all_verify_interface_header_sets &&
    cmake --build --preset release --target benchmarks && tools/check_consumers.sh
}

# Headers and examples with the other standard library; the examples print what they print with libstdc++.
libcxx() {
  cmake --preset libcxx && cmake --build --preset libcxx --target all all_verify_interface_header_sets || return 1
  local expected
  for expected in examples/*.out examples/engine/*.out; do
    "build/libcxx/bin/$(basename "$expected" .out)" | diff "$expected" - || return 1
  done
}

# The tests, the laws and kvreplay on the emulated device, whose kernels are CUDA's.
device() {
  cmake --preset release && cmake --build --preset release --target kvpolicy_tests_on_device kvpolicy_device_tests kvreplay_emulated own_scorer_emulated &&
    build/release/bin/kvpolicy_tests_on_device && build/release/bin/kvpolicy_device_tests &&
    build/release/bin/own_scorer_emulated | diff examples/own_scorer.out - || return 1
  for test in tests/kvreplay/*_test.py; do
    [[ $test == */capture_test.py ]] || /usr/bin/env python3 -B "$test" build/release/bin/kvreplay_emulated || return 1
  done
}

# The C interface over CUDA memory, and the Python package for CUDA arrays: compiled, for one architecture.
cuda_libraries() {
  if ! command -v nvcc > /dev/null; then
    echo 'skipped, there is no nvcc'
    return 0
  fi
  local options=(-D CMAKE_BUILD_TYPE=Release -D CMAKE_CUDA_ARCHITECTURES=90) venv=build/cuda_python
  cmake -S . -B build/compiled_cuda -G Ninja "${options[@]}" -D KVPOLICY_BUILD_{TESTS,BENCH,EXAMPLES}=OFF \
    -D KVPOLICY_BUILD_COMPILED{,_CUDA}=ON && cmake --build build/compiled_cuda &&
    cmake --install build/compiled_cuda --prefix build/compiled_cuda/prefix || return 1
  python3 -m venv "$venv" && "$venv/bin/pip" install --quiet ./python -C cmake.define.KVPOLICY_CUDA=ON \
    -C cmake.define.CMAKE_CUDA_ARCHITECTURES=90 && "$venv/bin/python" -c 'import kvpolicy; assert kvpolicy.has_device'
}

# Every verb once for each generation of cards; a kernel that spills registers is an error. No kernel has instructions that
# only 9.0a knows, so that 9.0 stands for it.
cuda_architectures() {
  if ! command -v nvcc > /dev/null; then
    echo 'skipped, there is no nvcc'
    return 0
  fi
  local arch
  mkdir -p build
  for arch in 80 90 100; do
    /usr/bin/env python3 -B tests/cuda/check_registers.py nvcc -std=c++20 -O3 "-arch=sm_$arch" -Xptxas=-v -I include -I tests \
      -c -o "build/all_verbs.sm_$arch.o" tests/cuda/all_verbs.cu || return 1
  done
}

slow() {
  if command -v nvcc > /dev/null; then
    cmake --preset cuda && cmake --build --preset cuda --target own_scorer_cuda kvpolicy_cuda_vocabulary kvpolicy_gpu_tests tensor_parallel_cuda &&
      ctest --preset cuda -L gpu || return 1
  fi
  cmake --preset release && cmake --build --preset release --target all demo_full agent_replay serving kvpolicy_compile_clean && ctest --test-dir build/release -L nightly --output-on-failure
}

# What travels to a machine with a GPU: it is small enough, and every program of it starts without our packages.
gpu_bundle() {
  if ! command -v nvcc > /dev/null; then
    echo 'skipped, there is no nvcc'
    return 0
  fi
  tools/gpu_bundle.sh && tools/gpu_bundle.sh --rehearse
}

# llama.cpp, transformers, vLLM and MPI, installed where they are not there yet, and a long run of llama.cpp under sanitizers.
engines() {
  tools/engines.sh llama_cpp transformers vllm mpi llama_cpp_soak
}

for each in "${@:-seeds fuzz planted threads races sanitizers soak coverage mutants clang libcxx aarch64 avx512 device slow site cuda_architectures cuda_libraries gpu_bundle engines}"; do
  for name in $each; do
    case $name in
      seeds) step 'random seeds' seeds ;;
      fuzz) step 'fuzz, 60 s a target' tools/fuzz.sh --all 60 ;;
      planted) step 'planted bugs are found' tools/fuzz_planted.sh ;;
      threads) step 'thread sanitizer' threads ;;
      races) step 'races of kernels' races ;;
      sanitizers) step 'all tests under sanitizers' sanitizers ;;
      soak) step 'requests that come and go, 100,000 steps' soak ;;
      coverage) step 'coverage' tools/coverage.sh ;;
      clang) step 'clang 19' clang ;;
      libcxx) step 'clang 19 with libc++' libcxx ;;
      aarch64) step '64-bit ARM under qemu' tools/aarch64.sh ;;
      avx512) step 'kernels on an emulated processor with AVX-512' tools/avx512.sh ;;
      device) step 'on the emulated device' device ;;
      site) step 'site, every warning an error' tools/site.sh ;;
      slow) step 'tests that wait for the night' slow ;;
      cuda_architectures) step 'every verb for compute capability 8.0, 9.0 and 10.0' cuda_architectures ;;
      cuda_libraries) step 'CUDA libraries, compiled' cuda_libraries ;;
      gpu_bundle) step 'bundle for a machine with a GPU' gpu_bundle ;;
      engines) step 'engines' engines ;;
      mutants) step 'mutants' tools/mutate.py --count 60 ;;
      *) echo "tools/nightly.sh: there is no step $name" >&2; exit 2 ;;
    esac
  done
done
exit "$failed"
