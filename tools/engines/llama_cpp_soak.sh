# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Ten thousand steps of llama.cpp under address and undefined-behaviour sanitizers, for tools/engines.sh, which sources
# this file. libllama itself is built without them.

# shellcheck source=tools/engines/llama_cpp.sh
source tools/engines/llama_cpp.sh

install_llama_cpp_soak() {
  install_llama_cpp "$@"
}

# test_llama_cpp_soak [STEPS]: turns, roll-backs, forks, swapped and cancelled requests, some minutes; then the other tests.
# In a build of its own, because builds with sanitizers leave libllama out.
test_llama_cpp_soak() {
  cmake --preset dev -B build/dev_engines -DKVPOLICY_SANITIZED_ENGINES=ON "-DCMAKE_PREFIX_PATH=$llama_cpp_prefix" > /dev/null
  cmake --build build/dev_engines --target kvpolicy_llama_cpp_tests
  KVPOLICY_SOAK_STEPS=${1:-10000} OMP_WAIT_POLICY=passive ctest --test-dir build/dev_engines -R '^llama_cpp\.' -E recall \
    --output-on-failure --no-tests=error
}
