#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what kvpolicy's tests, examples and benchmarks need on Debian 12 or Ubuntu 24.04.
# tools/setup.sh [--ci] [PACKAGE...]
#   --ci      also clang, clang-format, clang-tidy, libc++ and llvm 19, doxygen, pkg-config, chromium, Open MPI
#   PACKAGE   others, which an engine needs
set -euo pipefail

packages=(g++ cmake ninja-build python3 libeigen3-dev nlohmann-json3-dev libcli11-dev libfmt-dev doctest-dev
          libbenchmark-dev librapidcheck-dev libboost-context-dev python3-numpy python3-pytest)
if [[ "${1:-}" == --ci ]]; then
  packages+=(clang-19 clang-format-19 clang-tidy-19 llvm-19 libclang-rt-19-dev libc++-19-dev libc++abi-19-dev chromium doxygen
             pkg-config python3-venv libopenmpi-dev openmpi-bin)
  shift
fi
packages+=("$@")

if ! command -v dpkg > /dev/null; then
  echo "tools/setup.sh knows Debian and Ubuntu; elsewhere install what these packages hold: ${packages[*]}"
  exit 0
fi

missing=()
for package in "${packages[@]}"; do
  dpkg -s "$package" 2> /dev/null | grep -q '^Status: install ok installed' || missing+=("$package")
done
if [[ ${#missing[@]} -eq 0 ]]; then
  exit 0
fi

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  as_root=(sudo)
fi
apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=3 -o Dpkg::Use-Pty=0 "$@" < /dev/null
}

echo "installing ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# A stale source must not stop an installation that does not need it, so only install decides.
apt update > "$log" 2>&1 || true
if ! apt install -y --no-install-recommends "${missing[@]}" >> "$log" 2>&1; then
  tail -n 40 "$log" >&2
  echo "tools/setup.sh: apt-get install failed" >&2
  exit 1
fi
