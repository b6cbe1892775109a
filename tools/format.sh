#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Formats all sources with clang-format 19.
# tools/format.sh [--check]     --check: changes nothing and fails if a source is not formatted
set -euo pipefail
cd "$(dirname "$0")/.."

how=(-i)
if [[ "${1:-}" == --check ]]; then
  how=(--dry-run -Werror)
fi
folders=()
for folder in include src tests examples bench fuzz python/native; do
  [[ -d $folder ]] && folders+=("$folder")
done
find "${folders[@]}" -name build -prune -o \( -name '*.hpp' -o -name '*.cuh' -o -name '*.cpp' -o -name '*.cu' \) -print0 |
  xargs -0 clang-format-19 "${how[@]}"
