#!/usr/bin/env bash
# Installs an engine, builds what drives it, and runs its tests. tools/engines.sh --help explains the arguments.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat << 'END'
tools/engines.sh ENGINE...   what each needs is installed, its tests run, and the last line is: N passed, N failed

  llama_cpp      libllama, built from source once (some minutes) into ${XDG_CACHE_HOME:-~/.cache}/kvpolicy
  transformers   a Python environment there with PyTorch and transformers (some GB), and the package in python/
  mpi            Open MPI from the system's packages
END
}

source tools/steps.sh
for name in "$@"; do
  case $name in
    -h | --help) usage; exit 0 ;;
  esac
  if [[ ! -f tools/engines/$name.sh ]]; then
    echo "tools/engines.sh: engine = $name, but there are llama_cpp, transformers and mpi" >&2
    exit 2
  fi
done
if [[ $# -eq 0 ]]; then
  usage >&2
  exit 2
fi

for name in "$@"; do
  source "tools/engines/$name.sh"
  step "$name: install" "install_$name"
  step "$name: tests" "test_$name"
done
finish
