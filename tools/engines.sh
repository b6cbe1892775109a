#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs an engine, builds what drives it, and runs its tests. tools/engines.sh --help explains the arguments.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat << 'END'
tools/engines.sh ENGINE...   what each needs is installed, its tests run, and the last line is: N passed, N failed

  llama_cpp      libllama, built from source once (some minutes) into ${XDG_CACHE_HOME:-~/.cache}/kvpolicy
  transformers   a Python environment there with PyTorch and transformers (some GB), and the package in python/
  vllm           a Python environment there with vLLM for processors (6 GB), and the packages in python/ and python/vllm/
  mpi            Open MPI from the system's packages
  llama_cpp_soak ten thousand steps of llama.cpp under sanitizers, some minutes

tools/engines.sh table       asks one set of weights the same questions in four engines, and writes the table of
                             docs/engines.md; it installs llama_cpp, transformers and vllm
tools/engines.sh vllm_bench  runs requests of 2k to 16k tokens in vLLM with and without a policy, in the same memory
END
}

# What the table compares. A budget of 64 is a sixteenth of each prompt.
policies=('full' 'snapkv(window=16, pool=max:15) | budget(64)' 'snapkv(window=16, pool=max:15) | budget(128)' 'h2o | budget(256)'
          'streaming_llm | budget(64)')

make_table() {
  local made=$scratch/table python policy named=() versions
  mkdir -p "$made"
  python=$(transformers_venv)/bin/python
  for policy in "${policies[@]}"; do named+=(--policy "$policy"); done
  cmake --preset release "-DCMAKE_PREFIX_PATH=$llama_cpp_prefix" > /dev/null
  cmake --build --preset release --target recall_engines
  "$python" -c 'import kvpolicy.hf' 2> /dev/null || "$python" -m pip install --quiet --no-build-isolation ./python
  OMP_WAIT_POLICY=passive build/release/bin/recall_engines --out "$made/two.json" "${named[@]}"
  "$python" python/recall.py --out "$made/third.json" "${policies[@]}"
  build_vllm_packages
  "$(vllm_venv)/bin/python" python/vllm/recall.py --out "$made/fourth.json" "${policies[@]}" 2>&1 | grep -v WARNING
  versions="llama.cpp of llama-cpp-python $llama_cpp_version (float32, no flash attention), transformers $transformers_version, PyTorch $torch_version,"
  versions="$versions vLLM $vllm_version (blocks of 32)"
  python3 tools/engines/table.py --versions "$versions" --write docs/engines.md "$made"/{two,third,fourth}.json
}

for name in "$@"; do
  if [[ $name == -h || $name == --help ]]; then
    usage
    exit 0
  fi
  if [[ $name != table && $name != vllm_bench && ! -f tools/engines/$name.sh ]]; then
    echo "tools/engines.sh: engine = $name, but there are llama_cpp, transformers, vllm, mpi, llama_cpp_soak, table and vllm_bench" >&2
    exit 2
  fi
done
if [[ $# -eq 0 ]]; then
  usage >&2
  exit 2
fi

source tools/steps.sh
for name in "$@"; do
  if [[ $name == table ]]; then
    source tools/engines/llama_cpp.sh
    source tools/engines/transformers.sh
    step 'llama_cpp: install' install_llama_cpp
    step 'transformers: install' install_transformers
    source tools/engines/vllm.sh
    step 'vllm: install' install_vllm
    step 'table' make_table
  elif [[ $name == vllm_bench ]]; then
    source tools/engines/vllm.sh
    step 'vllm: install' install_vllm
    step 'vllm_bench' bench_vllm
  else
    source "tools/engines/$name.sh"
    step "$name: install" "install_$name"
    step "$name: tests" "test_$name"
  fi
done
finish
