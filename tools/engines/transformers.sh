# SPDX-License-Identifier: Apache-2.0
# The Python package kvpolicy in NumPy and transformers, python/. tools/engines.sh reads this file; it runs in the repository's
# root. install_transformers: an environment with PyTorch and transformers in the cache folder (6 GB, some minutes).
# test_transformers: builds the wheel from the sdist, runs its tests there, on an emulated device and in an empty environment
# without a compiler, and compares keep sets with those of tinylm.
# KVPOLICY_TRANSFORMERS_VENV names another environment, which has torch and transformers already.

transformers_version=5.23.0
torch_version=2.15.0

transformers_venv() {
  echo "${KVPOLICY_TRANSFORMERS_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/kvpolicy/transformers-$transformers_version-torch-$torch_version}"
}

install_transformers() {
  local venv packages=(python3-venv python3-dev)
  [[ -z ${KVPOLICY_TRANSFORMERS_VENV:-} ]] || packages=()
  tools/setup.sh "${packages[@]}"
  venv=$(transformers_venv)
  [[ -x $venv/bin/python ]] || python3 -m venv "$venv"
  "$venv/bin/python" -c "import torch, transformers" 2> /dev/null ||
    "$venv/bin/pip" install --quiet "torch==$torch_version" "transformers==$transformers_version"
  "$venv/bin/pip" install --quiet 'nanobind>=2.5' 'scikit-build-core>=0.10' pytest numpy mypy peft
}

# keeps_as_tinylm <environment> <folder>: what transformers keeps of tinylm's recall questions is what tinylm keeps.
keeps_as_tinylm() {
  local policies=('snapkv(window=16, pool=max:15) | budget(64)' 'trim_kv | budget(96)' 'intent_kv(tail=16) | budget(128)'
    'h2o | budget(64)' 'streaming_llm | budget(64)' 'admit: write_gate | window(16) | at_least(0.1)') cases=60 policy
  "${CXX:-g++}" -std=c++20 -O2 -march=native -pthread -Iinclude -Iexamples -isystem /usr/include/eigen3 \
    "-DTINYLM_WEIGHTS_DIR=\"$PWD/examples/tinylm/weights\"" python/tests/tinylm_keep.cpp examples/tinylm/model.cpp \
    examples/tinylm/attention.cpp -o "$2/tinylm_keep"
  for policy in "${policies[@]}"; do "$2/tinylm_keep" "$policy" "$cases"; done > "$2/tinylm.txt"
  "$1/bin/python" python/recall.py --cases "$cases" --keep "$2/transformers.txt" full "${policies[@]}"
  if ! cmp -s "$2/tinylm.txt" "$2/transformers.txt" || [[ ! -s $2/tinylm.txt ]]; then
    echo "FAILED: of $(wc -l < "$2/tinylm.txt") lanes, $(diff "$2/tinylm.txt" "$2/transformers.txt" | grep -c '^<') keep other entries than in tinylm"
    return 1
  fi
  echo "$(wc -l < "$2/tinylm.txt") of $(wc -l < "$2/tinylm.txt") lanes keep what they keep in tinylm"
}

test_transformers() {
  local venv made order status=0
  venv=$(transformers_venv)
  made=$(mktemp -d)
  python/make_presses.py --check || status=1
  cmp LICENSE python/LICENSE || status=1
  # The wheel comes from the sdist, which has to hold all that a build needs.
  (cd python && "$venv/bin/python" -c "import scikit_build_core.build as b; b.build_sdist('$made')" > "$made/sdist.log") ||
    { cat "$made/sdist.log"; rm -rf "$made"; return 1; }
  "$venv/bin/pip" wheel --quiet --no-deps --no-build-isolation --wheel-dir "$made" "$made"/kvpolicy-*.tar.gz ||
    { rm -rf "$made"; return 1; }
  "$venv/bin/pip" install --quiet --no-deps --force-reinstall "$made"/kvpolicy-*.whl
  "$venv/bin/python" -m pytest -q -p no:cacheprovider python/tests || status=1
  # The same decisions on the device that runs CUDA's kernels on the host.
  "$venv/bin/pip" install --quiet --no-deps --no-build-isolation --target "$made/emulated" \
    -C cmake.define.KVPOLICY_EMULATED_DEVICE=ON ./python || status=1
  KVPOLICY_TEST_DEVICE=1 PYTHONPATH=$made/emulated "$venv/bin/python" -m pytest -q -p no:cacheprovider python/tests || status=1
  # The page of all architectures says what becomes of them today. The line with versions may differ.
  "$venv/bin/python" python/architectures.py --out "$made/models.md" > "$made/models.log" || status=1
  diff <(grep -v ' made this page' docs/transformers_models.md) <(grep -v ' made this page' "$made/models.md") || status=1
  # kvpress itself wants an older transformers, and its presses run with this one, too.
  "$venv/bin/pip" install --quiet --target "$made/kvpress" --no-deps kvpress==0.5.5
  "$venv/bin/pip" install --quiet --target "$made/kvpress" requests cachetools datasets fire
  PYTHONPATH=$made/kvpress "$venv/bin/python" -m pytest -q -p no:cacheprovider python/tests/test_kvpress.py \
    python/tests/test_kvpress_prompts.py || status=1
  # Beside kvpress with the transformers that it asks for, imported before it and after it.
  "$venv/bin/pip" install --quiet --target "$made/older" --no-deps transformers==5.2.0 'tokenizers<=0.23.0,>=0.22.0' accelerate peft
  "$venv/bin/pip" install --quiet --target "$made/hub" 'huggingface-hub<2' typer-slim psutil
  for order in first last; do
    PYTHONPATH=$made/older:$made/hub:$made/kvpress "$venv/bin/python" python/tests/beside_kvpress.py "$order" || status=1
  done
  (cd "$made" && "$venv/bin/python" -m mypy --no-incremental -p kvpolicy) || status=1
  # The wheel alone: neither a compiler nor PyTorch is found from here on.
  "$venv/bin/python" -m venv "$made/empty"
  "$made/empty/bin/pip" install --quiet "$made"/kvpolicy-*.whl pytest
  env -i HOME="$HOME" PATH="$made/empty/bin" "$made/empty/bin/python" -m pytest -q -p no:cacheprovider \
    python/tests/test_decide.py python/tests/test_scores.py python/tests/test_presses.py || status=1
  "$venv/bin/python" bench/engines/transformers_cuda.py --small --lengths 256 --batches 2 || status=1
  keeps_as_tinylm "$venv" "$made" || status=1
  rm -rf "$made"
  return "$status"
}
