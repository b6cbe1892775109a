#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds and runs a user's program in every way in which a user may come by kvpolicy; docs/packaging.md tells the ways.
# tools/check_consumers.sh [--only WAY] [COMPILER...]     with g++ and clang++-19 if no compiler is given
# tools/check_consumers.sh --list                         prints the ways
set -euo pipefail
cd "$(dirname "$0")/.."

ways=(package source archive single compiled compiled_package pkg_config no_rtti no_exceptions wrapped shared vcpkg conan)
if [[ "${1:-}" == --list ]]; then
  printf '%s\n' "${ways[@]}"
  exit 0
fi
if [[ "${1:-}" == --only ]]; then
  ways=("$2")
  shift 2
fi
compilers=("$@")
[[ ${#compilers[@]} -gt 0 ]] || compilers=(g++ clang++-19)

version=$(sed -nE 's/.*version\[\] = "(.*)";/\1/p' include/kvpolicy/version.hpp)
warnings=(-std=c++20 -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Werror)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# says <program>: runs it; it must succeed, and its last line must begin with the tree's version.
says() {
  local printed
  printed=$("$@") && echo "$printed" && [[ ${printed##*$'\n'} == "kvpolicy $version"* ]]
}

# Installs once, then moves it: nothing in an installed tree may know where it was made. `flags` is what pkg-config says.
install_and_move() {
  if [[ ! -d $scratch/moved ]]; then
    cmake -S . -B "$scratch/kvpolicy" -G Ninja -D CMAKE_CXX_COMPILER="$compiler" -D KVPOLICY_BUILD_TESTS=OFF \
      -D KVPOLICY_BUILD_BENCH=OFF -D KVPOLICY_BUILD_EXAMPLES=OFF &&
      cmake --install "$scratch/kvpolicy" --prefix "$scratch/prefix" &&
      mv "$scratch/prefix" "$scratch/moved" || return 1
  fi
  local told
  told=$(PKG_CONFIG_PATH=$scratch/moved/share/pkgconfig pkg-config --cflags --libs kvpolicy) &&
    read -ra flags <<< "$told" &&
    echo "pkg-config says $told"
}

# by_cmake <cmake argument>...: tests/consumer.
by_cmake() {
  cmake -S tests/consumer -B "$work/build" -G Ninja -D CMAKE_CXX_COMPILER="$compiler" "$@" &&
    cmake --build "$work/build" &&
    measures &&
    says "$work/build/consumer"
}

# A row of the benchmark of a scorer, where it was built.
measures() {
  [[ ! -x $work/build/scorer_bench ]] ||
    "$work/build/scorer_bench" --benchmark_filter='value_aware/entries:4096/bf16/pages/threads:1/' \
      --benchmark_min_time=0.01 2>&1 | grep 'of_read=.* over_knorm='
}

# by_pkg_config <flag>...: the same program without CMake.
by_pkg_config() {
  install_and_move &&
    "$compiler" "${warnings[@]}" "$@" tests/consumer/main.cpp "${flags[@]}" -o "$work/consumer" &&
    says "$work/consumer"
}

way_package() { install_and_move && by_cmake -D KVPOLICY_FROM=package -D CMAKE_PREFIX_PATH="$scratch/moved"; }
way_source() { by_cmake -D KVPOLICY_FROM=source -D KVPOLICY_SOURCE_DIR="$PWD"; }
way_pkg_config() { by_pkg_config; }
way_no_rtti() { by_pkg_config -fno-rtti; }

# The files of the working tree, so that what is not committed yet is tested too.
way_archive() {
  { git ls-files -z --cached --others --exclude-standard 2> /dev/null ||
    find . \( -name .git -o -name build \) -prune -o -type f -print0; } |
    tar -czf "$work/kvpolicy.tar.gz" --null --files-from=- --ignore-failed-read --transform "s,^,kvpolicy-$version/," &&
    by_cmake -D KVPOLICY_FROM=archive -D KVPOLICY_ARCHIVE="$work/kvpolicy.tar.gz"
}

# The whole library as one file, and the README's program.
way_single() {
  mkdir -p "$work/kvpolicy" &&
    tools/single_header.py "$work/kvpolicy/kvpolicy.hpp" &&
    "$compiler" "${warnings[@]}" -O2 -I "$work" examples/first.cpp -o "$work/first" &&
    "$work/first" | diff - examples/first.out &&
    echo "one header of $(wc -l < "$work/kvpolicy/kvpolicy.hpp") lines"
}

# Without exceptions the library is refused: by one error, which says what to do.
way_no_exceptions() {
  local said errors
  if said=$(LC_ALL=C "$compiler" -std=c++20 -fno-exceptions -I include -fsyntax-only -x c++ - 2>&1 \
    <<< '#include <kvpolicy/kvpolicy.hpp>'); then
    echo 'it compiled'
    return 1
  fi
  errors=$(grep -E 'error: ' <<< "$said") || true
  echo "$errors"
  [[ $(wc -l <<< "$errors") -eq 1 &&
    $errors == *"kvpolicy reports a caller's mistakes by exceptions: compile with -fexceptions"* ]]
}

# A program without exceptions that keeps the library in one file with them.
way_wrapped() {
  local sources=tests/consumer/wrapped
  install_and_move &&
    "$compiler" "${warnings[@]}" "${flags[@]}" -c $sources/evict.cpp -o "$work/evict.o" &&
    "$compiler" "${warnings[@]}" -fno-exceptions -fno-rtti -c $sources/main.cpp -o "$work/main.o" &&
    "$compiler" "$work/main.o" "$work/evict.o" "${flags[@]}" -o "$work/wrapped" &&
    "$work/wrapped"
}

# Two shared libraries and the program that uses both, linked to it and opened by it. One library hides its symbols, is
# optimised, has no RTTI, and is built by the other compiler where there is one.
way_shared() {
  local sources=tests/consumer/shared origin='-Wl,-rpath,$ORIGIN' other=g++
  if [[ $compiler == g++* ]]; then
    other=$(command -v clang++-19 || echo "$compiler")
  fi
  install_and_move || return 1
  local common=("${warnings[@]}" "${flags[@]}")
  "$compiler" "${common[@]}" -O0 -fPIC -shared -D LIBRARY=library_a $sources/library.cpp -o "$work/liba.so" &&
    "$other" "${common[@]}" -O2 -fno-rtti -fvisibility=hidden -fvisibility-inlines-hidden -fPIC -shared \
      -D LIBRARY=library_b $sources/library.cpp -o "$work/libb.so" &&
    "$compiler" "${common[@]}" -O1 -c $sources/main.cpp -o "$work/main.o" &&
    "$compiler" "${common[@]}" "$work/main.o" $sources/linked.cpp -L "$work" -la -lb "$origin" -o "$work/linked" &&
    "$compiler" "${common[@]}" "$work/main.o" $sources/loaded.cpp -ldl "$origin" -o "$work/loaded" &&
    says "$work/linked" &&
    says "$work/loaded"
}

# by_compiled <cmake argument>...: tests/consumer/compiled. The program in C prints what the one in C++ prints first, and
# keep sets and scores are the same to the last bit from headers and from the library.
by_compiled() {
  local part
  cmake -S tests/consumer/compiled -B "$work/build" -G Ninja -D CMAKE_CXX_COMPILER="$compiler" -D CMAKE_BUILD_TYPE=Release \
    -D CMAKE_CXX_FLAGS_RELEASE=-O1 "$@" &&
    cmake --build "$work/build" || return 1
  for part in keep_sets_headers keep_sets_compiled; do
    "$work/build/$part" > "$work/$part.txt" || return 1
  done
  diff "$work/keep_sets_headers.txt" "$work/keep_sets_compiled.txt" &&
    "$work/build/in_c" | diff - <(head -n 1 "$work/keep_sets_headers.txt") &&
    echo "$(wc -l < "$work/keep_sets_headers.txt") lines are the same, and so is that of the program in C"
}
way_compiled() { by_compiled -D KVPOLICY_FROM=source -D KVPOLICY_SOURCE_DIR="$PWD"; }
way_compiled_package() {
  local told flags
  cmake -S . -B "$work/kvpolicy" -G Ninja -D CMAKE_CXX_COMPILER="$compiler" -D CMAKE_BUILD_TYPE=Release \
    -D CMAKE_CXX_FLAGS_RELEASE=-O1 -D KVPOLICY_BUILD_TESTS=OFF -D KVPOLICY_BUILD_BENCH=OFF \
    -D KVPOLICY_BUILD_EXAMPLES=OFF -D KVPOLICY_BUILD_COMPILED=ON &&
    cmake --build "$work/kvpolicy" &&
    cmake --install "$work/kvpolicy" --prefix "$work/prefix" &&
    mv "$work/prefix" "$work/moved" &&
    told=$(PKG_CONFIG_PATH=$work/moved/share/pkgconfig pkg-config --cflags --libs kvpolicy-compiled) &&
    read -ra flags <<< "$told" &&
    "${CC:-cc}" -std=c99 tests/consumer/compiled/decode.c "${flags[@]}" -o "$work/in_c" &&
    by_compiled -D KVPOLICY_FROM=package -D CMAKE_PREFIX_PATH="$work/moved" &&
    "$work/in_c" | diff - <(head -n 1 "$work/keep_sets_headers.txt")
}

# The port's steps with stand-ins for vcpkg's functions; vcpkg itself is not needed and not run.
way_vcpkg() {
  cmake -D ROOT="$work/vcpkg" -P cmake/vcpkg_dry_run.cmake &&
    by_cmake -D KVPOLICY_FROM=package -D CMAKE_PREFIX_PATH="$work/vcpkg/packages"
}

way_conan() {
  export CONAN_HOME=$work/conan
  env -u CC CXX="$compiler" conan profile detect &&
    conan create packaging/conan -s compiler.cppstd=20 -c "tools.build:compiler_executables={'cpp': '$compiler'}" \
      -c "tools.cmake.cmake_layout:test_folder=$work/test"
}

failed=0
for compiler in "${compilers[@]}"; do
  for way in "${ways[@]}"; do
    work=$scratch/$compiler/$way
    mkdir -p "$work"
    if [[ $way == conan ]] && ! command -v conan > /dev/null; then
      echo "skipped  $way, $compiler: conan is not installed"
    elif "way_$way" > "$work/log" 2>&1; then
      echo "ok       $way, $compiler: $(grep . "$work/log" | tail -n 1)"
    else
      cat "$work/log" >&2
      echo "FAILED   $way, $compiler"
      failed=$((failed + 1))
    fi
  done
done
[[ $failed -eq 0 ]]
