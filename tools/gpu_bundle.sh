#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds what tools/gpu_acceptance.sh runs on a machine that has a GPU and none of our packages. It needs no GPU.
# tools/gpu_bundle.sh [DIR]              DIR: build/gpu_bundle unless told otherwise; of at most 40 MiB
# tools/gpu_bundle.sh --rehearse [DIR]   starts every program of it in an empty root that has nothing but the C library
# Needs nvcc and what tools/setup.sh installs; the rehearsal needs root, or user namespaces. KVPOLICY_GPU_BUNDLE_BUILD
# names the folder that is built in, build/gpu_bundle_tree unless told otherwise.
set -euo pipefail

wrong() { echo "gpu_bundle: $1" >&2 && exit "${2:-1}"; }
rehearse=no dir=""
for argument in "$@"; do
  case $argument in
    --rehearse) rehearse=yes ;;
    -*) wrong "$argument is no option; see the head of $0" 2 ;;
    *) [[ -z $dir ]] || wrong "$argument is one argument too many" 2; dir=$(realpath -m -- "$argument") ;;
  esac
done
cd "$(dirname "$0")/.."
dir=${dir:-$PWD/build/gpu_bundle}
tree=${KVPOLICY_GPU_BUNDLE_BUILD:-$PWD/build/gpu_bundle_tree}
most=$((40 << 20))
programs=(kvpolicy_gpu_tests own_scorer_cuda gpu_repeat gpu_machine
          gpu_top_k gpu_attention_mass gpu_gather_rows gpu_decode_steps gpu_host_cost)
# What comes with the C library, which is on every machine.
c_library=(libc.so.6 libm.so.6 libpthread.so.0 libdl.so.2 librt.so.1)

# Building -------------------------------------------------------------------------------------------------------------
build() {
  command -v nvcc >/dev/null || [[ -n ${CUDACXX:-} ]] || wrong "there is no nvcc"
  cmake --preset cuda -B "$tree" -D CMAKE_CUDA_ARCHITECTURES=90-real -D KVPOLICY_BUILD_BENCH=ON \
    -D KVPOLICY_GPU_BUNDLE=ON -D TINYLM_NATIVE=OFF
  cmake --build "$tree" -j "${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}" --target "${programs[@]}"
}

