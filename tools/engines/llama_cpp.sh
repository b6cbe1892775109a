# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# llama.cpp, for tools/engines.sh, which sources this file: install_llama_cpp builds libllama once, test_llama_cpp builds
# examples/llama_cpp and runs its tests. Both run in the repository's root.

# The release of llama-cpp-python whose source package holds the sources of llama.cpp, and that package's SHA-256.
llama_cpp_version=0.3.36
llama_cpp_sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
llama_cpp_prefix=${XDG_CACHE_HOME:-$HOME/.cache}/kvpolicy/llama.cpp-$llama_cpp_version

# install_llama_cpp [JOBS]: builds and installs libllama with its headers into the cache, some five minutes on two cores.
# It does nothing if the installation is there.
install_llama_cpp() {
  local jobs=${1:-$(nproc)} work
  if [[ -f $llama_cpp_prefix/lib/cmake/llama/llama-config.cmake ]]; then
    echo "llama.cpp: $llama_cpp_prefix is there"
    return 0
  fi
  local packages=()
  python3 -c 'import ensurepip, venv' 2> /dev/null || packages=(python3-venv)
  tools/setup.sh "${packages[@]}"
  work=$(mktemp -d)
  # In a subshell, so that the trap is its own, and a failure at any step ends it.
  (
    set -euo pipefail
    trap 'rm -rf "$work"' EXIT
    echo "llama.cpp: downloading the sources (some 76 MB)"
    python3 -m venv "$work/venv"
    echo "llama-cpp-python==$llama_cpp_version --hash=sha256:$llama_cpp_sha256" > "$work/wanted.txt"
    "$work/venv/bin/pip" -q --disable-pip-version-check download --no-binary llama-cpp-python --no-deps --require-hashes \
      -d "$work" -r "$work/wanted.txt"
    tar -xzf "$work"/llama_cpp_python-*.tar.gz -C "$work"
    echo "llama.cpp: building libllama with $jobs jobs"
    # APP is on by default and does not build without COMMON.
    cmake -S "$work"/llama_cpp_python-*/vendor/llama.cpp -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
      -DBUILD_SHARED_LIBS=ON -DGGML_NATIVE=ON -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_TOOLS=OFF \
      -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF -DCMAKE_INSTALL_LIBDIR=lib \
      "-DCMAKE_INSTALL_RPATH=\$ORIGIN" > "$work/log" 2>&1 || { tail -n 40 "$work/log" >&2; exit 1; }
    cmake --build "$work/build" -j "$jobs" > "$work/log" 2>&1 || { tail -n 40 "$work/log" >&2; exit 1; }
    # Under its final name only once it is whole.
    mkdir -p "$(dirname "$llama_cpp_prefix")"
    rm -rf "$llama_cpp_prefix.part"
    cmake --install "$work/build" --prefix "$llama_cpp_prefix.part" > "$work/log" 2>&1
    rm -rf "$llama_cpp_prefix"
    mv "$llama_cpp_prefix.part" "$llama_cpp_prefix"
  )
  echo "llama.cpp: installed in $llama_cpp_prefix"
}

# test_llama_cpp: builds the tests of examples/llama_cpp against the installation and runs them. ctest prints the result.
test_llama_cpp() {
  cmake --preset release "-DCMAKE_PREFIX_PATH=$llama_cpp_prefix" > /dev/null
  cmake --build --preset release --target kvpolicy_llama_cpp_tests kvllama
  # OpenMP's threads would spin on busy cores.
  KVPOLICY_RECALL_QUESTIONS=60 OMP_WAIT_POLICY=passive ctest --test-dir build/release -R '^llama_cpp\.' --output-on-failure --no-tests=error
}
