#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The host's tests on 64-bit ARM: cross-compiled, and run under qemu's user mode.
# tools/aarch64.sh [doctest argument...]
# Installs Debian's cross compiler and qemu where they are missing, and unpacks what the tests need for arm64 into a folder
# of its own (XDG_CACHE_HOME or ~/.cache, kvpolicy/aarch64), because packages of two architectures do not share a system.
set -euo pipefail
cd "$(dirname "$0")/.."

tools=(g++-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user)
needed=(librapidcheck-dev libboost-context-dev doctest-dev nlohmann-json3-dev libeigen3-dev libfmt-dev libcli11-dev)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/kvpolicy
packages=$cache/aarch64

install_tools() {
  local missing=() tool as_root=()
  for tool in "${tools[@]}"; do
    dpkg -s "$tool" 2> /dev/null | grep -q '^Status: install ok installed' || missing+=("$tool")
  done
  [[ ${#missing[@]} -gt 0 ]] || return 0
  [[ $(id -u) -eq 0 ]] || as_root=(sudo)
  echo "installing ${missing[*]}"
  "${as_root[@]}" apt-get -qq update < /dev/null || true # a stale source must not stop what does not need it
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 install -y --no-install-recommends \
    "${missing[@]}" < /dev/null > /dev/null
}

# Asks apt for arm64 with lists and archives of its own, as no user in particular, and without touching dpkg's state.
unpack_packages() {
  [[ ! -e $packages/usr/include/rapidcheck.h ]] || return 0
  local apt archive
  apt=$(mktemp -d)
  mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$packages.part"
  local options=(-qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State::Lists="$apt/lists"
                 -o Dir::Cache="$apt/cache" -o Dir::State::status=/dev/null -o APT::Sandbox::User="$(id -un)"
                 -o Debug::NoLocking=1)
  if grep -q '^ID=ubuntu' /etc/os-release; then # its arm64 is on another server
    sed -E 's,https?://[a-z.]*(archive|security).ubuntu.com/ubuntu/?,http://ports.ubuntu.com/ubuntu-ports,' \
      /etc/apt/sources.list.d/ubuntu.sources > "$apt/ubuntu.sources"
    options+=(-o Dir::Etc::sourcelist="$apt/ubuntu.sources" -o Dir::Etc::sourceparts=-)
  fi
  echo "unpacking ${needed[*]} for arm64"
  apt-get "${options[@]}" update < /dev/null || true
  apt-get "${options[@]}" install -y --no-install-recommends --download-only "${needed[@]}" < /dev/null > /dev/null
  for archive in "$apt"/cache/archives/*.deb; do
    case ${archive##*/} in # not the C library and what it needs: the cross compiler has its own
      libboost* | libfmt* | librapidcheck* | libeigen* | libcli11* | doctest* | nlohmann*) dpkg-deb -x "$archive" "$packages.part" ;;
    esac
  done
  rm -rf "$apt" "$packages"
  mv "$packages.part" "$packages"
}

install_tools
unpack_packages
cmake --preset aarch64
cmake --build --preset aarch64 --target kvpolicy_tests
# Left out are tests that fork a process with threads: a run with them ended in an assertion of qemu 7.2 itself (cpu == current_cpu).
# An emulated processor is slow, so that properties run less often. The seed is that of every other run.
RC_PARAMS=${RC_PARAMS:-max_success=20} qemu-aarch64 -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH="$packages/usr/lib/aarch64-linux-gnu" \
  build/aarch64/bin/kvpolicy_tests --source-file-exclude='*executor_fork_test.cpp' "$@"