# Names and paths of the shared libraries that a program loads, without those of the C library.
libraries_of() {
  local name arrow path
  while read -r name arrow path _; do
    [[ $arrow == "=>" && " ${c_library[*]} " != *" $name "* ]] || continue
    [[ $path == /* ]] || wrong "$name of $1 was not found"
    echo "$name $path"
  done < <(ldd "$1")
}

collect() {
  local to=$1 program name path
  mkdir -p "$to"/{bin/lib,weights,tools,bench/cuda,tests/cuda}
  for program in "${programs[@]}"; do
    libraries_of "$tree/bin/$program" | while read -r name path; do install -m 644 "$path" "$to/bin/lib/$name"; done
    install "$tree/bin/$program" "$to/bin"
  done
  strip --strip-unneeded "$to"/bin/lib/*
  cp examples/tinylm/weights/{weights,golden}.safetensors "$to/weights"
  cp tools/gpu_acceptance.sh tools/gpu_{keep,model,model_files,report,results}.py "$to/tools"
  cp bench/cuda/{torch_peers.py,machine.json,rows.json} "$to/bench/cuda"
  cp tests/cuda/check_registers.py "$to/tests/cuda" # the model asks it how many blocks fit
}

suites_of() { "$@" --list-test-suites --no-colors | grep -v '^\[doctest\]' | grep -v '^=*$'; }

manifest() {
  local path
  git log -1 --format='commit %h, %cs'
  git status --porcelain -uno | wc -l | sed 's/$/ files differ from it/'
  echo "built for sm_90 by nvcc, $("${CUDACXX:-nvcc}" --version | grep -o 'release [0-9.]*')"
  echo "needs $(objdump -T "$1"/bin/gpu_* "$1"/bin/lib/* | grep -o 'GLIBC_[0-9.]*[0-9]' | sort -V | tail -n 1)"
  for path in "$1"/bin/* "$1"/bin/lib/*; do
    [[ -d $path ]] || echo "file ${path#"$1"/}, $(stat -c %s "$path") bytes"
  done
  suites_of "$1/bin/kvpolicy_gpu_tests" | sed 's/^/suite /'
}

bytes_of() { du -sb "$1" | cut -f1; }
mib() { awk -v bytes="$1" 'BEGIN { printf "%.1f MiB", bytes / 1048576 }'; }

make_bundle() {
  [[ ! -e $dir || -f $dir/MANIFEST ]] || wrong "$dir is there, and is no bundle" 2
  build
  local made=$dir.unfinished bytes
  rm -rf "$made"
  collect "$made"
  manifest "$made" >"$made/MANIFEST"
  bytes=$(bytes_of "$made")
  ((bytes <= most)) || wrong "$made has $(mib "$bytes"), and a bundle has at most $(mib $most)"
  rm -rf "$dir"
  mv "$made" "$dir"
  echo "$dir: ${#programs[@]} programs, $(grep -c '^suite ' "$dir/MANIFEST") suites of tests, $(mib "$bytes")"
}

# Rehearsing -----------------------------------------------------------------------------------------------------------
# A folder that is to be the root: the bundle, the loader and the C library.
make_root() {
  local name loader
  loader=$(readelf -l "$dir/bin/gpu_repeat" | sed -n 's/.*program interpreter: \(.*\)\]/\1/p')
  mkdir -p "$1/lib" "$1$(dirname "$loader")"
  cp -L "$loader" "$1$loader"
  for name in "${c_library[@]}"; do cp -L "$(${CC:-cc} -print-file-name="$name")" "$1/lib"; done
  cp -R "$dir" "$1/bundle"
}

# There is no /proc, which otherwise tells the loader where the program is.
in_root() {
  local as_root=()
  [[ $(id -u) -eq 0 ]] || as_root=(unshare --user --map-root-user)
  env -i LD_ORIGIN_PATH=/bundle/bin timeout 60 "${as_root[@]}" "$(PATH=$PATH:/usr/sbin:/sbin command -v chroot)" "$@"
}

failed=0
fail() { echo "gpu_bundle: $1" >&2 && failed=$((failed + 1)); }

starts() {
  local status=0 said
  said=$(in_root "$1" "/bundle/bin/$2" 2>&1) || status=$?
  if [[ $status -ne 77 || $said != *"there is no GPU"* ]]; then
    fail "$2 ends with status $status in an empty root and prints: $said"
  fi
}

# The script itself needs a shell and Python, and no part of our sources.
part_is_skipped() {
  local status=0 said
  said=$(cd "$1" && PATH=$1/path:$PATH bundle/tools/gpu_acceptance.sh --bundle bundle "$2" out 2>&1) || status=$?
  if [[ $status -ne 77 || $said != *"0 passed, 0 failed, "* ]]; then
    fail "the part $2 ends with status $status without a GPU and prints: $said"
  fi
}

rehearse_bundle() {
  [[ -f $dir/MANIFEST ]] || wrong "$dir is no bundle" 2
  local root program part bytes
  bytes=$(bytes_of "$dir")
  ((bytes <= most)) || fail "$dir has $(mib "$bytes"), and a bundle has at most $(mib $most)"
  root=$(mktemp -d)
  # shellcheck disable=SC2064
  trap "rm -rf '$root'" EXIT
  make_root "$root"
  for program in "${programs[@]}"; do starts "$root" "$program"; done
  diff <(suites_of in_root "$root" /bundle/bin/kvpolicy_gpu_tests) <(sed -n 's/^suite //p' "$dir/MANIFEST") ||
    fail "MANIFEST lists other suites than kvpolicy_gpu_tests"
  mkdir "$root/path" && printf '#!/bin/sh\nexit 1\n' >"$root/path/nvidia-smi" && chmod +x "$root/path/nvidia-smi"
  for part in tests sanitizers bench; do part_is_skipped "$root" "$part"; done
  ((failed == 0)) || exit 1
  echo "$dir: ${#programs[@]} programs start in an empty root, find no GPU, and exit with 77; so do 3 parts"
}

if [[ $rehearse == yes ]]; then rehearse_bundle; else make_bundle; fi
